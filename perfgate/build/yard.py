"""Where strangers' code may write while something is built, and how what it left there is taken.

A confined step gets a yard of its own and writes nowhere else; perfgate's own files never lie in one. What is needed
of a yard is copied out of it: regular files alone, into new files of perfgate's, never through a link. The step has
ended by then with all that it started (see `steps`), so nothing moves meanwhile.
"""

from __future__ import annotations

import errno
import lzma
import os
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from perfgate.build.failures import Refused, side_failure
from perfgate.store.removal import remove_tree
from perfgate.text import visible

MAX_ENTRIES = 500_000
MAX_BYTES = 40 * 2**30
MAX_WHEEL = 8 * 2**30
MAX_UNPACKED = 20 * 2**30
MAX_DIRECTORY = 64 * 2**20  # of a wheel's own list of its files
MAX_DEPTH = 200
MAX_TEXT = 4 * 2**20

SPARSE_FROM = 64 * 2**20  # a smaller file may lie within its inode, or be mostly zeros
SPARSE_SHARE = 8  # file systems that compress do not reach this with compiled code

NO_WHEEL = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, ValueError)
"""What `zipfile` says to a file that is none, damaged, encrypted, or packed in a way that it does not know."""

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
        return cls(path)._laid_out()

    def again(self) -> Yard:
        """The same for one more step of the same stranger: empty but for its package cache."""
        with sides_fault("the package cache that was left cannot be used again"):
            self.path.chmod(0o700)
            for path in self.path.iterdir():
                if path != self.cache or path.is_symlink() or not path.is_dir():
                    remove_tree(path)
        return self._laid_out()

    def _laid_out(self) -> Yard:
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
    """The one wheel that a build left, its files packed anew into a new folder."""
    with sides_fault("what the build left cannot be read"), os.scandir(out) as entries:
        paths = (Path(entry) for entry in islice(entries, MAX_ENTRIES))
        wheels = [path for path in paths if path.suffix == ".whl" and _is_regular(path)]
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
    _take_packed(wheels[0], into / name)
    return into / name


def _take_packed(wheel: Path, target: Path) -> None:
    """Not as it is: what a wheel says of its files' sizes binds only who believes it, and uv unpacks whatever comes."""
    fault = "the wheel that the build left cannot be read"
    with sides_fault(fault), _open_regular(wheel, MAX_WHEEL) as file, create(target) as copy:
        try:
            _check_directory(file)
            with zipfile.ZipFile(file) as theirs, zipfile.ZipFile(copy, "w") as ours:
                _pack_anew(theirs, ours)
        except NO_WHEEL as error:
            raise Refused(side_failure(f"{fault}: {visible(str(error), 120)}")) from error


def _check_directory(file: IO[bytes]) -> None:
    """Before `zipfile` reads it into memory as a whole; it has no public way to ask."""
    end = zipfile._EndRecData(file)  # type: ignore[attr-defined]
    if end and end[zipfile._ECD_SIZE] > MAX_DIRECTORY:  # type: ignore[attr-defined]
        raise Refused(side_failure("the wheel that the build left has too many files"))


def _pack_anew(theirs: zipfile.ZipFile, ours: zipfile.ZipFile) -> None:
    """Copies an archive's files to another, uncompressed. `zipfile` reads no more of each than it is said to hold."""
    members = [member for member in theirs.infolist() if not member.is_dir()]
    if len({member.filename for member in members}) < len(members):
        raise Refused(side_failure("the wheel that the build left holds a file twice"))
    if sum(member.file_size for member in members) > MAX_UNPACKED:
        raise Refused(side_failure(f"the wheel that the build left unpacks to more than {MAX_UNPACKED >> 30} GiB"))
    for member in members:
        copy = zipfile.ZipInfo(member.filename)
        copy.file_size = member.file_size  # decides how large it may become
        copy.external_attr = (stat.S_IFREG | (member.external_attr >> 16 & 0o777 or 0o644)) << 16
        with theirs.open(member) as content, ours.open(copy, "w") as file:
            shutil.copyfileobj(content, file, 1 << 20)


def take_tree(source: Path, into: Path, *, replacing: bool = False, without: Sequence[str] = ()) -> None:
    """Lays the regular files below `source` over the folder `into`; links and everything else are left out.

    `without`: names at the top that are left out, too.

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
            with os.scandir(source / folder) as found:
                for path in map(Path, found):
                    entries += 1
                    if entries > MAX_ENTRIES:
                        raise Refused(side_failure(f"the build left more than {MAX_ENTRIES} files"))
                    if not folder.parts and path.name in without:
                        continue
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
    fault = "no regular file" if not stat.S_ISREG(about.st_mode) else "too large" if about.st_size > limit else ""
    if fault or _sparse(file.fileno(), about):
        file.close()
        raise Refused(side_failure(f"{path.name} is {fault or 'mostly holes'}"))
    return file


def _sparse(file: int, about: os.stat_result) -> bool:
    """Whether a copy would fill the disk with what the file does not take up itself.

    Asked for the holes, too: some file systems count the blocks of a new file only seconds later.
    """
    if about.st_size < SPARSE_FROM or about.st_blocks * 512 > about.st_size // SPARSE_SHARE:
        return False
    first_hole = os.lseek(file, 0, os.SEEK_HOLE)
    os.lseek(file, 0, os.SEEK_SET)
    return first_hole < about.st_size


def _is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False
