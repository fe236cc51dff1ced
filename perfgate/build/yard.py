"""Where strangers' code may write while something is built, and how what it left there is taken.

A confined step gets a yard of its own and writes nowhere else; perfgate's own files never lie in one. What is needed
of a yard is copied out of it: regular files alone, into new files of perfgate's, never through a link. The step has
ended by then with all that it started (see `steps`), so nothing moves meanwhile.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from perfgate.build.failures import Refused, side_failure

MAX_ENTRIES = 500_000
MAX_BYTES = 40 * 2**30
MAX_DEPTH = 200
MAX_TEXT = 4 * 2**20

_THE_BOXS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_WHEEL = re.compile(r"[A-Za-z0-9._+!-]+\.whl")
"""Its name becomes a line of a requirements file: nothing that could end the line or begin an option."""


@dataclass(frozen=True)
class Yard:
    """The one folder that a confined step may write."""

    path: Path

    @classmethod
    def new(cls, path: Path) -> Yard:
        path.mkdir(parents=True)  # an older one would hold an older step's links
        for name in ("home", "tmp", "out"):
            (path / name).mkdir()
        return cls(path)

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


@contextmanager
def sides_fault(what: str) -> Iterator[None]:
    """Odd names and odd files make the kernel refuse: that is the side's fault. A full or failing disk is not."""
    try:
        yield
    except OSError as error:
        if error.errno in _THE_BOXS:
            raise
        raise Refused(side_failure(f"{what}: {error.strerror}")) from error


def take_text(source: Path) -> str:
    """A small text that a step left."""
    with sides_fault(f"{source.name} cannot be read"), _open_regular(source, MAX_TEXT) as file:
        try:
            return file.read(MAX_TEXT).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Refused(side_failure(f"{source.name} is no text")) from error


def take_wheel(out: Path, into: Path) -> Path:
    """The one wheel that a build left, copied into a new folder."""
    with sides_fault("what the build left cannot be read"):
        wheels = [path for path in sorted(out.iterdir()) if path.suffix == ".whl" and _is_regular(path)]
    if len(wheels) != 1:
        raise Refused(side_failure(f"the build left {len(wheels)} wheels, not one"))
    name = wheels[0].name
    try:
        if not _WHEEL.fullmatch(name):
            raise InvalidWheelFilename(name)
        parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        raise Refused(side_failure("the wheel that the build left has a name that no wheel may have")) from error
    into.mkdir(parents=True)
    take_file(wheels[0], into / name)
    return into / name


def take_tree(source: Path, into: Path, *, replacing: bool = False) -> None:
    """Lays the regular files below `source` over the folder `into`; links and everything else are left out.

    `into` may hold a stranger's links: whatever would lead out of it is refused. A file that is there already is
    refused, too, or replaced.
    """
    left, entries = MAX_BYTES, 0
    folders = [Path()]
    with sides_fault("what the build left cannot be taken"):
        while folders:
            folder = folders.pop()
            if len(folder.parts) > MAX_DEPTH:
                raise Refused(side_failure(f"the build left folders more than {MAX_DEPTH} deep"))
            _make_inside(into, folder)
            for path in sorted((source / folder).iterdir()):
                entries += 1
                if entries > MAX_ENTRIES:
                    raise Refused(side_failure(f"the build left more than {MAX_ENTRIES} files"))
                if path.is_dir() and not path.is_symlink():
                    folders.append(folder / path.name)
                elif _is_regular(path):
                    left -= _lay(path, into / folder / path.name, left, replacing=replacing)


def _lay(source: Path, target: Path, limit: int, *, replacing: bool) -> int:
    if replacing and _is_regular(target):
        target.unlink()
    return take_file(source, target, limit)


def _make_inside(root: Path, folder: Path) -> None:
    """The folder below `root`; Refused where a link would lead out."""
    target = root / folder
    if not target.is_dir():
        target.mkdir()
    if not target.resolve().is_relative_to(root.resolve()):
        raise Refused(side_failure(f"{folder.name} is a link out of the folder that it lies in"))


def take_file(source: Path, target: Path, limit: int = MAX_BYTES) -> int:
    """Copies a regular file to a new one; its size."""
    with sides_fault("a file that the build left cannot be taken"), _open_regular(source, limit) as file:
        about = os.fstat(file.fileno())
        with create(target, executable=bool(about.st_mode & 0o100)) as copy:
            shutil.copyfileobj(file, copy, 1 << 20)
        return about.st_size


def create(target: Path, *, executable: bool = False) -> IO[bytes]:
    """A new file, open for writing; FileExistsError where there is anything, be it a link that leads nowhere."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(target, flags, 0o755 if executable else 0o644), "wb")


def _open_regular(path: Path, limit: int) -> IO[bytes]:
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode) or about.st_size > limit:
        file.close()
        fault = "too large" if stat.S_ISREG(about.st_mode) else "no regular file"
        raise Refused(side_failure(f"{path.name} is {fault}"))
    return file


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False
