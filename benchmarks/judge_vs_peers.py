"""The judge against the rules its peers use, on the same launches: false fails, misses, and what they cost.

    python benchmarks/judge_vs_peers.py [--runs 2000]

Each run is a base and a head of one true slowdown (0: A/A, or 5 %), in pairs of launches with eight samples each.
Every rule sees the same launches in the same order and takes as many as it wants. The limit is Wald's sequential
probability ratio test between 0 and the budget with the SD known exactly: at these two no test with its errors needs
fewer pairs on average (Wald and Wolfowitz 1948). It exits 1 if the judge needs more than 1.5 times the launches of that
limit, or errs more often; a fail's second pair is not counted against it, since no single pair may fail a commit.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from perfgate.judge import Judge, NoisePrior, Policy
from perfgate.judge.noise import learn
from perfgate.records import MetricVerdict

Numbers = NDArray[np.float64]
SAMPLES = 8
MOST_PAIRS = 25
POLICY = Policy()
SLOWER = 0.05
MEDIAN = 1.2533  # SD of a median against that of a mean, normal samples
AS_MANY_AS_THE_LIMIT = 1.5
T_975 = {k: float(stats.t.ppf(0.975, k - 1)) for k in range(2, MOST_PAIRS + 1)}


@dataclass(frozen=True)
class World:
    """SD of log speed between launches and between samples; share of launches that are off by ±6 %."""

    name: str
    launch_sd: float
    sample_sd: float
    bad: float = 0.0

    @property
    def pair_sd(self) -> float:
        return math.sqrt(2 * (self.launch_sd**2 + (MEDIAN * self.sample_sd) ** 2 / SAMPLES))

    def launches(self, generator: np.random.Generator, pairs: int, slowdown: float) -> Numbers:
        """Log milliseconds, (pairs, samples)."""
        sign = np.where(generator.random((pairs, 1)) < 0.5, -1.0, 1.0)
        off = 0.06 * sign * (generator.random((pairs, 1)) < self.bad)
        level = slowdown + off + self.launch_sd * generator.standard_normal((pairs, 1))
        return np.asarray(level + self.sample_sd * generator.standard_normal((pairs, SAMPLES)))


WORLDS = (
    World("launches differ by 0.2 %", 0.002, 0.005),
    World("launches differ by 0.7 %", 0.007, 0.005),
    World("launches differ by 1.4 %", 0.014, 0.005),
    World("0.7 %, one launch in 12 off by 6 %", 0.007, 0.005, bad=1 / 12),
)


@dataclass(frozen=True)
class Run:
    """What a rule may see: log milliseconds of base and head, (MOST_PAIRS, SAMPLES); and what is known of the noise."""

    base: Numbers
    head: Numbers
    pair_sd: float  # the truth, for the limit alone
    prior: NoisePrior | None  # what a ledger of ten pairs knows, for the judge alone

    @property
    def differences(self) -> Numbers:
        return np.asarray(np.median(self.head, axis=1) - np.median(self.base, axis=1))


@dataclass(frozen=True)
class Outcome:
    failed: bool
    undecided: bool
    pairs: int


Rule = Callable[[Run], Outcome]


def fixed_threshold(run: Run) -> Outcome:
    """One launch each; fails at 5 % between the medians."""
    return Outcome(bool(run.differences[0] > 0.05), False, 1)


def welch(run: Run) -> Outcome:
    """One launch each; Welch's t on the samples as if they were independent, one-sided at 5 %."""
    p = stats.ttest_ind(run.head[0], run.base[0], equal_var=False, alternative="greater").pvalue
    return Outcome(bool(p < 0.05), False, 1)


def mann_whitney(run: Run) -> Outcome:
    """One launch each; Mann–Whitney's U on the samples, one-sided at 5 %."""
    p = stats.mannwhitneyu(run.head[0], run.base[0], alternative="greater").pvalue
    return Outcome(bool(p < 0.05), False, 1)


def until_clear(run: Run) -> Outcome:
    """More launches until the 95 % interval of the mean difference clears zero, on either side."""
    differences = run.differences
    for k in range(2, MOST_PAIRS + 1):
        mean, error = differences[:k].mean(), differences[:k].std(ddof=1) / math.sqrt(k)
        if abs(mean) > T_975[k] * error:
            return Outcome(bool(mean > 0), False, k)
    return Outcome(False, True, MOST_PAIRS)


def group_sequential(run: Run) -> Outcome:
    """Paired t at two, four and six pairs, Pocock's levels for 5 % over three looks (0.0221 each, one-sided half)."""
    differences = run.differences
    for k in (2, 4, 6):
        p = stats.ttest_1samp(differences[:k], 0.0, alternative="greater").pvalue
        if p < 0.0221 / 2:
            return Outcome(True, False, k)
    return Outcome(False, False, 6)


def wald(run: Run) -> Outcome:
    """The limit: the probability ratio of "exactly the budget" to "no change", SD known, errors as in the policy."""
    fail = math.log((1 - POLICY.beta) / POLICY.alpha)
    fine = math.log(POLICY.beta / (1 - POLICY.alpha))
    ratio = 0.0
    for k, difference in enumerate(run.differences, start=1):
        ratio += POLICY.budget * (difference - POLICY.budget / 2) / run.pair_sd**2
        if ratio >= fail or ratio <= fine:
            return Outcome(ratio >= fail, False, k)
    return Outcome(False, True, MOST_PAIRS)


