"""What the page draws of a result: launches pair by pair, where the time goes, and when what ran."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from perfgate import records as r
from perfgate.report import numbers, words
from perfgate.report.svg import Drawing, Scale, axis, scale_over
from perfgate.text import HIGHEST, amount, count, decimals_for, minutes, pair_of_amounts

WIDTH = 720.0
LEFT = 92.0
RIGHT = 24.0
ROW = 30.0
VALUE_WIDTH = 70.0  # room for a change in per cent and a gap
MOST_PAIRS = 30
MOST_SPANS = 400

Samples = Mapping[str, Sequence[float]]
"""Launch id → the values of its samples."""


@dataclass(frozen=True)
class PlottedPair:
    """Two launches of one pair; None where one has no value."""

    name: str
    base: tuple[str, float] | None
    head: tuple[str, float] | None
    first: str  # the side that was measured first


def pairs_of(result: r.Result, metric: r.Metric) -> list[PlottedPair]:
    """The launches of a metric's recipe, pair by pair, as they were measured."""
    key = f"{metric.metric}@{metric.concurrency}"
    found: dict[str, dict[str, r.LaunchResult]] = {}
    for launch in result.launches:
        steps = launch.id.split("/")
        if (
            launch.valid
            and launch.paired
            and len(steps) >= 3
            and steps[0] == metric.recipe
            and steps[2] in ("base", "head")
        ):
            found.setdefault(steps[1], {})[steps[2]] = launch
    plotted = []
    for name, sides in found.items():
        values = {side: _value(launch, key) for side, launch in sides.items()}
        first = next((side for side, launch in sides.items() if launch.position == 1), "")
        plotted.append(PlottedPair(name, values.get("base"), values.get("head"), first))
    return [pair for pair in plotted if pair.base or pair.head][:MOST_PAIRS]


def _value(launch: r.LaunchResult, key: str) -> tuple[str, float] | None:
    value = launch.values.get(key)
    return (launch.id, value) if value is not None and math.isfinite(value) and value > 0 else None


def dot_plot(name: str, result: r.Result, metric: r.Metric, samples: Samples | None = None) -> Markup | None:
    """Every launch of a metric by pair, with base's mean, the budget and the interval. None where nothing is known."""
    pairs = pairs_of(result, metric)
    if metric.base is None or metric.head is None or not pairs or not _drawable(metric):
        return None
    spent, ends = _at(metric, metric.budget), _interval_values(metric)
    values = [value for pair in pairs for side in (pair.base, pair.head) if side for _, value in [side]]
    known = samples or {}
    values += [
        value for pair in pairs for side in (pair.base, pair.head) if side for value in known.get(side[0], ())[:20]
    ]
    values += [metric.base, metric.head, *(value for value in (spent, *ends) if value is not None)]
    height = 34 + ROW * (len(pairs) + 1) + 30
    label = words.label(metric, result)
    drawing = Drawing(name, WIDTH, height, f"{metric.recipe}: {label} of every launch", _in_words(metric, label))
    scale = scale_over(values, LEFT, WIDTH - RIGHT)
    bottom = 34 + ROW * (len(pairs) + 1)
    _budget_side(drawing, metric, scale, spent, bottom)
    decimals = decimals_for(scale.high - scale.low) - 2
    axis(drawing, scale, 28, bottom, lambda value: amount(value, max(decimals, 0)))
    drawing.line(scale(metric.base), 28, scale(metric.base), bottom, "base-mean", f"base {amount(metric.base)}")
    drawing.text(scale(metric.base), 18, "base", "base-text", _anchor(scale, metric.base))
    for number, pair in enumerate(pairs):
        _pair_row(drawing, scale, pair, 34 + ROW * (number + 0.5), known)
    _interval_row(drawing, scale, metric, ends, 34 + ROW * (len(pairs) + 0.5))
    return drawing.markup()


def _drawable(metric: r.Metric) -> bool:
    numbers_ = (metric.base, metric.head)
    return all(value is not None and math.isfinite(value) and 0 < value < HIGHEST for value in numbers_)


