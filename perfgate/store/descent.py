"""Goes through folders that strangers' code could fill: of any depth, with names of any length, full of links, moved.

Down and up by descriptors of folders, one open at a time, so no path grows with the depth: not beyond what the kernel
takes for a path, nor beyond the stack. No link is followed, whatever is moved or swapped meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_folder(name: str, parent: int | None = None) -> int:
    """An open folder; never one that a link leads to."""
    return os.open(name, os.O_RDONLY | FOLDER, dir_fd=parent)


def _stay(_name: str, _parent: int) -> None:
    pass


@dataclass
class _Level:
    """A folder on the way down, and those in it that are still to be visited."""

    name: str
    identity: tuple[int, int]
    folders: list[str]


def go_through(
    root: str,
    visit: Callable[[int], list[str]],
    *,
    enter: Callable[[str, int | None], int] = open_folder,
    leave: Callable[[str, int], None] = _stay,
) -> None:
    """Visits a folder and all below. `visit` is given an open folder and names those in it that are to be visited;
    `leave` is told each that is done, with its open parent. OSError where one is moved meanwhile."""
    here = enter(root, None)
    try:
        way = [_Level("", _identity(here), visit(here))]
        while way:
            if way[-1].folders:
                name = way[-1].folders.pop()
                here = _exchange(here, enter(name, here))
                way.append(_Level(name, _identity(here), visit(here)))
            else:
                done = way.pop()
                if way:
                    here = _exchange(here, _parent(here, way[-1].identity))
                    leave(done.name, here)
    finally:
        os.close(here)


def _parent(folder: int, identity: tuple[int, int]) -> int:
    """One up; OSError where somebody has moved the folder meanwhile: what lies above it now is none of ours."""
    parent = os.open("..", os.O_RDONLY | FOLDER, dir_fd=folder)
    if _identity(parent) != identity:
        os.close(parent)
        raise OSError("a folder was moved meanwhile")
    return parent


def _identity(folder: int) -> tuple[int, int]:
    about = os.fstat(folder)
    return about.st_dev, about.st_ino


def _exchange(old: int, new: int) -> int:
    os.close(old)
    return new
