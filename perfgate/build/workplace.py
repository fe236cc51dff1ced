"""Where strangers' code may write while something is built, and the wheel that it left there.

A confined step gets a workplace of its own and writes nowhere else; perfgate's own files never lie in one. What is
needed of it is copied out (see `store.strangers`). A wheel is not: it is installed into a folder by one more confined
step, and that folder's files are taken.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from perfgate.store.removal import remove_tree
from perfgate.store.strangers import MAX_ENTRIES, OddFiles, is_regular, strangers_fault

_WHEEL = re.compile(r"[A-Za-z0-9._+!-]+\.whl")
"""Its name becomes an argument of uv's: nothing that could be read as an option or as another file."""


@dataclass(frozen=True)
class Workplace:
    """The one folder that a confined step may write."""

    path: Path

    @classmethod
    def new(cls, path: Path) -> Workplace:
        path.mkdir(parents=True)  # an older one would hold an older step's links
        return cls(path)._laid_out()

    def again(self) -> Workplace:
        """The same for one more step of the same stranger: empty but for its package cache."""
        with strangers_fault("the package cache that was left cannot be used again"):
            self.path.chmod(0o700)
            for path in self.path.iterdir():
                if path != self.cache or path.is_symlink() or not path.is_dir():
                    remove_tree(path)
        return self._laid_out()

    def _laid_out(self) -> Workplace:
        for name in ("home", "tmp", "out"):
            (self.path / name).mkdir()
        return self

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    @property
    def source(self) -> Path:
        return self.path / "source"

    @property
    def out(self) -> Path:
        """What is taken from."""
        return self.path / "out"

    @property
    def installed(self) -> Path:
        """Where the wheel that a build left is installed, to be taken."""
        return self.path / "installed"


def wheel_left(out: Path) -> Path:
    """The one wheel that a build left; it stays where it is."""
    with strangers_fault("what the build left cannot be read"), os.scandir(out) as entries:
        paths = (Path(entry) for entry in islice(entries, MAX_ENTRIES))
        wheels = [path for path in paths if path.suffix == ".whl" and is_regular(path)]
    if len(wheels) != 1:
        raise OddFiles(f"the build left {len(wheels)} wheels, not one")
    try:
        if not _WHEEL.fullmatch(wheels[0].name):
            raise InvalidWheelFilename(wheels[0].name)
        parse_wheel_filename(wheels[0].name)
    except InvalidWheelFilename as error:
        raise OddFiles("the wheel that the build left has a name that no wheel may have") from error
    return wheels[0]
