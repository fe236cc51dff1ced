"""Files that strangers' code could write: opened, walked, hashed and taken here, and nowhere else.

Nothing is reached through a link, nothing but a regular file is opened, and all of it is bounded: in bytes, in number
and in depth. Whoever wrote the files has ended by then (see `build.steps`), so nothing moves meanwhile.
"""

# Names are bytes where strangers choose them, in any encoding.
# ruff: noqa: PTH115
from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from perfgate.errors import PerfgateError
from perfgate.store.removal import remove_tree

MAX_ENTRIES = 500_000
MAX_BYTES = 40 * 2**30
MAX_DEPTH = 200
MAX_TEXT = 4 * 2**20
MAX_HASHED = 20 * 2**30

SPARSE_FROM = 64 * 2**20  # a smaller file may lie within its inode, or be mostly zeros
SPARSE_SHARE = 8  # file systems that compress do not reach this with compiled code

_BLOCK = 1 << 20
_THE_BOXS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class OddFiles(PerfgateError):
    """What strangers' code left is not what is taken from it: their fault, not the box's."""


@contextmanager
def strangers_fault(what: str) -> Iterator[None]:
    """Odd names and odd files make the kernel refuse: that is the strangers' fault. A full or failing disk is not."""
    try:
        yield
    except OSError as error:
        if error.errno in _THE_BOXS:
            raise
        raise OddFiles(f"{what}: {error.strerror}") from error


# ----------------------------------------------------------------------------------------------------- one file


def open_regular(path: Path | bytes, limit: int | None = None) -> BinaryIO:
    """A regular file, open for reading. OSError where it cannot be opened; OddFiles where it is anything else."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    about = os.fstat(file)
    fault = ""
    if not stat.S_ISREG(about.st_mode):
        fault = "no regular file"
    elif limit is not None and about.st_size > limit:
        fault = "too large"
    elif limit is not None and _sparse(file, about):
        fault = "mostly holes"
    if fault:
        os.close(file)
        raise OddFiles(f"{Path(os.fsdecode(path)).name} is {fault}")
    return os.fdopen(file, "rb")


def _sparse(file: int, about: os.stat_result) -> bool:
    """Whether a copy would fill the disk with what the file does not take up itself.

    Asked for the holes, too: some file systems count the blocks of a new file only seconds later.
    """
    if about.st_size < SPARSE_FROM or about.st_blocks * 512 > about.st_size // SPARSE_SHARE:
        return False
    first_hole = os.lseek(file, 0, os.SEEK_HOLE)
    os.lseek(file, 0, os.SEEK_SET)
    return first_hole < about.st_size


def create(target: Path | bytes, *, executable: bool = False) -> IO[bytes]:
    """A new file, open for writing; FileExistsError where there is anything, be it a link that leads nowhere."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(target, flags, 0o755 if executable else 0o644), "wb")


