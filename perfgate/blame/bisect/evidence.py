"""What measured pairs say about where a line of commits gets slower.

Every pair is one number d = log slowdown of the newer against the older of two positions on the line. If one commit k
alone made the difference δ of the ends, then d is δ for a pair with k between its two, and 0 for any other:

    d = δ·[older < k ≤ newer] + noise          (Student's t: the noise is known only as far as the ledger goes)

Integrated over δ and the noise's variance (a normal-gamma prior with ν0, s0), k is as likely as

    (n_k + λ)^(−1/2) · (ν0·s0² + RSS_k)^(−(ν0 + m − 1)/2)

with n_k pairs that have k between, m pairs in all, and λ the prior of δ.

`several` is the rival of all of them: every position has a level of its own, with a prior as wide as one
and a half times the difference of the ends. Where it wins, the line is split at the position that fits one step worst.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SEVERAL = 0.05
"""Prior of more than one step, some of which may be gains."""
WIDTH = 1.5


@dataclass(frozen=True)
class Seen:
    """One measured pair. `within`: the part of the line that was searched when it was measured."""

    older: int
    newer: int
    slowdown: float
    within: tuple[int, int]


@dataclass(frozen=True)
class PairNoise:
    """Of a pair's log difference: standard deviation, and what that is worth in pairs."""

    sd: float
    df: float


UNKNOWN_NOISE = PairNoise(0.02, 3.0)


@dataclass(frozen=True)
class Estimate:
    """A mean with the noise it was seen in, for the two ranges that it may lie in."""

    mean: float
    pairs: int
    base: float  # ν0·s0² + scatter about the mean
    df: float  # ν0 + pairs

    def against(self, value: float, *, above: bool) -> float:
        """Nats against everything above (below) a value. Infinite is never reached: noise has heavy tails."""
        distance = max(0.0, value - self.mean) if above else max(0.0, self.mean - value)
        return 0.5 * self.df * math.log1p(self.pairs * distance**2 / self.base) if self.pairs else 0.0

    @property
    def sd(self) -> float:
        return math.sqrt(self.base / self.df)


def estimate(values: Sequence[float], noise: PairNoise) -> Estimate:
    mean = math.fsum(values) / len(values) if values else 0.0
    scatter = math.fsum((value - mean) ** 2 for value in values)
    return Estimate(mean, len(values), noise.df * noise.sd**2 + scatter, noise.df + len(values))


@dataclass(frozen=True)
class Posterior:
    """`single[k]`: that the step lies between the measurable position before k and k. `several`: all the rest."""

    single: Mapping[int, float]
    several: float
    difference: float
    sd: float
    levels: Mapping[int, float]  # of every position that was measured, against the first

    @property
    def best(self) -> int:
        return max(self.single, key=lambda k: self.single[k])

    def slow_at(self, position: int) -> float:
        """That a position has the slow side's level, if there is one step."""
        total = math.fsum(self.single.values())
        return math.fsum(p for k, p in self.single.items() if k <= position) / total if total else 0.5


def posterior(places: Sequence[int], seen: Sequence[Seen], prior: Mapping[int, float], noise: PairNoise) -> Posterior:
    """`places`: the measurable positions, first and last known to differ. `prior`: for all but the first."""
    base = noise.df * noise.sd**2
    power = 0.5 * (noise.df + len(seen) - 1)
    ends = [one.slowdown for one in seen if (one.older, one.newer) == (places[0], places[-1])]
    difference = math.fsum(ends) / len(ends) if ends else 0.0
    width = WIDTH * max(abs(difference), noise.sd)
    ridge = (noise.sd / width) ** 2
    logs = {k: math.log(prior[k]) + math.log1p(-SEVERAL) + _one_step(k, seen, base, power, ridge) for k in places[1:]}
    levels, freed, scatter, information = _levels(places, seen, ridge)
    sd = math.sqrt((base + scatter) / (noise.df + len(seen)))
    price = 0.5 * (len(levels) - 1) * math.log(ridge) - 0.5 * information
    several = math.log(SEVERAL) - power * math.log(base + scatter) + price
    top = max(several, *logs.values())
    weights = {k: math.exp(value - top) for k, value in logs.items()}
    rest = math.exp(several - top) if freed else 0.0
    total = math.fsum(weights.values()) + rest
    return Posterior({k: w / total for k, w in weights.items()}, rest / total, difference, sd, levels)


def _one_step(k: int, seen: Sequence[Seen], base: float, power: float, ridge: float) -> float:
    inside = [one.slowdown for one in seen if one.older < k <= one.newer]
    mean = math.fsum(inside) / len(inside) if inside else 0.0
    rss = math.fsum((value - mean) ** 2 for value in inside)
    rss += math.fsum(one.slowdown**2 for one in seen if not one.older < k <= one.newer)
    return 0.5 * math.log(ridge / (len(inside) + ridge)) - power * math.log(base + rss)


def _levels(places: Sequence[int], seen: Sequence[Seen], ridge: float) -> tuple[dict[int, float], int, float, float]:
    """Least squares with a free level at each measured position (the first is 0).

    Levels, how many of them are between the ends, the scatter about them, and log det of their information.
    """
    first, last = places[0], places[-1]
    free = sorted({at for one in seen for at in (one.older, one.newer)} - {first})
    column = {at: number for number, at in enumerate(free)}
    size = len(free)
    matrix = [[ridge * (row == at) for at in range(size)] + [0.0] for row in range(size)]
    for one in seen:
        ends = [(column[at], sign) for at, sign in ((one.newer, 1.0), (one.older, -1.0)) if at != first]
        for row, sign in ends:
            matrix[row][size] += sign * one.slowdown
            for other, other_sign in ends:
                matrix[row][other] += sign * other_sign
    solution, determinant = _solve(matrix)
    levels = {first: 0.0, **{at: solution[column[at]] for at in free}}
    scatter = math.fsum((one.slowdown - levels[one.newer] + levels[one.older]) ** 2 for one in seen)
    return levels, sum(at != last for at in free), scatter, determinant


def _solve(matrix: list[list[float]]) -> tuple[list[float], float]:
    """Gauss, and the logarithm of the determinant. The prior's ridge keeps it solvable."""
    size = len(matrix)
    logs = 0.0
    for at in range(size):
        best = max(range(at, size), key=lambda row: abs(matrix[row][at]))
        matrix[at], matrix[best] = matrix[best], matrix[at]
        pivot = matrix[at][at] or 1e-12
        logs += math.log(abs(pivot))
        for row in range(size):
            if row != at and matrix[row][at]:
                factor = matrix[row][at] / pivot
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[at], strict=True)]
    return [matrix[at][size] / (matrix[at][at] or 1e-12) for at in range(size)], logs
