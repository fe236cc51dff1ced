"""The GPUs: what they are, whether they are free, and the state of each at one moment.

Everything here is public: UUIDs, serials and command lines of strangers' processes are short hashes. Numbers that a
card does not give are None.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from perfgate.config.model import BoxFile
from perfgate.host.nvml import Handle, Nvml
from perfgate.host.processes import command_line, process_name
from perfgate.records.files import short_hash

MIB = 1024 * 1024
IDLE_MEMORY = 1024 * MIB  # what a driver may keep on a free GPU

REASONS = {
    0x001: "idle",
    0x002: "set_clocks",
    0x004: "power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "power_brake",
    0x100: "display",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Clock event ("throttle") reasons of nvml.h, by bit."""

BAD_REASONS = ("hw_slowdown", "sw_thermal", "hw_thermal", "power_brake")
"""Reasons that are the box's and never the code's. A power cap is not among them: load alone can cause it."""

FABRIC = (None, "not started", "in progress", "completed")
"""States of nvml.h, by number; the first: this card has none."""

LEVELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "INT",
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}
"""How far apart two GPUs are, in the words of `nvidia-smi topo -m`."""


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    pid: int  # as the driver sees it: of another container, it may mean nothing here
    memory: int | None  # bytes
    command: str | None  # short hash; None where the process is not visible from here
    name: str | None = None  # for the eyes of the box's owner; never for public output


