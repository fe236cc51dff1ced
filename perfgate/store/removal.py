"""Removes folders that strangers' code could fill: of any depth, with names of any length, full of links, locked."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from perfgate.store.descent import FOLDER, go_through


def remove_tree(root: Path) -> None:
    """Removes a folder that may be read-only, or whatever lies in its place. OSError where some of it cannot be."""
    if root.is_symlink() or not root.is_dir():
        root.unlink(missing_ok=True)
        return
    try:
        go_through(str(root), _unlink_files, enter=_enter, leave=_remove_folder)
        root.rmdir()
    except OSError:
        if os.path.lexists(root):  # else somebody else has removed it
            raise


def _enter(name: str, parent: int | None = None) -> int:
    """An open folder that its owner may use from now on; never one that a link leads to."""
    place = os.open(name, os.O_PATH | FOLDER, dir_fd=parent)
    try:
        with suppress(PermissionError):  # not ours, but perhaps we may remove it even so
            os.chmod(f"/proc/self/fd/{place}", 0o700)  # noqa: PTH101  by its descriptor: no path leads there for sure
        return os.open(".", os.O_RDONLY | FOLDER, dir_fd=place)
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


def _remove_folder(name: str, parent: int) -> None:
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent)
