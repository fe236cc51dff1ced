"""What a folder holds, cheaply: enough to see that somebody changed it, without reading it.

One line a file, folder or link: name, kind and mode, size, times of the last change of content and of anything at all
(the latter no program can set), and where a link points. Half a second for an environment of 50,000 files.
The price: a folder that was copied, restored or chown-ed counts as changed, and is made again.
"""

# Names are bytes here: strangers choose them, in any encoding.
# ruff: noqa: PTH115
from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from perfgate.store.strangers import walk


@dataclass(frozen=True)
class Manifest:
    text: bytes  # sorted lines
    files: int
    size: int  # bytes on disk

    @classmethod
    def of(cls, root: Path) -> Manifest:
        lines: list[bytes] = []
        files = size = 0
        for path, about in walk(root):
            name = os.path.relpath(path, os.fsencode(root))
            lines.append(_line(path, name, about))
            files += stat.S_ISREG(about.st_mode)
            size += about.st_blocks * 512
        return cls(b"".join(sorted(lines)), files, size)


def size_of(root: Path) -> int:
    """Bytes on disk, as far as they can be counted."""
    return sum(about.st_blocks * 512 for _, about in walk(root))


def _line(path: bytes, name: bytes, about: os.stat_result) -> bytes:
    link = os.readlink(path) if stat.S_ISLNK(about.st_mode) else b""
    size = about.st_size if stat.S_ISREG(about.st_mode) else 0
    numbers = f"{about.st_mode:o} {size} {about.st_mtime_ns} {about.st_ctime_ns}"
    return b"%s\t%s\t%s\n" % (_escaped(name), numbers.encode(), _escaped(link))


def _escaped(name: bytes) -> bytes:
    return name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\t", b"\\t")


def difference(expected: bytes, found: bytes) -> str:
    """In words, what changed between two manifests; empty where nothing did."""
    if expected == found:
        return ""
    before = {line.split(b"\t", 1)[0]: line for line in expected.splitlines()}
    now = {line.split(b"\t", 1)[0]: line for line in found.splitlines()}
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    first = (changed[0] if changed else b".").decode("utf-8", "replace")
    what = "is gone" if changed and changed[0] not in now else "is new" if changed and changed[0] not in before else ""
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{first}{more} {what or 'was changed'}".replace("\\n", " ")
