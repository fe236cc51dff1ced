"""What the control group that perfgate runs in allows: cores, memory, and time taken away by its CPU quota.

Reads version 2 (one hierarchy) and version 1 (one per controller). The tightest limit on the way up to the root
counts. Inside a container the path in /proc/self/cgroup may be the host's; then the mounted root is the container's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NO_LIMIT = 1 << 60  # version 1 writes a number near 2^63 for "no limit"


@dataclass(frozen=True, kw_only=True)
class CgroupLimits:
    cpus: float | None = None  # quota ÷ period
    memory_bytes: int | None = None
    cpuset: str | None = None


def cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    return CgroupLimits(
        cpus=min(_cpu_quotas(root), default=None),
        memory_bytes=min(_memory_limits(root), default=None),
        cpuset=_cpuset(root),
    )


def throttled_s(root: Path = Path("/")) -> float | None:
    """Seconds since its creation for which the group's CPU quota stopped it; None where nothing says so."""
    for folder in _folders(root, "cpu"):
        for key, unit in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
            value = _stat(folder / "cpu.stat").get(key)
            if value is not None:
                return value / unit
    return None


def used_s(root: Path = Path("/")) -> float | None:
    """CPU seconds that everything in this process's group has used since its creation, ended processes included."""
    for folder in _folders(root, "cpu"):
        used = _stat(folder / "cpu.stat").get("usage_usec")
        if used is not None:
            return used / 1e6
    for folder in _folders(root, "cpuacct"):
        if (text := _read(folder / "cpuacct.usage").strip()).isdecimal():
            return int(text) / 1e9
    return None


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The group's folder and all above it that exist, innermost first."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if names and controller not in names.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if names else "")
        inner = mount / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(mount) and folder.is_dir():
                yield folder


def _cpu_quotas(root: Path) -> Iterator[float]:
    for folder in _folders(root, "cpu"):
        with suppress(ValueError, ZeroDivisionError):
            quota, period = _read(folder / "cpu.max").split()
            yield int(quota) / int(period)
        with suppress(ValueError, ZeroDivisionError):
            quota_us = int(_read(folder / "cpu.cfs_quota_us"))
            if quota_us > 0:
                yield quota_us / int(_read(folder / "cpu.cfs_period_us"))


def _memory_limits(root: Path) -> Iterator[int]:
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(ValueError):
                limit = int(_read(folder / name))
                if limit < NO_LIMIT:
                    yield limit


def _cpuset(root: Path) -> str | None:
    for folder in _folders(root, "cpuset"):
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            if text := _read(folder / name).strip():
                return text
    return None


def _stat(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
