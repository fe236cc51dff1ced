"""Exit codes are those of the command, whoever reads what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from perfgate.cli import unbroken_streams

STORY = Path(__file__).parents[2] / "fixtures" / "run-story"
PERFGATE = (sys.executable, "-m", "perfgate")
NOWHERE = "/nowhere"
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
COMMANDS = (
    (("report", str(STORY)), 0),
    (("config", "--example"), 0),
    (("config", "--schema"), 0),
    (("--help",), 0),
    (("--version",), 0),
    (("report", NOWHERE), 2),
    (("report",), 2),
    (("no-such-command",), 2),
)
READERS = (("nobody", "somebody"), ("somebody", "nobody"), ("nobody", "nobody"))
FULL = (
    (("report", NOWHERE), "null", "full", 2),
    (("report", str(STORY)), "null", "full", 0),
    (("report", str(STORY)), "full", "null", 4),
)
# Importing takes longest, so it is done once: each command is a child that ends as any Python does.
IN_CHILDREN = """
import json, os, sys, perfgate.cli as cli, perfgate.records.files, perfgate.report.comment, perfgate.config.files

def opened(kind):
    reader, writer = os.pipe()
    if kind == "somebody":
        return reader, writer
    os.close(reader)
    if kind == "nobody":
        return None, writer
    os.close(writer)
    return None, os.open({"full": "/dev/full", "null": "/dev/null"}[kind], os.O_WRONLY)

found = []
for arguments, *kinds in json.loads(sys.argv[1]):
    streams = [opened(kind) for kind in kinds]
    child = os.fork()
    if not child:
        for number, (_, writer) in enumerate(streams, 1):
            os.dup2(writer, number)
        sys.stdout = open(1, "w", closefd=False)
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        sys.argv = ["perfgate", *arguments]
        cli.main()
        sys.exit()
    said = ""
    for reader, writer in streams:
        os.close(writer)
    for reader, writer in streams:
        if reader is not None:
            said += open(reader, errors="replace").read()
    found.append([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said])
print(json.dumps(found))
"""


def buffered() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@cache
def all_ended() -> dict[tuple[Sequence[str], str, str], tuple[int, str]]:
    """Of each command and its two streams: exit code, and what was said where somebody reads."""
    asked = [(arguments, out, err) for arguments, _ in COMMANDS for out, err in READERS]
    asked += [(arguments, out, err) for arguments, out, err, _ in FULL]
    command = (sys.executable, "-c", IN_CHILDREN, json.dumps(asked))
    done = subprocess.run(command, capture_output=True, text=True, env=buffered(), check=True, timeout=120)
    return {which: (code, said) for which, (code, said) in zip(asked, json.loads(done.stdout), strict=True)}


@pytest.mark.parametrize(("arguments", "code"), COMMANDS)
@pytest.mark.parametrize(("out", "err"), READERS)
def test_nobody_reads_what_a_command_says(arguments: Sequence[str], code: int, out: str, err: str) -> None:
    came, said = all_ended()[arguments, out, err]
    assert came == code, said
    assert "Traceback" not in said
    assert "Broken" not in said


@pytest.mark.parametrize("reads", [True, False])
def test_a_pipe_that_breaks_inside_is_no_regression(reads: bool) -> None:
    reader, nobody = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE if reads else nobody}
    with subprocess.Popen((*BREAKS_INSIDE, "breaks"), **streams, text=True, env=buffered()) as process:  # type: ignore[call-overload]
        os.close(nobody)
        said = "".join(filter(None, process.communicate(timeout=60)))
    assert process.returncode == 4
    assert ("BrokenPipeError" in said) is reads


@pytest.mark.parametrize(("arguments", "out", "err", "code"), FULL)
def test_a_full_disk_loses_a_log_but_not_a_comment(arguments: Sequence[str], out: str, err: str, code: int) -> None:
    assert all_ended()[arguments, out, err][0] == code


def test_a_full_disk_where_the_comment_goes() -> None:
    with Path("/dev/full").open("w") as disk:
        done = subprocess.run((*PERFGATE, "report", str(STORY)), check=False, stdout=disk, stderr=subprocess.DEVNULL)
    assert done.returncode == 4


@pytest.mark.parametrize("closed", ["1", "2"])
def test_a_stream_that_was_closed_from_the_start(closed: str) -> None:
    shell = f'exec "$0" -m perfgate report "$1" {closed}>&-'
    command = ("sh", "-c", shell, sys.executable, str(STORY))
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_streams_are_what_they_were_afterwards() -> None:
    before = sys.stdout, sys.stderr
    with unbroken_streams():
        assert sys.stdout.encoding == before[0].encoding
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.parametrize("line", ["::set-output name=x::y", "  ::add-path::/tmp", "log ##[add-path]/tmp", "::::stop::"])
@pytest.mark.parametrize("begin", ["", "12:00:00  "])
def test_no_line_on_standard_error_is_a_command_to_the_runner(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], line: str, begin: str
) -> None:
    """As progress and errors say it; standard output, which other programs read, stays as it is."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    with unbroken_streams():
        print(begin + line, file=sys.stderr)
        print(line)
    said = capfd.readouterr()
    assert "::" not in said.err
    assert "##[" not in said.err
    assert said.err.replace("\u2060", "") == f"{begin}{line}\n"
    assert said.out == f"{line}\n"
