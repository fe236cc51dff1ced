"""Marks around the phases of a cycle, and the device time between them, without ever waiting for the device.

    forward_batch_generation  ├──────────────── cycle ────────────────┤
                              │ ├─ draft ─┤├── verify ──┤├─ extend ─┤ │     each phase has its own pair of marks
                              │            ├ target ┤                 │     (target: the forward inside verify)

The outermost mark opens a record, whichever phase it is of, so a release whose cycle is not found still gives the
phases that are. On CUDA a mark is an event on the current stream; finished events are collected in later cycles by
`query()`, never from another thread (a query while a graph is captured would spoil the capture). On CPU a mark is
`perf_counter`, for there the forward returns when it is done. Other devices have no clock here: no numbers then.
"""

from __future__ import annotations

import sys
import time
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from typing import Any

from .targets import CYCLE, DECODE, TARGET, VERIFY

WARMUP_CYCLES = 16  # of a process: caches fill and clocks rise; perfgate's own warm-up is longer
MAX_PENDING = 256  # cycles whose events are not finished; beyond it the oldest is given up
MAX_COLLECT = 8  # cycles to write at the end of one cycle, so that a backlog never makes one cycle slow
MAX_GIVEN_UP = 1024  # then the timers stop: these events will never be ready
MAX_TROUBLE = 3  # errors of our own, then the timers stop

Say = Callable[[str], None]


class Span:
    """One phase's pair of marks: host seconds, and device events where there is a device."""

    __slots__ = ("begin", "begin_event", "end", "end_event", "phase")

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.begin = self.end = 0.0
        self.begin_event: Any = None
        self.end_event: Any = None


class Cycle:
    """One record. `mark` says why it must not count: warmup, idle, capture, extend; "" counts."""

    __slots__ = ("at", "batch", "mark", "number", "running", "spans")

    def __init__(self, number: int, mark: str, batch: int) -> None:
        self.number = number
        self.at = time.monotonic()
        self.mark = mark
        self.batch = batch
        self.spans: list[Span] = []
        self.running: list[str] = []


class HostClock:
    """For CPU, where the forward is synchronous."""

    name = "perf_counter"

    def capturing(self) -> bool:
        return False

    def stamp(self) -> Any:
        return None

    def ready(self, cycle: Cycle) -> bool:
        return True

    def device_ms(self, span: Span) -> float | None:
        return None

    def recycle(self, cycle: Cycle) -> None:
        pass


class CudaClock:
    """CUDA events with timing, recorded on the current stream and used again once they are read."""

    name = "cuda_events"

    def __init__(self, torch: Any) -> None:
        self._new = torch.cuda.Event
        self.capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing
        self._free: list[Any] = []

    def stamp(self) -> Any:
        event = self._free.pop() if self._free else self._new(enable_timing=True)
        event.record()
        return event

    def ready(self, cycle: Cycle) -> bool:
        """Every event has finished: phases may have run on different streams, so the last one is not enough."""
        return all(
            event is None or event.query() for span in cycle.spans for event in (span.end_event, span.begin_event)
        )

    def device_ms(self, span: Span) -> float | None:
        if span.begin_event is None or span.end_event is None:
            return None
        return float(span.begin_event.elapsed_time(span.end_event))

    def recycle(self, cycle: Cycle) -> None:
        for span in cycle.spans:
            self._free.extend(event for event in (span.begin_event, span.end_event) if event is not None)


Clock = HostClock | CudaClock


