"""The box without its GPUs: what it is (`describe_system`), and who used it during a sample (`SystemWatch`).

A busy neighbour shows twice: in the CPU time of processes that are not ours, and in the time that the server's
threads were ready to run but had to wait for a core. Neither costs anything while a sample runs: both are differences
between a reading before it and a reading after it. What cannot be read is None.
"""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.host import cgroup
from perfgate.host.processes import (
    TICK_S,
    Snapshot,
    ThreadTimes,
    command_line,
    cpu_between,
    snapshot,
    thread_times,
    tree,
)
from perfgate.records.files import short_hash

ROOT = Path("/")
CPUS = "sys/devices/system/cpu"
FOREIGN_TOLD = 3
FOREIGN_MIN_S = 0.05  # less CPU time than this in a sample is not worth naming


# ------------------------------------------------------------------------------------------------ what the box is


@dataclass(frozen=True, kw_only=True)
class SystemFacts:
    """Public: whatever names the machine is hashed. Sizes in bytes."""

    host: str  # short hash
    kernel: str
    os: str | None
    boot: str | None  # short hash of the boot id
    uptime_s: float | None
    virtual: bool | None  # a hypervisor is underneath
    container: str | None
    cpu_model: str | None
    cpus: int  # that this process may use
    cpus_online: int | None
    sockets: int | None
    numa_nodes: int | None
    numa_balancing: bool | None
    smt: bool | None
    governor: str | None  # of all cores: one name, or several joined by "+"
    turbo: bool | None
    huge_pages: str | None
    load1: float | None
    memory_total: int | None
    memory_available: int | None
    swap_used: int | None
    shm_free: int | None
    cgroup: cgroup.CgroupLimits


def describe_system(root: Path = ROOT) -> SystemFacts:
    memory = _meminfo(root)
    return SystemFacts(
        host=short_hash(platform.node()),
        kernel=_line(root / "proc/sys/kernel/osrelease") or platform.release(),
        os=_os_name(root),
        boot=_hashed(_line(root / "proc/sys/kernel/random/boot_id")),
        uptime_s=_first_number(root / "proc/uptime"),
        virtual=_hypervisor(root),
        container=_container(root),
        cpu_model=_cpuinfo(root).get("model name"),
        cpus=len(os.sched_getaffinity(0)),
        cpus_online=_count_list(_line(root / CPUS / "online")),
        sockets=_sockets(root),
        numa_nodes=len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None,
        numa_balancing=_flag(_line(root / "proc/sys/kernel/numa_balancing")),
        smt=_flag(_line(root / CPUS / "smt/active")),
        governor=_governor(root),
        turbo=_turbo(root),
        huge_pages=_chosen(_line(root / "sys/kernel/mm/transparent_hugepage/enabled")),
        load1=_first_number(root / "proc/loadavg"),
        memory_total=memory.get("MemTotal"),
        memory_available=memory.get("MemAvailable"),
        swap_used=_swap_used(memory),
        shm_free=free_bytes(root / "dev/shm"),
        cgroup=cgroup.cgroup_limits(root),
    )


def free_bytes(path: Path) -> int | None:
    """Free space where `path` is or will be."""
    for folder in (path, *path.parents):
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            continue
    return None


