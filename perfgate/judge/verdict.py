"""The gate's verdict and what to measure next: the only place where either is decided.

Only gated metrics are handed in. The verdict is the first of these that applies:

    skipped → build_failed → environment → regression → bench_failed → inconclusive → pass

Environment stands before regression because a box that moved proves nothing about a commit; regression before
bench_failed because a loss that is proven stays proven when the server dies later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfgate.errors import Exit
from perfgate.judge.metrics import JudgedMetric
from perfgate.records import Better, MetricVerdict, Side, Verdict

LACKING_PAIRS = 3  # of a recipe whose gated metric is missing in a launch: was it that launch alone?
EXCUSE = 0.5  # a shift of the box smaller than this share of the measured loss does not excuse it

EXIT_CODES: Mapping[Verdict, Exit] = {
    Verdict.SKIPPED: Exit.OK,
    Verdict.PASS: Exit.OK,
    Verdict.REGRESSION: Exit.REGRESSION,
    Verdict.INCONCLUSIVE: Exit.INCONCLUSIVE,
    Verdict.ENVIRONMENT: Exit.CANNOT,
    Verdict.BUILD_FAILED: Exit.CANNOT,
    Verdict.BENCH_FAILED: Exit.CANNOT,
}


@dataclass(frozen=True, slots=True)
class RunFailure:
    """A build or a benchmark that did not come off; `side` where it is one side's."""

    text: str
    side: Side | None = None


@dataclass(frozen=True, slots=True)
class Disturbance:
    """The box was not the same for both sides.

    shift: how far the canary moved, as a size in log units; None for what no number excuses (another power
    limit, a variable given to one side only).
    alone: False for what only excuses a loss: where none was found it does not count.
    """

    text: str
    shift: float | None = None
    alone: bool = True


@dataclass(frozen=True, slots=True)
class Faults:
    """All that stands between the numbers and a verdict. Each in the order in which it happened."""

    skipped: str | None = None
    build: tuple[RunFailure, ...] = ()
    environment: tuple[Disturbance, ...] = ()
    bench: tuple[RunFailure, ...] = ()
    stopped: str | None = None  # why measuring ended early, e.g. "the limit of 90 minutes"


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """reason is one sentence; tolerated are disturbances too small to excuse the loss that was measured."""

    verdict: Verdict
    reason: str
    exit_code: Exit
    failed_side: Side | None = None
    tolerated: tuple[Disturbance, ...] = ()


def combine(metrics: Sequence[JudgedMetric], faults: Faults | None = None) -> GateVerdict:
    """The verdict of the gate on its gated metrics and all that went wrong."""
    faults = faults or Faults()
    slower = [gated for gated in metrics if gated.state is MetricVerdict.REGRESSION]
    excusing = [disturbance for disturbance in faults.environment if _excuses(disturbance, slower)]
    tolerated = tuple(disturbance for disturbance in faults.environment if disturbance not in excusing)
    if faults.skipped is not None:
        return _verdict(Verdict.SKIPPED, _first_of([faults.skipped]))
    if faults.build:
        return _failed(Verdict.BUILD_FAILED, faults.build)
    if excusing:
        return _verdict(Verdict.ENVIRONMENT, _first_of([disturbance.text for disturbance in excusing]))
    if slower:
        worst = max(slower, key=_loss_in_budgets)
        others = f"; {_count(len(slower) - 1, 'more metric')} too" if len(slower) > 1 else ""
        reason = f"{describe(worst)}, over the budget of {_budget(worst)}{others}."
        return GateVerdict(Verdict.REGRESSION, reason, EXIT_CODES[Verdict.REGRESSION], tolerated=tolerated)
    if faults.bench:
        return _failed(Verdict.BENCH_FAILED, faults.bench)
    open_ones = [gated for gated in metrics if gated.state is not MetricVerdict.PASS]
    if open_ones or not metrics:
        return _verdict(Verdict.INCONCLUSIVE, _why_open(open_ones, faults.stopped))
    return _verdict(Verdict.PASS, _why_passed(metrics))


def describe(gated: JudgedMetric) -> str:
    """One metric in words: "eagle3 tok/s −36.0 % (−37.2 to −34.8 %) in 2 pairs"."""
    decision = gated.decision
    if decision is None:
        return f"{gated.name} was not measured"
    ends = sorted((_change(decision.low, gated.kind.better), _change(decision.high, gated.kind.better)))
    return (
        f"{gated.name} {_signed(_change(decision.slowdown, gated.kind.better))} %"
        f" ({_signed(ends[0])} to {_signed(ends[1])} %) in {_count(decision.pairs, 'pair')}"
    )


@dataclass(frozen=True, slots=True)
class RecipeProgress:
    """How far one recipe is. Recipes come in the order in which they matter, the most touched first."""

    recipe: str
    pairs: int
    minutes_per_pair: float | None = None  # expected; None: not known


@dataclass(frozen=True, slots=True)
class NextStep:
    """What to do next: measure a pair of `recipe`, or stop where it is None. `reason` says why."""

    recipe: str | None
    reason: str
    out_of_time: bool = False