@dataclass(frozen=True, kw_only=True)
class GpuShare:
    """What of the box's GPUs is perfgate's: which ones, and who may stay on them (name → bytes on each GPU)."""

    visible: tuple[str, ...] | None = None  # None: all
    residents: Mapping[str, int] = field(default_factory=dict)

    @property
    def variables(self) -> Mapping[str, str]:
        """For servers and canary: counted as NVML counts them."""
        if self.visible is None:
            return {}
        return {"CUDA_VISIBLE_DEVICES": ",".join(self.visible), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def allows(self, process: GpuProcess) -> bool:
        allowed = self.residents.get(process.name or "")
        return allowed is not None and process.memory is not None and process.memory <= allowed


ALL_GPUS = GpuShare()


def share_of(box: BoxFile, own: Mapping[str, str] | None = None) -> GpuShare:
    """By the box file; what perfgate's own environment says of the GPUs holds for servers, so for all."""
    said = box.env.get("CUDA_VISIBLE_DEVICES") or (os.environ if own is None else own).get("CUDA_VISIBLE_DEVICES")
    visible = None if said is None else tuple(part.strip() for part in said.split(",") if part.strip())
    return GpuShare(visible=visible, residents={name: mib * MIB for name, mib in box.residents.items()})


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """What one GPU is. Watts, MHz, bytes, °C."""

    index: int
    name: str | None
    uuid: str | None  # short hash
    serial: str | None  # short hash
    bus_id: str | None
    numa_node: int | None
    vbios: str | None
    memory_total: int | None
    power_limit_w: float | None
    power_default_w: float | None
    persistence: bool | None
    compute_mode: str | None
    ecc: bool | None
    mig: bool | None
    sm_max_mhz: int | None
    mem_max_mhz: int | None
    pcie_gen_max: int | None  # of card and slot together
    pcie_width_max: int | None
    pcie_gen_card: int | None  # of the card alone
    nvlinks: int | None = None  # that are up; None where the card has none, or does not tell
    fabric: str | None = None  # whether NVSwitch's manager has set it up


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """One GPU at one moment. `pcie_gen` means something under load only: idle links slow down to save power."""

    index: int
    at: float  # time.monotonic()
    lost: bool
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    pcie_replays: int | None = None
    memory_used: int | None = None
    pstate: int | None = None
    reasons: tuple[str, ...] | None = None
    thermal_ns: int | None = None  # since boot, held back by heat


@dataclass(frozen=True, kw_only=True)
class GpuBox:
    """All GPUs of the box, and how they hang together."""

    driver: str | None
    cuda: str | None  # newest CUDA that the driver serves
    gpus: tuple[GpuFacts, ...]
    topology: tuple[tuple[str, ...], ...]  # [i][j]: level between GPU i and j, "?" where unknown
    readings: tuple[GpuReading, ...]
    processes: tuple[tuple[GpuProcess, ...], ...]  # by GPU


def describe_gpus(nvml: Nvml, at: float) -> GpuBox:
    """Everything once, at rest."""
    return GpuBox(
        driver=nvml.text("nvmlSystemGetDriverVersion"),
        cuda=_cuda_version(nvml.count("nvmlSystemGetCudaDriverVersion_v2")),
        gpus=tuple(_facts(nvml, index, handle) for index, handle in nvml.numbered),
        topology=tuple(tuple(_level(nvml, one, other) for other in nvml.handles) for one in nvml.handles),
        readings=read_gpus(nvml, at),
        processes=tuple(gpu_processes(nvml, handle) for handle in nvml.handles),
    )


def cuda_arch(nvml: Nvml) -> str | None:
    """Compute capability of the box's GPUs as compilers name it, e.g. "12.0"; None where it is not told or not one."""
    found = {nvml.ask("nvmlDeviceGetCudaComputeCapability", handle) for handle in nvml.handles}
    one = found.pop() if len(found) == 1 else None
    return ".".join(map(str, one)) if one else None


def read_gpus(nvml: Nvml, at: float) -> tuple[GpuReading, ...]:
    """The state of every GPU now."""
    return tuple(_reading(nvml, index, handle, at) for index, handle in nvml.numbered)


def gpu_processes(nvml: Nvml, handle: Handle | None) -> tuple[GpuProcess, ...]:
    """Every process on one GPU; compute, graphics and MPS clients, each once."""
    found: dict[int, GpuProcess] = {}
    for kind in ("Compute", "Graphics", "MPSCompute"):
        listed = (nvml.ask(f"nvmlDeviceGet{kind}RunningProcesses_v{version}", handle) for version in (3, 2))
        for process in next((answer for answer in listed if answer is not None), ()):
            line = command_line(process.pid)
            found[process.pid] = GpuProcess(
                pid=process.pid,
                memory=process.usedGpuMemory,
                command=short_hash(line) if line else None,
                name=process_name(process.pid),
            )
    return tuple(found.values())


def why_not_free(
    box: GpuBox, ours: Collection[int] = (), share: GpuShare = ALL_GPUS, *, named: bool = False
) -> tuple[str, ...]:
    """One sentence for each GPU that is in use by others. Pids in `ours` and the box's residents do not count.

    `named`: with the names of processes, which are the box owner's alone to see.

    A process in another container may not be listed at all; its memory is.
    """
    return tuple(
        sentence
        for reading, processes in zip(box.readings, box.processes, strict=True)
        for sentence in _uses(
            reading,
            [one for one in processes if one.pid not in ours and not share.allows(one)],
            bool(processes),
            named,
        )
    )


def _uses(reading: GpuReading, foreign: list[GpuProcess], listed: bool, named: bool) -> Iterator[str]:
    if foreign:
        yield f"GPU {reading.index} is in use by {', '.join(_process_words(one, named) for one in foreign)}"
    elif not listed and reading.memory_used is not None and reading.memory_used > IDLE_MEMORY:
        yield (
            f"GPU {reading.index} has {_gib(reading.memory_used)} in use by a process that cannot be seen from here"
            " (another container, or another user's)"
        )


def _process_words(process: GpuProcess, named: bool) -> str:
    memory = f", {_gib(process.memory)}" if process.memory is not None else ""
    if process.command is None:
        return f"pid {process.pid} (not visible from here: another container?{memory})"
    who = process.name if named and process.name else f"command {process.command}"
    return f"pid {process.pid} ({who}{memory})"


def _gib(size: int) -> str:
    return f"{size / 1024**3:.1f} GiB" if size >= 1024**3 / 10 else f"{size / MIB:.0f} MiB"


def _facts(nvml: Nvml, index: int, handle: Handle | None) -> GpuFacts:
    memory = _memory(nvml, handle)
    bus_id = _bus_id(nvml.ask("nvmlDeviceGetPciInfo", handle))
    return GpuFacts(
        index=index,
        name=nvml.text("nvmlDeviceGetName", handle),
        uuid=_hashed(nvml.text("nvmlDeviceGetUUID", handle)),
        serial=_hashed(nvml.text("nvmlDeviceGetSerial", handle)),
        bus_id=bus_id,
        numa_node=_numa_node(bus_id),
        vbios=nvml.text("nvmlDeviceGetVbiosVersion", handle),
        memory_total=None if memory is None else int(memory.total),
        power_limit_w=nvml.number("nvmlDeviceGetPowerManagementLimit", handle, scale=0.001),
        power_default_w=nvml.number("nvmlDeviceGetPowerManagementDefaultLimit", handle, scale=0.001),
        persistence=_on(nvml.ask("nvmlDeviceGetPersistenceMode", handle)),
        compute_mode=_compute_mode(nvml.count("nvmlDeviceGetComputeMode", handle)),
        ecc=_current(nvml.ask("nvmlDeviceGetEccMode", handle)),
        mig=_current(nvml.ask("nvmlDeviceGetMigMode", handle)),
        sm_max_mhz=nvml.count("nvmlDeviceGetMaxClockInfo", handle, pynvml.NVML_CLOCK_SM),
        mem_max_mhz=nvml.count("nvmlDeviceGetMaxClockInfo", handle, pynvml.NVML_CLOCK_MEM),
        pcie_gen_max=nvml.count("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        pcie_width_max=nvml.count("nvmlDeviceGetMaxPcieLinkWidth", handle),
        pcie_gen_card=nvml.count("nvmlDeviceGetGpuMaxPcieLinkGeneration", handle),
        nvlinks=_nvlinks(nvml, handle),
        fabric=_fabric(nvml, handle),
    )


def _nvlinks(nvml: Nvml, handle: Handle | None) -> int | None:
    states = [nvml.ask("nvmlDeviceGetNvLinkState", handle, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
    known = [state for state in states if isinstance(state, int)]
    return sum(map(bool, known)) if known else None


def _fabric(nvml: Nvml, handle: Handle | None) -> str | None:
    info = pynvml.c_nvmlGpuFabricInfo_t()
    if nvml.ask("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info)) is None:
        return None
    state = int(info.state)
    return FABRIC[state] if 0 < state < len(FABRIC) else None


def _reading(nvml: Nvml, index: int, handle: Handle | None, at: float) -> GpuReading:
    if nvml.lost(handle):
        return GpuReading(index=index, at=at, lost=True)
    memory = _memory(nvml, handle)
    return GpuReading(
        index=index,
        at=at,
        lost=False,
        sm_clock_mhz=nvml.count("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_SM),
        mem_clock_mhz=nvml.count("nvmlDeviceGetClockInfo", handle, pynvml.NVML_CLOCK_MEM),
        temperature_c=nvml.count("nvmlDeviceGetTemperature", handle, pynvml.NVML_TEMPERATURE_GPU),
        power_w=nvml.number("nvmlDeviceGetPowerUsage", handle, scale=0.001),
        power_limit_w=nvml.number("nvmlDeviceGetEnforcedPowerLimit", handle, scale=0.001),
        pcie_gen=nvml.count("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        pcie_width=nvml.count("nvmlDeviceGetCurrPcieLinkWidth", handle),
        pcie_replays=nvml.count("nvmlDeviceGetPcieReplayCounter", handle),
        memory_used=None if memory is None else int(memory.used),
        pstate=_pstate(nvml.count("nvmlDeviceGetPerformanceState", handle)),
        reasons=_reasons(nvml, handle),
        thermal_ns=_thermal_ns(nvml, handle),
    )


def _memory(nvml: Nvml, handle: Handle | None) -> Any:
    """Version 2 does not count what the driver reserves as used; older drivers have version 1 only."""
    return nvml.ask("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2) or nvml.ask(
        "nvmlDeviceGetMemoryInfo", handle
    )


def _reasons(nvml: Nvml, handle: Handle | None) -> tuple[str, ...] | None:
    for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        bits = nvml.ask(function, handle)  # drivers before 535 know the second name only
        if isinstance(bits, int):
            known = tuple(name for bit, name in REASONS.items() if bits & bit)
            return known + tuple(f"bit_{n}" for n in range(11, 64) if bits >> n & 1)
    return None


def _thermal_ns(nvml: Nvml, handle: Handle | None) -> int | None:
    status = nvml.ask("nvmlDeviceGetViolationStatus", handle, pynvml.NVML_PERF_POLICY_THERMAL)
    return None if status is None else int(status.violationTime)


def _level(nvml: Nvml, one: Handle | None, other: Handle | None) -> str:
    if one is other:
        return "X"
    level = nvml.ask("nvmlDeviceGetTopologyCommonAncestor", one, other)
    return LEVELS.get(level, "?") if isinstance(level, int) else "?"


def _numa_node(bus_id: str | None, root: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """Linux knows it; -1 there means that it does not."""
    if bus_id is None:
        return None
    domain, _, rest = bus_id.lower().partition(":")
    try:
        node = int((root / f"{domain[-4:]}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _bus_id(info: Any) -> str | None:
    if info is None:
        return None
    return info.busId.decode(errors="replace") if isinstance(info.busId, bytes) else str(info.busId)


def _hashed(text: str | None) -> str | None:
    return None if text is None else short_hash(text)


def _on(answer: object) -> bool | None:
    return bool(answer) if isinstance(answer, int) else None


def _current(modes: object) -> bool | None:
    """Of a pair (current, pending)."""
    return bool(modes[0]) if isinstance(modes, list | tuple) and modes else None


def _compute_mode(mode: int | None) -> str | None:
    names = ("default", "exclusive_thread", "prohibited", "exclusive_process")
    return names[mode] if mode is not None and mode < len(names) else None


def _pstate(state: int | None) -> int | None:
    return None if state is None or state > 15 else state  # 32 means unknown


def _cuda_version(number: int | None) -> str | None:
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"