def _at(metric: r.Metric, slowdown: float | None) -> float | None:
    """The value that head would have at a slowdown."""
    change = numbers.change_of(slowdown, metric.better)
    if change is None or metric.base is None or not math.isfinite(change) or abs(change) > 1e3:
        return None
    return metric.base * (1 + change)


def _interval_values(metric: r.Metric) -> tuple[float | None, float | None]:
    """Both ends of head's interval, the smaller value first; None where an end is open."""
    low, high = _at(metric, metric.low), _at(metric, metric.high)
    return (high, low) if metric.better is r.Better.HIGHER else (low, high)


def _in_words(metric: r.Metric, label: str) -> str:
    base, head = pair_of_amounts(metric.base, metric.head)
    return (
        f"Base {base}, head {head} {label}: {numbers.change(metric)}, interval {numbers.interval(metric)},"
        f" budget {numbers.budget(metric)}. Circles are base launches, diamonds head launches."
    )


def _anchor(scale: Scale, value: float) -> str:
    place = scale(value)
    return "start" if place < LEFT + 60 else "end" if place > WIDTH - RIGHT - 60 else "middle"


def _budget_side(drawing: Drawing, metric: r.Metric, scale: Scale, spent: float | None, bottom: float) -> None:
    """The region beyond the budget, towards slower."""
    if spent is None:
        return
    slower_is_left = metric.better is r.Better.HIGHER
    start, end = (scale.start, scale(spent)) if slower_is_left else (scale(spent), scale.end)
    drawing.box(start, 28, end - start, bottom - 28, "over-budget")
    drawing.line(scale(spent), 28, scale(spent), bottom, "budget", f"budget {numbers.budget(metric)}")
    anchor = "end" if slower_is_left else "start"
    if (slower_is_left and scale(spent) < LEFT + 100) or (not slower_is_left and scale(spent) > WIDTH - RIGHT - 100):
        anchor = "start" if slower_is_left else "end"
    drawing.text(
        scale(spent) + (-6 if anchor == "end" else 6), 18, f"budget {numbers.budget(metric)}", "budget-text", anchor
    )


def _pair_row(drawing: Drawing, scale: Scale, pair: PlottedPair, y: float, samples: Samples) -> None:
    drawing.text(8, y + 4, _pair_name(pair.name))
    if pair.base and pair.head:
        drawing.line(scale(pair.base[1]), y, scale(pair.head[1]), y, "link")
    for side, launch in (("base", pair.base), ("head", pair.head)):
        if not launch:
            continue
        launch_id, value = launch
        for sample in samples.get(launch_id, ())[:20]:
            drawing.line(scale(sample), y + 7, scale(sample), y + 11, f"sample {side}-sample")
        order = ", measured first" if pair.first == side else ""
        tip = f"{launch_id}: {amount(value)}{order}"
        mark = drawing.circle if side == "base" else drawing.diamond
        mark(scale(value), y, 5.5 if side == "base" else 7, f"{side}-mark", tip)


def _pair_name(name: str) -> str:
    """ "pair 3" of "p03"."""
    match = re.fullmatch(r"p0*(\d{1,6})", name)
    return f"pair {match[1]}" if match else name


def _interval_row(
    drawing: Drawing, scale: Scale, metric: r.Metric, ends: tuple[float | None, float | None], y: float
) -> None:
    assert metric.head is not None
    level = f"{100 * metric.interval_level:.3g} %"
    drawing.text(8, y + 4, f"head, {level}")
    left = scale(ends[0]) if ends[0] is not None else scale.start
    right = scale(ends[1]) if ends[1] is not None else scale.end
    drawing.box(left, y - 5, right - left, 10, "interval", f"{level} interval: {numbers.interval(metric)}")
    drawing.line(scale(metric.head), y - 9, scale(metric.head), y + 9, "estimate", f"head {amount(metric.head)}")
    place, anchor = _room_beside(left, right, scale(metric.head))
    drawing.text(place, y + 4, numbers.change(metric), "value", anchor)


