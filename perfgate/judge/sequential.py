"""The judge of one metric: pairs in, one after the other; a decision out after each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from perfgate.judge.values import (
    Better,
    Decision,
    Effect,
    First,
    JudgeInputError,
    Pair,
    Policy,
    Prior,
    State,
)

INTERVAL_ERROR = 0.05
UNKNOWN_NOISE = Prior(sd=0.02, df=3)


class Judge:
    """Collects the pairs of one metric. The only thing here that changes; `decide` does the thinking."""

    def __init__(self, policy: Policy, prior: Prior | None, better: Better = "higher") -> None:
        if better not in ("higher", "lower"):
            raise JudgeInputError(f"better must be 'higher' or 'lower', not {better!r}")
        self.policy = policy
        self.prior = prior
        self.better = better
        self.pairs: tuple[Pair, ...] = ()

    def add(self, *, base: Sequence[float], head: Sequence[float], first: First | None = None) -> Decision:
        """Add one pair and say what all pairs so far mean. May be called after a decision and change it."""
        self.pairs = (*self.pairs, Pair.of(base, head, first))
        return decide(self.policy, self.prior, self.pairs, self.better)


def replay(
    policy: Policy, prior: Prior | None, pairs: Iterable[Pair], better: Better = "higher"
) -> Decision | None:
    """The decision after the last of these pairs; None where there are none."""
    kept = tuple(pairs)
    return decide(policy, prior, kept, better) if kept else None


def decide(policy: Policy, prior: Prior | None, pairs: Sequence[Pair], better: Better) -> Decision:
    """What all these pairs say. Depends on the pairs alone, not on earlier decisions."""
    sign = -1.0 if better == "higher" else 1.0
    d = [sign * pair.difference for pair in pairs]
    noise = prior or UNKNOWN_NOISE
    alpha = policy.alpha if prior else policy.alpha / 10
    k = len(d)
    mean = math.fsum(d) / k
    spread = noise.df * noise.sd**2 + math.fsum((x - mean) ** 2 for x in d)
    weight = (noise.df + k) / 2

    def evidence_against(distance: float) -> float:
        return weight * math.log1p(k * distance**2 / spread)

    def reach(error: float) -> float:
        return math.sqrt(spread / k * math.expm1(math.log(1 / error) / weight))

    low, high = mean - reach(INTERVAL_ERROR), mean + reach(INTERVAL_ERROR)
    agree = sum(x > 0 for x in d)
    if (
        mean >= policy.budget
        and evidence_against(mean) >= math.log(1 / alpha)
        and agree >= policy.min_pairs_to_fail
    ):
        state = State.REGRESSION
    elif evidence_against(max(0.0, policy.budget - mean)) >= math.log(1 / policy.beta) and (prior or k > 1):
        state = State.PASS
    else:
        state = State.INCONCLUSIVE if k >= policy.max_pairs else State.CONTINUE
    detectable = max(policy.budget, reach(alpha))
    return Decision(state, mean, low, high, k, detectable, _effect(state, low, high))


def _effect(state: State, low: float, high: float) -> Effect:
    if state is State.REGRESSION:
        return Effect.SLOWER
    if high < 0:
        return Effect.FASTER
    if low > 0:
        return Effect.SLOWER_WITHIN_BUDGET if state is State.PASS else Effect.SLOWER
    return Effect.SAME if state is State.PASS else Effect.UNKNOWN
