"""What a run says that measured one commit against itself: how much two launches of the same code differ here.

There is no change, so there is nothing to judge: whatever the judge makes of the pairs is chance, or the box. The
verdict only tells whether the calibration came off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from perfgate import records as r
from perfgate.judge.evidence import RunFacts
from perfgate.judge.metrics import JudgedMetric
from perfgate.judge.sequential import difference_of
from perfgate.judge.verdict import EXIT_CODES, Faults, GateVerdict, RunFailure, combine, how_it_ended


def calibration_verdict(run: RunFacts, judged: Sequence[JudgedMetric], faults: Faults) -> GateVerdict:
    """`pass`: every pair was measured on a steady box. Never `regression`, and no side is ever to blame."""
    nobodys = replace(faults, skipped=None, build=_of_no_side(faults.build), bench=_of_no_side(faults.bench))
    verdict = combine((), nobodys)
    if verdict.verdict is not r.Verdict.INCONCLUSIVE:
        return verdict
    wanted = run.plan.limits.max_pairs
    missing = [recipe.name for recipe in run.plan.recipes if len(run.pairs_of(recipe.name)) < wanted]
    if missing:
        ended = f"; {how_it_ended(faults.stopped)}" if faults.stopped else ""
        reason = f"The calibration is not complete: {_counts(run)} of {wanted} each are measured{ended}."
        return GateVerdict(r.Verdict.INCONCLUSIVE, reason, EXIT_CODES[r.Verdict.INCONCLUSIVE])
    spreads = ", ".join(_spreads(judged)) or "no gated metric was measured"
    reason = f"One commit against itself, {_counts(run)}: pairs of the same code differ by {spreads}."
    return GateVerdict(r.Verdict.PASS, reason, EXIT_CODES[r.Verdict.PASS])


def false_alarms(run: RunFacts, judged: Sequence[JudgedMetric]) -> tuple[r.Notice, ...]:
    """Where the judge would have called the same commit slower than itself: what the gate must not do often."""
    slower = {
        (one.plan.recipe, one.plan.metric): one.decision.slowdown
        for one in judged
        if run.plan.calibration and one.plan.gated and one.decision and one.state is r.MetricVerdict.REGRESSION
    }
    if not slower:
        return ()
    named = ", ".join(
        f"{recipe} {r.metric_label(metric)} by {100 * slowdown:.2g} %" for (recipe, metric), slowdown in slower.items()
    )
    text = (
        f"The judge would have called this commit slower than itself: {named}. Chance alone does that less than once in"
        f" {1 / run.plan.limits.alpha:.0f} calibrations; if it happens again, the box moves while it measures:"
        " `perfgate doctor`."
    )
    return (
        r.Notice(
            code="false_alarm",
            text=text,
            data={"slowdowns": {" ".join(of): slowdown for of, slowdown in slower.items()}},
        ),
    )


def pair_spread(one: JudgedMetric) -> float | None:
    """SD of a pair's log difference around 0, the true one of the same code. None from no pairs."""
    if not one.pairs:
        return None
    squares = [difference_of(pair, one.kind.better).slowdown ** 2 for pair in one.pairs]
    return math.sqrt(math.fsum(squares) / len(squares))


def _spreads(judged: Sequence[JudgedMetric]) -> Iterator[str]:
    for one in judged:
        spread = pair_spread(one)
        if one.plan.gated and spread is not None:
            yield f"{100 * spread:.2g} % ({one.name})"


def _counts(run: RunFacts) -> str:
    """ "5 pairs of baseline and 4 of eagle3"."""
    counts = [(len(run.pairs_of(recipe.name)), recipe.name) for recipe in run.plan.recipes]
    named = [
        f"{count} {'' if number else 'pair ' if count == 1 else 'pairs '}of {name}"
        for number, (count, name) in enumerate(counts)
    ]
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _of_no_side(failures: Sequence[RunFailure]) -> tuple[RunFailure, ...]:
    return tuple(RunFailure(failure.text) for failure in failures)
