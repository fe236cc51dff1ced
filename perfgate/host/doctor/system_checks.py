"""What is wrong with the rest of a resting box: cores, memory, neighbours, container limits, disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfgate.host.system import SystemFacts, free_bytes
from perfgate.records import Check

GIB = 1024**3
BUSY_CORES = 0.25  # used by others at rest
STOLEN_SHARE = 0.01  # of a core, by the hypervisor
SHM_NEEDED = GIB  # NCCL's shared memory between eight ranks; a container's default is 64 MiB
MEMORY_SHARE = 0.1  # of memory, to be available


def system_checks(facts: SystemFacts, at_rest: Mapping[str, Any], gpus: int) -> Iterator[Check]:
    """`at_rest`: a `SystemWatch` over a moment in which nothing of ours ran; `gpus`: how many servers will use."""
    yield _machine(facts)
    yield _neighbours(at_rest)
    yield from _frequency(facts)
    yield from _limits(facts)
    yield from _memory(facts)
    if gpus > 1:
        yield from _shared_memory(facts)
        yield from _numa(facts)


def _machine(facts: SystemFacts) -> Check:
    cores = f"{facts.cpus} cores" if facts.cpus != 1 else "1 core"
    memory = f", {facts.memory_total / GIB:.0f} GiB" if facts.memory_total else ""
    nodes = f", {facts.numa_nodes} NUMA nodes" if (facts.numa_nodes or 1) > 1 else ""
    where = ", ".join(
        filter(None, ("virtual" if facts.virtual else "", f"in {facts.container}" if facts.container else ""))
    )
    return Check(
        name="machine",
        status="ok",
        text=f"{facts.cpu_model or 'an unnamed CPU'}, {cores}{nodes}{memory}, kernel {facts.kernel}"
        f"{f' ({where})' if where else ''}",
    )


def _neighbours(at_rest: Mapping[str, Any]) -> Check:
    wall, others = at_rest.get("wall_s"), at_rest.get("others_cpu_s")
    if not wall or others is None:
        return Check(name="at rest", status="ok", text="who uses the cores cannot be read here")
    cores, stolen = others / wall, (at_rest.get("steal_s") or 0.0) / wall
    if stolen > STOLEN_SHARE:
        return Check(
            name="at rest",
            status="warn",
            text=f"the hypervisor gives {stolen:.2f} cores to other machines",
            why="what it takes is missing from one launch and not from another",
            remedy="ask for dedicated cores",
        )
    if cores > BUSY_CORES:
        names = ", ".join(f"pid {one['pid']} ({one['cpu_s'] / wall:.1f})" for one in at_rest.get("foreign", ()))
        return Check(
            name="at rest",
            status="warn",
            text=f"others use {cores:.1f} cores{f': {names}' if names else ''}",
            why="a neighbour that comes and goes beside one side looks like a slow commit",
            remedy="top; end it, or measure when it is gone",
        )
    return Check(name="at rest", status="ok", text=f"others use {cores:.2f} cores")


def _frequency(facts: SystemFacts) -> Iterator[Check]:
    if facts.governor is not None and facts.governor != "performance":
        yield Check(
            name="cpu governor",
            status="warn",
            text=facts.governor,
            why="decoding at concurrency 1 waits for single cores, which such a governor slows down between steps",
            remedy="sudo cpupower frequency-set -g performance",
        )
    elif facts.governor is not None:
        turbo = {True: ", turbo on", False: ", turbo off", None: ""}[facts.turbo]
        yield Check(name="cpu governor", status="ok", text=f"performance{turbo}")


def _limits(facts: SystemFacts) -> Iterator[Check]:
    limits = facts.cgroup
    if limits.cpus is not None and limits.cpus < (facts.cpus_online or facts.cpus):
        yield Check(
            name="container limits",
            status="warn",
            text=f"a quota of {limits.cpus:g} cores of {facts.cpus_online or facts.cpus}",
            why="when it is used up the kernel stops the server for the rest of its period",
            remedy="start the container without --cpus, or bind it with --cpuset-cpus",
        )
    if limits.memory_bytes is not None and facts.memory_total and limits.memory_bytes < facts.memory_total:
        yield Check(
            name="container memory", status="ok", text=f"up to {limits.memory_bytes / GIB:.0f} GiB in this container"
        )


def _memory(facts: SystemFacts) -> Iterator[Check]:
    total, available = facts.memory_total, facts.memory_available
    if total and available is not None and available < MEMORY_SHARE * total:
        yield Check(
            name="memory",
            status="warn",
            text=f"{available / GIB:.1f} GiB of {total / GIB:.0f} GiB available",
            why="weights are read through the page cache, and a box that swaps cannot be measured",
            remedy="free -h; end what holds it",
        )


def _shared_memory(facts: SystemFacts) -> Iterator[Check]:
    if facts.shm_free is not None and facts.shm_free < SHM_NEEDED:
        yield Check(
            name="shared memory",
            status="fail",
            text=f"{facts.shm_free / 1024**2:.0f} MiB free in /dev/shm",
            why="NCCL puts the ranks' buffers there and fails, or goes another way, without",
            remedy="docker run --ipc=host, or --shm-size=16g",
        )


def _numa(facts: SystemFacts) -> Iterator[Check]:
    if facts.numa_balancing and (facts.numa_nodes or 1) > 1:
        yield Check(
            name="numa balancing",
            status="warn",
            text="on",
            why="the kernel moves pages between sockets while servers run",
            remedy="sudo sysctl kernel.numa_balancing=0",
        )


def disk_checks(state_dir: Path, min_free_gb: float) -> Iterator[Check]:
    """Room in perfgate's state, and the right to write there."""
    place = next((folder for folder in (state_dir, *state_dir.parents) if folder.exists()), Path("/"))
    if not os.access(place, os.W_OK | os.X_OK):
        yield Check(
            name="state",
            status="fail",
            text=f"{place} cannot be written by this user",
            why="runs, builds and caches are kept there",
            remedy=f"sudo install -d -o $USER {state_dir}, or set state_dir in the box file",
        )
    free = free_bytes(state_dir)
    if free is None:
        return
    enough = free >= min_free_gb * 1e9
    yield Check(
        name="disk",
        status="ok" if enough else "fail",
        text=f"{free / 1e9:.0f} GB free",
        why="" if enough else f"perfgate leaves {min_free_gb:g} GB free (caches.min_free_gb) and would not begin",
        remedy="" if enough else f"du -xh {state_dir} | sort -h | tail, or lower caches.max_gb",
    )
