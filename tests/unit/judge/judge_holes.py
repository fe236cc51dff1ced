"""Worlds that the judge's model does not hold, as whole gates: two recipes with tok/s and a time in milliseconds each.

Launches are drawn one by one, so that what comes with a launch (a mode, a bad start, being second, a slower box) does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from perfgate.judge import Decision, NoisePrior, Policy, RecipeProgress, combine, decide, next_step
from perfgate.judge.noise import learn, learn_order
from perfgate.judge.values import PairSamples
from perfgate.records import Better, MetricVerdict, Side, Verdict
from tests.unit.judge.judge_gates import CORRELATION, RECIPES, gated_metric

Numbers = NDArray[np.float64]
BUDGETS = {"tok_s": 0.03, "verify_ms": 0.05}
LEDGER_PAIRS = 8
CANARY_SD = 0.003
FEW_RUNS_ROOM = 2.5  # standard errors


@dataclass(frozen=True)
class Hole:
    """A world. Losses are of head in the first recipe; all numbers are log units, + = slower.

    ledger: the prior for all metrics; None: nothing is known; "own": eight pairs drawn from this very world.
    modes: share of slow launches, and by how much. first_off: the first launch of the gate. second: each second launch.
    """

    case: str
    sd: float  # of a pair
    loss: float = 0.0
    ledger: NoisePrior | str | None = "own"
    modes: tuple[float, float] | None = None
    first_off: float = 0.0
    second: float = 0.0
    head_noise: float = 1.0
    limits: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    def launch(self, generator: np.random.Generator, noise: float) -> Numbers:
        """Log times of both metrics."""
        common, own = generator.standard_normal(), generator.standard_normal(len(BUDGETS))
        values = noise * (math.sqrt(CORRELATION) * common + math.sqrt(1 - CORRELATION) * own)
        if self.modes is not None and generator.random() < self.modes[0]:
            values = values + self.modes[1]
        return np.asarray(values)

    def pair(self, generator: np.random.Generator, first: Side, loss: float, off: float) -> tuple[Numbers, float]:
        """The difference of each metric, and how far the canary moved."""
        one = self.sd / math.sqrt(2)
        base, head = self.launch(generator, one), self.launch(generator, one * self.head_noise) + loss
        box = {first: off, first.other: self.second}
        difference = head + box[Side.HEAD] - base - box[Side.BASE]
        return difference, box[Side.HEAD] - box[Side.BASE] + CANARY_SD * generator.standard_normal()

    def priors(self, generator: np.random.Generator) -> list[NoisePrior | None]:
        """Of each metric of one recipe."""
        if not isinstance(self.ledger, str):
            return [self.ledger] * len(BUDGETS)
        quiet = replace(self, head_noise=1.0)
        orders = [1 if number % 2 == 0 else -1 for number in range(LEDGER_PAIRS)]
        firsts = [Side.BASE if order == 1 else Side.HEAD for order in orders]
        drawn = np.array([quiet.pair(generator, first, 0.0, 0.0)[0] for first in firsts])
        return [_learned(list(drawn[:, metric]), orders) for metric in range(len(BUDGETS))]


def _learned(differences: list[float], orders: list[int]) -> NoisePrior | None:
    """As the ledger does."""
    effect = learn_order([difference * order for difference, order in zip(differences, orders, strict=True)])
    prior = learn([difference - order * effect for difference, order in zip(differences, orders, strict=True)])
    return replace(prior, order=effect, order_variance=1 / len(orders)) if prior and effect else prior


@dataclass(frozen=True)
class HoleOutcome:
    runs: int
    regression: float
    passed: float
    inconclusive: float
    launches: float
    covered: float
    launches_error: float


def simulate_hole(hole: Hole, runs: int, seed: int) -> HoleOutcome:
    generator = np.random.default_rng([seed, *hole.case.encode()])
    ends = [_play(hole, generator) for _ in range(runs)]
    shares = {verdict: sum(end[0] is verdict for end in ends) / runs for verdict in Verdict}
    return HoleOutcome(
        runs=runs,
        regression=shares[Verdict.REGRESSION],
        passed=shares[Verdict.PASS],
        inconclusive=shares[Verdict.INCONCLUSIVE],
        launches=float(np.mean([end[1] for end in ends])),
        covered=float(np.mean([end[2] for end in ends])),
        launches_error=float(np.std([end[1] for end in ends]) / math.sqrt(runs)),
    )


def _play(hole: Hole, generator: np.random.Generator) -> tuple[Verdict, int, float]:
    """The verdict, launches, and the share of metrics whose interval holds the truth."""
    policy = Policy(alpha=Policy().alpha / (len(RECIPES) * len(BUDGETS)))
    priors = {recipe: hole.priors(generator) for recipe in RECIPES}
    pairs: dict[tuple[str, str], list[PairSamples]] = {(recipe, name): [] for recipe in RECIPES for name in BUDGETS}
    latest: dict[tuple[str, str], Decision | None] = dict.fromkeys(pairs)
    counts = dict.fromkeys(RECIPES, 0)
    starts = {recipe: tuple(Side)[int(generator.integers(2))] for recipe in RECIPES}
    losses = dict(zip(RECIPES, (hole.loss, 0.0), strict=True))
    while True:
        gated = [gated_metric(*key, decision, budget=BUDGETS[key[1]]) for key, decision in latest.items()]
        progress = [RecipeProgress(recipe, counts[recipe]) for recipe in RECIPES]
        recipe = next_step(gated, progress, policy.max_pairs).recipe
        if recipe is None:
            held = [d.low <= losses[key[0]] <= d.high for key, d in latest.items() if d is not None]
            return combine(gated).verdict, 2 * sum(counts.values()), sum(held) / len(held)
        first = starts[recipe] if counts[recipe] % 2 == 0 else starts[recipe].other
        off = 0.0 if any(counts.values()) else hole.first_off
        differences, moved = hole.pair(generator, first, losses[recipe], off)
        counts[recipe] += 1
        for (name, budget), difference, prior in zip(BUDGETS.items(), differences, priors[recipe], strict=True):
            key = recipe, name
            pairs[key].append(PairSamples.of([100.0], [100.0 * math.exp(difference)], first, moved))
            latest[key] = decide(replace(policy, budget=budget), prior, pairs[key], Better.LOWER)
            assert latest[key] is None or latest[key].state in tuple(MetricVerdict)  # type: ignore[union-attr]


def broken(hole: Hole, outcome: HoleOutcome) -> list[str]:
    """What the outcome breaks by more than chance allows, in words."""
    found = []
    for name, (sign, limit) in hole.limits.items():
        value = float(getattr(outcome, name))
        error = outcome.launches_error if name == "launches" else math.sqrt(limit * (1 - limit) / outcome.runs)
        room = FEW_RUNS_ROOM * error
        if not (value <= limit + room if sign == "<=" else value >= limit - room):
            found.append(f"{hole.case}: {name} {value:.4f} must be {sign} {limit}")
    return found


def line(hole: Hole, outcome: HoleOutcome) -> str:
    """One row of the table in Markdown."""
    words = {"passed": "pass"}
    must = ", ".join(
        f"{words.get(name, name)} {'≤' if sign == '<=' else '≥'}"
        f" {f'{limit:g}' if name == 'launches' else f'{100 * limit:g} %'}"
        for name, (sign, limit) in hole.limits.items()
    )
    shares = " | ".join(f"{100 * share:.2f}" for share in (outcome.regression, outcome.passed, outcome.inconclusive))
    return f"| {hole.case} | {shares} | {outcome.launches:.2f} | {100 * outcome.covered:.1f} | {must} |"


def holes() -> Iterator[Hole]:
    for sd, launches in ((0.005, 5.1), (0.01, 6.9), (0.02, 15.3)):
        limits = {"regression": ("<=", 0.005), "launches": ("<=", launches)}
        yield Hole(f"gate, A/A, pair SD {100 * sd:g} %", sd, limits=limits)
    quiet = NoisePrior(0.003, 20)
    yield Hole(
        "first launch of the run 5 % slower, its canary too, quiet ledger, loss 5 %",
        0.005,
        0.05,
        quiet,
        first_off=0.05,
        limits={"passed": ("<=", 0.01)},
    )
    yield Hole(
        "second launches 3 % slower, canary too, ledger that never saw it, loss 5 %",
        0.005,
        0.05,
        NoisePrior(0.005, 20),
        second=0.03,
        limits={"passed": ("<=", 0.01)},
    )
    for effect in (0.01, 0.02, 0.03):
        limits = {"passed": (">=", 0.99), "launches": ("<=", 5.0)}
        yield Hole(f"order {100 * effect:+g} %, learned, A/A, pair SD 0.5 %", 0.005, second=effect, limits=limits)
    for share, apart in ((0.5, 0.21), (0.5, 0.09), (1 / 3, 0.21), (0.2, 0.21)):
        yield Hole(
            f"nothing known, {100 * share:.0f} % of launches {100 * apart:g} % slower, A/A",
            0.005,
            ledger=None,
            modes=(share, apart),
            limits={"regression": ("<=", 0.015)},
        )
    for sd in (0.03, 0.045):
        yield Hole(
            f"ledger of 40 pairs with a third of the noise, pair SD {100 * sd:g} %, A/A",
            sd,
            ledger=NoisePrior(sd / 3, 40),
            limits={"regression": ("<=", 0.02), "covered": (">=", 0.90)},
        )
    for sd in (0.005, 0.01):
        limits = {"regression": ("<=", 0.01)}
        yield Hole(f"head three times as noisy as base ({100 * sd:g} %), A/A", sd, head_noise=3.0, limits=limits)
