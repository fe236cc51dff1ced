"""A metric's numbers as people read them.

One sign convention everywhere: a change is head against base in the metric's own direction (tok/s −5.2 %, ms +5.2 %).
The judge's log differences (+ = slower) are turned into such changes exactly; budgets and detectable losses too, so
that two numbers that stand side by side mean the same.
"""

from __future__ import annotations

import math

from perfgate.records import METRICS, Better, Metric
from perfgate.text import NOTHING, SPACE, percent, percent_number


def change_of(slowdown: float | None, better: Better) -> float | None:
    """The relative change of the metric itself that a slowdown (log, + = slower) means. None where there is none."""
    if slowdown is None or math.isnan(slowdown):
        return None
    try:
        return math.expm1(-slowdown if better is Better.HIGHER else slowdown)
    except OverflowError:
        return math.inf


def change(metric: Metric) -> str:
    return percent(metric.change)


def interval(metric: Metric) -> str:
    """ "−37.2 … −34.8 %", the lower number first, in one piece."""
    ends = [change_of(metric.low, metric.better), change_of(metric.high, metric.better)]
    known = sorted(end for end in ends if end is not None and math.isfinite(end))
    if len(known) == 2:
        return f"{percent_number(known[0])}{SPACE}…{SPACE}{percent(known[1])}"
    if len(known) == 1:
        above = (metric.low is not None) == (metric.better is Better.LOWER)
        return f"{'≥' if above else '≤'}{SPACE}{percent(known[0])}"
    return NOTHING


def budget(metric: Metric) -> str:
    """The change at which the budget is spent."""
    return percent(change_of(metric.budget, metric.better))


def budget_of(metric: str, budget: float) -> str:
    """As `budget`, of a metric that is only planned."""
    return percent(change_of(budget, METRICS[metric].better if metric in METRICS else Better.LOWER))


def loss(slowdown: float | None, better: Better) -> str:
    """The size of a loss, without a sign: "3.0 %"."""
    changed = change_of(slowdown, better)
    return percent(abs(changed) if changed is not None else None, signed=False)
