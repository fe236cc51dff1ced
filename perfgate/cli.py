"""The commands, one short function each."""

from __future__ import annotations

import sys
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


def main() -> None:
    """Runs one command; a PerfgateError becomes one line and its exit code."""
    try:
        app()
    except PerfgateError as error:
        Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(f"perfgate: {error}")
        sys.exit(error.exit_code)
