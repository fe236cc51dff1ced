"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfgate.config.profile import Profile

OutOption = Annotated[
    Path | None, typer.Option("--out", help="Directory for the run's files. Default: in the state directory.")
]
RepoOption = Annotated[Path, typer.Option(help="A checkout of SGLang or of a fork of it.")]
ConfigOption = Annotated[Path | None, typer.Option(help="Use this perfgate.yml, not the base branch's.")]
BoxOption = Annotated[Path | None, typer.Option(help="The box's file. Default: /etc/perfgate/box.yml.")]
ProfileOption = Annotated[Profile, typer.Option(help="cpu: real SGLang without a GPU, with a tiny model.")]
RunArgument = Annotated[Path, typer.Argument(help="Directory of a run, with its facts.jsonl.", show_default=False)]
