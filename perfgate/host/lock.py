"""One gate on the box at a time, whether it measures or builds.

The lock is the kernel's `flock` on one file, which every user and container of the box that shares the file sees. It
belongs to the open file, not to the process: it ends when the last descriptor of it is closed, so neither a crash nor
`kill -9` leaves it behind, and a watchdog that was started with `pass_fds=(lock.fd,)` keeps it until all is free.
The file's text says who holds the lock; it means nothing while nobody holds it.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from perfgate.errors import Exit, PerfgateError
from perfgate.records.files import boot_id, short_hash, utc_now
from perfgate.text import visible

SHARED_MODE = 0o666  # other users of the box must be able to open it; an admin may create it with a narrower mode
POLL_S = 1.0
TELL_AGAIN_S = 60.0
TEXT_LIMIT = 4096
HOLDER_LIMIT = 160


class BoxBusyError(PerfgateError):
    """Another gate holds the box."""

    exit_code = Exit.CANNOT


@dataclass(frozen=True)
class Holder:
    """Who holds the lock, as they wrote it themselves: untrusted text of another user, cleaned."""

    text: str
    pid: int | None
    since: str  # UTC, RFC 3339
    host: str  # short hash of host name and boot, to tell containers apart

    def __str__(self) -> str:
        pid = f", pid {self.pid}" if self.pid is not None else ""
        return f"{self.text or 'an unnamed gate'}{pid}, since {self.since or 'an unknown time'}{_age(self.since)}"


class BoxLock:
    """A held lock. `fd` may be handed to a child with `pass_fds`; `release` closes our own descriptor only."""

    def __init__(self, path: Path, fd: int, holder: Holder) -> None:
        self.path = path
        self.fd = fd
        self.holder = holder

    @classmethod
    def acquire(
        cls, path: Path, holder: str, wait_s: float = 0.0, progress: Callable[[str], None] = lambda _line: None
    ) -> BoxLock:
        """Takes the lock, waiting up to `wait_s`; tells who holds it meanwhile. Raises BoxBusyError."""
        deadline = time.monotonic() + wait_s
        tell_at = time.monotonic()
        while True:
            fd = _try_lock(path)
            if fd is not None:
                return cls(path, fd, _write_holder(fd, holder))
            now = time.monotonic()
            found = current_holder(path)  # None: it has just ended, or somebody only looked
            if found is not None and now >= deadline:
                raise BoxBusyError(
                    f"the box is in use by {found}",
                    where=str(path),
                    remedy="wait until it ends, or end it" if wait_s <= 0 else f"waited {wait_s:.0f} s; try later",
                )
            if found is not None and now >= tell_at:
                progress(f"waiting up to {deadline - now:.0f} s for the box, in use by {found}")
                tell_at = now + TELL_AGAIN_S
            time.sleep(min(POLL_S, max(0.01, deadline - now)))

    def release(self) -> None:
        """Closes our descriptor. Never LOCK_UN: that would take the lock from a watchdog that shares it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def current_holder(path: Path) -> Holder | None:
    """Who holds the lock now; None when it is free or has never been taken."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _cannot_open(path, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_holder(fd)
    else:
        return None
    finally:
        os.close(fd)


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock on the file that `path` names now, or None when it is held by another."""
    while True:
        fd = _open(path)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as error:
            os.close(fd)
            raise PerfgateError(
                f"cannot be locked: {error.strerror}",
                where=str(path),
                remedy="put the lock on a local file system (`lock:` in the box file)",
            ) from error
        if _still_named(path, fd):
            return fd
        os.close(fd)  # the file was replaced between opening and locking: lock the new one


def _open(path: Path) -> int:
    """Opens the lock file, creating it for all users of the box.

    An existing file is opened without O_CREAT: in a sticky folder the kernel refuses O_CREAT on other users' files.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        try:
            return _regular(path, os.open(path, flags))
        except FileNotFoundError:
            pass
        except PermissionError:
            return _open_to_read(path)
        except OSError as error:
            raise _cannot_open(path, error) from error
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, SHARED_MODE)
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot_open(path, error) from error
        os.fchmod(fd, SHARED_MODE)  # whatever the umask says
        return fd


def _open_to_read(path: Path) -> int:
    """Locking needs no right to write on a local file system; only the holder's text is lost."""
    try:
        return _regular(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError as error:
        raise _cannot_open(path, error) from error


def _regular(path: Path, fd: int) -> int:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PerfgateError("is not a file", where=str(path), remedy="name a file under `lock:` in the box file")
    return fd


def _cannot_open(path: Path, error: OSError) -> PerfgateError:
    return PerfgateError(
        f"the box's lock cannot be opened: {error.strerror}",
        where=str(path),
        remedy=f"let every user that runs gates open it: sudo install -m 0666 /dev/null {path}",
    )


def _still_named(path: Path, fd: int) -> bool:
    try:
        named = path.stat()
    except OSError:
        return False
    held = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)


def _write_holder(fd: int, text: str) -> Holder:
    holder = Holder(text=visible(text, HOLDER_LIMIT), pid=os.getpid(), since=utc_now(), host=_host())
    line = json.dumps(asdict(holder)).encode()
    with suppress(OSError):  # opened for reading only, or a full disk: the lock holds all the same
        os.pwrite(fd, line, 0)
        os.ftruncate(fd, len(line))
    return holder


def _read_holder(fd: int) -> Holder:
    try:
        body = json.loads(os.pread(fd, TEXT_LIMIT, 0))
    except (OSError, ValueError):
        body = None
    if not isinstance(body, dict):
        return Holder(text="", pid=None, since="", host="")
    pid = body.get("pid")
    return Holder(
        text=visible(str(body.get("text", "")), HOLDER_LIMIT),
        pid=pid if isinstance(pid, int) else None,
        since=visible(str(body.get("since", "")), 32),
        host=visible(str(body.get("host", "")), 16),
    )


def _age(since: str) -> str:
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds()
    except (ValueError, TypeError):
        return ""
    return f" ({seconds / 60:.0f} min ago)" if seconds >= 60 else f" ({max(0.0, seconds):.0f} s ago)"


def _host() -> str:
    return short_hash(f"{os.uname().nodename}/{boot_id()}")
