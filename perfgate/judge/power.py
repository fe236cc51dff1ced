"""What the judge can detect on this box, what that costs, and how many samples a launch should take for it.

Power is played, not computed: looking after each pair, bad launches and a noise that is only guessed leave no closed
form that is right, so pairs are drawn with the ledger's noise and handed to the real judge.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from perfgate.judge.noise import LOOSE_SD
from perfgate.judge.sequential import decide
from perfgate.judge.values import JudgeInputError, NoisePrior, PairSamples, Policy
from perfgate.records import Better, MetricVerdict, Side

RUNS = 400
SLOWDOWNS = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.10)
DETECTED = 0.9  # the share from which on a slowdown counts as one that is detected

FEWEST, MOST = 3, 32  # a median wants three; beyond the most, a launch's own noise is all that is left
QUIET = 1 / 3  # of the budget: pairs that differ by less save fewer launches than the samples cost (docs/power.md)


@dataclass(frozen=True, slots=True)
class PowerRow:
    """How the judge does at one true slowdown (log units). Shares in 0 to 1, pairs and launches are means.

    gpu_minutes is None where the minutes of a launch are not known.
    """

    slowdown: float
    regression: float
    passed: float
    inconclusive: float
    pairs: float
    launches: float
    gpu_minutes: float | None


def power(
    policy: Policy,
    prior: NoisePrior | None,
    slowdowns: Sequence[float] = SLOWDOWNS,
    *,
    launch_minutes: float | None = None,
    gpus: int = 1,
    runs: int = RUNS,
    seed: int = 0,
) -> tuple[PowerRow, ...]:
    """One row per true slowdown. `launch_minutes`: wall minutes of one launch on that many GPUs.

    The same seed gives the same rows, and the same noise for each slowdown, so that a curve is smooth.
    """
    return tuple(_row(policy, prior, slowdown, launch_minutes, gpus, runs, seed) for slowdown in slowdowns)


def detected_from(rows: Sequence[PowerRow], share: float = DETECTED) -> float | None:
    """The smallest slowdown of the table from which on that share is found; None where none is."""
    found: float | None = None
    for row in sorted(rows, key=lambda row: row.slowdown, reverse=True):
        if row.regression < share:
            break
        found = row.slowdown
    return found


def expected_pairs(
    policy: Policy, prior: NoisePrior | None, slowdown: float = 0.0, runs: int = 200, seed: int = 0
) -> float:
    """Mean pairs until the judge has decided; for the plan that is printed before anything starts."""
    return power(policy, prior, (slowdown,), runs=runs, seed=seed)[0].pairs


def _row(
    policy: Policy,
    prior: NoisePrior | None,
    slowdown: float,
    launch_minutes: float | None,
    gpus: int,
    runs: int,
    seed: int,
) -> PowerRow:
    generator = random.Random(seed)
    ends = [_play(policy, prior, slowdown, generator.getrandbits(64)) for _ in range(runs)]
    states = [state for state, _ in ends]
    pairs = math.fsum(count for _, count in ends) / runs
    return PowerRow(
        slowdown=slowdown,
        regression=states.count(MetricVerdict.REGRESSION) / runs,
        passed=states.count(MetricVerdict.PASS) / runs,
        inconclusive=states.count(MetricVerdict.INCONCLUSIVE) / runs,
        pairs=pairs,
        launches=2 * pairs,
        gpu_minutes=None if launch_minutes is None else 2 * pairs * launch_minutes * gpus,
    )


def _play(policy: Policy, prior: NoisePrior | None, slowdown: float, seed: int) -> tuple[MetricVerdict, int]:
    generator = random.Random(seed)
    first = Side.BASE if generator.random() < 0.5 else Side.HEAD
    pairs: list[PairSamples] = []
    while True:
        difference = slowdown + _noise(prior, generator)
        pairs.append(PairSamples((1.0,), (math.exp(difference),), first if len(pairs) % 2 == 0 else first.other))
        decision = decide(policy, prior, pairs, Better.LOWER)
        if decision.state is not MetricVerdict.CONTINUE:
            return decision.state, len(pairs)


def _noise(prior: NoisePrior | None, generator: random.Random) -> float:
    """A pair of the same code: normal, and now and then with a bad launch."""
    sd, bad, far = (prior.sd, prior.bad, prior.far or 0.0) if prior else (LOOSE_SD, 0.0, 0.0)
    off = generator.choice((-far, far)) if generator.random() < bad else 0.0
    return generator.gauss(0.0, sd) + off


# ------------------------------------------------------------------------------------------------ samples a launch


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
