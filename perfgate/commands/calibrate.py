"""A/A runs that teach the ledger this box's noise, and what the judge can detect with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfgate import records as r
from perfgate.config.model import Resolved
from perfgate.config.resolve import metric_plans
from perfgate.cpu.profile import layers
from perfgate.errors import Exit, PerfgateError
from perfgate.judge.evidence import RunFacts
from perfgate.judge.metrics import prior_of
from perfgate.judge.noise import LOOSE_SD
from perfgate.judge.power import LaunchCost, PowerRow, detected_from, power
from perfgate.judge.values import Policy
from perfgate.records.files import read_facts
from perfgate.report import numbers, words
from perfgate.report.headline import headline
from perfgate.run.evidence import launch_cost, newest_run, usual_costs
from perfgate.run.gate import GateOutcome, run_gate
from perfgate.run.launch import ranks_of, workload_hash
from perfgate.run.ledger import LEDGER_FILE, Ledger
from perfgate.run.noise import recall, with_known_noise, with_planned_samples
from perfgate.run.plan import GateRequest, find_configuration, recipe_plans
from perfgate.run.progress import Progress
from perfgate.source.repository import Repository
from perfgate.text import amount, count, minutes, visible

RUNS_OF_POWER = 200  # per slowdown: a table to plan by, not to prove error rates with
SLOWDOWNS = (0.0, 1 / 3, 2 / 3, 1.0, 4 / 3, 5 / 3, 2.0, 10 / 3)  # in budgets
COLUMNS = ("true change", "regression", "pass", "inconclusive", "launches", "GPU minutes")


def calibrate(request: GateRequest, pairs: int, progress: Progress) -> GateOutcome:
    """Measures one commit against itself, `pairs` pairs of each recipe whatever the judge says.

    The configuration is that of the base branch, as for every gate: what is learned belongs to it.
    """
    branch = request.base_branch if request.config else _base_branch(request)
    same = replace(request, base=request.head, base_branch=branch, max_pairs=pairs, calibration=True)
    return run_gate(same, progress)


def _base_branch(request: GateRequest) -> str:
    """Whose perfgate.yml holds."""
    repository = Repository(request.repo)
    try:
        return request.base_branch or repository.default_branch()
    except PerfgateError as error:
        raise PerfgateError(error.what, where=error.where, remedy="give a perfgate.yml with --config") from error


def show_calibration(outcome: GateOutcome, request: GateRequest) -> RenderableType:
    """How it came off, and what the gate can detect from now on."""
    assert outcome.result is not None, "a calibration that was cancelled has nothing to show yet"
    return Group(*_calibration_parts(outcome, outcome.result, request))


def _calibration_parts(outcome: GateOutcome, result: r.Result, request: GateRequest) -> Iterator[RenderableType]:
    yield Text(str(headline(result)), style="bold")
    yield Text(visible(result.reason, 800))
    yield from (Text(f"- {visible(notice.text, 500)}") for notice in words.notices(result))
    yield Text(f"Facts, logs and page: {outcome.run}", style="dim", no_wrap=True, overflow="ignore")
    if outcome.exit_code is Exit.OK:
        yield Text("")
        yield show_power(request, RunFacts.of(read_facts(outcome.run)))


# ------------------------------------------------------------------------------------------------ power


@dataclass(frozen=True)
class Knowledge:
    """What is known of this box: the plan of a gate as it would be made now, and what a launch costs."""

    plan: r.Plan | None  # None: nothing was ever measured on the box
    metrics: tuple[r.MetricPlan, ...]  # the gated ones
    samples: Mapping[str, int]  # by recipe
    costs: Mapping[str, LaunchCost]
    warnings: tuple[str, ...] = ()

    def launch_minutes(self, recipe: str) -> float | None:
        cost = self.costs.get(recipe)
        return cost.seconds(self.samples[recipe]) / 60 if cost else None


def show_power(request: GateRequest, run: RunFacts | None = None) -> RenderableType:
    """For each gated metric, what is detected with which probability at which cost: with the ledger's noise.

    run: the run that tells what the box is; by default the newest on file.
    """
    resolved = find_configuration(None, request, layers).resolved
    return Group(*_power_parts(resolved, known_of(resolved, run)))


def known_of(resolved: Resolved, run: RunFacts | None = None) -> Knowledge:
    """The noise and the cost that a gate of this configuration would reckon with."""
    root = Path(resolved.box.state_dir)
    newest = run or newest_run(root / "runs", resolved.box.name)
    recipes = recipe_plans(resolved, {recipe.name: workload_hash(recipe) for recipe in resolved.recipes})
    metrics = metric_plans(resolved)
    if newest is None:
        gated = tuple(metric for metric in metrics if metric.gated)
        return Knowledge(None, gated, {recipe.name: recipe.samples for recipe in recipes}, {})
    plan = replace(
        newest.plan,
        recipes=recipes,
        metrics=metrics,
        profile=resolved.profile,
        autotune=resolved.caches.autotune,
    )
    costs = {**usual_costs(root / "runs", plan.box, recipes), **_costs_of(newest, recipes)}
    memory = recall(plan, Ledger(root / LEDGER_FILE), newest.fingerprint)
    undecided = [recipe.name for recipe in resolved.recipes if recipe.workload.samples == "auto"]
    plan = with_known_noise(with_planned_samples(plan, memory, costs, undecided), memory)
    return Knowledge(
        plan=plan,
        metrics=tuple(metric for metric in plan.metrics if metric.gated),
        samples={recipe.name: recipe.samples for recipe in plan.recipes},
        costs=costs,
        warnings=memory.warnings,
    )


def _costs_of(run: RunFacts, recipes: tuple[r.RecipePlan, ...]) -> dict[str, LaunchCost]:
    """Of a run that may lie outside the state directory."""
    same = {
        recipe.name
        for recipe in recipes
        for one in run.plan.recipes
        if (one.name, one.workload) == (recipe.name, recipe.workload)
    }
    found = {plan.name: launch_cost(run, plan) for plan in run.plan.recipes if plan.name in same}
    return {name: cost for name, cost in found.items() if cost is not None}


def _power_parts(resolved: Resolved, known: Knowledge) -> Iterator[RenderableType]:
    yield Text(f"What a gate can detect on box {visible(resolved.box.name, 40)}", style="bold")
    if known.plan is None:
        yield Text("Nothing was measured on this box yet: `perfgate calibrate` learns its noise and its times.")
    else:
        yield Text(f"The box as it was in run {known.plan.run_id}.", style="dim")
    yield from (Text(warning) for warning in known.warnings)
    gpus = None if resolved.needs_gpus else 0
    cheapest: dict[str, tuple[float, float | None]] = {}
    for metric in known.metrics:
        count = ranks_of(resolved.recipe(metric.recipe).flags) if gpus is None else gpus
        rows = _rows_of(metric, resolved, known.launch_minutes(metric.recipe), count)
        yield Text("")
        yield from _metric_parts(metric, rows, with_gpus=count > 0)
        nothing = (rows[0].launches, rows[0].gpu_minutes)
        cheapest[metric.recipe] = max(cheapest.get(metric.recipe, nothing), nothing, key=lambda one: one[0])
    yield Text("")
    yield from (Text(line) for line in _closing(resolved, known, cheapest, with_gpus=gpus is None))


def _rows_of(metric: r.MetricPlan, resolved: Resolved, launch_minutes: float | None, gpus: int) -> tuple[PowerRow, ...]:
    policy = Policy(
        budget=metric.budget,
        alpha=metric.alpha,
        beta=resolved.errors.beta,
        max_pairs=resolved.limits.max_pairs,
        min_pairs_to_fail=resolved.limits.min_pairs_to_fail,
    )
    steps = tuple(metric.budget * share for share in SLOWDOWNS)
    minutes = launch_minutes if gpus else None
    return power(policy, prior_of(metric), steps, launch_minutes=minutes, gpus=max(gpus, 1), runs=RUNS_OF_POWER)


def _metric_parts(metric: r.MetricPlan, rows: tuple[PowerRow, ...], *, with_gpus: bool) -> Iterator[RenderableType]:
    label = r.metric_label(metric.metric)
    yield Text(f"{metric.recipe} {label}, budget {_change(metric, metric.budget)}", style="bold")
    yield Text(_noise(metric))
    found = detected_from(rows)
    yield Text(
        f"A change of {_change(metric, found)} or worse is found nine times in ten."
        if found is not None
        else "No change of this table is found nine times in ten."
    )
    table = _table(metric, rows, with_gpus=with_gpus and rows[0].gpu_minutes is not None)
    yield Padding(table, (0, 0, 0, 2), expand=False)


def _noise(metric: r.MetricPlan) -> str:
    if metric.prior_sd:
        bad = f"; {_percent(metric.prior_bad)} of them are far off" if metric.prior_bad else ""
        return f"Pairs of the same code differ by {_percent(metric.prior_sd)} ({metric.prior_from}){bad}."
    why = f" ({metric.prior_from})" if metric.prior_from else ""
    return f"The noise is not known{why}. {_percent(LOOSE_SD)} is assumed here: the box's own may be far from it."


def _table(metric: r.MetricPlan, rows: tuple[PowerRow, ...], *, with_gpus: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in COLUMNS if with_gpus else COLUMNS[:-1]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        shares = [f"{100 * share:.0f} %" for share in (row.regression, row.passed, row.inconclusive)]
        cost = [amount(row.gpu_minutes, 0)] if with_gpus else []
        table.add_row(_change(metric, row.slowdown), *shares, f"{row.launches:.1f}", *cost)
    return table


def _closing(
    resolved: Resolved, known: Knowledge, cheapest: Mapping[str, tuple[float, float | None]], *, with_gpus: bool
) -> Iterator[str]:
    """What a launch takes, and what a change costs that changes nothing."""
    for recipe in resolved.recipes:
        cost = known.costs.get(recipe.name)
        if cost is None:
            yield f"How long a launch of {recipe.name} takes here is not known yet."
            continue
        samples = known.samples[recipe.name]
        on = f" on {count(ranks_of(recipe.flags), 'GPU')}" if with_gpus else ""
        yield (
            f"A launch of {recipe.name} takes {minutes(cost.seconds(samples))}{on}, with"
            f" {count(samples, 'sample')} of {minutes(cost.sample)}."
        )
    launches = sum(launches for launches, _ in cheapest.values())
    spent = [gpu for _, gpu in cheapest.values()]
    known_minutes = [gpu for gpu in spent if gpu is not None]
    gpu = f", {sum(known_minutes):.0f} GPU minutes" if len(known_minutes) == len(spent) > 0 else ""
    yield f"A pull request that changes nothing takes at least {launches:.1f} launches on average{gpu}."
    yield f"Each row was played {RUNS_OF_POWER} times with the real judge."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _change(metric: r.MetricPlan, slowdown: float) -> str:
    """A slowdown as the change of the metric that it stands for, as everywhere in a report."""
    return numbers.budget_of(metric.metric, slowdown)
