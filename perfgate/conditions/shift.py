"""Did the box move between base and head? The canary's readings and the server's waiting, judged like a metric.

The canary stands before and after each launch. A launch's value is the median of all its readings; a pair's
difference is the log of head's over base's. The same judge that judges the sides looks at these pairs, once in each
direction, with an alpha of its own. What it takes for granted about the canary's noise is learned from the run:
the reading before a launch and the one after it differ by nothing but noise and slow drift.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from perfgate import records as r
from perfgate.judge.evidence import RunFacts
from perfgate.judge.sequential import replay
from perfgate.judge.values import Decision, NoisePrior, PairSamples, Policy
from perfgate.records import Better, MetricVerdict

ALPHA = 0.001  # of a box that moved although it did not, all things looked at together
BETA = 0.05
LEAST_SD, PRIOR_DF = 0.01, 3.0
PAIRS_TO_MOVE = 2  # a single pair never calls the box moved
WAITING_PRIOR = NoisePrior(sd=LEAST_SD, df=PRIOR_DF)
CLOCK = "sm_clock_mhz"

Readings = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Shift:
    """How far something of the box moved from base's launches to head's. `by`: log, + = slower beside head."""

    by: float
    moved: bool
    steady: bool
    pairs: int


@dataclass(frozen=True)
class CanarySeries:
    """One of the canary's readings over a run: next to each pair's launches, and before against after.

    `pairs` and `within` hold times; of a clock they hold its cycle, so that more is slower everywhere.
    """

    name: str
    pairs: tuple[PairSamples, ...]
    base: float  # geometric means
    head: float
    within: tuple[float, ...]  # log(after / before) of each launch


def canary_readings(run: RunFacts) -> Iterator[CanarySeries]:
    """Every reading that stands next to both launches of at least one pair."""
    around: dict[str, dict[str, Readings]] = {}
    for fact in run.facts:
        if isinstance(fact, r.Canary):
            around.setdefault(fact.launch, {})[fact.when] = with_lowest_clock(fact.readings)
    names = sorted({name for both in around.values() for readings in both.values() for name in readings})
    for name in names:
        reading = _reading(run, name, around)
        if reading is not None:
            yield reading


def with_lowest_clock(readings: Readings) -> Readings:
    """The clocks of single GPUs replaced by the lowest of them: all wait for the slowest. Links are left out."""
    clocks = [values for name, values in readings.items() if name.startswith("gpu") and name.endswith("_sm_clock_mhz")]
    others = {name: values for name, values in readings.items() if not name.startswith("gpu")}
    good = [min(_good(values)) for values in clocks if _good(values)]
    return {**others, CLOCK: (min(good),)} if good else others


def _reading(run: RunFacts, name: str, around: Mapping[str, Mapping[str, Readings]]) -> CanarySeries | None:
    values = {
        launch: [_time(name, value) for readings in both.values() for value in _good(readings.get(name, ()))]
        for launch, both in around.items()
    }
    chosen = [pair for pair in run.pairs if values.get(pair.base) and values.get(pair.head)]
    if not chosen:
        return None
    pairs = tuple(PairSamples.of(values[pair.base], values[pair.head], first=pair.first) for pair in chosen)
    within = []
    for pair in chosen:
        for launch in (pair.base, pair.head):
            before, after = (_good(around[launch].get(when, {}).get(name, ())) for when in ("before", "after"))
            if before and after:
                within.append(math.log(statistics.median(after) / statistics.median(before)))  # its sign is not used
    return CanarySeries(
        name=name,
        pairs=pairs,
        base=_time(name, _middle([pair.base for pair in pairs])),
        head=_time(name, _middle([pair.head for pair in pairs])),
        within=tuple(within),
    )


def _time(name: str, value: float) -> float:
    """A time as it is, a clock as its cycle, and back."""
    return 1 / value if name == CLOCK else value


def _good(readings: Sequence[float]) -> tuple[float, ...]:
    return tuple(value for value in readings if math.isfinite(value) and value > 0)


def _middle(sides: Sequence[Sequence[float]]) -> float:
    return math.exp(statistics.fmean(math.log(statistics.median(values)) for values in sides))


def prior_of(within: Sequence[float], pairs: Sequence[PairSamples] = ()) -> NoisePrior:
    """Of a pair's difference, learned from the run itself; no difference between the sides goes into it.

    within: before/after differences w of single launches. One canary has variance w²/2 (both ends alike), a launch's
    value from two canaries half of that, and the difference of two launches twice that again: the mean of w²/2.
    pairs: launches of the same side differ by a variance s², two launches of a pair by 2s² at most.
    The larger of both, worth little: simulated in tests/unit/conditions.
    """
    own = statistics.fmean(w * w / 2 for w in within) if within else 0.0
    spreads = [_variance([pair.base for pair in pairs]), _variance([pair.head for pair in pairs])]
    return NoisePrior(sd=max(LEAST_SD, math.sqrt(own), math.sqrt(sum(spreads))), df=PRIOR_DF)


def _variance(launches: Sequence[Sequence[float]]) -> float:
    """Of the logs of launch values of one side."""
    return statistics.variance(math.log(statistics.median(one)) for one in launches) if len(launches) > 1 else 0.0


def judge_shift(pairs: Sequence[PairSamples], prior: NoisePrior, tolerance: float, alpha: float) -> Shift | None:
    """Both directions of one reading of which more is slower. None without pairs."""
    slower, faster = (_decide(pairs, prior, tolerance, alpha, better) for better in (Better.LOWER, Better.HIGHER))
    if slower is None or faster is None:
        return None
    return Shift(
        by=slower.slowdown,
        moved=MetricVerdict.REGRESSION in (slower.state, faster.state),
        steady=slower.state is MetricVerdict.PASS and faster.state is MetricVerdict.PASS,
        pairs=len(pairs),
    )


def _decide(
    pairs: Sequence[PairSamples], prior: NoisePrior, tolerance: float, alpha: float, better: Better
) -> Decision | None:
    policy = Policy(
        budget=tolerance, alpha=alpha, beta=BETA, max_pairs=max(1, len(pairs)), min_pairs_to_fail=PAIRS_TO_MOVE
    )
    return replay(policy, prior, pairs, better)
