"""Things made once, kept in a folder under a name that says what they hold, and shared by several processes.

An entry `KIND/NAME` has three companions beside it, which nobody but perfgate can write: `.NAME.lock` (an flock:
exclusive while it is made or removed, shared while it is used), `.NAME.json` (written last, so an entry without it was
never finished) and `.NAME.files` (what it held when it was finished, see `manifest`).
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from perfgate.errors import PerfgateError
from perfgate.records.files import write_whole
from perfgate.store.manifest import Manifest, difference
from perfgate.store.removal import remove_tree
from perfgate.store.strangers import walk

_POLL_S = 0.05
HALF_MADE = ("making", "scratch")
"""Companions that exist only while an entry is made."""


def companion(entry: Path, suffix: str) -> Path:
    return entry.with_name(f".{entry.name}.{suffix}")


@dataclass(frozen=True)
class Hold:
    """A lock on an entry, held until released or until the process ends."""

    entry: Path
    shared: bool
    file: int

    def release(self) -> None:
        os.close(self.file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def try_hold(entry: Path, *, shared: bool) -> Hold | None:
    """The lock, or None where another process has it."""
    path = companion(entry, "lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        if _still_there(path, file):
            return Hold(entry, shared, file)
        os.close(file)  # evicted between open and flock: take the new one


def _still_there(path: Path, file: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(file).st_ino
    except FileNotFoundError:
        return False


def hold(entry: Path, *, shared: bool, wait_s: float = 3600.0) -> Hold:
    """The lock, waited for."""
    end = time.monotonic() + wait_s
    while True:
        held = try_hold(entry, shared=shared)
        if held is not None:
            return held
        if time.monotonic() >= end:
            raise PerfgateError(
                f"another perfgate has kept this busy for {wait_s:.0f} s",
                where=str(entry),
                remedy="wait for it to end",
            )
        time.sleep(_POLL_S)


@dataclass(frozen=True)
class Made:
    """A finished entry, held shared: it is neither removed nor rebuilt until `hold` is released."""

    path: Path
    about: Mapping[str, Any]  # what its maker wrote down
    cached: bool
    hold: Hold
    remade: str = ""  # why an entry that was there had to be made again


Maker = Callable[[Path, Hold], Mapping[str, Any]]
"""Makes an entry at a path and returns what to write down about it. Given the lock, to hand it to children."""


def made_once(entry: Path, make: Maker, *, in_place: bool = False, wait_s: float = 3600.0) -> Made:
    """The entry, made if it is not there, not whole or not what was made.

    Made beside its place and renamed; `in_place` where paths are written into what is made (virtual environments).
    """
    made, why = False, ""
    while True:
        held = hold(entry, shared=True, wait_s=wait_s)
        about, _ = inspect(entry)
        if about is not None:
            touch(entry)
            return Made(entry, about, cached=not made, hold=held, remade=why)
        held.release()
        with hold(entry, shared=False, wait_s=wait_s) as held:
            about, fault = inspect(entry)
            if about is None:
                made, why = True, fault
                _make(entry, make, held, in_place=in_place)


def find_made(entry: Path) -> Made | None:
    """A whole entry, held; None where there is none."""
    held = try_hold(entry, shared=True) if entry.is_dir() else None
    about = inspect(entry)[0] if held else None
    if held is None or about is None:
        if held:
            held.release()
        return None
    touch(entry)
    return Made(entry, about, cached=True, hold=held)


def inspect(entry: Path) -> tuple[Mapping[str, Any] | None, str]:
    """What was written down about a whole entry; else None and, where there was one, what is wrong with it."""
    try:
        about = json.loads(companion(entry, "json").read_bytes())
        expected = companion(entry, "files").read_bytes()
    except (OSError, ValueError):
        return None, ""
    if not isinstance(about, dict) or not entry.is_dir():
        return None, "it was incomplete"
    changed = difference(expected, Manifest.of(entry).text)
    return (None, changed) if changed else (about, "")


def _make(entry: Path, make: Maker, held: Hold, *, in_place: bool) -> None:
    discard(entry)
    place = entry if in_place else companion(entry, "making")
    try:
        about = make(place, held)
        protect(place)
        if place != entry:
            place.rename(entry)
        manifest = Manifest.of(entry)
        _write(companion(entry, "files"), manifest.text)
        summary = {"files": manifest.files, "bytes": manifest.size, **about}
        write_whole(companion(entry, "json"), json.dumps(summary, indent=1) + "\n")
    except BaseException:
        discard(entry)
        raise


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def discard(entry: Path) -> None:
    """Removes an entry, whatever state it is in; only its lock stays. The caller holds it exclusively."""
    companion(entry, "json").unlink(missing_ok=True)  # first: from here on it counts as not made
    for path in (entry, *(companion(entry, suffix) for suffix in ("files", "launches", *HALF_MADE))):
        remove_tree(path)


def touch(entry: Path) -> None:
    """Marks an entry as used now."""
    os.utime(companion(entry, "lock"))


def last_used(entry: Path) -> float:
    """Seconds since the epoch; 0 for an entry without a lock."""
    try:
        return companion(entry, "lock").stat().st_mtime
    except FileNotFoundError:
        return 0.0


def protect(root: Path) -> None:
    """Takes the write permission from a folder and everything below."""
    for path, about in walk(root):
        if not stat.S_ISLNK(about.st_mode) and about.st_mode & 0o222:
            os.chmod(path, stat.S_IMODE(about.st_mode) & ~0o222)  # noqa: PTH101  a name in bytes


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Gives the owner write permission on one folder for a moment."""
    mode = stat.S_IMODE(folder.lstat().st_mode)
    folder.chmod(mode | 0o700)
    try:
        yield
    finally:
        folder.chmod(mode)
