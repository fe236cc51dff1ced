"""Whole gates and chains of reruns, played with the real Judge, next_step and combine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from perfgate.judge import Decision, Judge, JudgedMetric, NoisePrior, Policy, RecipeProgress, combine, next_step
from perfgate.records import MetricPlan, MetricVerdict, Verdict

RECIPES = ("eagle3", "baseline")
METRICS = ("tok_s", "ms")
CORRELATION = 0.8


@dataclass(frozen=True)
class GateOutcome:
    runs: int
    regression: float
    passed: float
    inconclusive: float
    pairs_per_recipe: float
    pairs_error: float


def gated_metric(recipe: str, metric: str, decision: Decision | None, budget: float) -> JudgedMetric:
    """As the judge hands it to the verdict."""
    plan = MetricPlan(recipe=recipe, metric=metric, concurrency=1, gated=True, budget=budget, alpha=0.01)
    return JudgedMetric(plan, (), decision)


def simulate_gate(sd: float, slowdown: float, runs: int, seed: int, policy: Policy | None = None) -> GateOutcome:
    """Gates of two recipes with two gated metrics each; the slowdown is the same in all four."""
    generator = np.random.default_rng([seed, int(1e6 * sd), int(1e6 * slowdown)])
    policy = policy or Policy()
    ends = [_play_gate(generator, sd, slowdown, policy) for _ in range(runs)]
    verdicts = [verdict for verdict, _ in ends]
    pairs = np.array([count for _, count in ends], dtype=float)
    return GateOutcome(
        runs=runs,
        regression=verdicts.count(Verdict.REGRESSION) / runs,
        passed=verdicts.count(Verdict.PASS) / runs,
        inconclusive=verdicts.count(Verdict.INCONCLUSIVE) / runs,
        pairs_per_recipe=float(pairs.mean()),
        pairs_error=float(pairs.std() / math.sqrt(runs)),
    )


def ever_passed(sd: float, slowdown: float, reruns: int, runs: int, seed: int) -> float:
    """Share of pull requests that a first run or one of so many reruns on top of its evidence lets pass."""
    generator = np.random.default_rng([seed, 77, int(1e6 * sd)])
    return sum(_passes_once(generator, sd, slowdown, reruns) for _ in range(runs)) / runs


def _play_gate(generator: np.random.Generator, sd: float, slowdown: float, policy: Policy) -> tuple[Verdict, float]:
    shared = replace(policy, alpha=policy.alpha / (len(RECIPES) * len(METRICS)))
    judges = {
        (recipe, metric): Judge(shared, NoisePrior(sd, 10), better="lower") for recipe in RECIPES for metric in METRICS
    }
    latest: dict[tuple[str, str], Decision | None] = dict.fromkeys(judges)
    counts = dict.fromkeys(RECIPES, 0)
    starts = {recipe: bool(generator.integers(2)) for recipe in RECIPES}
    covariance = sd**2 * np.array([[1.0, CORRELATION], [CORRELATION, 1.0]])
    while True:
        gated = [
            gated_metric(recipe, "verify_ms", decision, budget=policy.budget)
            for (recipe, _), decision in latest.items()
        ]
        progress = [RecipeProgress(recipe, counts[recipe]) for recipe in RECIPES]
        recipe = next_step(gated, progress, policy.max_pairs).recipe
        if recipe is None:
            return combine(gated).verdict, sum(counts.values()) / len(RECIPES)
        differences = generator.multivariate_normal([slowdown, slowdown], covariance)
        first = "base" if starts[recipe] == (counts[recipe] % 2 == 0) else "head"
        counts[recipe] += 1
        for metric, difference in zip(METRICS, differences, strict=True):
            head = [100.0 * math.exp(difference)]
            latest[recipe, metric] = judges[recipe, metric].add(base=[100.0], head=head, first=first)  # type: ignore[arg-type]


def _passes_once(generator: np.random.Generator, sd: float, slowdown: float, reruns: int) -> bool:
    judge = Judge(Policy(), NoisePrior(sd, 10), better="lower")
    base_first = bool(generator.integers(2))
    for _ in range(reruns + 1):
        judge.policy = replace(Policy(), max_pairs=len(judge.pairs) + Policy().max_pairs)
        while True:  # a rerun measures at least one pair
            first = "base" if base_first == (len(judge.pairs) % 2 == 0) else "head"
            head = [100.0 * math.exp(slowdown + sd * generator.standard_normal())]
            decision = judge.add(base=[100.0], head=head, first=first)  # type: ignore[arg-type]
            if decision.state is not MetricVerdict.CONTINUE:
                break
        if decision.state is MetricVerdict.PASS:
            return True
    return False