def ours(run: Run, max_pairs: int = POLICY.max_pairs) -> Outcome:
    """The judge of this package."""
    judge = Judge(replace(POLICY, max_pairs=max_pairs), run.prior, better="lower")
    for k in range(MOST_PAIRS):
        first = "base" if k % 2 == 0 else "head"
        decision = judge.add(base=list(np.exp(run.base[k])), head=list(np.exp(run.head[k])), first=first)  # type: ignore[arg-type]
        if decision.state is not MetricVerdict.CONTINUE:
            break
    return Outcome(
        decision.state is MetricVerdict.REGRESSION, decision.state is MetricVerdict.INCONCLUSIVE, decision.pairs
    )


LIMIT, OURS, UNTIL_DECIDED = "SPRT, SD known (the limit)", "perfgate", "perfgate, 25 pairs allowed"
RULES: dict[str, Rule] = {
    "fixed 5 % threshold": fixed_threshold,
    "Welch t, pooled samples": welch,
    "Mann–Whitney, pooled samples": mann_whitney,
    "sample until clear": until_clear,
    "group-sequential paired t": group_sequential,
    LIMIT: wald,
    OURS: ours,
    UNTIL_DECIDED: lambda run: ours(run, MOST_PAIRS),
}


@dataclass(frozen=True)
class Score:
    """Shares in 0 to 1; launches of both sides together, mean."""

    false_fails: float
    misses: float
    undecided_same: float
    undecided_slower: float
    launches_same: float
    launches_slower: float


def score(rule: Rule, same: list[Run], slower: list[Run]) -> Score:
    in_same, in_slower = [rule(run) for run in same], [rule(run) for run in slower]
    return Score(
        false_fails=_mean(outcome.failed for outcome in in_same),
        misses=_mean(not outcome.failed for outcome in in_slower),
        undecided_same=_mean(outcome.undecided for outcome in in_same),
        undecided_slower=_mean(outcome.undecided for outcome in in_slower),
        launches_same=2 * _mean(outcome.pairs for outcome in in_same),
        launches_slower=2 * _mean(outcome.pairs for outcome in in_slower),
    )


def runs_of(world: World, slowdown: float, count: int, seed: int) -> Iterator[Run]:
    generator = np.random.default_rng([seed, *world.name.encode(), round(1000 * slowdown)])
    for _ in range(count):
        base = world.launches(generator, MOST_PAIRS, 0.0)
        head = world.launches(generator, MOST_PAIRS, slowdown)
        ledger = [world.launches(generator, 10, 0.0) for _ in range(2)]
        differences = np.median(ledger[0], axis=1) - np.median(ledger[1], axis=1)
        yield Run(base, head, world.pair_sd, learn(list(differences)) if world.bad else NoisePrior(world.pair_sd, 10))


def _mean(values: Iterator[bool] | Iterator[int]) -> float:
    listed = [float(value) for value in values]
    return math.fsum(listed) / len(listed)


def too_dear(judge: Score, limit: Score) -> list[str]:
    """What the judge does worse than the limit allows. The second pair of a fail is the policy's, not the rule's."""
    allowed_slower = max(AS_MANY_AS_THE_LIMIT * limit.launches_slower, 2.0 * POLICY.min_pairs_to_fail + 0.05)
    broken = {
        "launches in A/A": judge.launches_same > AS_MANY_AS_THE_LIMIT * limit.launches_same,
        "launches at 5 %": judge.launches_slower > allowed_slower,
        "false fails": judge.false_fails > max(limit.false_fails, POLICY.alpha / 2),
        "misses": judge.misses - judge.undecided_slower > max(limit.misses, POLICY.beta / 2),
    }
    return [what for what, is_broken in broken.items() if is_broken]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    worse: list[str] = []
    for world in WORLDS:
        same = list(runs_of(world, 0.0, arguments.runs, arguments.seed))
        slower = list(runs_of(world, SLOWER, arguments.runs, arguments.seed))
        print(f"\n{world.name} (pair SD {100 * world.pair_sd:.2g} %)\n")
        print("| rule | A/A: failed % | undecided % | launches | 5 %: missed % | of these undecided | launches |")
        print("|---|---|---|---|---|---|---|")
        scores = {name: score(rule, same, slower) for name, rule in RULES.items()}
        for name, one in scores.items():
            print(
                f"| {name} | {100 * one.false_fails:.1f} | {100 * one.undecided_same:.1f} | {one.launches_same:.1f}"
                f" | {100 * one.misses:.1f} | {100 * one.undecided_slower:.1f} | {one.launches_slower:.1f} |"
            )
        if not world.bad:  # the limit is one only where its normal model holds
            for name in (OURS, UNTIL_DECIDED):
                worse += [f"{world.name}, {name}: {what}" for what in too_dear(scores[name], scores[LIMIT])]
    print("\n" + ("; ".join(worse) or f"Within {AS_MANY_AS_THE_LIMIT} times the limit everywhere."))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
