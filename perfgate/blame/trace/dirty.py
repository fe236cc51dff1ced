"""Whether the files that a log ran from were those of its commit.

Nobody wrote that down at the time. What can be known is in the files of today: one that was not changed since before
the log began (its ctime and mtime say when) had then the content that it has now.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

SERVED = "python/sglang"
SHOWN = 3


class TreeState(StrEnum):
    CLEAN = "as committed"
    DIRTY = "changed"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class WorkTree:
    state: TreeState
    why: str


@dataclass(frozen=True)
class FileNow:
    changed: float  # the later of ctime and mtime
    blob: str | None  # git's hash of what it holds; None: it is no regular file, or gone


def state_then(files: Mapping[str, FileNow], committed: Mapping[str, str], began: float) -> WorkTree:
    """`committed`: path → blob of the commit that HEAD was at."""
    if not committed:
        return WorkTree(TreeState.UNKNOWN, "the commit's files are gone from the repository")
    untouched = {path: file for path, file in files.items() if file.changed < began and file.blob is not None}
    differing = sorted(path for path, file in untouched.items() if path in committed and file.blob != committed[path])
    if differing:
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        names = ", ".join(differing[:SHOWN])
        return WorkTree(TreeState.DIRTY, f"{names}{more}: not as in the commit, and untouched since before it began")
    same = sum(path in untouched for path in committed)
    if same == len(committed) and committed.keys() >= files.keys():
        return WorkTree(TreeState.CLEAN, "every file is as in the commit, and untouched since before it began")
    return WorkTree(
        TreeState.UNKNOWN,
        f"{same} of {len(committed)} files are as in the commit and untouched since; of the others nobody knows",
    )


def files_now(work_tree: Path, hash_length: int) -> dict[str, FileNow]:
    """The Python files of the package in a checkout, as they are now."""
    found: dict[str, FileNow] = {}
    for folder, _, names in os.walk(work_tree / SERVED):
        for name in names:
            if name.endswith(".py"):
                path = Path(folder, name)
                found[str(path.relative_to(work_tree))] = _file_now(path, hash_length)
    return found


def _file_now(path: Path, hash_length: int) -> FileNow:
    try:
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return FileNow(float("inf"), None)
    changed = max(status.st_ctime, status.st_mtime)
    return FileNow(changed, None if content is None else _blob(content, hash_length))


def _blob(content: bytes, hash_length: int) -> str:
    made = hashlib.sha256() if hash_length == 64 else hashlib.sha1(usedforsecurity=False)
    made.update(b"blob %d\0" % len(content))
    made.update(content)
    return made.hexdigest()


def python_only(committed: Mapping[str, str]) -> dict[str, str]:
    return {path: blob for path, blob in committed.items() if path.endswith(".py")}


def later_commits(messages: Iterable[tuple[float, str]], began: float) -> str | None:
    """The first commit made in the checkout after a log began: its changes may have been in the tree already."""
    return next((what for time, what in messages if time > began and what.startswith(("commit", "cherry-pick"))), None)
