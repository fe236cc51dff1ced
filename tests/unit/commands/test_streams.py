"""Exit codes are those of the command, whoever reads what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfgate.commands.streams import unbroken_streams

STORY = Path(__file__).parents[2] / "fixtures" / "run-story"
PERFGATE = (sys.executable, "-m", "perfgate")
BREAKS_INSIDE = (
    sys.executable,
    "-c",
    """
import os, perfgate.cli as cli
def report(run):
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"x")
cli.app.command("breaks")(lambda: report(None))
cli.main()
""",
)


def ended(command: Sequence[str], *, out: bool, err: bool) -> tuple[int, str]:
    """Exit code, and what was said where somebody reads; the others have gone before the first word."""
    reader, nobody = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE if out else nobody, "stderr": subprocess.PIPE if err else nobody}
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, **streams, text=True, env=plain) as process:  # type: ignore[call-overload]
        os.close(nobody)
        said = process.communicate(timeout=60)
    return process.returncode, "".join(filter(None, said))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("report", str(STORY)), 0),
        (("config", "--example"), 0),
        (("config", "--schema"), 0),
        (("--help",), 0),
        (("--version",), 0),
        (("report", "/nowhere"), 2),
        (("report",), 2),
        (("no-such-command",), 2),
    ],
)
@pytest.mark.parametrize(("out", "err"), [(False, True), (True, False), (False, False)])
def test_nobody_reads_what_a_command_says(arguments: Sequence[str], code: int, out: bool, err: bool) -> None:
    came, said = ended((*PERFGATE, *arguments), out=out, err=err)
    assert came == code, said
    assert "Traceback" not in said
    assert "Broken" not in said


@pytest.mark.parametrize("err", [True, False])
def test_a_pipe_that_breaks_inside_is_no_regression(err: bool) -> None:
    came, said = ended((*BREAKS_INSIDE, "breaks"), out=True, err=err)
    assert came == 4
    assert ("BrokenPipeError" in said) is err


@pytest.mark.parametrize(
    ("arguments", "full", "code"),
    [
        (("report", "/nowhere"), "stderr", 2),
        (("report", str(STORY)), "stderr", 0),
        (("report", str(STORY)), "stdout", 4),
    ],
)
def test_a_full_disk_loses_a_log_but_not_a_comment(arguments: Sequence[str], full: str, code: int) -> None:
    with Path("/dev/full").open("w") as disk:
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, full: disk}
        assert subprocess.run((*PERFGATE, *arguments), check=False, **streams).returncode == code  # type: ignore[call-overload]


@pytest.mark.parametrize("closed", ["1", "2"])
def test_a_stream_that_was_closed_from_the_start(closed: str) -> None:
    shell = f'exec "$0" -m perfgate report "$1" {closed}>&-'
    assert (
        subprocess.run(("sh", "-c", shell, sys.executable, str(STORY)), capture_output=True, check=False).returncode
        == 0
    )


def test_the_streams_are_what_they_were_afterwards() -> None:
    before = sys.stdout, sys.stderr
    with unbroken_streams():
        assert sys.stdout.encoding == before[0].encoding
    assert (sys.stdout, sys.stderr) == before
