"""Temporary folders that name the process that made them: what a killed perfgate left is told from what is in use."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from perfgate.store.removal import remove_tree

_NAME = re.compile(r"perfgate-[a-z]+-(\d+)-\w+")


def prefix(what: str) -> str:
    """For `tempfile`; `what` in small letters."""
    return f"perfgate-{what}-{os.getpid()}-"


@contextmanager
def temporary_folder(what: str) -> Iterator[Path]:
    """A new folder that code of a pull request may be given. What cannot be removed of it is left to the next gate.

    Not `tempfile.TemporaryDirectory`, which gives up on folders nested a thousandfold, and up to Python 3.11.7 follows
    links where it may not remove something.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix(what)))
    try:
        yield folder
    finally:
        with suppress(OSError):
            remove_tree(folder)


def sweep_temporary(handed_to: int | None = None) -> None:
    """Removes our own folders whose maker is gone. Done by a gate that has the box for itself.

    `handed_to`: the user whom a folder belongs to while code of a pull request uses it.
    """
    owners = {os.geteuid(), *(() if handed_to is None else (handed_to,))}
    for folder in {Path(tempfile.gettempdir()), Path("/tmp")}:
        for path in folder.glob("perfgate-*"):
            match = _NAME.fullmatch(path.name)
            if match and _is_gone(int(match[1])) and _owner(path) in owners:
                with suppress(OSError):  # a stranger's folder ends no gate
                    remove_tree(path)


def _is_gone(pid: int) -> bool:
    """Also where nobody has asked for its exit status yet, as of one whose parent was killed."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"  # proc(5): the name in brackets may hold anything


def _owner(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None  # gone meanwhile