def is_regular(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def take_text(source: Path) -> str:
    """A small text that a step left."""
    with strangers_fault(f"{source.name} cannot be read"), open_regular(source, MAX_TEXT) as file:
        try:
            return file.read(MAX_TEXT).decode("utf-8")
        except UnicodeDecodeError as error:
            raise OddFiles(f"{source.name} is no text") from error


def take_file(source: Path, target: Path, limit: int = MAX_BYTES) -> int:
    """Copies a regular file to a new one; its size."""
    with strangers_fault("a file that was left cannot be taken"), open_regular(source, limit) as file:
        about = os.fstat(file.fileno())
        with create(target, executable=bool(about.st_mode & 0o100)) as copy:
            shutil.copyfileobj(file, copy, _BLOCK)
        return about.st_size


# ----------------------------------------------------------------------------------------------------- a folder


def walk(root: Path | bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    """Everything below a folder and the folder itself; links are not followed.

    What vanishes meanwhile is left out, and so is what lies in a folder that may not be read or has too long a name:
    strangers choose modes and names, and must not end a gate by them. No recursion: they choose the depth, too.
    """
    top = os.fsencode(root)
    try:
        about = os.lstat(top)
    except OSError:
        return
    yield top, about
    folders = [top] if stat.S_ISDIR(about.st_mode) else []
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                about = entry.stat(follow_symlinks=False)
                yield entry.path, about
                if stat.S_ISDIR(about.st_mode):
                    folders.append(entry.path)


@dataclass(frozen=True)
class Content:
    """What a folder holds: equal hashes, equal names and bytes."""

    hash: str
    files: int
    size: int  # bytes


def content_of(folder: Path) -> Content:
    """The content of a folder. Beyond 20 GiB files count by name and size alone."""
    digest = hashlib.sha256()
    files = size = 0
    root = os.fsencode(folder)
    for path, about in sorted(walk(root)):
        name = path[len(root) :]
        digest.update(b"%d %s\0%d\0" % (stat.S_IFMT(about.st_mode), name, len(name)))
        with suppress(OSError, OddFiles):
            if stat.S_ISLNK(about.st_mode):
                digest.update(os.readlink(path))
            elif stat.S_ISREG(about.st_mode):
                files, size = files + 1, size + about.st_size
                digest.update(b"%d\0" % about.st_size)
                if size <= MAX_HASHED:
                    _feed(digest, path, about.st_size)
    return Content(digest.hexdigest(), files, size)


def _feed(digest: hashlib._Hash, path: bytes, size: int) -> None:
    with open_regular(path) as stream:
        while size > 0 and (block := stream.read(min(_BLOCK, size))):
            size -= len(block)
            digest.update(block)


def copy_files(source: Path, into: Path) -> None:
    """Copies the regular files below a folder, bytes and names only; links and everything else are left out.

    `into` may be a stranger's, too: a link in the place of a folder is replaced, not followed.
    """
    into.mkdir(parents=True, exist_ok=True)
    root = os.fsencode(source)
    for path, about in sorted(walk(root)):
        target = Path(os.fsdecode(os.fsencode(into) + path[len(root) :]))
        if stat.S_ISDIR(about.st_mode):
            if target.is_symlink() or not target.is_dir():
                target.unlink(missing_ok=True)
                target.mkdir()
        elif stat.S_ISREG(about.st_mode):
            try:
                file = open_regular(path)
            except OSError as error:
                raise PerfgateError(f"cannot be read: {error.strerror}", where=os.fsdecode(path)) from error
            with file, target.open("xb") as copy:
                shutil.copyfileobj(file, copy)


def take_tree(source: Path, into: Path, *, replacing: bool = False, without: Sequence[str] = ()) -> None:
    """Lays the regular files below `source` over the folder `into`; links and everything else are left out.

    `without`: names at the top that are left out, too.

    `into` may hold a stranger's links: whatever would lead out of it is refused. A file that is there already is
    refused, too, or replaced.
    """
    left, entries = MAX_BYTES, 0
    folders = [Path()]
    with strangers_fault("what was left cannot be taken"):
        while folders:
            folder = folders.pop()
            if len(folder.parts) > MAX_DEPTH:
                raise OddFiles(f"there are folders more than {MAX_DEPTH} deep")
            _make_inside(into, folder)
            with os.scandir(source / folder) as found:
                for path in map(Path, found):
                    entries += 1
                    if entries > MAX_ENTRIES:
                        raise OddFiles(f"there are more than {MAX_ENTRIES} files")
                    if not folder.parts and path.name in without:
                        continue
                    target = into / folder / path.name
                    if path.is_dir() and not path.is_symlink():
                        folders.append(folder / path.name)
                    elif is_regular(path):
                        if replacing and is_regular(target):
                            target.unlink()
                        left -= take_file(path, target, left)


def _make_inside(root: Path, folder: Path) -> None:
    """The folder below `root`; OddFiles where a link would lead out."""
    target = root / folder
    if not target.is_dir():
        target.mkdir()
    if not target.resolve().is_relative_to(root.resolve()):
        raise OddFiles(f"{folder.name} is a link out of the folder that it lies in")


def own_folder(path: Path) -> None:
    """Makes it a folder that its owner can use, whatever strangers' code left in its place."""
    if path.is_symlink() or not path.is_dir():
        remove_tree(path)
    path.mkdir(exist_ok=True)
    path.chmod(0o700)
