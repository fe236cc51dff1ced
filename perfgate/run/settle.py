"""The plan once the builds and the box are known: evidence on file, noise, samples, orders, how long a launch takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfgate import records as r
from perfgate.config.model import Resolved
from perfgate.judge.evidence import RunFacts
from perfgate.judge.planning import LaunchCost
from perfgate.run.folder import earlier_runs, usual_costs, without_disturbed
from perfgate.run.ledger import LEDGER_FILE, Ledger
from perfgate.run.noise import recall, with_known_noise, with_planned_samples
from perfgate.run.pairs import continued_orders


def settled_plan(run: RunFacts, resolved: Resolved, state: Path, builds: dict[r.Side, str]) -> r.Plan:
    """The plan of a run that is about to measure. `state`: the box's; `builds`: side → key.

    Once something was launched it stays: a run that is resumed is judged as if it had never been interrupted.
    """
    plan, runs = run.plan, state / "runs"
    if run.launches:
        return plan
    earlier, told = without_disturbed(() if plan.calibration else earlier_runs(runs, plan, builds))
    memory = recall(plan, Ledger(state / LEDGER_FILE), run.fingerprint)
    costs = usual_costs(runs, plan.box, plan.recipes)
    undecided = [recipe.name for recipe in resolved.recipes if recipe.workload.samples == "auto"]
    plan = with_known_noise(with_planned_samples(plan, memory, costs, undecided), memory)
    return replace(
        plan,
        continues=tuple(one.plan.run_id for one in earlier),
        recipes=tuple(_settled(one, costs.get(one.name), run, earlier) for one in plan.recipes),
        notes=tuple(dict.fromkeys((*plan.notes, *memory.warnings, *told))),
    )


def _settled(recipe: r.RecipePlan, cost: LaunchCost | None, run: RunFacts, earlier: Sequence[RunFacts]) -> r.RecipePlan:
    orders = continued_orders(recipe, run, earlier)
    return replace(recipe, expected_launch_s=cost.seconds(recipe.samples) if cost else None, first_orders=orders)