def _line(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _first_number(path: Path) -> float | None:
    try:
        return float((_line(path) or "").split()[0])
    except (ValueError, IndexError):
        return None


def _flag(text: str | None) -> bool | None:
    return None if text is None else text != "0"


def _hashed(text: str | None) -> str | None:
    return None if text is None else short_hash(text)


def _chosen(text: str | None) -> str | None:
    """'always [madvise] never' → 'madvise'."""
    return text.partition("[")[2].partition("]")[0] or None if text else None


def _count_list(text: str | None) -> int | None:
    """How many cores '0-3,8' names."""
    try:
        spans = [part.split("-") for part in (text or "").split(",") if part]
        return sum(int(span[-1]) - int(span[0]) + 1 for span in spans) or None
    except ValueError:
        return None


def _os_name(root: Path) -> str | None:
    for line in (_line(root / "etc/os-release") or "").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return None


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's lines."""
    block = (_line(root / "proc/cpuinfo") or "").split("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in block.splitlines())}


def _hypervisor(root: Path) -> bool | None:
    flags = _cpuinfo(root).get("flags")
    return None if flags is None else "hypervisor" in flags.split()


def _container(root: Path) -> str | None:
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    groups = _line(root / "proc/self/cgroup") or ""
    return next((name for name in ("kubepods", "docker", "lxc", "containerd") if name in groups), None)


def _sockets(root: Path) -> int | None:
    found = {_line(path) for path in (root / CPUS).glob("cpu[0-9]*/topology/physical_package_id")}
    return len(found - {None}) or None


def _governor(root: Path) -> str | None:
    found = {_line(path) for path in (root / CPUS).glob("cpu[0-9]*/cpufreq/scaling_governor")}
    return "+".join(sorted(name for name in found if name)) or None


def _turbo(root: Path) -> bool | None:
    no_turbo = _flag(_line(root / CPUS / "intel_pstate/no_turbo"))
    return _flag(_line(root / CPUS / "cpufreq/boost")) if no_turbo is None else not no_turbo


def _meminfo(root: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in (_line(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        if (amount := rest.split()) and amount[0].isdecimal():
            found[name] = int(amount[0]) * 1024
    return found


def _swap_used(memory: dict[str, int]) -> int | None:
    total, free = memory.get("SwapTotal"), memory.get("SwapFree")
    return None if total is None or free is None else total - free


# ------------------------------------------------------------------------------------------------ during a sample


@dataclass(frozen=True)
class _Reading:
    at: float
    processes: Snapshot
    threads: dict[tuple[int, int], ThreadTimes]
    busy_s: float | None  # of all cores since boot: user, nice, system; interrupts belong to nobody
    group_s: float | None  # of it our control group's, ended processes included
    steal_s: float | None  # taken by the hypervisor for other machines
    throttled_s: float | None
    pressure_s: float | None  # some task of the box waited for a core
    swapped_in: int | None


class SystemWatch:
    """Who used the box between `start` and `stop`. Takes a reading at each end and nothing in between.

    `stop` gives, for `records.Telemetry.system` (seconds, None where unreadable):

    - `wall_s`, `cpus`
    - `server_cpu_s`; `server_wait_s` and `main_wait_s`: time that all the server's threads, or its worst main thread
      (the scheduler's loop), were ready but waited for a core
    - `own_cpu_s`: of perfgate, the server and the load client together
    - `others_cpu_s`: of processes that are seen not to be ours, and of all that runs outside our control group (other
      containers); kernel threads and interrupts apart. What nobody can be seen to have used is nobody's: a server
      whose children are never waited for leaves as much of it as it likes
    - `steal_s`, `throttled_s` (by a cgroup quota), `pressure_s`, `swapped_in` (pages), `load1`
    - `foreign`: the busiest processes not ours: pid, hash of the command line, CPU seconds
    """

    def __init__(self, pids: Collection[int], root: Path, own: int) -> None:
        self._pids = frozenset(pids)
        self._root = root
        self._own = own
        self._start = self._read()

    @classmethod
    def start(cls, pids: Collection[int], root: Path = ROOT, own: int | None = None) -> SystemWatch:
        """`pids` are the server's processes; their descendants and those of process `own` (perfgate) are ours too."""
        return cls(pids, root, os.getpid() if own is None else own)

    def stop(self) -> dict[str, Any]:
        start, stop = self._start, self._read()
        server = tree(start.processes, self._pids) | tree(stop.processes, self._pids)
        ours = server | tree(start.processes, [self._own]) | tree(stop.processes, [self._own])
        kernel = {process.pid for process in stop.processes.values() if process.kernel}
        own_cpu_s = cpu_between(start.processes, stop.processes, ours)
        kernel_cpu_s = cpu_between(start.processes, stop.processes, kernel)
        strangers = cpu_between(start.processes, stop.processes, stop.processes.keys() - ours - kernel)
        grouped_s = _difference(stop.group_s, start.group_s)
        outside = None if grouped_s is None else _difference(stop.busy_s, start.busy_s, grouped_s + kernel_cpu_s)
        seen = bool(server & stop.processes.keys())
        return {
            "wall_s": stop.at - start.at,
            "cpus": len(os.sched_getaffinity(0)),
            "server_cpu_s": cpu_between(start.processes, stop.processes, server) if seen else None,
            **_waits(start.threads, stop.threads),
            "own_cpu_s": own_cpu_s,
            "others_cpu_s": max(strangers, outside or 0.0) if stop.processes else None,
            "steal_s": _difference(stop.steal_s, start.steal_s),
            "throttled_s": _difference(stop.throttled_s, start.throttled_s),
            "pressure_s": _difference(stop.pressure_s, start.pressure_s),
            "swapped_in": _difference(stop.swapped_in, start.swapped_in),
            "load1": _first_number(self._root / "proc/loadavg"),
            "foreign": self._foreign(start.processes, stop.processes, ours | kernel),
        }

    def _read(self) -> _Reading:
        proc = self._root / "proc"
        processes = snapshot(proc)
        busy_s, steal_s = _cpu_seconds(proc)
        return _Reading(
            at=time.monotonic(),
            processes=processes,
            threads=thread_times(tree(processes, self._pids), proc),
            busy_s=busy_s,
            group_s=cgroup.used_s(self._root),
            steal_s=steal_s,
            throttled_s=cgroup.throttled_s(self._root),
            pressure_s=_pressure_s(proc),
            swapped_in=_vmstat(proc, "pswpin"),
        )

    def _foreign(self, start: Snapshot, stop: Snapshot, ours: set[int]) -> list[dict[str, Any]]:
        used = {}
        for pid in stop.keys() - ours:
            before = start.get(pid)
            same = before is not None and before.started == stop[pid].started
            used[pid] = stop[pid].own_s - (before.own_s if before is not None and same else 0.0)
        busiest = sorted(used, key=lambda pid: -used[pid])[:FOREIGN_TOLD]
        return [
            {"pid": pid, "command": _hashed(command_line(pid, self._root / "proc")), "cpu_s": round(used[pid], 3)}
            for pid in busiest
            if used[pid] >= FOREIGN_MIN_S
        ]


def _difference(stop: float | None, start: float | None, less: float = 0.0) -> float | None:
    return None if stop is None or start is None else stop - start - less


def _waits(
    start: dict[tuple[int, int], ThreadTimes], stop: dict[tuple[int, int], ThreadTimes]
) -> dict[str, float | None]:
    if not stop:
        return {"server_wait_s": None, "main_wait_s": None}
    waited = {key: now.wait_s - (start[key].wait_s if key in start else 0.0) for key, now in stop.items()}
    return {
        "server_wait_s": sum(waited.values()),
        "main_wait_s": max((wait for (pid, tid), wait in waited.items() if pid == tid), default=None),
    }


def _cpu_seconds(proc: Path) -> tuple[float | None, float | None]:
    """Busy and stolen seconds of all cores since boot (proc_stat(5), line `cpu`; guest time is within user)."""
    fields = (_line(proc / "stat") or "").partition("\n")[0].split()
    if len(fields) < 9 or fields[0] != "cpu":
        return None, None
    user, nice, system = (int(field) for field in fields[1:4])
    return (user + nice + system) * TICK_S, int(fields[8]) * TICK_S


def _pressure_s(proc: Path) -> float | None:
    """Total of `some` in /proc/pressure/cpu, which counts microseconds."""
    for line in (_line(proc / "pressure/cpu") or "").splitlines():
        if line.startswith("some ") and (total := line.rpartition("total=")[2]).isdecimal():
            return int(total) / 1e6
    return None


def _vmstat(proc: Path, name: str) -> int | None:
    for line in (_line(proc / "vmstat") or "").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return None
