"""From the probe's cycles to a launch's numbers: how long draft, verify and draft-extend took, on which rank.

Only cycles that lie wholly inside a measured window count; warm-up, idle, capture and prefill never do. A rank's
number is the mean over its cycles, as a client's tok/s and cycle are means: a slowdown of some cycles only moves both,
and the phases of a rank add up to its cycle. For that the same cycles count for every phase: those that ran the usual
phases, without the very slowest (`TRIMMED`), in which the machine did something else. How many were slow is told beside
it. A sample's number is the slowest rank's, for the others wait for it; the distance
to the fastest is the straggler. Where nothing was measured the number is None, never 0.

The numbers come from the code under test. They are compared with what the client saw by its own clock: from one
cycle's begin to the next is what a client's `decode time / cycles` measures as well. A disagreement is a warning.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from perfgate.probe.lines import PHASES
from perfgate.probe.reading import ProbedProcess, ProbeReading, TimedCycle, read_probe
from perfgate.records import LaunchId, Notice, Phases, RankPhases

__all__ = ["LaunchPhases", "SamplePhases", "Window", "phases_of", "read_probe"]

DISAGREEMENT = 0.05  # between two ways to measure the same time, before it is told
FEW_CYCLES = 20
TRIMMED = 0.005  # of the cycles, the slowest ones: one in two hundred
SLOW = 1.5  # times the median: a cycle that took longer is slow
ENOUGH_CYCLES = 200  # to speak of a share
MANY_SLOW = 0.05  # share of slow cycles that is told
RANK_SHARE = 0.95  # of the cycles of the rank that has most; fewer: it has lost some


class Window(NamedTuple):
    """A measured span, monotonic seconds: the one the client's number covers. A sample may have several."""

    sample: int
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True)
class SamplePhases:
    """Milliseconds of one sample, or of a launch's samples together (`sample` None). Means, the slowest rank's.

    `period_ms` is the mean from one cycle's begin to the next; beyond `cycle_ms` it holds the scheduler's own work.
    """

    sample: int | None
    clock: str  # "cuda_events" | "perf_counter"
    cycles: int  # of the rank that has most
    cycle_ms: float | None = None
    verify_ms: float | None = None
    draft_ms: float | None = None
    draft_extend_ms: float | None = None
    decode_ms: float | None = None
    target_ms: float | None = None  # target's forward inside verify, without sampling
    period_ms: float | None = None
    batch: float | None = None  # median number of sequences
    slow_share: float | None = None  # of the cycles, that took far longer than the median; the worst rank's
    straggler_ms: float | None = None
    ranks: tuple[RankPhases, ...] = ()
    warnings: tuple[Notice, ...] = ()

    def fact(self, launch: LaunchId, concurrency: int) -> Phases:
        """The line for facts.jsonl, under the launch's identity."""
        if self.sample is None:
            raise ValueError("only a sample is a fact")
        return Phases(
            id=launch.launch_id,
            **launch.identity,
            sample=self.sample,
            concurrency=concurrency,
            clock=self.clock,
            cycles=self.cycles,
            cycle_ms=self.cycle_ms,
            verify_ms=self.verify_ms,
            draft_ms=self.draft_ms,
            draft_extend_ms=self.draft_extend_ms,
            decode_ms=self.decode_ms,
            straggler_ms=self.straggler_ms,
            slow_share=self.slow_share,
            ranks=self.ranks,
            warnings=tuple(asdict(warning) for warning in self.warnings),
        )