def clock_for(device: str | None) -> Clock | None:
    """The clock that tells this device's time; None where there is none."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return CudaClock(torch)
    return HostClock() if device is not None and device.startswith("cpu") else None


class Timers:
    """Collects the marks of one process. `enter` and `leave` never raise and cost a few microseconds.

    `choose_clock(worker)` is called at the first mark, and again while it gives None. `write` takes a finished line;
    `say` tells of trouble; `enabled()` is asked at each outermost mark.
    """

    def __init__(
        self,
        choose_clock: Callable[[Any], Clock | None],
        write: Callable[[str], None],
        say: Say,
        enabled: Callable[[], bool] | None = None,
    ) -> None:
        self.on = True
        self._choose_clock = choose_clock
        self._write = write
        self._say = say
        self._enabled = enabled
        self._clock: Clock | None = None
        self._thread = 0
        self._cycle: Cycle | None = None
        self._number = 0
        self._warm = 0
        self._pending: deque[Cycle] = deque()
        self._given_up = 0
        self._troubles = 0

    def enter(self, phase: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span | None:
        """The begin of a phase; None where it is not timed."""
        if not self.on:
            return None
        try:
            cycle = self._cycle
            if cycle is None:
                return self._open(phase, args, kwargs)
            if self._thread != get_ident():
                return None
            if phase == DECODE and cycle.running[-1] == VERIFY:
                phase = TARGET
            if phase == DECODE or phase in cycle.running:
                return None
            return self._begin(cycle, phase)
        except Exception as error:  # noqa: BLE001 (a failing probe steps aside)
            self._trouble(error)
            return None

    def leave(self, span: Span) -> None:
        """The end of a phase that `enter` has begun."""
        try:
            cycle = self._cycle
            if cycle is None or span.phase not in cycle.running:
                return
            if cycle.mark != "capture" and self._clock is not None:
                span.end_event = self._clock.stamp()
            span.end = time.perf_counter()
            cycle.running.remove(span.phase)
            if span is cycle.spans[0]:
                self._cycle = None
                self._pending.append(cycle)
                if cycle.mark != "capture":
                    self._collect()
        except Exception as error:  # noqa: BLE001
            self._trouble(error)

    def _open(self, phase: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Span | None:
        if self._enabled is not None and not self._enabled():
            return None
        if self._clock is None:
            self._clock = self._choose_clock(args[0] if args else None)
            if self._clock is None:
                return None
        batch = args[1] if len(args) > 1 else next(iter(kwargs.values()), None)
        mark = "capture" if self._clock.capturing() else mark_of(phase, batch)
        if not mark and self._warm < WARMUP_CYCLES:
            self._warm += 1
            mark = "warmup"
        cycle = Cycle(self._number, mark, batch_size(batch))
        self._number += 1
        self._thread = get_ident()
        self._cycle = cycle
        return self._begin(cycle, phase)

    def _begin(self, cycle: Cycle, phase: str) -> Span:
        span = Span(phase)
        cycle.running.append(phase)
        cycle.spans.append(span)
        span.begin = time.perf_counter()
        if cycle.mark != "capture" and self._clock is not None:
            span.begin_event = self._clock.stamp()
        return span

    def _collect(self) -> None:
        """Writes the oldest cycles whose events have finished. Order is kept."""
        clock, pending = self._clock, self._pending
        assert clock is not None
        for _ in range(MAX_COLLECT):
            if not pending or not clock.ready(pending[0]):
                break
            cycle = pending.popleft()
            self._write(line_of(cycle, clock))
            clock.recycle(cycle)
        if len(pending) > MAX_PENDING:
            self._write(line_of(pending.popleft(), None))
            self._given_up += 1
            if self._given_up >= MAX_GIVEN_UP:
                self._stop(f"{self._given_up} cycles' events were never ready")

    def _trouble(self, error: Exception) -> None:
        self._cycle = None
        self._troubles += 1
        if self._troubles >= MAX_TROUBLE:
            self._stop(f"{type(error).__name__}: {error}"[:500])

    def _stop(self, why: str) -> None:
        self.on = False
        self._pending.clear()
        self._say("timers off: " + why)


def mark_of(phase: str, batch: Any) -> str:
    """Why a cycle on this batch is no decode cycle; "" where it is one. A batch that does not say might be prefill, and
    one number of prefill among those of decoding is worse than none; a phase outside any cycle only decodes."""
    mode = getattr(batch, "forward_mode", None)
    if mode is None:
        return "extend" if phase in (CYCLE, DECODE) else ""
    if mode.is_idle():
        return "idle"
    if phase == DECODE:
        return "" if mode.is_decode() else "extend"
    if phase == CYCLE and (mode.is_extend() or getattr(batch, "is_extend_in_batch", False)):
        return "extend"
    return ""


def batch_size(batch: Any) -> int:
    """Sequences in the batch, from shapes alone: asking the device would wait for it. 0 where it does not say."""
    for name in ("seq_lens", "reqs"):
        found = getattr(batch, name, None)
        if found is not None:
            return len(found)
    return 0


def line_of(cycle: Cycle, clock: Clock | None) -> str:
    """The cycle as a JSON line: `[device ms or null, host ms]` for each phase, summed where it ran more than once."""
    totals: dict[str, tuple[float | None, float]] = {}
    for span in cycle.spans:
        device = clock.device_ms(span) if clock is not None else None
        host = (span.end - span.begin) * 1000
        if span.phase in totals:
            before, before_host = totals[span.phase]
            device = before + device if before is not None and device is not None else None
            host += before_host
        totals[span.phase] = (device, host)
    phases = "".join(
        f',"{phase}":[{"null" if device is None else format(device, ".4f")},{host:.4f}]'
        for phase, (device, host) in totals.items()
    )
    return f'{{"k":"cycle","i":{cycle.number},"t":{cycle.at:.6f},"b":{cycle.batch},"m":"{cycle.mark}"{phases}}}'