def next_step(
    metrics: Sequence[JudgedMetric],
    progress: Sequence[RecipeProgress],
    max_pairs: int,
    minutes_left: float | None = None,
) -> NextStep:
    """Which recipe gets the next pair, if any. `max_pairs`, like `progress`, counts this run's own pairs alone."""
    wanted = _wanted(metrics, progress, max_pairs)
    affordable = [recipe for recipe in wanted if _affordable(recipe, minutes_left)]
    if affordable:
        chosen = min(affordable, key=lambda recipe: recipe.pairs)  # the first of those with the fewest pairs
        return NextStep(chosen.recipe, f"pair {chosen.pairs + 1} of {chosen.recipe}")
    if wanted:
        return NextStep(None, f"no time left for another pair of {wanted[0].recipe}", out_of_time=True)
    if any(gated.state is MetricVerdict.REGRESSION for gated in metrics):
        return NextStep(None, "a regression is found and each recipe has a pair")
    if any(gated.state is not MetricVerdict.PASS for gated in metrics):
        return NextStep(None, f"the limit of {_count(max_pairs, 'pair')} is reached")
    return NextStep(None, "every gated metric is decided")


def _wanted(
    metrics: Sequence[JudgedMetric], progress: Sequence[RecipeProgress], max_pairs: int
) -> list[RecipeProgress]:
    unmeasured = [recipe for recipe in progress if recipe.pairs == 0]
    if any(gated.state is MetricVerdict.REGRESSION for gated in metrics):
        return unmeasured
    undecided = {
        gated.plan.recipe for gated in metrics if gated.state in (MetricVerdict.CONTINUE, MetricVerdict.INCONCLUSIVE)
    }
    lacking = {gated.plan.recipe for gated in metrics if gated.state is None and gated.missing_in}
    return [
        recipe
        for recipe in progress
        if recipe.pairs == 0
        or (recipe.recipe in undecided and recipe.pairs < max_pairs)
        or (recipe.recipe in lacking and recipe.pairs < min(LACKING_PAIRS, max_pairs))
    ]


def _affordable(recipe: RecipeProgress, minutes_left: float | None) -> bool:
    if minutes_left is None:
        return True
    return minutes_left > 0 and (recipe.minutes_per_pair or 0.0) <= minutes_left


def _excuses(disturbance: Disturbance, slower: Sequence[JudgedMetric]) -> bool:
    losses = [gated.decision.slowdown for gated in slower if gated.decision]
    if not losses:
        return disturbance.alone
    if disturbance.shift is None:
        return True
    return abs(disturbance.shift) >= EXCUSE * max(losses)


def _loss_in_budgets(gated: JudgedMetric) -> float:
    return gated.decision.slowdown / gated.plan.budget if gated.decision else 0.0


def _verdict(verdict: Verdict, reason: str) -> GateVerdict:
    return GateVerdict(verdict, reason, EXIT_CODES[verdict])


def _failed(verdict: Verdict, failures: Sequence[RunFailure]) -> GateVerdict:
    sides = {failure.side for failure in failures}
    side = sides.pop() if len(sides) == 1 else None
    return GateVerdict(
        verdict, _first_of([failure.text for failure in failures]), EXIT_CODES[verdict], failed_side=side
    )


def _why_open(open_ones: Sequence[JudgedMetric], stopped: str | None) -> str:
    if not open_ones:
        return "Nothing was measured: no gated metric is at hand."
    absent = [gated for gated in open_ones if gated.decision is None]
    least_known = max(
        (gated for gated in open_ones if gated.decision),
        key=lambda gated: gated.decision.high if gated.decision else 0.0,
        default=None,
    )
    ended = f"; {how_it_ended(stopped)}" if stopped else ""
    if least_known is None or least_known.decision is None:
        return f"{describe(absent[0])}{ended}."
    decision, budget = least_known.decision, _budget(least_known)
    doubt = (
        f"is slower for sure, but whether by the budget of {budget} is open"
        if decision.low > 0
        else f"is neither slower for sure nor surely under the budget of {budget}"
    )
    could = f"{abs(_change(decision.detectable, least_known.kind.better)):.1f} %"
    return f"{describe(least_known)} {doubt}; a loss of {could} would have shown{ended}."


def how_it_ended(stopped: str) -> str:
    """Of "the limit of 90 minutes" and "cancelled by SIGTERM"."""
    return f"measuring {'was' if was_cancelled(stopped) else 'ended at'} {stopped}"


def was_cancelled(stopped: str) -> bool:
    return stopped.startswith("cancelled")


def _why_passed(metrics: Sequence[JudgedMetric]) -> str:
    worst = max(metrics, key=lambda gated: gated.decision.high / gated.plan.budget if gated.decision else 0.0)
    return (
        f"No gated metric is slower by its budget. Nearest to it at worst: {describe(worst)}, budget {_budget(worst)}."
    )


def _first_of(texts: Sequence[str]) -> str:
    more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
    return f"{texts[0].rstrip('.')}{more}."


def _change(slowdown: float, better: Better) -> float:
    """Percent change of the metric itself, head against base."""
    return 100 * math.expm1(-slowdown if better is Better.HIGHER else slowdown)


def _signed(percent: float) -> str:
    return f"{percent:+.1f}".replace("-", "−")


def _budget(gated: JudgedMetric) -> str:
    """As the change that it stands for, like every number beside it: "−3.0 %"."""
    return f"{_signed(_change(gated.plan.budget, gated.kind.better))} %"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
