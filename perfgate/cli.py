"""perfgate's command line: the commands of `perfgate.commands`, exit codes, and streams whose reader may go away.

A reader goes away as `tee` does on Ctrl-C. What is said then is lost, and that is all: rich and typer would end the
process with 1 there, the exit code of a regression, in the midst of a clean-up.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, TextIO, cast

import typer
from rich.console import Console

from perfgate import __version__
from perfgate.commands import github, models_cli, questions, runs
from perfgate.errors import Exit, PerfgateError
from perfgate.report.escape import JOINER
from perfgate.text import visible

app = typer.Typer(
    name="perfgate",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Did this change make serving slower, by how much, in which phase, and how sure are we?",
)
for commands in (runs, questions, github):
    app.add_typer(commands.app)
app.add_typer(models_cli.app, name="models")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"perfgate {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs one command; a PerfgateError becomes one line and its exit code."""
    with unbroken_streams():
        _run()


def _run() -> None:
    try:
        app()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer takes any for its own, and would end with 1
            traceback.print_exception(ended.__context__)
            sys.exit(Exit.CANNOT)
        raise
    except PerfgateError as error:
        shown = "\n".join(visible(line, keep_spaces=True) for line in str(error).split("\n"))  # holds strangers' text
        Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(f"perfgate: {shown}")
        sys.exit(error.exit_code)
    except Exception:  # noqa: BLE001 - a fault of perfgate's own must not end with the exit code of a regression
        traceback.print_exc()
        sys.exit(Exit.CANNOT)


class Unbroken:
    """A text stream that goes quiet at the first of the errors that are passed over."""

    def __init__(self, stream: TextIO, passed_over: type[OSError], *, in_workflow: bool = False) -> None:
        self._stream = stream
        self._passed_over = passed_over
        self._in_workflow = in_workflow

    def write(self, text: str) -> int:
        try:
            self._stream.write(without_commands(text) if self._in_workflow else text)
            return len(text)
        except self._passed_over:
            self._go_quiet()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except self._passed_over:
            self._go_quiet()

    def _go_quiet(self) -> None:
        """What is said from now on goes nowhere, and so does what the stream still holds when Python ends."""
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def without_commands(text: str) -> str:
    """The text with the two kinds of commands that GitHub's runner reads out of a log broken, by what nobody sees.

    Progress and errors carry strangers' text: `::name::` and `##[name]` in it do nothing.
    """
    return re.sub(r":(?=:)|##(?=\[)", rf"\g<0>{JOINER}", text)


@contextmanager
def unbroken_streams() -> Iterator[None]:
    """Within it no reader who has gone ends anything; nor does whatever else befalls standard error."""
    before = sys.stdout, sys.stderr
    in_workflow = os.environ.get("GITHUB_ACTIONS") == "true"
    sys.stdout = _unbroken(sys.stdout, BrokenPipeError)
    sys.stderr = _unbroken(sys.stderr, OSError, in_workflow=in_workflow)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # while a reader who has gone still ends nothing
        sys.stdout, sys.stderr = before


def _unbroken(stream: TextIO | None, passed_over: type[OSError], *, in_workflow: bool = False) -> TextIO:
    """None for a stream that was closed from the start."""
    return cast(TextIO, stream and Unbroken(stream, passed_over, in_workflow=in_workflow))
