"""The judge of one metric: pairs in, one after the other; a decision out after each.

    ├────────── H0: not slower ─────────┤0            budget├──── H1: budget or more ────►
                                        │                   │
       pass:            (────●──────────┼───────)           │    H1 is excluded
       regression:                      │   (───────────────┼─●──────────)   H0 is, and ● is over the budget
       more pairs:            (─────────┼───●───────────────┼───)

A range is excluded when its cheapest explanation is at least ln(1/error) nats dearer than the cheapest of all (see
`explain`). Both are ranges, since a point alternative leaves a loss of 36 % undecided: under heavy tails "0" and
"exactly the budget" are equally absurd there. Looking after each pair is part of the rule; what that does to its
errors is simulated (docs/judge.md), not assumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perfgate.judge.caveats import caveats, drift_of
from perfgate.judge.explain import Explanations, PairDifference, explain
from perfgate.judge.noise import LOOSE, WIDE, noise_from
from perfgate.judge.values import Decision, JudgeInputError, PairSamples, Policy, Prior
from perfgate.records import Better, Effect, MetricVerdict, Side

INTERVAL_ERROR = 0.05
UNKNOWN_NOISE_ALPHA = 1 / 15  # share of alpha that is left where nothing is known of the noise
ALONE = 2.0  # SD: how far a single pair may lie on the fast side and still pass alone
LUCK = 0.1  # standard errors: the first of several looks to be over the budget is over it by luck, too
BAD_FOR_ALONE = 0.05  # share of bad pairs from which on a single pair never passes


class Judge:
    """Collects the pairs of one metric. The only thing here that changes; `decide` does the thinking."""

    def __init__(self, policy: Policy, prior: Prior | None, better: Better = Better.HIGHER) -> None:
        if better not in tuple(Better):
            raise JudgeInputError(f"better must be 'higher' or 'lower', not {better!r}")
        self.policy = policy
        self.prior = prior
        self.better = better
        self.pairs: tuple[PairSamples, ...] = ()

    def add(self, *, base: Sequence[float], head: Sequence[float], first: Side | None = None) -> Decision:
        """Add one pair and say what all pairs so far mean. May be called after a decision and change it.

        Raises JudgeInputError where a side has no samples, or one that is not finite and above zero.
        """
        self.pairs = (*self.pairs, PairSamples.of(base, head, first))
        return decide(self.policy, self.prior, self.pairs, self.better)


def replay(
    policy: Policy, prior: Prior | None, pairs: Iterable[PairSamples], better: Better = Better.HIGHER
) -> Decision | None:
    """The decision after the last of these pairs; None where there are none."""
    kept = tuple(pairs)
    return decide(policy, prior, kept, better) if kept else None


def decide(policy: Policy, prior: Prior | None, pairs: Sequence[PairSamples], better: Better) -> Decision:
    """What all these pairs say. Depends on the pairs alone, not on earlier decisions."""
    look = _Look.at(policy, prior, [difference_of(pair, better) for pair in pairs])
    slowdown = look.explained.estimate()
    state = look.state(slowdown)
    low, high = look.interval(state, slowdown)
    return Decision(
        state=state,
        slowdown=slowdown,
        low=low,
        high=high,
        pairs=len(pairs),
        detectable=look.detectable(),
        effect=_effect(state, low, high),
        drift=drift_of(look.explained),
        warnings=caveats(look.explained, prior, pairs, policy),
    )


def difference_of(pair: PairSamples, better: Better) -> PairDifference:
    """A pair as one number, + = head is slower, and which launch came first."""
    turn = -1.0 if better == Better.HIGHER else 1.0
    order = {Side.BASE: 1, Side.HEAD: -1, None: 0}[pair.first]
    return PairDifference(turn * pair.difference, order)


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at the pairs. `wide` is for the interval: without a prior it assumes less about the noise."""

    policy: Policy
    prior: Prior | None
    explained: Explanations
    wide: Explanations

    @classmethod
    def at(cls, policy: Policy, prior: Prior | None, differences: Sequence[PairDifference]) -> _Look:
        if prior is not None:
            explained = explain(differences, noise_from(prior))
            return cls(policy, prior, explained, explained)
        return cls(policy, prior, explain(differences, LOOSE), explain(differences, WIDE))

    @property
    def alpha(self) -> float:
        return self.policy.alpha * (1.0 if self.prior else UNKNOWN_NOISE_ALPHA)

    def state(self, slowdown: float) -> MetricVerdict:
        if self._over_budget(slowdown) and self._slower() and self._enough_agree():
            return MetricVerdict.REGRESSION
        if self._within_budget() and self._may_pass():
            return MetricVerdict.PASS
        return MetricVerdict.INCONCLUSIVE if self._pairs >= self.policy.max_pairs else MetricVerdict.CONTINUE

    def interval(self, state: MetricVerdict, slowdown: float) -> tuple[float, float]:
        """The values not excluded. A decision cuts them at the border that it excludes."""
        nats = math.log(1 / INTERVAL_ERROR)
        low, high = self.wide.interval(nats)
        if self.wide.against_at_most(0.0) < nats:
            low = min(low, 0.0)
        if self.wide.against_at_least(self.policy.budget) < nats:
            high = max(high, self.policy.budget)
        if state is MetricVerdict.PASS:
            high = min(high, self.policy.budget)
        if state is MetricVerdict.REGRESSION:
            low = max(low, 0.0)
        return min(low, slowdown), max(high, slowdown)

    def detectable(self) -> float:
        """The smallest slowdown that these pairs, scattered as they are, would have shown as a regression."""
        best, noise = self.explained.best, self.explained.noise
        nats = math.log(1 / self.alpha)
        pairs = max(self._pairs, self.policy.min_pairs_to_fail)
        reach = best.reach(nats) * math.sqrt(best.information / pairs)
        missing = nats / pairs - noise.bad_cost  # what being far off must add to make bad pairs too dear
        far = noise.far * math.exp(missing / 2) if missing > 0 else 0.0
        return max(self.policy.budget, reach, far)

    @property
    def _pairs(self) -> int:
        return len(self.explained.differences)

    def _over_budget(self, slowdown: float) -> bool:
        return slowdown >= self.policy.budget + LUCK * self.explained.best.standard_error

    def _slower(self) -> bool:
        return self.explained.against_at_most(0.0) >= math.log(1 / self.alpha)

    def _enough_agree(self) -> bool:
        agree = sum(difference.slowdown > 0 for difference in self.explained.differences)
        return agree >= self.policy.min_pairs_to_fail

    def _within_budget(self) -> bool:
        return self.explained.against_at_least(self.policy.budget) >= math.log(1 / self.policy.beta)

    def _may_pass(self) -> bool:
        """A pair alone passes only where noise is known, bad launches are rare and it looks like no change.

        A single bad launch of base would do for a pass otherwise.
        """
        if self._pairs > 1:
            return True
        if self.prior is None or self.prior.bad > BAD_FOR_ALONE:
            return False
        return self.explained.differences[0].slowdown >= -ALONE * self.prior.sd


def _effect(state: MetricVerdict, low: float, high: float) -> Effect:
    if state is MetricVerdict.REGRESSION:
        return Effect.SLOWER
    if high < 0:
        return Effect.FASTER
    if low > 0:
        return Effect.SLOWER_WITHIN_BUDGET if state is MetricVerdict.PASS else Effect.SLOWER
    return Effect.SAME if state is MetricVerdict.PASS else Effect.UNKNOWN
