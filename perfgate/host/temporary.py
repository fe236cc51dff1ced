"""Temporary folders that name the process that made them: what a killed perfgate left is told from what is in use."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"perfgate-[a-z]+-(\d+)-\w+")


def prefix(what: str) -> str:
    """For `tempfile`; `what` in small letters."""
    return f"perfgate-{what}-{os.getpid()}-"


def sweep_temporary() -> None:
    """Removes our own folders whose maker is gone. Done by a gate that has the box for itself."""
    for folder in {Path(tempfile.gettempdir()), Path("/tmp")}:
        for path in folder.glob("perfgate-*"):
            match = _NAME.fullmatch(path.name)
            if match and not Path("/proc", match[1]).exists() and _ours(path):
                shutil.rmtree(path, ignore_errors=True)


def _ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False  # gone meanwhile
