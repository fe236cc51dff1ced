"""What is wrong with the GPUs of a resting box. Pure: from what was read, to checks."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from perfgate.host.gpu import ALL_GPUS, BAD_REASONS, GpuBox, GpuFacts, GpuReading, GpuShare, why_not_free
from perfgate.records import Check

AT_WORK = 2  # performance states up to this one: the link runs at full speed
HOT_AT_REST = 60  # °C
LIMIT_W = 1.0  # power limits closer than this are equal


def absent_check(reason: str, *, required: bool) -> Check:
    if not required:
        return Check(name="gpus", status="ok", text=f"none needed here ({reason})")
    return Check(
        name="gpus",
        status="fail",
        text=reason,
        why="the GPUs cannot be read, so nothing can be said about what is measured on them",
        remedy="install the NVIDIA driver, or say `gpus: none` in the box file",
    )


def other_machine(root: Path = Path("/"), machine: str | None = None) -> Check | None:
    """What perfgate was not made for, told in one line instead of asking for a driver that does not exist."""
    machine = machine or platform.machine()
    amd = (root / "dev/kfd").exists() and not (root / "dev/nvidiactl").exists()
    if not amd and machine == "x86_64":
        return None
    return Check(
        name="gpus",
        status="fail",
        text="AMD GPUs, no NVIDIA GPU: not supported" if amd else f"{machine}: no NVIDIA GPU of an x86_64 machine",
        why="perfgate reads NVML and NCCL, and builds for CUDA on x86_64",
        remedy="measure on an x86_64 machine with NVIDIA GPUs, or say `gpus: none` in the box file",
    )


def gpu_checks(box: GpuBox, share: GpuShare = ALL_GPUS, *, named: bool = False) -> Iterator[Check]:
    """One check per thing; which GPUs it is about stands in its text."""
    if not box.gpus:
        yield Check(
            name="gpus",
            status="fail",
            text="the driver sees no GPU",
            why="there is nothing to measure on",
            remedy="nvidia-smi -L; lspci | grep -i nvidia",
        )
        return
    yield _present(box)
    if lost := [reading.index for reading in box.readings if reading.lost]:
        yield _lost(lost)
    yield _free(box, share, named)
    yield from _mig(box.gpus)
    yield _alike(box.gpus)
    yield _links(box)
    yield from _nvlinks(box.gpus)
    yield _held_back(box.readings)
    yield _power(box.gpus)
    yield from _modes(box.gpus)


def _present(box: GpuBox) -> Check:
    names = Counter(gpu.name or "an unnamed GPU" for gpu in box.gpus)
    what = ", ".join(f"{count} × {name}" for name, count in names.items())
    driver = f", driver {box.driver}" if box.driver else ""
    return Check(name="gpus", status="ok", text=f"{what}{driver}", data={"count": len(box.gpus)})


def _lost(lost: list[int]) -> Check:
    return Check(
        name="gpus lost",
        status="fail",
        text=f"{_gpus(lost)} {_does(lost, 'does')} not answer",
        why="a GPU that has fallen off the bus takes its rank with it",
        remedy="sudo dmesg | grep -i xid; then reboot",
    )


def _free(box: GpuBox, share: GpuShare, named: bool) -> Check:
    if busy := why_not_free(box, share=share, named=named):
        return Check(
            name="gpus free",
            status="fail",
            text="; ".join(busy),
            why="whatever runs beside a measurement is measured, too",
            remedy="nvidia-smi; end it, wait, or let one that stays stay: residents: {NAME: MIB} in the box file",
        )
    stay = sorted({str(one.name) for processes in box.processes for one in processes if share.allows(one)})
    others = f"nobody but {', '.join(stay)}, which may stay" if stay else "no other processes, no memory in use"
    return Check(name="gpus free", status="ok", text=others)


def _mig(gpus: Sequence[GpuFacts]) -> Iterator[Check]:
    if on := [gpu.index for gpu in gpus if gpu.mig]:
        yield Check(
            name="gpus whole",
            status="fail",
            text=f"{_gpus(on)} {_does(on, 'is')} cut into slices (MIG)",
            why="a slice is not the GPU that is meant to be measured",
            remedy=f"sudo nvidia-smi -i {_list(on)} -mig 0",
        )


def _alike(gpus: Sequence[GpuFacts]) -> Check:
    """All ranks wait for the slowest GPU, so one that differs decides."""
    asked: tuple[tuple[str, Callable[[GpuFacts], object]], ...] = (
        ("model", lambda gpu: gpu.name),
        ("VBIOS", lambda gpu: gpu.vbios),
        ("memory", lambda gpu: gpu.memory_total),
        ("highest clock", lambda gpu: gpu.sm_max_mhz),
        ("memory clock", lambda gpu: gpu.mem_max_mhz),
        ("ECC", lambda gpu: gpu.ecc),
    )
    odd = [found for what, value in asked if (found := _odd_one(gpus, what, value))]
    if odd:
        return Check(
            name="gpus alike",
            status="warn",
            text="; ".join(odd),
            why="every rank waits for the slowest GPU",
            remedy="nvidia-smi -q; make them equal, or measure on the equal ones (CUDA_VISIBLE_DEVICES)",
        )
    highest = gpus[0].sm_max_mhz
    return Check(
        name="gpus alike", status="ok", text=f"all alike{f', up to {highest} MHz' if highest is not None else ''}"
    )


def _odd_one(gpus: Sequence[GpuFacts], what: str, value: Callable[[GpuFacts], object]) -> str | None:
    """The GPUs that differ from most, in words; a value that a card does not tell is no difference."""
    known = [(gpu.index, value(gpu)) for gpu in gpus if value(gpu) is not None]
    usual, count = Counter(found for _, found in known).most_common(1)[0] if known else (None, 0)
    odd = [(index, found) for index, found in known if found != usual]
    if not odd or count == len(known):
        return None
    told = ", ".join(str(found) for found in dict.fromkeys(found for _, found in odd))
    indices = [index for index, _ in odd]
    return f"{_gpus(indices)}: {what} {told}, the others {usual}"


def _links(box: GpuBox) -> Check:
    problems = [problem for gpu, reading in zip(box.gpus, box.readings, strict=True) for problem in _link(gpu, reading)]
    best = max((gpu.pcie_gen_max for gpu in box.gpus if gpu.pcie_gen_max is not None), default=None)
    problems += [
        f"GPU {gpu.index}'s slot gives Gen{gpu.pcie_gen_max} at most, others Gen{best}"
        for gpu in box.gpus
        if gpu.pcie_gen_max is not None and best is not None and gpu.pcie_gen_max < best
    ]
    if problems:
        return Check(
            name="links",
            status="fail",
            text="; ".join(problems),
            why="all-reduce over PCIe runs at the pace of the slowest link",
            remedy="reseat the card and its riser; sudo lspci -vv | grep -i lnksta; check the slot in the BIOS",
        )
    widths = {gpu.pcie_width_max for gpu in box.gpus if gpu.pcie_width_max is not None}
    if best is None or not widths:
        return Check(name="links", status="ok", text="the cards do not tell")
    at_rest = "" if _any_at_work(box) else "; idle links slow down, their speed is checked under load"
    return Check(name="links", status="ok", text=f"Gen{best} x{max(widths)}{at_rest}")


def _nvlinks(gpus: Sequence[GpuFacts]) -> Iterator[Check]:
    """Nothing on a box of PCIe cards."""
    counts = {gpu.index: gpu.nvlinks for gpu in gpus if gpu.nvlinks is not None}
    waiting = [gpu.index for gpu in gpus if gpu.fabric in ("not started", "in progress")]
    if waiting:
        yield Check(
            name="nvlink",
            status="fail",
            text=f"the fabric of {_gpus(waiting)} is not set up",
            why="without it CUDA does not start, or NCCL goes over PCIe",
            remedy="sudo systemctl restart nvidia-fabricmanager; journalctl -u nvidia-fabricmanager",
        )
    elif counts and min(counts.values()) < max(counts.values()):
        fewer = [index for index, count in counts.items() if count < max(counts.values())]
        yield Check(
            name="nvlink",
            status="fail",
            text=f"{_gpus(fewer)}: {min(counts.values())} links up, the others have {max(counts.values())}",
            why="all-reduce runs at the pace of the GPU with the fewest",
            remedy="nvidia-smi nvlink --status; sudo dmesg | grep -i -e xid -e nvlink",
        )
    elif counts and max(counts.values()):
        yield Check(name="nvlink", status="ok", text=f"{max(counts.values())} links up on each GPU")


def _link(gpu: GpuFacts, reading: GpuReading) -> Iterator[str]:
    if reading.pcie_width is not None and gpu.pcie_width_max is not None and reading.pcie_width < gpu.pcie_width_max:
        yield f"GPU {gpu.index}'s link is x{reading.pcie_width}, it could be x{gpu.pcie_width_max}"
    gen, most = reading.pcie_gen, gpu.pcie_gen_max
    if _at_work(reading) and gen is not None and most is not None and gen < most:
        yield f"GPU {gpu.index} is at work and its link at Gen{gen}, it could be Gen{most}"


def _at_work(reading: GpuReading) -> bool:
    return reading.pstate is not None and reading.pstate <= AT_WORK and "idle" not in (reading.reasons or ())


def _any_at_work(box: GpuBox) -> bool:
    return any(map(_at_work, box.readings))


def _held_back(readings: Sequence[GpuReading]) -> Check:
    bad = [
        f"GPU {reading.index}: {', '.join(reason for reason in reading.reasons if reason in BAD_REASONS)}"
        for reading in readings
        if reading.reasons and any(reason in BAD_REASONS for reason in reading.reasons)
    ]
    if bad:
        return Check(
            name="clocks",
            status="fail",
            text=f"held back already at rest: {'; '.join(bad)}",
            why="heat or power makes the box slower than it is, and not equally all the time",
            remedy="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER; check fans, airflow, power cables",
        )
    temperatures = [reading.temperature_c for reading in readings if reading.temperature_c is not None]
    if temperatures and max(temperatures) > HOT_AT_REST:
        return Check(
            name="clocks",
            status="warn",
            text=f"{max(temperatures)} °C at rest",
            why="under load it will be throttled",
            remedy="check fans and airflow, or wait until the box has cooled down",
        )
    known = any(reading.reasons is not None for reading in readings)
    return Check(name="clocks", status="ok", text="nothing holds them back" if known else "the cards do not tell")


def _power(gpus: Sequence[GpuFacts]) -> Check:
    limits = {gpu.index: gpu.power_limit_w for gpu in gpus if gpu.power_limit_w is not None}
    if not limits:
        return Check(name="power", status="ok", text="the cards do not tell")
    lowered = [
        gpu.index
        for gpu in gpus
        if gpu.power_limit_w is not None
        and gpu.power_default_w is not None
        and gpu.power_limit_w < gpu.power_default_w - LIMIT_W
    ]
    if max(limits.values()) - min(limits.values()) > LIMIT_W:
        lowest = [index for index, limit in limits.items() if limit < max(limits.values()) - LIMIT_W]
        return _power_warning(
            f"{_gpus(lowest)} {_does(lowest, 'is')} limited to {min(limits.values()):.0f} W,"
            f" others to {max(limits.values()):.0f} W",
            "every rank waits for the GPU with the lowest limit",
            lowest,
        )
    if lowered:
        default = gpus[lowered[0]].power_default_w
        return _power_warning(
            f"all limited to {min(limits.values()):.0f} W, {default:.0f} W is usual",
            "both sides run under it, so the comparison is fair, but the numbers are not this card's",
            lowered,
        )
    return Check(name="power", status="ok", text=f"limited to {min(limits.values()):.0f} W, as usual")


def _power_warning(text: str, why: str, which: list[int]) -> Check:
    return Check(name="power", status="warn", text=text, why=why, remedy=f"sudo nvidia-smi -i {_list(which)} -pl WATTS")


def _modes(gpus: Sequence[GpuFacts]) -> Iterator[Check]:
    if off := [gpu.index for gpu in gpus if gpu.persistence is False]:
        yield Check(
            name="persistence",
            status="warn",
            text=f"{_gpus(off)}: persistence mode is off",
            why="the driver unloads between launches, and each start pays for it",
            remedy="sudo nvidia-smi -pm 1",
        )
    closed = [gpu.index for gpu in gpus if gpu.compute_mode == "prohibited"]
    alone = [gpu.index for gpu in gpus if gpu.compute_mode in ("exclusive_process", "exclusive_thread")]
    if closed or alone:
        yield Check(
            name="compute mode",
            status="fail" if closed else "warn",
            text=f"{_gpus(closed or alone)}: {'no process may use it' if closed else 'one process at a time'}",
            why="a server opens several processes on a GPU",
            remedy="sudo nvidia-smi -c DEFAULT",
        )


def _gpus(indices: list[int]) -> str:
    return f"GPU {indices[0]}" if len(indices) == 1 else f"GPUs {', '.join(map(str, indices))}"


def _list(indices: list[int]) -> str:
    return ",".join(map(str, indices))


def _does(indices: list[int], verb: str) -> str:
    return verb if len(indices) == 1 else {"is": "are", "does": "do"}[verb]