def _room_beside(left: float, right: float, estimate: float) -> tuple[float, str]:
    """Where the change is written: right of the interval, left of it, or inside where it takes the whole width."""
    if right < WIDTH - RIGHT - VALUE_WIDTH:
        return right + 8, "start"
    if left > LEFT + VALUE_WIDTH:
        return left - 8, "end"
    return (estimate + 8, "start") if estimate < WIDTH / 2 else (estimate - 8, "end")


# ------------------------------------------------------------------------------------------------ phases


@dataclass(frozen=True)
class Phase:
    """How long one phase of a cycle takes on each side, ms."""

    name: str
    base: float
    head: float

    def on(self, side: str) -> float:
        return self.base if side == "base" else self.head


def phases_of(result: r.Result, loss: r.Decomposition) -> list[Phase]:
    """The phases of one cycle in the order in which they run; the rest is what the whole cycle leaves."""
    found = [
        Phase(words.PHASES.get(part.phase, part.phase), _length(part.base_ms), _length(part.head_ms))
        for part in sorted(loss.parts, key=_place_in_cycle)
        if _is_length(part.base_ms) and _is_length(part.head_ms) and part.phase != "accept_length"
    ][:12]
    cycles = (one for one in result.metrics if (one.recipe, one.concurrency) == (loss.recipe, loss.concurrency))
    cycle = next((one for one in cycles if one.metric == "cycle_ms"), None)
    told = any(phase.name == "rest" for phase in found)
    if found and not told and cycle and _is_length(cycle.base) and _is_length(cycle.head):
        left = [_length(value) - math.fsum(phase.on(side) for phase in found) for side, value in _both(cycle)]
        if min(left) > 0:
            found.append(Phase("rest", *left))
    return found


def _both(metric: r.Metric) -> tuple[tuple[str, float | None], tuple[str, float | None]]:
    return ("base", metric.base), ("head", metric.head)


def _place_in_cycle(part: r.Part) -> int:
    order = list(words.PHASES)
    return order.index(part.phase) if part.phase in order else len(order)


def phase_bars(name: str, recipe: str, phases: Sequence[Phase]) -> Markup | None:
    """One cycle of base and of head, cut into phases, on one scale of milliseconds."""
    totals = [math.fsum(phase.on(side) for phase in phases) for side in ("base", "head")]
    if not phases or max(totals) <= 0:
        return None
    told = "; ".join(f"{one.name} {amount(one.base)} → {amount(one.head)} ms" for one in phases)
    drawing = Drawing(name, WIDTH, 140, f"{recipe}: one step in ms, base and head", told)
    scale = Scale(0, max(totals), LEFT, WIDTH - RIGHT - 60)
    axis(drawing, scale, 8, 88, lambda value: f"{value:g}")
    drawing.text(WIDTH - 8, 104, "ms", "tick", "end")
    for row, (side, total) in enumerate(zip(("base", "head"), totals, strict=True)):
        y = 14 + 38 * row
        drawing.text(8, y + 19, side, f"{side}-text")
        place = 0.0
        for index, phase in enumerate(phases):
            _segment(drawing, (scale(place), scale(place + phase.on(side))), y, index, phase, side)
            place += phase.on(side)
        drawing.text(scale(total) + 6, y + 19, amount(total), "value")
    _phase_key(drawing, phases, 132)
    return drawing.markup()


def _phase_key(drawing: Drawing, phases: Sequence[Phase], y: float) -> None:
    x = LEFT
    for index, phase in enumerate(phases):
        drawing.box(x, y - 10, 11, 11, f"phase phase-{index % 6}")
        drawing.text(x + 16, y, phase.name, "tick")
        x += 34 + 6.4 * len(phase.name)


def _segment(drawing: Drawing, ends: tuple[float, float], y: float, index: int, phase: Phase, side: str) -> None:
    start, end = ends
    length = phase.on(side)
    drawing.box(start, y, end - start, 30, f"phase phase-{index % 6}", f"{side}: {phase.name} {amount(length)} ms")
    for label in (f"{phase.name} {amount(length, 1)}", phase.name):
        if end - start > 7.2 * len(label) + 8:
            drawing.text((start + end) / 2, y + 19, label, "phase-text", "middle")
            return


