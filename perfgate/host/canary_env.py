"""The canary's own environment on a GPU box: PyTorch and its NCCL, pinned by perfgate and touched by no pull request.

Made once by uv in the box's state and kept. It is addressed by what it holds, so another perfgate with other pins makes
another one, and numbers of the two are never compared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perfgate.errors import Exit, PerfgateError
from perfgate.facts import short_hash

REQUIREMENTS = ("torch==2.9.1", "numpy==2.2.6")  # NCCL 2.27.5 comes with it; serves compute capability 7.0 to 12.0
PYTHON = "3.12"
LIMIT_S = 1800.0
FINISHED = "finished"

PASSED = ("PATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE")


class CanaryEnvironmentError(PerfgateError):
    """The canary's environment cannot be made."""

    exit_code = Exit.CANNOT


def canary_folder(state_dir: Path, requirements: Sequence[str] = REQUIREMENTS) -> Path:
    return state_dir / "canary" / short_hash("\n".join((PYTHON, *requirements)))


def canary_python(state_dir: Path, requirements: Sequence[str] = REQUIREMENTS) -> Path:
    """Where its interpreter is, or will be."""
    return canary_folder(state_dir, requirements) / "bin" / "python"


def make_canary_environment(
    state_dir: Path,
    say: Callable[[str], None] = lambda _line: None,
    requirements: Sequence[str] = REQUIREMENTS,
    environment: Mapping[str, str] | None = None,
) -> Path:
    """The interpreter of a finished environment. Call it while holding the box's lock.

    Raises CanaryEnvironmentError with uv's last line. What an interrupted attempt left is made anew.
    """
    folder = canary_folder(state_dir, requirements)
    python = canary_python(state_dir, requirements)
    if (folder / FINISHED).exists():
        return python
    say(f"making the canary's environment: {', '.join(requirements)}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    own = os.environ if environment is None else environment
    passed = {name: value for name, value in own.items() if name in PASSED or name.startswith("UV_")}
    variables = {**passed, "HOME": str(folder.parent), "UV_NO_PROGRESS": "1", "UV_LINK_MODE": "copy"}
    _uv(["venv", "--no-config", "--no-project", "--python", PYTHON, str(folder)], variables)
    _uv(["pip", "install", "--no-config", "--python", str(python), "--only-binary", ":all:", *requirements], variables)
    (folder / FINISHED).touch()
    return python


def _uv(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    from uv import find_uv_bin

    try:
        done = subprocess.run(
            [find_uv_bin(), *arguments],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(str(error)) from error
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise _failed(lines[-1][:300] if lines else f"uv ended with status {done.returncode}")


def _failed(why: str) -> CanaryEnvironmentError:
    return CanaryEnvironmentError(
        f"the canary's environment cannot be made: {why}", remedy="check the package index and the free space"
    )
