"""Worlds to try the judge in: launches with known noise and a known slowdown, judged by the real Judge.

numpy only draws the numbers; every decision is Judge.add's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from perfgate.judge import Decision, Judge, NoisePrior, Policy
from perfgate.judge.noise import learn
from perfgate.records import MetricVerdict

Numbers = NDArray[np.float64]
STORY = math.log(94 / 60)  # "36 %"
ROOM = 2.5  # standard errors by which a simulated share may miss its limit
PLENTY = 24  # pairs drawn per run; no rule here asks for more


@dataclass(frozen=True)
class Runs:
    """differences: (runs, PLENTY) of pairs, + = head slower. priors: one per run, or one for all."""

    differences: Numbers
    priors: list[NoisePrior | None]
    samples: Callable[[np.random.Generator, float], list[float]] | None = None

    def prior(self, run: int) -> NoisePrior | None:
        return self.priors[run % len(self.priors)]


World = Callable[[np.random.Generator, int], Runs]


@dataclass(frozen=True)
class Cell:
    """One cell of the table. limits: name of a share → ("<=" or ">=", limit)."""

    case: str
    slowdown: float
    world: World
    limits: Mapping[str, tuple[str, float]]
    policy: Policy = field(default_factory=Policy)
    coverage: bool = True  # whether [low, high] must hold the truth at the stopping look


@dataclass(frozen=True)
class Outcome:
    """Shares in 0 to 1 over all runs; pairs are a mean."""

    runs: int
    regression: float
    passed: float
    inconclusive: float
    pairs: float
    pairs_error: float
    covered: float
    regression_within_four: float
    passed_on_one: float
    half_width: float

    def share(self, name: str) -> float:
        return float(getattr(self, name))


def simulate(cell: Cell, runs: int, seed: int) -> Outcome:
    """Play every run of the cell until the judge has decided."""
    generator = np.random.default_rng([seed, *cell.case.encode()])
    drawn = cell.world(generator, runs)
    last = [_play(cell, drawn, run, generator) for run in range(runs)]
    states = [decision.state for decision in last]
    pairs = np.array([decision.pairs for decision in last], dtype=float)
    return Outcome(
        runs=runs,
        regression=states.count(MetricVerdict.REGRESSION) / runs,
        passed=states.count(MetricVerdict.PASS) / runs,
        inconclusive=states.count(MetricVerdict.INCONCLUSIVE) / runs,
        pairs=float(pairs.mean()),
        pairs_error=float(pairs.std() / math.sqrt(runs)),
        covered=sum(decision.low <= cell.slowdown <= decision.high for decision in last) / runs,
        regression_within_four=_share(last, lambda d: d.state is MetricVerdict.REGRESSION and d.pairs <= 4),
        passed_on_one=_share(last, lambda d: d.state is MetricVerdict.PASS and d.pairs == 1),
        half_width=float(np.mean([(decision.high - decision.low) / 2 for decision in last])),
    )


def broken_limits(cell: Cell, outcome: Outcome) -> list[str]:
    """What the outcome breaks by more than chance allows, in words."""
    limits = dict(cell.limits)
    if cell.coverage:
        limits["covered"] = (">=", 0.94)
    return [
        f"{cell.case}: {name} {outcome.share(name):.4f} must be {sign} {limit}"
        for name, (sign, limit) in limits.items()
        if not _holds(outcome, name, sign, limit)
    ]


def line(cell: Cell, outcome: Outcome) -> str:
    """One row of the table in Markdown."""
    must = ", ".join(_limit(name, sign, limit) for name, (sign, limit) in cell.limits.items())
    shares = (outcome.regression, outcome.passed, outcome.inconclusive)
    told = " | ".join(f"{100 * share:.2f}" for share in shares)
    return f"| {cell.case} | {told} | {outcome.pairs:.2f} | {100 * outcome.covered:.1f} | {must} |"


def _limit(name: str, sign: str, limit: float) -> str:
    words = {"passed": "pass", "passed_on_one": "pass on one pair", "regression_within_four": "regression in 4 pairs"}
    number = f"{limit:g}" if name == "pairs" else f"{100 * limit:g} %"
    return f"{words.get(name, name)} {'≤' if sign == '<=' else '≥'} {number}"


HEAD = "| case | regression % | pass % | inconclusive % | pairs | covered % | must |\n|---|---|---|---|---|---|---|"


def pooled(outcomes: list[Outcome]) -> Outcome:
    """Several seeds of the same cell as one outcome."""
    shares = {
        name: float(np.mean([getattr(outcome, name) for outcome in outcomes])) for name in Outcome.__dataclass_fields__
    }
    total = sum(outcome.runs for outcome in outcomes)
    error = outcomes[0].pairs_error * math.sqrt(outcomes[0].runs / total)
    return replace(Outcome(**shares), runs=total, pairs_error=error)  # type: ignore[arg-type]


def _share(decisions: list[Decision], holds: Callable[[Decision], bool]) -> float:
    return sum(map(holds, decisions)) / len(decisions)


def _holds(outcome: Outcome, name: str, sign: str, limit: float) -> bool:
    value = outcome.share(name)
    error = outcome.pairs_error if name == "pairs" else math.sqrt(limit * (1 - limit) / outcome.runs)
    return value <= limit + ROOM * error if sign == "<=" else value >= limit - ROOM * error


def _play(cell: Cell, drawn: Runs, run: int, generator: np.random.Generator) -> Decision:
    judge = Judge(cell.policy, drawn.prior(run), better="lower")
    base_first = bool(generator.integers(2))
    for number, difference in enumerate(drawn.differences[run]):
        first = "base" if base_first == (number % 2 == 0) else "head"
        if drawn.samples is None:
            base, head = [100.0], [100.0 * math.exp(difference)]
        else:
            base, head = drawn.samples(generator, 0.0), drawn.samples(generator, difference)
        decision = judge.add(base=base, head=head, first=first)  # type: ignore[arg-type]
        if decision.state is not MetricVerdict.CONTINUE:
            return decision
    raise AssertionError("the judge never decided")


# ---------------------------------------------------------------------------------------------------- worlds


def normal(slowdown: float, sd: float, prior: NoisePrior | None) -> World:
    """Normal differences of that SD."""

    def draw(generator: np.random.Generator, runs: int) -> Runs:
        return Runs(slowdown + sd * generator.standard_normal((runs, PLENTY)), [prior])

    return draw


def bad_launches(slowdown: float, sd: float, share: float = 1 / 12, off: float = 0.06) -> World:
    """One launch in twelve off by ±6 %; the prior learned from ten such pairs of the same code."""

    def launches(generator: np.random.Generator, shape: tuple[int, int]) -> Numbers:
        sign = np.where(generator.random(shape) < 0.5, -1.0, 1.0)
        bad = off * sign * (generator.random(shape) < share)
        return sd / math.sqrt(2) * generator.standard_normal(shape) + bad

    return _learned(slowdown, launches)


def two_modes(slowdown: float, sd: float = 0.005, apart: float = 0.09) -> World:
    """Launches of two modes at even odds; the prior learned likewise."""

    def launches(generator: np.random.Generator, shape: tuple[int, int]) -> Numbers:
        mode = apart * (generator.random(shape) < 0.5)
        return sd / math.sqrt(2) * generator.standard_normal(shape) + mode

    return _learned(slowdown, launches)


def drifting(slowdown: float, sd: float, drift: float, prior: NoisePrior, over: int = 6) -> World:
    """A box that gets slower linearly, by `drift` over that many pairs; orders alternate from base first.

    The player draws which side is first, so the drift is handed over with both signs and must be harmless in either.
    """

    def draw(generator: np.random.Generator, runs: int) -> Runs:
        step = drift / (2 * over - 1)  # from one launch to the next
        alternating = step * np.where(np.arange(PLENTY) % 2 == 0, 1.0, -1.0)
        sign = np.where(generator.random((runs, 1)) < 0.5, -1.0, 1.0)
        noise = sd * generator.standard_normal((runs, PLENTY))
        return Runs(slowdown + sign * alternating + noise, [prior])

    return draw


def scattered_samples(slowdown: float, sd: float, prior: NoisePrior) -> World:
    """Launches alike, but samples within a launch scatter by `sd`; four to eight of them."""

    def samples(generator: np.random.Generator, difference: float) -> list[float]:
        count = int(generator.integers(4, 9))
        logs = difference + sd * generator.standard_normal(count)
        return [100.0 * math.exp(value) for value in logs]

    def draw(generator: np.random.Generator, runs: int) -> Runs:
        return Runs(np.full((runs, PLENTY), slowdown), [prior], samples)

    return draw


def implied_pair_sd(sd: float, runs: int = 200_000) -> float:
    """SD of a pair whose launches differ by their samples alone, by drawing."""
    generator = np.random.default_rng(1)
    medians = [np.median(sd * generator.standard_normal((runs // 5, count)), axis=1) for count in range(4, 9)]
    return float(math.sqrt(2) * np.concatenate(medians).std())


def _learned(
    slowdown: float, launches: Callable[[np.random.Generator, tuple[int, int]], Numbers], from_pairs: int = 10
) -> World:
    def draw(generator: np.random.Generator, runs: int) -> Runs:
        differences = launches(generator, (runs, PLENTY)) - launches(generator, (runs, PLENTY))
        ledger = launches(generator, (runs, from_pairs)) - launches(generator, (runs, from_pairs))
        return Runs(slowdown + differences, [learn(list(row)) for row in ledger])

    return draw


# ----------------------------------------------------------------------------------------------------- table


def table() -> Iterator[Cell]:
    """Every row of the contract that concerns one metric."""
    budget = Policy().budget
    for sd, false, passes, pairs in (
        (0.003, 0.005, 0.99, 1.1),
        (0.01, 0.005, 0.97, 1.6),
        (0.02, 0.005, 0.85, 3.8),
    ):
        limits = {"regression": ("<=", false), "passed": (">=", passes), "pairs": ("<=", pairs)}
        yield Cell(f"A/A, pair SD {100 * sd:g} %", 0.0, normal(0.0, sd, NoisePrior(sd, 10)), limits)
    for sd, caught, pairs in ((0.003, 0.995, 2.1), (0.01, 0.99, 2.2), (0.02, 0.97, 3.0)):
        limits = {"regression": (">=", caught), "pairs": ("<=", pairs)}
        yield Cell(f"slowdown 5 %, pair SD {100 * sd:g} %", 0.05, normal(0.05, sd, NoisePrior(sd, 10)), limits)
    for name, slowdown in (("10 %", 0.10), ("the story's", STORY)):
        for sd in (0.003, 0.01, 0.02, 0.03):
            limits = {"regression": (">=", 0.99), "pairs": ("<=", 2.3)}
            world = normal(slowdown, sd, NoisePrior(sd, 10))
            yield Cell(f"slowdown {name}, pair SD {100 * sd:g} %", slowdown, world, limits)
    for sd in (0.003, 0.005, 0.01, 0.02):
        world = normal(budget, sd, NoisePrior(sd, 10))
        yield Cell(f"slowdown exactly the budget, pair SD {100 * sd:g} %", budget, world, {"passed": ("<=", 0.05)})
    for sd, false in ((0.005, 0.01), (0.01, 0.09), (0.02, 0.17)):
        world = normal(budget * 2 / 3, sd, NoisePrior(sd, 10))
        limits = {"regression": ("<=", false)}
        yield Cell(f"two thirds of the budget, pair SD {100 * sd:g} %", budget * 2 / 3, world, limits)
    half = NoisePrior(0.01, 10)
    yield Cell(
        "prior half of the truth, A/A",
        0.0,
        normal(0, 0.02, half),
        {"regression": ("<=", 0.02)},
        coverage=False,
    )
    yield Cell(
        "prior half of the truth, slowdown = budget",
        budget,
        normal(budget, 0.02, half),
        {"passed": ("<=", 0.20)},
        coverage=False,
    )
    yield from _without_prior()
    for sd in (0.005, 0.01):
        pair_sd = f"pair SD {100 * sd:g} %"
        yield Cell(f"bad launches, A/A, {pair_sd}", 0.0, bad_launches(0.0, sd), {"regression": ("<=", 0.01)})
        yield Cell(
            f"bad launches, slowdown 5 %, {pair_sd}",
            0.05,
            bad_launches(0.05, sd),
            {"passed": ("<=", 0.03), "regression": (">=", 0.85)},
        )
    yield Cell("two modes, A/A", 0.0, two_modes(0.0), {"regression": ("<=", 0.01)})
    yield Cell("two modes, the story's", STORY, two_modes(STORY), {"regression": (">=", 0.995)})
    known = NoisePrior(0.005, 10)
    yield Cell(
        "drift of 3 % over six pairs, A/A",
        0.0,
        drifting(0.0, 0.005, 0.03, known),
        {"regression": ("<=", 0.01)},
    )
    implied = implied_pair_sd(0.03)
    scattered = NoisePrior(implied, 10)
    yield Cell(
        f"samples scatter by 3 % (pair SD {100 * implied:.2g} %), A/A",
        0.0,
        scattered_samples(0.0, 0.03, scattered),
        {"regression": ("<=", 0.005), "passed": (">=", 0.85), "pairs": ("<=", 3.8)},
    )
    yield Cell(
        f"samples scatter by 3 % (pair SD {100 * implied:.2g} %), slowdown 5 %",
        0.05,
        scattered_samples(0.05, 0.03, scattered),
        {"regression": (">=", 0.97), "pairs": ("<=", 3.0)},
    )


def _without_prior() -> Iterator[Cell]:
    for sd in (0.003, 0.01, 0.02):
        limits = {"regression": ("<=", 0.01), "pairs": ("<=", 4.0), "passed_on_one": ("<=", 0.0)}
        yield Cell(f"no prior, A/A, pair SD {100 * sd:g} %", 0.0, normal(0.0, sd, None), limits)
        yield Cell(
            f"no prior, slowdown 10 %, pair SD {100 * sd:g} %",
            0.10,
            normal(0.10, sd, None),
            {"regression_within_four": (">=", 0.98)},
        )
    for sd in (0.04, 0.06):
        yield Cell(f"no prior, A/A, pair SD {100 * sd:g} %", 0.0, normal(0.0, sd, None), {"regression": ("<=", 0.01)})
