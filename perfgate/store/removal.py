"""Removes folders that strangers' code could fill: of any depth, with names of any length, full of links, locked.

It goes down and up by descriptors of folders, one open at a time, so no path grows with the depth: not beyond what the
kernel takes for a path, nor beyond the stack. No link is followed, whatever is moved meanwhile.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(root: Path) -> None:
    """Removes a folder that may be read-only, or whatever lies in its place. OSError where some of it cannot be."""
    if root.is_symlink() or not root.is_dir():
        root.unlink(missing_ok=True)
        return
    try:
        _empty(root)
        root.rmdir()
    except OSError:
        if os.path.lexists(root):  # else somebody else has removed it
            raise


@dataclass
class _Level:
    """A folder on the way down, and those in it that are still to be removed."""

    name: str
    identity: tuple[int, int]
    folders: list[str]

    @classmethod
    def emptied(cls, name: str, folder: int) -> _Level:
        return cls(name, _identity(folder), _unlink_files(folder))


def _empty(root: Path) -> None:
    here = _enter(str(root))
    try:
        way = [_Level.emptied("", here)]
        while way:
            if way[-1].folders:
                name = way[-1].folders.pop()
                here = _exchange(here, _enter(name, here))
                way.append(_Level.emptied(name, here))
            else:
                done = way.pop()
                if way:
                    here = _exchange(here, _parent(here, way[-1].identity))
                    with suppress(FileNotFoundError):
                        os.rmdir(done.name, dir_fd=here)
    finally:
        os.close(here)


def _enter(name: str, parent: int | None = None) -> int:
    """An open folder that its owner may use from now on; never one that a link leads to."""
    place = os.open(name, os.O_PATH | _FOLDER, dir_fd=parent)
    try:
        with suppress(PermissionError):  # not ours, but perhaps we may remove it even so
            os.chmod(f"/proc/self/fd/{place}", 0o700)  # noqa: PTH101  by its descriptor: no path leads there for sure
        return os.open(".", os.O_RDONLY | _FOLDER, dir_fd=place)
    finally:
        os.close(place)


def _unlink_files(folder: int) -> list[str]:
    """Removes all but the folders from a folder; their names."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(entry.name, dir_fd=folder)
    return folders


def _parent(folder: int, identity: tuple[int, int]) -> int:
    """One up; OSError where somebody has moved the folder meanwhile: what lies above it now is none of ours."""
    parent = os.open("..", os.O_RDONLY | _FOLDER, dir_fd=folder)
    if _identity(parent) != identity:
        os.close(parent)
        raise OSError("a folder was moved while it was removed")
    return parent


def _identity(folder: int) -> tuple[int, int]:
    about = os.fstat(folder)
    return about.st_dev, about.st_ino


def _exchange(old: int, new: int) -> int:
    os.close(old)
    return new