@dataclass(frozen=True, kw_only=True)
class LaunchPhases:
    """One entry for each sample in which cycles were seen, and all of them together."""

    samples: tuple[SamplePhases, ...]
    whole: SamplePhases | None
    warnings: tuple[Notice, ...]  # about the launch

    def facts(self, launch: LaunchId, concurrency: Mapping[int, int]) -> tuple[Phases, ...]:
        """The lines for facts.jsonl; `concurrency` of each sample. What concerns the launch stands with its first
        sample, which is empty where nothing was measured."""
        nothing = SamplePhases(sample=min(concurrency, default=0), clock="", cycles=0)
        first, *others = self.samples or (nothing,)
        if not self.samples and not self.warnings:
            return ()
        told = replace(first, warnings=(*first.warnings, *self.warnings))
        return tuple(one.fact(launch, concurrency.get(one.sample or 0, 1)) for one in (told, *others))


class _RankNumbers(NamedTuple):
    rank: int
    cycles: int
    ms: Mapping[str, float | None]
    period: float | None
    batch: float | None
    slow: float | None


def phases_of(
    reading: ProbeReading,
    windows: Sequence[Window | tuple[int, float, float]],
    *,
    client_cycle_ms: Mapping[int, float] | None = None,
    device_timer_ms: Mapping[str, float] | None = None,
    expected_ranks: int | None = None,
) -> LaunchPhases:
    """The phases inside the windows.

    `client_cycle_ms`: sample → decode time per cycle (plain decoding: per token) by the client's clock.
    `device_timer_ms`: SGLang's own timer over all windows, from `device_timer`.
    `expected_ranks`: how many ranks the launch has, where it is known.
    """
    spans = sorted(Window(*window) for window in windows)
    client = client_cycle_ms or {}
    samples = []
    for sample in sorted({span.sample for span in spans}):
        own = [span for span in spans if span.sample == sample]
        found = _sample(reading, own, sample, client.get(sample))
        if found is not None:
            samples.append(found)
    whole = _sample(reading, spans, None, None)
    warnings = [*_launch_warnings(reading, whole, expected_ranks)]
    if whole is not None and device_timer_ms:
        warnings += _device_timer_warnings(whole, device_timer_ms)
    return LaunchPhases(samples=tuple(samples), whole=whole, warnings=tuple(warnings))


# ------------------------------------------------------------------------------------------------ numbers


def _sample(
    reading: ProbeReading, spans: Sequence[Window], sample: int | None, client_ms: float | None
) -> SamplePhases | None:
    ranks, impossible = [], []
    for rank, process in numbered(reading):
        numbers = _rank_numbers(rank, process, spans)
        if numbers is None:
            impossible.append(rank)
        elif numbers.cycles:
            ranks.append(numbers)
    if not ranks and not impossible:
        return None
    slowest = {phase: _slowest(ranks, phase) for phase in PHASES}
    whole = "cycle" if slowest["cycle"] is not None else "decode"
    most = max((numbers.cycles for numbers in ranks), default=0)
    period = max((numbers.period for numbers in ranks if numbers.period is not None), default=None)
    return SamplePhases(
        sample=sample,
        clock=next((process.clock for process in reading.timed if process.clock), ""),
        cycles=most,
        **{f"{phase}_ms": ms for phase, ms in slowest.items()},
        period_ms=period,
        batch=_median(numbers.batch for numbers in ranks),
        straggler_ms=_spread(ranks, whole),
        slow_share=max((numbers.slow for numbers in ranks if numbers.slow is not None), default=None),
        ranks=tuple(_as_record(numbers) for numbers in ranks),
        warnings=tuple(_sample_warnings(ranks, most, impossible, period, client_ms)),
    )


def numbered(reading: ProbeReading) -> list[tuple[int, ProbedProcess]]:
    """The processes that ran cycles, each with a rank of its own. Where two claim the same, the later gets the next
    free number."""
    taken: dict[int, ProbedProcess] = {}
    for process in reading.timed:
        rank = process.rank or 0
        while rank in taken:
            rank += 1
        taken[rank] = process
    return sorted(taken.items())


