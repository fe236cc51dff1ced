"""Every way to explain the pairs so far, and what each costs.

The slowdown θ is judged by profile likelihood: how much dearer (in nats, units of log likelihood) is the cheapest
explanation with θ in a range than the cheapest of all? An explanation names

- which pairs are good and which are bad. For a given θ the good ones are the nearest to it, so it is enough to
  look at every run of neighbours in sorted order;

      d:   x x xx   |        θ ─► the good pairs are a window around θ, the rest is bad
          └──┬───┘  └ bad

- which guess of the noise holds (see `noise`);
- what being the second launch costs: next to nothing, or something large. The second launch of a pair sees a
  warmer box, so a pair with base first differs by θ + δ and one with head first by θ − δ. δ ~ N(0, λσ²) with
  λ small is always allowed; λ large, at a price, once both orders are seen.

Given these, the good differences d are multivariate t: σ² and δ are integrated out (Gelman et al., Bayesian Data
Analysis, 3rd ed., §3.3 and §14.2). With n good pairs, guess (s, ν), r = d − θ, orders o = ±1 and
Q(θ) = r'r − λ/(1+λn)·(o'r)²:

    cost = ½n·ln π + lnΓ(ν/2) − lnΓ((ν+n)/2) − ½ν·ln(νs²) + ½(ν+n)·ln(νs² + Q(θ)) + ½ln(1+λn)

and Q(θ) = Q(m) + C·(θ − m)², so ranges of θ have closed forms. Without bad pairs and with one guess this is
½(ν+n)·ln(1 + C·(θ−m)²/(νs² + Q(m))), the likelihood ratio of Student's t. A bad pair costs
ln(s√2π) + ln((1−q)/(q/2)), and 2·ln(r/far) on top where it is farther off than bad pairs are known to be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from perfgate.judge.noise import Guess, Noise

ORDER_LARGE = 25.0
ORDER_LARGE_COST = 2.0  # nats, on top of what the determinant charges
ALL_WINDOWS_UP_TO = 12  # pairs; with more, windows of fewer than half are left out
LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)
NEGLIGIBLE = 12.0  # nats above the best: e⁻¹² of its weight


@dataclass(frozen=True, slots=True)
class PairDifference:
    """A pair as one number: slowdown in log units, and +1 where base was first, −1 head, 0 not known."""

    slowdown: float
    order: int = 0


class Explanation(NamedTuple):
    """One explanation: best at `centre`; elsewhere dearer by weight·ln(1 + information·(θ−centre)²/spread)."""

    cost: float
    centre: float
    information: float
    spread: float
    weight: float
    start: int  # the good pairs are start to stop in sorted order
    stop: int

    @property
    def standard_error(self) -> float:
        """Of the centre (log units)."""
        return math.sqrt(self.spread / (2 * self.weight * self.information))

    def cost_at(self, distance: float) -> float:
        """Cost where θ lies that far from the centre."""
        if distance == 0.0:
            return self.cost
        return self.cost + self.weight * math.log1p(self.information * distance * distance / self.spread)

    def reach(self, nats: float) -> float:
        """How far θ may lie from the centre before this gets that many nats dearer."""
        return math.sqrt(self.spread / self.information * math.expm1(nats / self.weight))


@dataclass(frozen=True, slots=True)
class Explanations:
    """All explanations of the same pairs, under one idea of the noise."""

    differences: tuple[PairDifference, ...]
    noise: Noise
    explanations: tuple[Explanation, ...]
    best: Explanation
    sorted_numbers: tuple[int, ...]

    @property
    def good(self) -> tuple[int, ...]:
        """Numbers of the pairs that the best explanation calls good, from 0 in the order of measurement."""
        return self.sorted_numbers[self.best.start : self.best.stop]

    def against_at_most(self, edge: float) -> float:
        """Nats against "the slowdown is at most `edge`"."""
        return self._against(edge, above=False)

    def against_at_least(self, edge: float) -> float:
        """Nats against "the slowdown is at least `edge`"."""
        return self._against(edge, above=True)

    def _against(self, edge: float, above: bool) -> float:
        turn = 1.0 if above else -1.0
        cheapest = min(
            explanation.cost_at(max(0.0, turn * (edge - explanation.centre))) for explanation in self.explanations
        )
        return min(cheapest, self._cost_of_all_bad(edge)) - self.best.cost

    def estimate(self) -> float:
        """The slowdown: the explanations' centres, each counted by its likelihood."""
        total = weighted = 0.0
        for explanation in self.explanations:
            above = explanation.cost - self.best.cost
            if above < NEGLIGIBLE:
                likelihood = math.exp(-above)
                total += likelihood
                weighted += likelihood * explanation.centre
        return weighted / total

    def interval(self, nats: float) -> tuple[float, float]:
        """The hull of all slowdowns whose cheapest explanation is less than `nats` dearer than the best."""
        low = high = self.best.centre
        for explanation in self.explanations:
            room = self.best.cost + nats - explanation.cost
            if room > 0:
                reach = explanation.reach(room)
                low = min(low, explanation.centre - reach)
                high = max(high, explanation.centre + reach)
        return low, high

    def _cost_of_all_bad(self, slowdown: float) -> float:
        guess, noise = self.noise.guesses[0], self.noise
        far = sum(_cost_of_far(pair.slowdown - slowdown, noise.far) for pair in self.differences)
        return guess.cost + len(self.differences) * _cost_of_bad(guess, noise) + far


