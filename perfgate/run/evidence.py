"""What earlier runs on the box say to a new one: pairs that are evidence for it too, and what a launch costs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean

from perfgate import records as r
from perfgate.conditions import assess_environment
from perfgate.errors import PerfgateError
from perfgate.judge.evidence import RunFacts, why_another
from perfgate.judge.power import LaunchCost
from perfgate.judge.result import disturbed
from perfgate.records.files import FACTS_FILE, read_facts
from perfgate.run.folder import run_files

EVIDENCE_FOLDER = "evidence"
NEWEST = 3  # runs that are looked at to say how long a launch takes


def earlier_runs(runs: Path, run: RunFacts) -> tuple[RunFacts, ...]:
    """Runs of this box that hold pairs for a question of this one; oldest first.

    Also such as were measured under another fingerprint of the box: that they no longer count is told.
    """
    plan = run.plan
    trees = (plan.base.tree, plan.head.tree)
    likely = (
        path
        for path, about in run_files(runs)
        if about.box == plan.box and (about.base_tree, about.head_tree) == trees and about.run_id != plan.run_id
    )
    found = (one for one in map(_readable, likely) if one is not None and _answers(run, one))
    return tuple(sorted(found, key=lambda one: one.plan.t))


def _answers(run: RunFacts, earlier: RunFacts) -> bool:
    asked = {recipe.name: run.question(recipe.name) for recipe in run.plan.recipes}
    return any(
        why_another(asked[name], replace(pair.question, fingerprint=run.fingerprint)) is None
        for pair in earlier.counted
        if (name := pair.fact.recipe) in asked
    )


def without_disturbed(earlier: Iterable[RunFacts]) -> tuple[tuple[RunFacts, ...], tuple[str, ...]]:
    """The runs that count as evidence, and what is to be told of those that do not.

    A run during which the box moved said nothing about its commits, so a rerun does not stand on it either.
    """
    runs = [(run, disturbed(run, assess_environment(run).disturbances)) for run in earlier]
    told = [
        f"the pairs of run {run.plan.run_id} are not counted: the box was not the same for both sides then"
        for run, moved in runs
        if moved
    ]
    return tuple(run for run, moved in runs if not moved), tuple(told)


def keep_evidence(run: Path, runs: Path, continues: tuple[str, ...]) -> None:
    """Copies the facts of earlier runs beside this run's own, so that it can be judged wherever it is taken."""
    for name in continues:
        kept = run / EVIDENCE_FOLDER / name
        kept.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(runs / name / FACTS_FILE, kept / FACTS_FILE)


def kept_evidence(run: Path, continues: tuple[str, ...]) -> tuple[RunFacts, ...]:
    """The runs that a plan says it continues, as far as they are at hand. Oldest first."""
    found = [_readable(run / EVIDENCE_FOLDER / name) for name in continues]
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.plan.t))


def newest_run(runs: Path, box: str) -> RunFacts | None:
    """Of this box, with at least one pair."""
    return next(_newest_first(runs, box), None)


def usual_costs(runs: Path, box: str, recipes: Iterable[r.RecipePlan]) -> dict[str, LaunchCost]:
    """Recipe → what its launches cost under the same workload, by its newest run on this box."""
    wanted = {recipe.name: recipe.workload for recipe in recipes}
    usual: dict[str, LaunchCost] = {}
    for run in islice(_newest_first(runs, box), NEWEST):
        for plan in run.plan.recipes:
            if wanted.get(plan.name) == plan.workload and (cost := launch_cost(run, plan)) is not None:
                usual.setdefault(plan.name, cost)
    return usual


def launch_cost(run: RunFacts, plan: r.RecipePlan) -> LaunchCost | None:
    """Means over the run's launches that count; None where there are none, or their times make no sense."""
    ends = [
        (one.end.wall_s, [sample.end - sample.begin for sample in one.samples])
        for one in run.launches.values()
        if one.valid and one.end and one.begin.pair > 0 and one.is_of(plan.name)
    ]
    if not ends:
        return None
    levels = len(plan.concurrencies)
    sample = fmean(fmean(times) * levels for _, times in ends)
    start = fmean(wall - sum(times) for wall, times in ends)
    return LaunchCost(start, sample) if start > 0 and sample > 0 else None


def _newest_first(runs: Path, box: str) -> Iterator[RunFacts]:
    for path, about in sorted(run_files(runs), reverse=True):
        if about.box == box and (run := _readable(path)) is not None and run.pairs:
            yield run


def _readable(run: Path) -> RunFacts | None:
    """None for what is not there, was altered, or is a newer perfgate's: no evidence then."""
    try:
        return RunFacts.of(read_facts(run))
    except PerfgateError:
        return None
