"""Folders in folders, made as a stranger makes them: by steps, since no path of such a length can be named."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

TOO_DEEP = ("d",) * 1500  # for anything that calls itself for each folder
TOO_LONG = ("n" * 250,) * 20  # for a path of the kernel's


def nest(root: Path, names: Iterable[str]) -> None:
    """In `root` the first, in that one the second, and so on; a file lies in the last. Use `swept_path`."""
    here = os.open(root, os.O_RDONLY)
    for name in names:
        os.mkdir(name, dir_fd=here)
        inner = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    os.close(here)
