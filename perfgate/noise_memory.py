"""What the ledger tells a plan, and what a run tells the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from perfgate import records as r
from perfgate.judge.evidence import RunFacts, judge_metrics
from perfgate.judge.values import Better
from perfgate.ledger import Kind, Known, Ledger, LedgerKey, LedgerPair


def with_known_noise(plan: r.Plan, ledger: Ledger, fingerprint: str) -> tuple[r.Plan, tuple[str, ...]]:
    """The plan with the ledger's priors where it has any, and what should be told about it."""
    told: dict[str, None] = {}
    metrics = []
    for metric in plan.metrics:
        known = ledger.prior(_key(plan, metric, fingerprint))
        told.update(dict.fromkeys(warning.text for warning in known.warnings))
        metrics.append(_with(metric, known))
    return replace(plan, metrics=tuple(metrics)), tuple(told)


def _with(metric: r.MetricPlan, known: Known) -> r.MetricPlan:
    if known.prior is None:
        return metric
    prior = known.prior
    return replace(
        metric,
        prior_sd=prior.sd,
        prior_df=prior.df,
        prior_bad=prior.bad,
        prior_far=prior.far,
        prior_from=known.how,
    )


def remember(run: RunFacts, ledger: Ledger, kind: Kind, say: Callable[[str], None]) -> None:
    """One row for each pair and metric of the run."""
    rows = [
        LedgerPair.of(
            _key(run.plan, one.plan, run.fingerprint),
            kind,
            (run.plan.run_id, number),
            datetime.now(UTC),
            pair,
            _better(one.plan.metric),
        )
        for one in judge_metrics(run)
        for number, pair in enumerate(one.pairs, 1)
    ]
    for warning in ledger.record(rows):
        say(warning.text)


def _better(metric: str) -> Better:
    return "higher" if r.METRICS[metric].better is r.Better.HIGHER else "lower"


def _key(plan: r.Plan, metric: r.MetricPlan, fingerprint: str) -> LedgerKey:
    workload = next(recipe.workload for recipe in plan.recipes if recipe.name == metric.recipe)
    return LedgerKey(metric.recipe, metric.metric, metric.concurrency, workload, plan.box, fingerprint)
