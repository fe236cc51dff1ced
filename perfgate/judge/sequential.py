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
from perfgate.judge.noise import LOOSE, WIDE, doubted, noise_from
from perfgate.judge.values import Decision, JudgeInputError, NoisePrior, PairSamples, Policy
from perfgate.records import Better, Effect, MetricVerdict, Side

INTERVAL_ERROR = 0.05
UNKNOWN_NOISE_ALPHA = 1 / 15  # share of alpha that is left where nothing is known of the noise
UNKNOWN_PAIRS_TO_FAIL = 4  # where nothing is known: launches of two modes make two pairs alike once in sixteen gates
BEYOND_MODES = 0.3  # log units: launches of one build are not known to differ by that much
AGREE = 0.5  # of the estimate: a pair that shows less does not say that there is such a loss
UNKNOWN_AGREE = 0.9  # share of the pairs that must say so where nothing is known
ALONE = 2.4  # SD: how far a single pair may lie on the fast side and still pass alone
MOVED = 0.5  # of the budget: a box that moved by more between the launches of a pair lets it not pass alone
FOUND = 1.2816  # standard errors between what is found in half and in nine of ten
FARTHEST = 5.0  # log units: where looking for what could have been detected ends
LUCK = 0.1  # standard errors: the first of several looks to be over the budget is over it by luck, too
BAD_FOR_ALONE = 0.05  # share of bad pairs from which on a single pair never passes


class Judge:
    """Collects the pairs of one metric. The only thing here that changes; `decide` does the thinking."""

    def __init__(self, policy: Policy, prior: NoisePrior | None, better: Better = Better.HIGHER) -> None:
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
    policy: Policy, prior: NoisePrior | None, pairs: Iterable[PairSamples], better: Better = Better.HIGHER
) -> Decision | None:
    """The decision after the last of these pairs; None where there are none."""
    kept = tuple(pairs)
    return decide(policy, prior, kept, better) if kept else None


def decide(policy: Policy, prior: NoisePrior | None, pairs: Sequence[PairSamples], better: Better) -> Decision:
    """What all these pairs say. Depends on the pairs alone, not on earlier decisions."""
    look = _Look.at(policy, prior, pairs, better)
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
        believed=tuple(sorted(look.explained.good)),
    )


def difference_of(pair: PairSamples, better: Better) -> PairDifference:
    """A pair as one number, + = head is slower, and which launch came first."""
    turn = -1.0 if better == Better.HIGHER else 1.0
    order = {Side.BASE: 1, Side.HEAD: -1, None: 0}[pair.first]
    return PairDifference(turn * pair.difference, order)


def _without_order(difference: PairDifference, prior: NoisePrior | None) -> PairDifference:
    """Without what the ledger knows that being the second launch costs."""
    if prior is None or not prior.order:
        return difference
    return PairDifference(difference.slowdown - difference.order * prior.order, difference.order)


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at the pairs. `moved`: how far the box went between the launches of the first, beside what is known.

    doubted: explained by somebody who trusts the ledger less, for a regression. wide: for the interval; without a prior
    it assumes less about the noise.
    """

    policy: Policy
    prior: NoisePrior | None
    explained: Explanations
    doubted: Explanations
    wide: Explanations
    moved: float | None = None

    @classmethod
    def at(cls, policy: Policy, prior: NoisePrior | None, pairs: Sequence[PairSamples], better: Better) -> _Look:
        differences = [_without_order(difference_of(pair, better), prior) for pair in pairs]
        moved = pairs[0].moved
        if moved is not None:
            moved = abs(moved - differences[0].order * (prior.order if prior else 0.0))
        if prior is not None:
            doubting = explain(differences, doubted(prior, policy.budget))
            return cls(policy, prior, explain(differences, noise_from(prior)), doubting, doubting, moved)
        loose = explain(differences, LOOSE)
        return cls(policy, prior, loose, loose, explain(differences, WIDE), moved)

    @property
    def alpha(self) -> float:
        return self.policy.alpha * (1.0 if self.prior else UNKNOWN_NOISE_ALPHA)

    def state(self, slowdown: float) -> MetricVerdict:
        if self._over_budget(slowdown) and self._slower() and self._enough_agree(slowdown):
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
        """The smallest slowdown that so many pairs, scattered as they are, show as a regression in nine of ten.

        Explanations do not depend on where zero is, so moving the pairs is moving the edge. Where fewer are at hand
        than a regression needs, as if each had come again.
        """
        needed = self._pairs_to_fail(self.policy.budget)
        seen = self.doubted
        if self._pairs < needed:
            again = seen.differences * -(-needed // self._pairs)
            seen = explain(again[:needed], seen.noise)
        error, estimate, nats = seen.best.standard_error, seen.estimate(), math.log(1 / self.alpha)
        low, high = self.policy.budget + LUCK * error, FARTHEST
        while high - low > 1e-4:
            middle = (low + high) / 2
            if seen.against_at_most(estimate - middle) >= nats:
                high = middle
            else:
                low = middle
        return high + FOUND * error

    @property
    def _pairs(self) -> int:
        return len(self.explained.differences)

    def _over_budget(self, slowdown: float) -> bool:
        return slowdown >= self.policy.budget + LUCK * self.explained.best.standard_error

    def _slower(self) -> bool:
        return self.doubted.against_at_most(0.0) >= math.log(1 / self.alpha)

    def _enough_agree(self, slowdown: float) -> bool:
        agree = sum(difference.slowdown >= AGREE * slowdown for difference in self.explained.differences)
        if self.prior is None and agree < UNKNOWN_AGREE * self._pairs:
            return False
        return agree >= self._pairs_to_fail(slowdown)

    def _pairs_to_fail(self, slowdown: float) -> int:
        """More where nothing is known: launches of one build that come in two modes look like a loss at first."""
        known = self.prior is not None or slowdown >= BEYOND_MODES
        return max(self.policy.min_pairs_to_fail, 1 if known else UNKNOWN_PAIRS_TO_FAIL)

    def _within_budget(self) -> bool:
        return self.explained.against_at_least(self.policy.budget) >= math.log(1 / self.policy.beta)

    def _may_pass(self) -> bool:
        """A pair alone passes only where noise is known, bad launches are rare, the box stood, and nothing changed.

        A single launch of base that is bad or was taken on a slower box would do for a pass otherwise.
        """
        if self._pairs > 1:
            return True
        if self.prior is None or self.prior.bad > BAD_FOR_ALONE:
            return False
        if self.moved is not None and self.moved > MOVED * self.policy.budget:
            return False
        reach = ALONE * self.prior.sd * math.sqrt(1 + self.prior.order_variance)
        return self.explained.differences[0].slowdown >= -reach


def _effect(state: MetricVerdict, low: float, high: float) -> Effect:
    if state is MetricVerdict.REGRESSION:
        return Effect.SLOWER
    if high < 0:
        return Effect.FASTER
    if low > 0:
        return Effect.SLOWER_WITHIN_BUDGET if state is MetricVerdict.PASS else Effect.SLOWER
    return Effect.SAME if state is MetricVerdict.PASS else Effect.UNKNOWN
