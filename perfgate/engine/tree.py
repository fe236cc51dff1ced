"""The processes of a launch: found, ended and waited for, and nobody else's.

A pid alone names nothing, it is given out again. A `Process` is a pid and the tick it started at. A launch's processes
are the root and its descendants, whatever was recorded of them, and every process that carries the launch's random
token in its environment: that finds a child that called setsid and lost its parent. Standard library only: the watchdog
imports it and has to be small.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfgate.host.supervisor import end_everyone

TOKEN_VARIABLE = "PERFGATE_LAUNCH"
POLL_S = 0.05
PATIENCE_S = 5.0  # ending takes milliseconds where nobody runs away from it
PROC = Path("/proc")
SHM = Path("/dev/shm")


@dataclass(frozen=True, order=True)
class Process:
    """One process of this boot."""

    pid: int
    started: int  # clock ticks since boot

    @property
    def alive(self) -> bool:
        """There and not a zombie."""
        found = look(self.pid)
        return found is not None and found.process == self and not found.zombie


@dataclass(frozen=True)
class ProcEntry:
    process: Process
    parent: int
    zombie: bool


def new_token() -> str:
    """For the environment of one launch's processes; nobody can guess it."""
    return os.urandom(16).hex()


def look(pid: int) -> ProcEntry | None:
    """What /proc says of a pid; None when it is not there."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text[text.rindex(")") + 2 :].split()
        return ProcEntry(Process(pid, int(fields[19])), int(fields[1]), fields[0] in "ZX")
    except (OSError, ValueError, IndexError):
        return None


def all_processes() -> dict[int, ProcEntry]:
    found = {}
    for name in os.listdir(PROC):  # noqa: PTH208 - names only
        if name.isdecimal() and (entry := look(int(name))) is not None:
            found[entry.process.pid] = entry
    return found


def descendants(root: Process, entries: Mapping[int, ProcEntry]) -> list[Process]:
    """The root, if it is there, and all below it, parents before children."""
    children: dict[int, list[Process]] = {}
    for entry in entries.values():
        children.setdefault(entry.parent, []).append(entry.process)
    if root.pid not in entries or entries[root.pid].process != root:
        return []
    found = [root]
    for process in found:  # grows while we go
        found.extend(children.get(process.pid, ()))
    return found


def carries(pid: int, token: str) -> bool:
    """Whether the process was started with this launch's token in its environment."""
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{TOKEN_VARIABLE}={token}".encode() in environment.split(b"\0")


def of_launch(root: Process | None, token: str, recorded: Iterable[Process] = ()) -> list[Process]:
    """All living processes of a launch. Never this one."""
    entries = all_processes()
    starts = [process for process in (root, *recorded) if process is not None]
    starts += [entry.process for pid, entry in entries.items() if carries(pid, token)]
    found: dict[Process, None] = {}
    for start in starts:
        found.update(dict.fromkeys(descendants(start, entries)))
    return [process for process in found if not entries[process.pid].zombie and process.pid != os.getpid()]


def tell(process: Process, number: int) -> None:
    """Sends a signal to this very process, if it is still there and ours to signal."""
    if process.alive:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def end(
    find: Callable[[], list[Process]], *, last: Process | None, limit_s: float, user: int | None = None
) -> list[Process]:
    """Kills all that `find` finds until none is left; what is still there at the limit.

    `last` is killed when it alone is left: what the others leave behind becomes its child, and so is found.
    `user`: every process of that user ends, too. Some may fork so fast that no list ever holds them.
    """
    begin = time.monotonic()
    while left := find():
        waited = time.monotonic() - begin
        if waited > limit_s:
            return left
        if user is not None and waited > PATIENCE_S:
            end_everyone(user, limit_s)
        for process in [process for process in left if process != last] or left:
            tell(process, signal.SIGKILL)
        time.sleep(POLL_S)
    if user is None:
        return []
    return [entry.process for pid in end_everyone(user, limit_s) if (entry := look(pid)) is not None]


# ------------------------------------------------------------------------------------------------ ports


def port_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could bind the port now (connections in TIME_WAIT do not matter)."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError:
            return False
        return True


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Polls until the condition holds; False when it does not within the limit. Asks at least once."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


# ------------------------------------------------------------------------------------------------ shared memory


def shared_memory(processes: Iterable[Process]) -> set[Path]:
    """Files of /dev/shm that these processes have open or mapped, as this process sees the folder."""
    return {path for process in processes for path in _shm_of(process.pid) if path.is_file()}


def _shm_of(pid: int) -> set[Path]:
    if _root_of(pid, "ns/mnt") != _root_of(os.getpid(), "ns/mnt"):
        return set()  # a /dev/shm of its own, gone with it
    names = set()
    with suppress(OSError):
        for line in (PROC / str(pid) / "maps").read_text(errors="replace").splitlines():
            if " /dev/shm/" in line:
                names.add(line.partition(" /dev/shm/")[2])
    with suppress(OSError):
        for link in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                target = str(link.readlink())
                if target.startswith("/dev/shm/"):
                    names.add(target.removeprefix("/dev/shm/"))
    return {SHM / name for name in names if "/" not in name and not name.endswith(" (deleted)")}


def _root_of(pid: int, what: str) -> str | None:
    with suppress(OSError):
        return str((PROC / str(pid) / what).readlink())
    return None


def remove_shared_memory(paths: Iterable[Path]) -> list[Path]:
    """Removes the segments that no living process uses any more; returns those it removed."""
    wanted = {path for path in paths if path.parent == SHM}
    if not wanted:
        return []
    used = shared_memory(entry.process for entry in all_processes().values())
    removed = []
    for path in sorted(wanted - used):
        with suppress(OSError):
            path.unlink()
            removed.append(path)
    return removed
