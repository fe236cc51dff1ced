"""How many samples a launch should take: a launch is dear and carries a noise that its samples cannot average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfgate.judge.values import JudgeInputError

FEWEST, MOST = 3, 32  # a median wants three; beyond the most, a launch's own noise is all that is left
QUIET = 1 / 3  # of the budget: pairs that differ by less save fewer launches than the samples cost (docs/power.md)


@dataclass(frozen=True, slots=True)
class Spread:
    """SD of log values: between launches of the same code, and between samples within a launch."""

    launch: float
    sample: float


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """Seconds: of start, warm-up and end of a launch, and of one sample (at each concurrency once)."""

    start: float
    sample: float

    def seconds(self, samples: int) -> float:
        return self.start + samples * self.sample


def planned_samples(cost: LaunchCost, spread: Spread, budget: float) -> int:
    """The cheapest number of samples a launch, but no more than a verdict by this budget (log difference) can use."""
    return min(samples_per_launch(cost.start, cost.sample, spread), _samples_enough(spread, budget))


def _samples_enough(spread: Spread, budget: float) -> int:
    """How many make the SD of a pair, √(2(σL² + σW²/n)), a third of the budget; MOST where none do."""
    left = (QUIET * budget) ** 2 / 2 - spread.launch**2
    if left <= 0:
        return MOST
    return min(max(math.ceil(spread.sample**2 / left - 1e-9), FEWEST), MOST)


def samples_per_launch(launch_cost: float, sample_cost: float, spread: Spread) -> int:
    """The number that makes a verdict cheapest, √(launch cost/sample cost · σW²/σL²), within sane bounds.

    With n samples a launch has variance σL² + σW²/n and costs L + n·S; n minimises their product (Cochran, Sampling
    Techniques, 3rd ed., §10.6). launch_cost: seconds of start and warm-up; sample_cost: seconds of one sample.
    """
    if not (launch_cost > 0 and sample_cost > 0 and spread.sample >= 0 and spread.launch >= 0):
        raise JudgeInputError("costs must be above zero and spreads not below")
    if spread.launch == 0:
        return MOST if spread.sample > 0 else FEWEST
    best = math.sqrt(launch_cost / sample_cost) * spread.sample / spread.launch
    return min(max(round(best), FEWEST), MOST)


def spread_of(pair_sd: float, sample_variance: float, samples: float) -> Spread:
    """Both spreads, from the SD of a pair and what its launches' samples show.

    sample_variance: of log samples within a launch; samples: how many a launch had. What is left of the pair's variance
    when the samples' part is taken off is the launches' own.
    """
    own = pair_sd**2 / 2 - sample_variance / max(samples, 1.0)
    return Spread(launch=math.sqrt(max(own, 0.0)), sample=math.sqrt(sample_variance))


def sample_variance(launches: Sequence[Sequence[float]]) -> float | None:
    """Pooled variance of log samples within launches. None where no launch has two samples."""
    squares, freedom = 0.0, 0
    for samples in launches:
        logs = [math.log(sample) for sample in samples]
        mean = math.fsum(logs) / len(logs)
        squares += math.fsum((value - mean) ** 2 for value in logs)
        freedom += len(logs) - 1
    return squares / freedom if freedom else None
