"""Real outputs of uv, setuptools and others, shortened; whose fault they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.build.failures import explain, useful_lines
from perfgate.build.steps import BuildStep, StepFailed
from perfgate.records import Blame

CONFLICT = """error: No solution found when resolving dependencies
  cause: Because pytest==8.3.0 depends on pluggy>=1.5,<2 and you require pytest==8.3.0, we can conclude that you require pluggy>=1.5,<2.
         And because you require pluggy==0.13, we can conclude that your requirements are unsatisfiable.
"""  # noqa: E501
MISSING_VERSION = """error: No solution found when resolving dependencies
  cause: Because there is no version of packaging==999 and you require packaging==999, we can conclude that your requirements are unsatisfiable.
"""  # noqa: E501
REFUSED = """error: Request failed after 3 retries in 10.4s
  cause: Failed to fetch: http://127.0.0.1:9/simple/packaging/
  cause: error sending request for url (http://127.0.0.1:9/simple/packaging/)
  cause: client error (Connect)
  cause: tcp connect error
  cause: Connection refused (os error 111)
"""
CERTIFICATE = """error: Failed to fetch: https://index.example/simple/packaging/
  cause: error sending request for url (https://index.example/simple/packaging/)
  cause: client error (Connect)
  cause: invalid peer certificate: UnknownIssuer
"""
FULL = """Using Python 3.11.2 environment at: v
Resolved 2 packages in 42ms
error: Failed to install: more_itertools-11.2.1-py3-none-any.whl (more-itertools==11.2.1)
  cause: failed to copy file from a/more.py to b/.tmpYUnKsw: No space left on device (os error 28)
"""
COMPILE = """building 'badpkg_c' extension
x86_64-linux-gnu-gcc -Wall -Werror=format-security -fPIC -c bad.c -o build/bad.o
bad.c:1:11: error: expected declaration specifiers or '...' before '{' token
    1 | int main( {
      |           ^
error: Command '['x86_64-linux-gnu-gcc', '-c', 'bad.c']' returned non-zero exit status 1.
error: Failed to build `badpkg`
  cause: The build backend returned an error
  cause: Call to `setuptools.build_meta.build_wheel` failed (exit status: 1)

hint: Build failures usually indicate a problem with the package or the build environment
"""
INVALID = """Resolved 1 package in 1ms
Prepared 1 package in 4ms
error: Failed to install: wv-1-py3-none-any.whl (wv==1)
  cause: The wheel is invalid: Unsupported wheel major version (expected 1, got 9)
"""
NO_RECORD = """error: Failed to download `nowheel==1`
  cause: failed to open file `cache/.tmpmSDp4k/nowheel-1.dist-info/RECORD`: No such file or directory (os error 2)
"""
BAD_RECORD = """error: Failed to download `badrecord==1`
  cause: `RECORD` file is invalid
  cause: CSV deserialize error: record 0 (line: 1, byte: 0): field 2: invalid digit found in string
"""
DAMAGED = """error: Failed to download `badcrc @ https://index.example/badcrc-1-py3-none-any.whl`
  cause: Failed to extract archive: badcrc-1-py3-none-any.whl
  cause: Bad CRC (got 1aaeaea8, expected a9d0e55d) for file: x.py
"""
CUT_OFF = """error: Failed to download `torch==2.9.0`
  cause: Failed to extract archive: torch-2.9.0-cp312-cp312-manylinux_2_28_x86_64.whl
  cause: request or response body error
  cause: error reading a body from connection
  cause: end of file before message length reached
"""
NO_DOWNLOAD = "error: Failed to download `torch==2.9.0`\n  cause: something new\n"
FAILING_DISK = """error: Failed to install: torch-2.9.0-cp312-cp312-manylinux_2_28_x86_64.whl (torch==2.9.0)
  cause: failed to copy file from a to b: Input/output error (os error 5)
"""
NO_CACHE = "error: Failed to initialize cache at `/cache/uv`\n  cause: failed to open file: Not a directory\n"
NO_PYTHON = (
    "error: No interpreter found for Python 3.12 in virtual environments, managed installations, or search path\n"
)
NO_CUDA = "CMake Error: No CMAKE_CUDA_COMPILER could be found.\n"
RUSTC = "error[E0308]: mismatched types\n --> src/lib.rs:3:5\nerror: could not compile `x`\n"
KILLED = "nvcc fatal: ...\nc++: fatal error: Killed signal terminated program cc1plus\n"


def _failed(output: str, *, code: int | None = 1, theirs: bool = False) -> StepFailed:
    step = BuildStep(what="install", argv=[], environment={}, cwd=Path("/"), theirs=theirs)
    return StepFailed(step, code, output)


@pytest.mark.parametrize(
    ("output", "theirs", "blame", "reason"),
    [
        (CONFLICT, False, Blame.SIDE, "pytest==8.3.0 depends on pluggy>=1.5,<2"),
        (MISSING_VERSION, False, Blame.SIDE, "no version of packaging==999"),
        (REFUSED, False, Blame.BOX, "a download failed"),
        (CERTIFICATE, False, Blame.BOX, "certificate of the index is not trusted"),
        (FULL, False, Blame.BOX, "the disk is full"),
        (COMPILE, True, Blame.SIDE, "bad.c:1:11: error: expected declaration specifiers"),
        (NO_PYTHON, False, Blame.BOX, "Python asked for is not installed"),
        (NO_CUDA, True, Blame.BOX, "build tool is missing: CMake Error: No CMAKE_CUDA_COMPILER"),
        (RUSTC, True, Blame.SIDE, "error[E0308]: mismatched types"),
        (KILLED, True, Blame.BOX, "too little memory"),
        (
            "CMake Error at CMakeLists.txt:1 (cmake_minimum_required):\n  CMake 3.26 or higher is required.  You are "
            "running version 3.22.1\n",
            *(True, Blame.BOX, "CMake is too old"),
        ),
        (
            "/tmp/x/main.c:5:10: fatal error: Python.h: No such file or directory\ncompilation terminated.\n",
            *(True, Blame.BOX, "no headers"),
        ),
        (
            "-- Could NOT find Python (missing: Python_INCLUDE_DIRS Development.Module) (found version 3.12)\n",
            *(True, Blame.BOX, "no headers"),
        ),
        (
            "nvcc fatal   : Unsupported gpu architecture 'compute_120a'\nninja: build stopped: subcommand failed.\n",
            *(True, Blame.BOX, "does not know its GPUs' architecture"),
        ),
        (
            "error: rustup could not choose a version of cargo to run, because one wasn't specified explicitly, and no "
            "default is configured.\n",
            *(True, Blame.BOX, "rustup has no default toolchain"),
        ),
        (
            "error: failed to get `pyo3` as a dependency\nCaused by:\n  spurious network error (3 tries remaining)\n",
            *(True, Blame.BOX, "a download failed"),
        ),
        (
            "fatal: unable to access 'https://github.com/NVIDIA/cutlass/': Failed to connect\n"
            "CMake Error: Failed to clone repository: 'https://github.com/NVIDIA/cutlass'\n",
            *(True, Blame.BOX, "a download failed"),
        ),
        ("what?", False, Blame.BOX, "install failed with exit code 1"),
        ("what?", True, Blame.SIDE, "install failed with exit code 1"),
    ],
)
def test_whose_fault(output: str, theirs: bool, blame: Blame, reason: str) -> None:
    failure = explain(_failed(output, theirs=theirs))
    assert failure.blame is blame
    assert reason in failure.reason


@pytest.mark.parametrize(
    ("output", "blame", "reason"),
    [
        (INVALID, Blame.SIDE, "install: The wheel is invalid: Unsupported wheel major version (expected 1, got 9)"),
        (NO_RECORD, Blame.SIDE, "install: failed to open file"),
        (BAD_RECORD, Blame.SIDE, "install: `RECORD` file is invalid"),
        (DAMAGED, Blame.SIDE, "install: Failed to extract archive: badcrc-1-py3-none-any.whl"),
        ("what?", Blame.SIDE, "install failed with exit code 2"),
        (CUT_OFF, Blame.BOX, "a download failed"),
        (NO_DOWNLOAD, Blame.BOX, "a download failed: Failed to download `torch==2.9.0`"),
        (REFUSED, Blame.BOX, "a download failed"),
        (FULL, Blame.BOX, "the disk is full"),
        (FAILING_DISK, Blame.BOX, "the box refused: failed to copy file from a to b: Input/output error"),
        (NO_CACHE, Blame.BOX, "the box refused: Failed to initialize cache"),
    ],
)
def test_whose_fault_where_wheels_that_a_side_chose_are_installed(output: str, blame: Blame, reason: str) -> None:
    step = BuildStep(what="install", argv=[], environment={}, cwd=Path("/"), handles_theirs=True)
    failure = explain(StepFailed(step, 2, output))
    assert (failure.blame, failure.reason[: len(reason)]) == (blame, reason)


def test_a_kill_and_a_timeout() -> None:
    assert "was killed" in explain(_failed("", code=-9, theirs=True)).reason
    assert explain(_failed("", code=-9, theirs=True)).blame is Blame.BOX
    late = explain(_failed("compiling…", code=None, theirs=True))
    assert (late.blame, late.remedy) == (Blame.SIDE, "raise build.minutes")
    assert explain(_failed("Downloading", code=None)).blame is Blame.BOX


def test_lines_begin_at_the_first_error_and_hold_no_noise() -> None:
    assert useful_lines(COMPILE)[0].startswith("bad.c:1:11: error:")
    assert not any("hint: Build failures" in line for line in useful_lines(COMPILE))
    assert useful_lines("a\n" * 50 + "b") == ("a",) * 11 + ("b",)
    assert useful_lines("") == ()


@given(st.text(max_size=2000), st.integers(-20, 255), st.booleans())
def test_any_output_gives_one_line_and_bounded_lines(output: str, code: int, theirs: bool) -> None:
    failure = explain(_failed(output, code=code, theirs=theirs))
    assert failure.reason
    assert "\n" not in failure.reason
    assert len(failure.lines) <= 12
    assert all("\x1b" not in line and len(line) <= 240 for line in failure.lines)
