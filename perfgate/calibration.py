"""A/A runs that teach the ledger this box's noise, and what the judge can detect with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfgate import records as r
from perfgate.config import Resolved
from perfgate.config_resolve import metric_plans
from perfgate.gate import Outcome, layers, run_gate
from perfgate.judge.evidence import prior_of
from perfgate.judge.power import PowerRow, detected_from, power
from perfgate.judge.values import Policy
from perfgate.ledger import LEDGER_FILE, Ledger
from perfgate.noise_memory import with_known_noise
from perfgate.planning import GateRequest, find_configuration
from perfgate.progress import Progress
from perfgate.rundir import newest_run, usual_launch_seconds
from perfgate.source.repository import Repository

RUNS_OF_POWER = 200  # per slowdown: a table to plan by, not to prove error rates with
GPUS = 8


def calibrate(request: GateRequest, pairs: int, progress: Progress) -> Outcome:
    """Measures one commit against itself, `pairs` pairs of each recipe whatever the judge says."""
    return run_gate(replace(request, base=request.head, max_pairs=pairs, every_pair=True), progress)


def show_power(request: GateRequest) -> RenderableType:
    """For each gated metric, what is detected with which probability at which cost: with the ledger's noise."""
    configuration = find_configuration(Repository(request.repo), request, layers)
    resolved = configuration.resolved
    root = Path(resolved.box.state_dir)
    gated = [plan for plan in _known_plans(resolved, root) if plan.gated]
    minutes = {name: seconds / 60 for name, seconds in usual_launch_seconds(root / "runs", resolved.box.name).items()}
    return Group(*(part for plan in gated for part in _table(plan, resolved, minutes.get(plan.recipe))))


def _known_plans(resolved: Resolved, root: Path) -> tuple[r.MetricPlan, ...]:
    """With the noise of the newest run's fingerprint; what the ledger does not know stays as configured."""
    plans = metric_plans(resolved)
    newest = newest_run(root / "runs", resolved.box.name)
    if newest is None:
        return plans
    plan = replace(newest.plan, metrics=tuple(one for one in plans if newest.plans(one.recipe)))
    return with_known_noise(plan, Ledger(root / LEDGER_FILE), newest.fingerprint)[0].metrics


def _table(plan: r.MetricPlan, resolved: Resolved, launch_minutes: float | None) -> Iterator[RenderableType]:
    policy = Policy(
        budget=plan.budget,
        alpha=plan.alpha,
        beta=resolved.errors.beta,
        max_pairs=resolved.limits.max_pairs,
        min_pairs_to_fail=resolved.limits.min_pairs_to_fail,
    )
    gpus = 0 if resolved.profile == "cpu" else GPUS
    steps = tuple(plan.budget * share for share in (0, 1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2, 10 / 3))
    rows = power(policy, prior_of(plan), steps, launch_minutes=launch_minutes, gpus=max(gpus, 1), runs=RUNS_OF_POWER)
    found = detected_from(rows)
    known = f"noise of a pair {plan.prior_sd:.1%} ({plan.prior_from})" if plan.prior_sd else "noise not known"
    detected = (
        f"found nine times in ten from {found:.1%} on" if found is not None else "no slowdown shown is found surely"
    )
    yield Text(f"{plan.recipe} {plan.metric}: {known}; budget {plan.budget:.1%}; {detected}", style="bold")
    yield Padding(_rows(rows, with_gpus=gpus > 0 and launch_minutes is not None), (0, 0, 1, 2), expand=False)


def _rows(rows: tuple[PowerRow, ...], *, with_gpus: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("true slowdown", "regression", "pass", "inconclusive", "launches", "GPU minutes"):
        if name != "GPU minutes" or with_gpus:
            table.add_column(name, justify="right")
    for row in rows:
        shares = [f"{share:.0%}" for share in (row.regression, row.passed, row.inconclusive)]
        cost = [f"{row.gpu_minutes:.0f}"] if with_gpus and row.gpu_minutes is not None else []
        table.add_row(f"{row.slowdown:.1%}", *shares, f"{row.launches:.1f}", *cost)
    return table