def _rank_numbers(rank: int, process: ProbedProcess, spans: Sequence[Window]) -> _RankNumbers | None:
    """None where the process claims more device time than the windows had."""
    cycles: list[TimedCycle] = []
    periods: list[float] = []
    for span in spans:
        inside = list(_inside(process, span))
        claimed = sum(map(_took, inside))
        if claimed > (span.end - span.begin) * 1000 * (1 + DISAGREEMENT):
            return None
        cycles += inside
        periods += _periods(inside)
    usual = _usual([cycle for cycle in cycles if cycle.cycle is not None])
    ms = {
        phase: _mean(
            getattr(cycle, phase) for cycle in usual or _usual([c for c in cycles if getattr(c, phase) is not None])
        )
        for phase in PHASES
    }
    batch = _median(cycle.batch for cycle in cycles)
    return _RankNumbers(
        rank, len(cycles), ms, fmean(periods) if periods else None, batch, _slow_share(usual or _usual(cycles))
    )


def _usual(cycles: Sequence[TimedCycle]) -> list[TimedCycle]:
    """The cycles that ran the phases that most of them ran, without the very slowest. Where a release's cycle is not
    found, each phase is a record of its own and is asked for by itself."""
    kinds = Counter(tuple(getattr(cycle, phase) is not None for phase in PHASES) for cycle in cycles)
    if not kinds:
        return []
    (most, _), *_ = kinds.most_common(1)
    alike = [cycle for cycle in cycles if tuple(getattr(cycle, phase) is not None for phase in PHASES) == most]
    return sorted(alike, key=_took)[: len(alike) - int(len(alike) * TRIMMED)]


def _took(cycle: TimedCycle) -> float:
    return cycle.cycle or cycle.decode or cycle.verify or 0.0


def _slow_share(cycles: Sequence[TimedCycle]) -> float | None:
    took = [_took(cycle) for cycle in cycles]
    usual = median(took) if took else 0.0
    return sum(one > SLOW * usual for one in took) / len(took) if usual > 0 else None


def _inside(process: ProbedProcess, span: Window) -> Iterable[TimedCycle]:
    first = bisect_left(process.cycles.at, span.begin)
    last = bisect_right(process.cycles.at, span.end)
    for index in range(first, last):
        cycle = process.cycles[index]
        if cycle.mark == "" and cycle.at + _took(cycle) / 1000 <= span.end:
            yield cycle


def _periods(cycles: Sequence[TimedCycle]) -> list[float]:
    """From one cycle's begin to the next, ms, where nothing else ran between them."""
    return [(after.at - before.at) * 1000 for before, after in pairwise(cycles) if after.number == before.number + 1]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _slowest(ranks: Sequence[_RankNumbers], phase: str) -> float | None:
    return max((ms for numbers in ranks if (ms := numbers.ms[phase]) is not None), default=None)


def _spread(ranks: Sequence[_RankNumbers], phase: str) -> float | None:
    known = [ms for numbers in ranks if (ms := numbers.ms[phase]) is not None]
    return max(known) - min(known) if len(known) > 1 else None


def _as_record(numbers: _RankNumbers) -> RankPhases:
    timed = {f"{phase}_ms": ms for phase, ms in numbers.ms.items() if phase != "target"}
    return RankPhases(rank=numbers.rank, cycles=numbers.cycles, **timed)


# ------------------------------------------------------------------------------------------------ warnings


def _sample_warnings(
    ranks: Sequence[_RankNumbers], most: int, impossible: Sequence[int], period: float | None, client_ms: float | None
) -> Iterable[Notice]:
    short = {str(numbers.rank): numbers.cycles for numbers in ranks if numbers.cycles < most * RANK_SHARE}
    if short:
        yield Notice(
            code="probe_rank_incomplete",
            text=f"Ranks {', '.join(short)} recorded fewer cycles than the others ({most}).",
            data={"most": most, "ranks": short},
        )
    if impossible:
        yield Notice(
            code="probe_impossible",
            text="The probe's file claims more device time than the sample took; that rank's numbers are not used.",
            data={"ranks": list(impossible)},
        )
    if most < FEW_CYCLES:
        yield Notice(
            code="probe_few_cycles", text=f"Only {most} cycles were timed in this sample.", data={"cycles": most}
        )
    if client_ms and period and abs(period / client_ms - 1) > DISAGREEMENT:
        yield Notice(
            code="probe_disagrees",
            text=f"The probe saw {period:.2f} ms from cycle to cycle, the client {client_ms:.2f} ms.",
            data={"probe_ms": period, "client_ms": client_ms},
        )


