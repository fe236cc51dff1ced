"""What goes into the judge and what comes out: small immutable values, nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfgate.records import Effect, MetricVerdict, Notice, Side


class JudgeInputError(ValueError):
    """Numbers that no verdict can be built on: nothing measured, zero, negative, not finite."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How much slower is too slow, and how wrong the judge may be about it.

    budget: the slowdown, as a difference of logarithms, that is a regression from there on.
    alpha: error allowed in "it is slower"; beta: in "it is slower by less than the budget".
    """

    budget: float = 0.03
    alpha: float = 0.01
    beta: float = 0.05
    max_pairs: int = 12
    min_pairs_to_fail: int = 2

    def __post_init__(self) -> None:
        if not (math.isfinite(self.budget) and self.budget > 0):
            raise JudgeInputError(f"budget must be a positive number, not {self.budget!r}")
        for name, error in (("alpha", self.alpha), ("beta", self.beta)):
            if not 0 < error < 0.5:
                raise JudgeInputError(f"{name} must lie between 0 and 0.5, not {error!r}")
        if self.max_pairs < 1 or self.min_pairs_to_fail < 1:
            raise JudgeInputError("max_pairs and min_pairs_to_fail must be at least 1")


@dataclass(frozen=True, slots=True)
class NoisePrior:
    """What the box's ledger knows of the noise of a pair, and how much that is worth.

    sd: SD of the log difference of two launches of the same code, without the bad ones.
    df: how much that is worth, in pairs.
    bad: share of pairs with a launch that came out far off; 0 where none was seen.
    far: how far off those were (log units); None where none was seen.
    order: what being the second launch of a pair costs (log units, + = slower); 0 where that was not seen for sure.
    order_variance: of that effect, in units of sd².
    """

    sd: float
    df: float
    bad: float = 0.0
    far: float | None = None
    order: float = 0.0
    order_variance: float = 0.0

    def __post_init__(self) -> None:
        positive = (("sd", self.sd), ("df", self.df), ("far", 1.0 if self.far is None else self.far))
        for name, value in positive:
            if not (math.isfinite(value) and value > 0):
                raise JudgeInputError(f"the prior's {name} must be a positive number, not {value!r}")
        if not 0 <= self.bad < 0.6:
            raise JudgeInputError(f"the prior's share of bad pairs must lie in 0 to 0.6, not {self.bad!r}")


@dataclass(frozen=True, slots=True)
class Drift:
    """What being the second launch of a pair costs (log units, + = the second launch is slower)."""

    effect: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PairSamples:
    """The samples of one base and one head launch next to each other, in the metric's own unit.

    moved: by how much the canary was slower beside head than beside base (log units); None where nothing says.
    """

    base: tuple[float, ...]
    head: tuple[float, ...]
    first: Side | None = None
    moved: float | None = None

    @classmethod
    def of(
        cls, base: Sequence[float], head: Sequence[float], first: Side | None = None, moved: float | None = None
    ) -> PairSamples:
        """Check the numbers and keep them. Raises JudgeInputError with the side and the reason."""
        if first is not None and first not in tuple(Side):
            raise JudgeInputError(f"first must be 'base', 'head' or None, not {first!r}")
        return cls(_checked(base, Side.BASE), _checked(head, Side.HEAD), first, moved)

    @property
    def difference(self) -> float:
        """Median log of head minus median log of base; its sign is not yet turned to "+ = slower"."""
        return _median_log(self.head) - _median_log(self.base)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the pairs so far say of one metric. All slowdowns are log differences, + = head is slower.

    low, high: 95 % interval, valid although the judge looks after each pair.
    detectable: the smallest slowdown that so many pairs, scattered as these are, show as a regression in nine of ten.
    """

    state: MetricVerdict
    slowdown: float
    low: float
    high: float
    pairs: int
    detectable: float
    effect: Effect
    drift: Drift | None = None
    warnings: tuple[Notice, ...] = ()
    believed: tuple[int, ...] = ()  # numbers, from 0, of the pairs that the estimate stands on


def _checked(samples: Sequence[float], side: Side) -> tuple[float, ...]:
    if len(samples) == 0:
        raise JudgeInputError(f"{side} has no samples: a launch without samples is no launch")
    values: list[float] = []
    for sample in samples:
        try:
            value = float(sample)
        except (TypeError, ValueError):
            raise JudgeInputError(f"{side} holds {sample!r}, which is not a number") from None
        if not math.isfinite(value) or value <= 0:
            raise JudgeInputError(f"{side} holds {value!r}: samples must be finite and above zero")
        values.append(value)
    return tuple(values)


def _median_log(samples: tuple[float, ...]) -> float:
    ordered = sorted(samples)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return math.log(ordered[middle])
    return (math.log(ordered[middle - 1]) + math.log(ordered[middle])) / 2
