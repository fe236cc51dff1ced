"""`perfgate models …`, as a command line; part of perfgate's own. Each command imports what it needs itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfgate.commands.options import BoxOption, ConfigOption
from perfgate.errors import PerfgateError

if TYPE_CHECKING:
    from perfgate.config.model import Resolved


app = typer.Typer(no_args_is_help=True, help="Targets and drafts at pinned revisions in the box's HF_HOME.")


def _resolved(config: Path | None, box: Path | None) -> Resolved:
    from perfgate.config import files as config_file
    from perfgate.run.plan import GateRequest, find_box

    if config is None:
        raise PerfgateError(
            "which models are wanted stands in a perfgate.yml",
            where="--config",
            remedy="give it: --config .github/perfgate.yml",
        )
    return config_file.resolve(config_file.load_file(config), find_box(GateRequest(repo=Path(), head="", box=box)))


@app.command("fetch")
def models_fetch(config: ConfigOption = None, box: BoxOption = None) -> None:
    """Fetch what is missing. The only command that uses a hub token (HF_TOKEN)."""
    from perfgate.commands import models

    models.fetch(_resolved(config, box), typer.echo)


@app.command("verify")
def models_verify(config: ConfigOption = None, box: BoxOption = None) -> None:
    """Check that every model is there, and that its weights have the hash they are filed under."""
    from perfgate.commands import models

    models.verify(_resolved(config, box), typer.echo)
