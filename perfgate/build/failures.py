"""Why a build failed, and whose fault it is: read from what uv, compilers and the kernel said.

The box's: network, disk, memory, a missing tool. The side's: what it asks for cannot be had or does not compile.
Only words decide, and a hostile build may say what it likes: either way the verdict is `build_failed`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from perfgate.build.steps import StepFailed
from perfgate.errors import Exit, PerfgateError
from perfgate.records import Blame, Side
from perfgate.text import visible

SHOWN_LINES = 12
_LINE = 240


@dataclass(frozen=True)
class BuildFault:
    reason: str  # one line
    blame: Blame
    lines: tuple[str, ...] = ()  # strangers' text
    remedy: str | None = None


class BuildFailed(PerfgateError):
    """One side could not be built."""

    exit_code = Exit.CANNOT

    def __init__(self, side: Side, failure: BuildFault, *, key: str = "", log: Path | None = None) -> None:
        self.side = side
        self.failure = failure
        self.key = key
        self.log = log
        super().__init__(failure.reason, where=f"build of {side}", remedy=failure.remedy)


class Refused(Exception):
    """Perfgate itself saw that a side cannot be built."""

    def __init__(self, failure: BuildFault) -> None:
        self.failure = failure
        super().__init__(failure.reason)


@dataclass(frozen=True)
class _Sign:
    pattern: str
    reason: str  # "{line}": the line that showed it; "{what}": the step's name
    blame: Blame
    remedy: str | None = None


_NO_DOWNLOAD = "a download failed: {line}"
_LOOK_AT_NETWORK = "check the box's network and its package index, then run again"
_SIGNS = (
    _Sign(r"No space left on device|Disk quota exceeded", "the disk is full", Blame.BOX, "free some space"),
    _Sign(
        r"invalid peer certificate|certificate verify failed|self.signed certificate",
        "a download failed: the certificate of the index is not trusted",
        Blame.BOX,
        "set SSL_CERT_FILE in the box's env",
    ),
    _Sign(
        r"No interpreter found for|No download found for request|python-build-standalone",
        "the Python asked for is not installed",
        Blame.BOX,
        "install it, or set build.python to one that is there",
    ),
    _Sign(
        r"network was disabled|Request failed after|error sending request|Could not resolve host|dns error"
        r"|Temporary failure in name resolution|Connection refused|Connection reset|Network is unreachable"
        r"|operation timed out|HTTP status server error|Failed to fetch|error decoding response body"
        r"|request or response body error|end of file before message length",
        _NO_DOWNLOAD,
        Blame.BOX,
        _LOOK_AT_NETWORK,
    ),
    _Sign(  # before the next one: uv says "Failed to download" of a wheel that came and is none, too
        r"The wheel is invalid|`RECORD` file is invalid|has an invalid package format|Failed to extract archive"
        r"|\.dist-info/(RECORD|WHEEL|METADATA)`: No such file",
        "{what}: {line}",
        Blame.SIDE,
    ),
    _Sign(r"Failed to download(?! and build)", _NO_DOWNLOAD, Blame.BOX, _LOOK_AT_NETWORK),
    _Sign(
        r"Cannot allocate memory|virtual memory exhausted|fatal error: Killed|signal: 9|out of memory",
        "the box has too little memory for this build",
        Blame.BOX,
        "lower build.jobs",
    ),
    _Sign(
        r"CMake [\d.]+ or higher is required",
        "CMake is too old: {line}",
        Blame.BOX,
        "let build steps reach a package index that has cmake's wheel",
    ),
    _Sign(
        r"Python\.h: No such file|Could NOT find Python.*(Development|INCLUDE_DIR)|Python headers",
        "the environment's Python has no headers (Python.h): {line}",
        Blame.BOX,
        "let uv download its own Python (UV_PYTHON_DOWNLOADS), or install python3-dev",
    ),
    _Sign(
        r"nvcc fatal\s*: Unsupported gpu architecture|nvcc fatal\s*: Value '[^']*' is not defined for option 'gpu-arch",
        "this box's nvcc does not know its GPUs' architecture: {line}",
        Blame.BOX,
        "install a newer CUDA toolkit, or name its folder under tools in the box's file",
    ),
    _Sign(
        r"no default (toolchain|is) (set|configured)|rustup could not choose a version",
        "rustup has no default toolchain",
        Blame.BOX,
        "rustup default stable, and RUSTUP_HOME in the box's env",
    ),
    _Sign(
        r"spurious network error|failed to (get|fetch|download) .* from registry|RPC failed|unable to access 'https?://"
        r"|Failed to clone repository|curl: \(\d+\)|error: downloading 'https?://|early EOF",
        _NO_DOWNLOAD,
        Blame.BOX,
        _LOOK_AT_NETWORK,
    ),
    _Sign(
        r"(cargo|rustc|protoc|nvcc|cmake|ninja|ccache|c\+\+|g\+\+|gcc): (command )?not found"
        r"|No CMAKE_(CUDA|CXX|C)_COMPILER could be found|Could not find `protoc`|cargo is required"
        r"|unable to find a build program|command '[^']*(gcc|g\+\+|nvcc)' failed: No such file",
        "a build tool is missing: {line}",
        Blame.BOX,
        "install it, or name its folder under tools in the box's file; `perfgate doctor` lists them",
    ),
    _Sign(
        r"Permission denied|Operation not permitted|Read-only file system|Input/output error|Too many open files"
        r"|Stale file handle|Structure needs cleaning|[Ff]ailed to (initialize|open|write to|read from) (the )?cache"
        r"|[Ff]ailed to deserialize cache entry|[Ff]ailed to acquire lock",
        "the box refused: {line}",
        Blame.BOX,
        "perfgate doctor",
    ),
    _Sign(r"Because .*", "what it asks to install cannot be had together: {line}", Blame.SIDE),
    _Sign(r"Couldn't parse requirement.*|Failed to parse.*", "{line}", Blame.SIDE),
)
_COMPILER_ERROR = re.compile(r"\berror(\[E\d+\])?: (?!subprocess|Failed to build|[Cc]ommand )")


def explain(failed: StepFailed) -> BuildFault:
    """Reason, blame and the useful lines of a step that failed."""
    lines = useful_lines(failed.output)
    if failed.code is None:
        blame = Blame.SIDE if failed.step.theirs else Blame.BOX
        return BuildFault(f"{failed.step.what} took longer than build.minutes", blame, lines, "raise build.minutes")
    for sign in _SIGNS:
        match = re.search(sign.pattern, failed.output)
        if match:
            line = _whole_line(failed.output, match.start())
            return BuildFault(sign.reason.format(line=line, what=failed.step.what), sign.blame, lines, sign.remedy)
    if failed.code in (-9, 137):
        return BuildFault(
            f"{failed.step.what} was killed", Blame.BOX, lines, "the kernel log says by whom (out of memory?)"
        )
    if not failed.step.theirs and not failed.step.handles_theirs:
        return BuildFault(f"{failed.step.what} failed with exit code {failed.code}", Blame.BOX, lines)
    error = _COMPILER_ERROR.search(failed.output)
    what = f"{failed.step.what}: {_whole_line(failed.output, error.start())}" if error else None
    return BuildFault(what or f"{failed.step.what} failed with exit code {failed.code}", Blame.SIDE, lines)


def _whole_line(output: str, at: int) -> str:
    start = output.rfind("\n", 0, at) + 1
    end = output.find("\n", at)
    line = visible(output[start : end if end >= 0 else len(output)][:2000], _LINE)
    return re.sub(r"^(error|cause|fatal): ", "", line)


def useful_lines(output: str) -> tuple[str, ...]:
    """From the first line that speaks of an error, at most a dozen; else the last lines."""
    lines = [shown for line in output.splitlines() if (shown := visible(line[:2000], _LINE))]
    lines = [line for line in lines if not line.startswith(("Using Python ", "Downloading ", "hint: Build failures"))]
    first = next((number for number, line in enumerate(lines) if _speaks_of_error(line)), None)
    return tuple(lines[first : first + SHOWN_LINES] if first is not None else lines[-SHOWN_LINES:])


def _speaks_of_error(line: str) -> bool:
    return re.search(r"\berror\b|\bfatal\b|^cause:|Error:", line) is not None and "-Werror" not in line


def box_failure(reason: str, remedy: str | None = None) -> BuildFault:
    return BuildFault(reason, Blame.BOX, (), remedy)


def side_failure(reason: str, remedy: str | None = None) -> BuildFault:
    return BuildFault(reason, Blame.SIDE, (), remedy)
