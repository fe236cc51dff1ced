"""The commands, one short function each."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from perfgate import __version__
from perfgate.errors import PerfgateError

app = typer.Typer(
    name="perfgate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Did this change make serving slower, by how much, in which phase, and how sure are we?",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perfgate {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    pass


@app.command(rich_help_panel="On GitHub")
def respond() -> None:
    """Answer the event that started this workflow: who asks for what, and may they."""
    from perfgate.github.steps import respond_step

    respond_step(os.environ)


@app.command(hidden=True)
def gate_request(
    box: Annotated[Path, typer.Option(help="The box's own file.")] = Path("/etc/perfgate/box.yml"),
) -> None:
    """Run the gate on what `respond` authorised; the step of the workflow on the box."""
    from perfgate.github.box import gate_request_step
    from perfgate.progress import Progress

    raise typer.Exit(gate_request_step(os.environ, box, Progress()))


@app.command(rich_help_panel="On GitHub")
def publish(
    artifact: Annotated[Path, typer.Argument(help="Folder with what the box sent: result.json, or one zip.")],
) -> None:
    """Say on the pull request what was measured: the comment, the check, the job summary."""
    from perfgate.github.steps import publish_step

    raise typer.Exit(publish_step(os.environ, artifact))


@app.command(rich_help_panel="Begin")
def init(
    folder: Annotated[Path, typer.Argument(help="Checkout of the repository that is to use perfgate.")] = Path(),
    box: Annotated[bool, typer.Option("--box", help="Write this machine's box file instead.")] = False,
    to: Annotated[Path, typer.Option(help="Where the box file goes.")] = Path("/etc/perfgate/box.yml"),
    perfgate: Annotated[
        str, typer.Option(help="perfgate itself, OWNER/NAME@SHA; default: where this one came from.")
    ] = "",
    runs_on: Annotated[str, typer.Option(help="Labels of the box's runner.")] = "self-hosted,perfgate",
    private: Annotated[bool, typer.Option("--private", help="For a private repository.")] = False,
) -> None:
    """Write the workflow and a commented perfgate.yml into a repository, or this box's file."""
    from perfgate.github import init as begin

    console = Console(markup=False, highlight=False, soft_wrap=True)
    if box:
        console.print(begin.init_box(to))
    else:
        console.print(begin.init_repository(folder, begin.Caller.of(perfgate, runs_on, private=private)))


def main() -> None:
    """Runs one command; a PerfgateError becomes one line and its exit code."""
    try:
        app()
    except PerfgateError as error:
        Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(f"perfgate: {error}")
        sys.exit(error.exit_code)
