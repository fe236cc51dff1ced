"""The processes of the box: whose CPU time is whose, and how long the server's threads waited for a core.

Read straight from /proc, since one pass over a few thousand processes between two samples has to be cheap. All CPU
times are seconds. A process that ends while it is read is simply not there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
KERNEL_THREAD = 0x00200000  # PF_KTHREAD in /proc/PID/stat's flags
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    pid: int
    parent: int
    started: int  # ticks since boot: with the pid it names one process
    own_s: float  # its own CPU time, all threads
    reaped_s: float  # CPU time of children it has waited for, their whole lives
    kernel: bool


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    run_s: float
    wait_s: float  # ready to run, but waiting for a core (the run queue)


Snapshot = Mapping[int, ProcessTimes]


def snapshot(proc: Path = PROC) -> Snapshot:
    """Every process visible now."""
    found = (_process(proc, int(name)) for name in _entries(proc) if name.isdecimal())
    return {process.pid: process for process in found if process is not None}


def tree(processes: Snapshot, roots: Iterable[int]) -> set[int]:
    """The roots that exist and all their descendants."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = [root for root in roots if root in processes]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children.get(pid, ()))
    return found


def cpu_between(start: Snapshot, stop: Snapshot, pids: Collection[int]) -> float:
    """CPU seconds that `pids` used between two snapshots, children that ended meanwhile included.

    A child's whole life moves into its parent's `reaped_s` when it ends, and on to that one's parent when that ends,
    too; the part before `start` is taken off again.
    """
    gone = {pid for pid, process in start.items() if not _same(process, stop.get(pid))}
    ended: dict[int, float] = {}
    for pid in gone:
        heir = start[pid].parent
        for _ in gone:  # a snapshot is not taken in one moment: its parents may even form a ring
            if heir not in gone:
                break
            heir = start[heir].parent
        ended[heir] = ended.get(heir, 0.0) + start[pid].own_s + start[pid].reaped_s
    total = 0.0
    for pid in pids:
        now = stop.get(pid)
        if now is None:
            continue
        before = start.get(pid)
        if before is not None and _same(before, now):
            total += now.own_s - before.own_s
            total += max(0.0, now.reaped_s - before.reaped_s - ended.get(pid, 0.0))
        else:
            total += now.own_s + now.reaped_s
    return max(0.0, total)


def thread_times(pids: Iterable[int], proc: Path = PROC) -> dict[tuple[int, int], ThreadTimes]:
    """Of each thread, by (pid, tid): seconds run and seconds waited for a core (/proc/PID/task/TID/schedstat)."""
    found: dict[tuple[int, int], ThreadTimes] = {}
    for pid in pids:
        tasks = proc / str(pid) / "task"
        for tid in _entries(tasks):
            times = _schedstat(tasks / tid / "schedstat")
            if times is not None:
                found[pid, int(tid)] = times
    return found


def command_line(pid: int, proc: Path = PROC) -> str | None:
    """A process's command line, for a hash or the eyes of the box's own user; never for public output."""
    try:
        return (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None


def process_name(pid: int, proc: Path = PROC) -> str | None:
    """The name that `ps -o comm` shows; a process can give itself any."""
    try:
        return (proc / str(pid) / "comm").read_text(errors="replace").strip() or None
    except OSError:
        return None


def _same(before: ProcessTimes, now: ProcessTimes | None) -> bool:
    return now is not None and before.started == now.started


def _entries(folder: Path) -> Iterator[str]:
    try:
        yield from os.listdir(folder)  # noqa: PTH208 - names only, thousands of them
    except OSError:
        return


def _process(proc: Path, pid: int) -> ProcessTimes | None:
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
        fields = text[text.rindex(")") + 2 :].split()  # the name in brackets may hold anything, brackets too
        return ProcessTimes(
            pid=pid,
            parent=int(fields[1]),
            started=int(fields[19]),
            own_s=(int(fields[11]) + int(fields[12])) * TICK_S,
            reaped_s=(int(fields[13]) + int(fields[14])) * TICK_S,
            kernel=bool(int(fields[6]) & KERNEL_THREAD),
        )
    except (OSError, ValueError, IndexError):
        return None


def _schedstat(path: Path) -> ThreadTimes | None:
    try:
        run, wait, *_ = path.read_text().split()
        return ThreadTimes(run_s=int(run) / 1e9, wait_s=int(wait) / 1e9)
    except (OSError, ValueError):
        return None
