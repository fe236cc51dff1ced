"""Numbers as people read them.

One sign convention everywhere: a change is head against base in the metric's own direction (tok/s −5.2 %, ms +5.2 %).
The judge's log differences (+ = slower) are turned into such changes exactly; budgets and detectable losses too, so
that two numbers that stand side by side mean the same.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from perfgate.records import METRICS, Better, Metric

NOTHING = "–"  # what is absent, never 0
MINUS = "−"
SPACE = "\u00a0"  # between a number and its unit
HIGHEST = 1e12


def decimals_for(*values: float | None) -> int:
    """Decimals that give the smallest of the values four significant digits.

    Four, so that a reader who divides the printed head by the printed base gets the printed change, to its last digit
    or one beside it.
    """
    sizes = [abs(value) for value in values if value is not None and math.isfinite(value) and value != 0]
    smallest = min(sizes, default=1.0)
    return min(max(3 - math.floor(math.log10(smallest)), 0), 9)


def amount(value: float | None, decimals: int | None = None) -> str:
    """ "94.13"; "–" where there is none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) >= HIGHEST:
        return f"{value:.3g}".replace("-", MINUS)
    text = f"{value:,.{decimals_for(value) if decimals is None else decimals}f}"
    return text.replace("-", MINUS)


def pair_of_amounts(base: float | None, head: float | None) -> tuple[str, str]:
    """Base and head with the same number of decimals, so that they can be compared digit by digit."""
    decimals = decimals_for(base, head)
    return amount(base, decimals), amount(head, decimals)


def percent(share: float | None, *, signed: bool = True) -> str:
    """ "−36.0 %" of −0.36."""
    number = percent_number(share, signed=signed)
    return number if number == NOTHING else f"{number}{SPACE}%"


def percent_number(share: float | None, *, signed: bool = True) -> str:
    if share is None or not math.isfinite(share):
        return NOTHING
    hundredths = 100 * share
    if abs(hundredths) >= 1e6:
        return f"{hundredths:{'+' if signed else ''}.2g}".replace("-", MINUS)
    text = f"{hundredths:{'+' if signed else ''},.{1 if abs(hundredths) < 1000 else 0}f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)


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


def minutes(seconds: float | None) -> str:
    """ "45 s", "7 min", "1 h 20 min"."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return NOTHING
    if seconds < 90:
        return f"{seconds:.0f}{SPACE}s"
    whole = round(seconds / 60)
    if whole < 90:
        return f"{whole}{SPACE}min"
    return f"{whole // 60:,}{SPACE}h {whole % 60}{SPACE}min" if whole < 60_000 else f"{whole // 60:,}{SPACE}h"


def count(number: int, thing: str) -> str:
    many = "es" if thing.endswith("ch") else "s"
    return f"{number:,} {thing}{'' if number == 1 else many}"


def moment(time: str) -> str:
    """ "2026-02-19 14:00 UTC" of an RFC 3339 time; what is none is shown as it is."""
    try:
        return datetime.fromisoformat(time).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError):
        return time