def explain(differences: Sequence[PairDifference], noise: Noise) -> Explanations:
    """All explanations of these pairs (at least one)."""
    numbers = sorted(range(len(differences)), key=lambda n: (differences[n].slowdown, differences[n].order))
    explanations = tuple(_explanations([differences[number] for number in numbers], noise))
    best = min(explanations, key=attrgetter("cost"))
    return Explanations(tuple(differences), noise, explanations, best, tuple(numbers))


def _explanations(ordered: Sequence[PairDifference], noise: Noise) -> Iterator[Explanation]:
    k = len(ordered)
    slowdowns = [pair.slowdown for pair in ordered]
    guesses = [(guess, guess.df * guess.sd**2, _cost_of_bad(guess, noise)) for guess in noise.guesses]
    shortest = 1 if k <= ALL_WINDOWS_UP_TO else (k + 1) // 2
    for start in range(k):
        window = _Window()
        for stop in range(start + 1, k + 1):
            window.add(ordered[stop - 1])
            n = stop - start
            if n < shortest:
                continue
            for order, order_cost in window.orders(noise.order):
                information, centre, residual = window.fit(order)
                shared = order_cost + _cost_of_far_ends(slowdowns, start, stop, centre, noise.far)
                for guess, known, bad in guesses:
                    weight = (guess.df + n) / 2
                    spread = known + residual
                    own = _normalisation(guess.df, guess.sd, n) + weight * math.log(spread)
                    cost = guess.cost + shared + own + (k - n) * bad
                    yield Explanation(cost, centre, information, spread, weight, start, stop)


class _Window:
    """Running sums over the good pairs of one window."""

    __slots__ = ("base_first", "d", "dd", "head_first", "n", "o", "od")

    def __init__(self) -> None:
        self.n = self.base_first = self.head_first = 0
        self.d = self.dd = self.od = 0.0

    def add(self, pair: PairDifference) -> None:
        self.n += 1
        self.d += pair.slowdown
        self.dd += pair.slowdown * pair.slowdown
        self.od += pair.order * pair.slowdown
        self.base_first += pair.order > 0
        self.head_first += pair.order < 0

    def orders(self, small: float) -> Iterator[tuple[float, float]]:
        """λ, and what allowing it costs."""
        known = self.base_first + self.head_first
        yield small, 0.5 * math.log1p(small * known)
        if self.n >= 3 and self.base_first and self.head_first:
            yield ORDER_LARGE, 0.5 * math.log1p(ORDER_LARGE * known) + ORDER_LARGE_COST

    def fit(self, order: float) -> tuple[float, float, float]:
        """C, m and Q(m) of the package comment."""
        known = self.base_first + self.head_first
        net = self.base_first - self.head_first
        share = order / (1 + order * known)
        information = self.n - share * net * net
        centre = (self.d - share * self.od * net) / information
        square = self.dd - share * self.od * self.od
        return information, centre, max(square - information * centre * centre, 0.0)


@lru_cache(maxsize=4096)
def _normalisation(df: float, sd: float, n: int) -> float:
    return (
        0.5 * n * math.log(math.pi)
        + math.lgamma(df / 2)
        - math.lgamma((df + n) / 2)
        - 0.5 * df * math.log(df * sd * sd)
    )


def _cost_of_bad(guess: Guess, noise: Noise) -> float:
    """Of a pair that is bad, as near as bad pairs come."""
    return LOG_ROOT_2PI + math.log(guess.sd) + noise.bad_cost


def _cost_of_far(distance: float, far: float) -> float:
    """On top for a bad pair that is farther off than bad pairs are known to be."""
    beyond = abs(distance) / far
    return 2 * math.log(beyond) if beyond > 1 else 0.0


def _cost_of_far_ends(slowdowns: Sequence[float], start: int, stop: int, centre: float, far: float) -> float:
    """The same for all bad pairs of a window; sorted, so only the ends can be far off."""
    cost = 0.0
    for slowdown in slowdowns[:start]:
        if centre - slowdown <= far:
            break
        cost += _cost_of_far(centre - slowdown, far)
    for slowdown in reversed(slowdowns[stop:]):
        if slowdown - centre <= far:
            break
        cost += _cost_of_far(slowdown - centre, far)
    return cost