def _launch_warnings(reading: ProbeReading, whole: SamplePhases | None, expected_ranks: int | None) -> Iterable[Notice]:
    timed = reading.timed
    if not reading.processes:
        yield Notice(
            code="probe_silent",
            text="The probe left no file of this launch; phases are not known.",
            data={"dropped": dict(reading.dropped)},
        )
        return
    if whole is None:
        yield Notice(
            code="probe_no_cycles",
            text="The probe timed no cycle inside a sample; phases are not known.",
            data={"targets": moved_targets(reading), "notes": _notes(reading)},
        )
    elif whole.verify_ms is None and whole.decode_ms is None:
        yield Notice(
            code="probe_no_target",
            text="The probe did not find where this commit verifies; verify_ms is absent.",
            data={"targets": moved_targets(reading), "notes": _notes(reading)},
        )
    if whole is not None and whole.cycles >= ENOUGH_CYCLES and (whole.slow_share or 0.0) >= MANY_SLOW:
        yield Notice(
            code="probe_slow_cycles",
            text=f"{100 * (whole.slow_share or 0.0):.0f} % of the cycles took more than {SLOW} times the usual.",
            data={"share": whole.slow_share},
        )
    if expected_ranks is not None and timed and len(timed) != expected_ranks:
        yield Notice(
            code="probe_ranks",
            text=f"{len(timed)} processes recorded cycles; the launch has {expected_ranks} ranks.",
            data={"seen": len(timed), "expected": expected_ranks},
        )
    claimed = [process.rank for process in timed]
    if len(set(claimed)) < len(claimed):
        yield Notice(
            code="probe_ranks_collide", text="Two processes say they are the same rank.", data={"ranks": claimed}
        )
    if len({process.launch for process in reading.processes}) > 1:
        yield Notice(
            code="probe_two_launches",
            text="The probe's directory holds more than one launch; numbers may mix.",
            data={"launches": len({process.launch for process in reading.processes})},
        )
    if reading.dropped:
        yield Notice(
            code="probe_dropped",
            text=f"{sum(reading.dropped.values())} lines or files of the probe were not credible and were dropped.",
            data=dict(reading.dropped),
        )
    if whole is not None and (notes := _notes(reading)):
        yield Notice(code="probe_notes", text="The probe had trouble.", data={"notes": notes})
    if any(process.full for process in reading.processes):
        yield Notice(code="probe_full", text="The probe's file reached its bound; later cycles were not recorded.")


def _notes(reading: ProbeReading) -> list[str]:
    return [note for process in reading.processes for note in process.notes][:16]


def moved_targets(reading: ProbeReading) -> dict[str, str]:
    """Rows of the target table that this commit's modules did not have: place → why."""
    return {
        place: outcome
        for process in reading.processes
        for place, outcome in process.targets.items()
        if outcome not in ("patched", "inherited")
    }


def _device_timer_warnings(whole: SamplePhases, timer: Mapping[str, float]) -> Iterable[Notice]:
    for phase, ms in timer.items():
        ours = getattr(whole, f"{phase}_ms", None)
        if ours and abs(ours / ms - 1) > DISAGREEMENT:
            yield Notice(
                code="probe_device_timer_disagrees",
                text=f"{phase}: the probe says {ours:.2f} ms, SGLang's device timer {ms:.2f} ms.",
                data={"phase": phase, "probe_ms": ours, "sglang_ms": ms},
            )