def _is_length(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and 0 <= value < HIGHEST


def _length(value: float | None) -> float:
    return value if value is not None and _is_length(value) else 0.0


# ------------------------------------------------------------------------------------------------ timeline


@dataclass(frozen=True)
class TimelineSpan:
    """Something that ran from one moment to another, in seconds since the start of the run."""

    lane: str
    begin: float
    end: float
    css: str
    tip: str


def timeline(name: str, facts: Sequence[r.Fact]) -> Markup | None:
    """When what ran: builds, launches (starting, then measuring), canaries."""
    spans = spans_of(facts)
    if not spans:
        return None
    lanes = list(dict.fromkeys(span.lane for span in spans))[:24]
    end = max(span.end for span in spans)
    height = 16 + 24 * len(lanes) + 34
    described = f"{count(len(spans), 'span')} in {minutes(end)}, in the order in which they ran."
    drawing = Drawing(name, WIDTH, height, "When what ran", described)
    left = LEFT + 30
    scale = Scale(0, max(end, 1.0), left, WIDTH - RIGHT)
    bottom = 12 + 24 * len(lanes)
    unit, per = ("min", 60.0) if end > 180 else ("s", 1.0)
    in_units = Scale(0, max(end, 1.0) / per, left, WIDTH - RIGHT)
    axis(drawing, in_units, 8, bottom, lambda value: f"{value:g}")
    drawing.text(WIDTH - 8, bottom + 30, f"{unit} since the start", "tick", "end")
    for number, lane in enumerate(lanes):
        drawing.text(8, 12 + 24 * number + 14, lane)
    for span in spans:
        if span.lane in lanes:
            y = 12 + 24 * lanes.index(span.lane)
            width = max(scale(span.end) - scale(span.begin), 1.5)
            drawing.box(scale(span.begin), y + 3, width, 16, span.css, span.tip)
    return drawing.markup()


def spans_of(facts: Sequence[r.Fact]) -> list[TimelineSpan]:
    """Spans from the times that stand in the facts; what has no readable time is left out."""
    start = next((_seconds(fact.t) for fact in facts if _seconds(fact.t) is not None), None)
    if start is None:
        return []
    begun = {fact.id: fact for fact in facts if isinstance(fact, r.LaunchBegin)}
    spans: list[TimelineSpan] = []
    for fact in facts:
        now = _seconds(fact.t)
        if now is None or now < start:
            continue
        spans += _spans(fact, begun, now - start, start)
    return sorted(spans[:MOST_SPANS], key=_lane_order)


def _lane_order(span: TimelineSpan) -> tuple[int, str, float]:
    return ({"build": 0, "canary": 2}.get(span.lane, 1), span.lane, span.begin)


def _spans(fact: r.Fact, begun: Mapping[str, r.LaunchBegin], now: float, start: float) -> list[TimelineSpan]:
    if isinstance(fact, r.Build):
        tip = f"build of {fact.side.value}, {minutes(fact.seconds)}{', from the cache' if fact.cached else ''}"
        return [TimelineSpan("build", max(now - max(fact.seconds, 0), 0), now, f"{fact.side.value}-build", tip)]
    if isinstance(fact, r.Canary):
        return [TimelineSpan("canary", now, now, "canary-mark", f"canary {fact.when} {fact.launch}")]
    if not isinstance(fact, r.LaunchEnd) or fact.id not in begun:
        return []
    began = _seconds(begun[fact.id].t)
    if began is None or not start <= began <= start + now:
        return []
    begin, lane, side = began - start, f"{fact.recipe} {fact.side.value}", fact.side.value
    ready = min(begin + fact.ready_s, now) if fact.ready_s is not None and fact.ready_s >= 0 else begin
    css = f"{side}-span" if fact.valid else "invalid-span"
    says = "" if fact.valid else ", not valid"
    return [
        TimelineSpan(lane, begin, ready, f"{side}-start", f"{fact.id}: starting, {minutes(ready - begin)}"),
        TimelineSpan(lane, ready, now, css, f"{fact.id}: measuring, {minutes(now - ready)}{says}"),
    ]


def _seconds(time: str) -> float | None:
    try:
        return datetime.fromisoformat(time).timestamp()
    except (ValueError, OverflowError):
        return None
