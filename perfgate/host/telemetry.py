"""The GPUs while a launch is measured: read once or twice a second in a thread, summarised per sample and per launch.

Counters (thermal time, PCIe replays) are differences over the window, so a throttle shorter than the period still
shows. A dead driver can hang a call for good; the thread is a daemon and nobody waits for it longer than a moment.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

from perfgate.host.gpu import BAD_REASONS, GpuReading, read_gpus
from perfgate.host.nvml import Nvml

PERIOD_S = 1.0
KEPT = 4 * 3600  # readings; older ones go
STOP_WAIT_S = 5.0

THERMAL_MS = 50.0  # held back by heat for longer than this counts, although no reading saw it
SLOWED_BY: Mapping[str, str] = {
    "hw_slowdown": "its hardware",
    "sw_thermal": "heat",
    "hw_thermal": "heat",
    "power_brake": "the power brake",
}

Read = Callable[[float], tuple[GpuReading, ...]]


class GpuTelemetry:
    """Readings of all GPUs, taken every `period_s` between `start` and `stop`."""

    def __init__(self, read: Read, period_s: float = PERIOD_S) -> None:
        self._read = read
        self._period_s = period_s
        self._readings: deque[tuple[GpuReading, ...]] = deque(maxlen=KEPT)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-telemetry", daemon=True)

    @classmethod
    def of(cls, nvml: Nvml, period_s: float = PERIOD_S) -> Self:
        return cls(lambda at: read_gpus(nvml, at), period_s)

    def start(self) -> Self:
        self.read_now()
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_WAIT_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def read_now(self) -> None:
        """One more reading at once, e.g. at the end of a sample."""
        self._readings.append(self._read(time.monotonic()))

    def between(self, begin: float, end: float) -> tuple[Mapping[str, Any], ...]:
        """One summary per GPU for `records.Telemetry.gpus` of the readings in a window (time.monotonic()).

        A window too short to hold any takes the reading nearest to its middle. Counters are taken from the last
        reading before it to the first one after it.
        """
        taken = [reading for reading in tuple(self._readings) if reading]
        inside = [reading for reading in taken if begin <= reading[0].at <= end]
        middle = (begin + end) / 2
        chosen = inside or sorted(taken, key=lambda reading: abs(reading[0].at - middle))[:1]
        before = [reading for reading in taken if reading[0].at < begin][-1:]
        after = [reading for reading in taken if reading[0].at > end][:1]
        around = [*before, *inside, *after]
        return tuple(
            summary(one, counted)
            for one, counted in zip(zip(*chosen, strict=True), zip(*around, strict=True), strict=True)
        )

    def _run(self) -> None:
        due = time.monotonic() + self._period_s  # the first reading was `start`'s
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            self.read_now()
            due = max(due + self._period_s, time.monotonic() + self._period_s / 2)


def summary(readings: Sequence[GpuReading], counted: Sequence[GpuReading] | None = None) -> Mapping[str, Any]:
    """What one GPU did over its readings. The link's generation is its best one: an idle link slows down.

    `counted`: readings whose counters are compared, where they are not the same.
    """
    counted = readings if counted is None else counted
    gen, width = _most("pcie_gen", readings), _least("pcie_width", readings)
    return {
        "index": readings[0].index,
        "readings": len(readings),
        "lost": any(one.lost for one in readings),
        "sm_clock_mhz": _median("sm_clock_mhz", readings),
        "sm_clock_min_mhz": _least("sm_clock_mhz", readings),
        "mem_clock_mhz": _median("mem_clock_mhz", readings),
        "temperature_c": _most("temperature_c", readings),
        "power_w": _mean("power_w", readings),
        "power_limit_w": _least("power_limit_w", readings),
        "pcie": f"Gen{gen:.0f} x{width:.0f}" if gen is not None and width is not None else None,
        "pcie_gen": gen,
        "pcie_width": width,
        "pcie_replays": _grown("pcie_replays", counted),
        "memory_used": _most("memory_used", readings),
        "throttle": _reasons(readings),
        "thermal_ms": _scaled(_grown("thermal_ns", counted), 1e-6),
    }


def complaints(gpu: Mapping[str, Any]) -> Iterator[tuple[Literal["gpu_lost", "throttle"], str]]:
    """What the summary of one GPU says against a launch, e.g. ("throttle", "was slowed by heat, down to 1800 MHz")."""
    if gpu.get("lost"):
        yield "gpu_lost", "was lost"
    seen = gpu.get("throttle") or ()
    reason = next((name for name in BAD_REASONS if name in seen and name != "hw_slowdown"), None)
    clock = gpu.get("sm_clock_min_mhz")
    if reason is None and "hw_slowdown" in seen:
        reason = "hw_slowdown"  # the card's word for any of the others; alone where it does not say which
    if reason is not None:
        yield (
            "throttle",
            f"was slowed by {SLOWED_BY[reason]}{f', down to {clock:.0f} MHz' if clock is not None else ''}",
        )
    elif (gpu.get("thermal_ms") or 0.0) > THERMAL_MS:
        yield "throttle", f"was slowed by heat for {gpu['thermal_ms']:.0f} ms"


def _values(name: str, readings: Iterable[GpuReading]) -> list[float]:
    return [value for one in readings if (value := getattr(one, name)) is not None]


def _median(name: str, readings: Sequence[GpuReading]) -> float | None:
    values = _values(name, readings)
    return statistics.median(values) if values else None


def _mean(name: str, readings: Sequence[GpuReading]) -> float | None:
    values = _values(name, readings)
    return round(statistics.fmean(values), 1) if values else None


def _least(name: str, readings: Sequence[GpuReading]) -> float | None:
    return min(_values(name, readings), default=None)


def _most(name: str, readings: Sequence[GpuReading]) -> float | None:
    return max(_values(name, readings), default=None)


def _grown(name: str, readings: Sequence[GpuReading]) -> float | None:
    values = _values(name, readings)
    return values[-1] - values[0] if values else None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else round(value * factor, 3)


def _reasons(readings: Sequence[GpuReading]) -> list[str] | None:
    """Every reason seen but idleness, in the order of their first appearance; None where the card names none."""
    if all(one.reasons is None for one in readings):
        return None
    return list(dict.fromkeys(name for one in readings for name in one.reasons or () if name != "idle"))
