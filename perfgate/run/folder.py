"""Run directories: where a run's files lie, which earlier run is resumed, and which earlier runs are evidence too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean

from pydantic import TypeAdapter, ValidationError

from perfgate import __version__
from perfgate import records as r
from perfgate.conditions import assess_environment
from perfgate.errors import PerfgateError
from perfgate.judge.evidence import RunFacts
from perfgate.judge.planning import LaunchCost
from perfgate.judge.result import disturbed
from perfgate.records.files import FACTS_FILE, RESULT_FILE, read_facts, write_whole

RUN_FILE = "run.json"
COMMENT_FILE = "comment.md"
PAGE_FILE = "index.html"
EVIDENCE_FOLDER = "evidence"
LOGS_FOLDER = "logs"
NEWEST = 3  # runs that are looked at to say how long a launch takes


@dataclass(frozen=True)
class RunFile:
    """run.json: what a run is, in one small file that stands before the first fact."""

    run_id: str
    box: str
    base: str
    head: str
    base_tree: str
    head_tree: str
    config_hash: str
    continues: tuple[str, ...] = ()
    calibration: bool = False
    measured: tuple[str, ...] = ()


_RUN: TypeAdapter[RunFile] = TypeAdapter(RunFile)


def write_run_file(run: Path, plan: r.Plan) -> None:
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PerfgateError(f"cannot be made: {error.strerror}", where=str(run), remedy="give another --out") from error
    body = RunFile(
        run_id=plan.run_id,
        box=plan.box,
        base=plan.base.sha,
        head=plan.head.sha,
        base_tree=plan.base.tree,
        head_tree=plan.head.tree,
        config_hash=plan.config_hash,
        continues=plan.continues,
        calibration=plan.calibration,
        measured=plan.measured,
    )
    write_whole(run / RUN_FILE, json.dumps(asdict(body), indent=1) + "\n")


def read_run_file(run: Path) -> RunFile | None:
    """None where there is none, or not a whole one."""
    try:
        return _RUN.validate_json((run / RUN_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def plan_of(run: Path) -> r.Plan | None:
    """The plan that a run directory holds, if it has begun."""
    if not (run / FACTS_FILE).exists():
        return None
    plans = [fact for fact in read_facts(run) if isinstance(fact, r.Plan)]
    return plans[-1] if plans else None


def check_new(run: Path) -> None:
    """Refuses a directory that holds a run already; one that was killed before its first fact never began."""
    if plan_of(run) is not None:
        raise PerfgateError(
            "holds a run already", where=str(run), remedy="--resume goes on with it, or give another --out"
        )


def check_same(run: Path, plan: r.Plan, base: str, head: str, config_hash: str, recipes: Collection[str]) -> None:
    """Refuses to go on with a run of other commits, configuration or perfgate, or without one of its recipes."""
    if plan.perfgate != __version__:
        raise PerfgateError(
            f"the run here was begun by perfgate {plan.perfgate}, this is {__version__}",
            where=str(run),
            remedy="measure anew, without --resume",
        )
    if (plan.base.sha, plan.head.sha) != (base, head):
        commits = f"{plan.base.sha[:12]}..{plan.head.sha[:12]}"
        raise PerfgateError(f"the run here is of {commits}", where=str(run), remedy="give its --base and --head")
    if plan.config_hash != config_hash:
        raise PerfgateError(
            "the configuration has changed since", where=str(run), remedy="measure anew, without --resume"
        )
    names = [recipe.name for recipe in plan.recipes]
    if not set(names) <= set(recipes):
        raise PerfgateError(
            f"the run here measures {', '.join(names)}", where=str(run), remedy="give its --recipes, or none"
        )


def check_workloads(run: Path, plan: r.Plan, workloads: Mapping[str, str]) -> None:
    """Refuses to add pairs of another question to those that a run has: a model's folder may hold other weights by now,
    and a newer perfgate may ask otherwise."""
    changed = [recipe.name for recipe in plan.recipes if recipe.workload != workloads[recipe.name]]
    if changed:
        raise PerfgateError(
            f"what is asked of {', '.join(changed)}, or its models, has changed since",
            where=str(run),
            remedy="measure anew, without --resume",
        )


def find_unfinished(
    runs: Path, base: str, head: str, config_hash: str, *, calibration: bool = False, measured: tuple[str, ...] = ()
) -> Path | None:
    """The newest run of these commits and this configuration that has begun and has no result yet.

    A calibration is no gate, and a rerun of some recipes is no run of all.
    """
    asked = (base, head, config_hash, calibration, measured)
    for run, about in sorted(_run_files(runs), reverse=True):
        wanted = (about.base, about.head, about.config_hash, about.calibration, about.measured) == asked
        if wanted and not (run / RESULT_FILE).exists() and plan_of(run) is not None:
            return run
    return None


def earlier_runs(runs: Path, plan: r.Plan, builds: dict[r.Side, str]) -> tuple[RunFacts, ...]:
    """Runs of this box whose pairs are evidence for this one: same trees, builds, workloads and rules. Oldest first."""
    trees = (plan.base.tree, plan.head.tree)
    likely = (
        path
        for path, about in _run_files(runs)
        if about.box == plan.box and (about.base_tree, about.head_tree) == trees and about.run_id != plan.run_id
    )
    found = (run for run in map(_readable, likely) if run is not None and _same_question(run, plan, builds))
    return tuple(sorted(found, key=lambda run: run.plan.t))


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
        if one.valid and one.end and one.end.pair > 0 and one.is_of(plan.name)
    ]
    if not ends:
        return None
    levels = len(plan.concurrencies)
    sample = fmean(fmean(times) * levels for _, times in ends)
    start = fmean(wall - sum(times) for wall, times in ends)
    return LaunchCost(start, sample) if start > 0 and sample > 0 else None


def _newest_first(runs: Path, box: str) -> Iterator[RunFacts]:
    for path, about in sorted(_run_files(runs), reverse=True):
        if about.box == box and (run := _readable(path)) is not None and run.pairs:
            yield run


def _run_files(runs: Path) -> Iterator[tuple[Path, RunFile]]:
    for path in sorted(runs.glob("*")):
        if (about := read_run_file(path)) is not None:
            yield path, about


def _readable(run: Path) -> RunFacts | None:
    """None for what is not there, was altered, or is a newer perfgate's: no evidence then."""
    try:
        return RunFacts.of(read_facts(run))
    except PerfgateError:
        return None


def _same_question(run: RunFacts, plan: r.Plan, builds: dict[r.Side, str]) -> bool:
    trees = (run.plan.base.tree, run.plan.head.tree) == (plan.base.tree, plan.head.tree)
    keys = {side: build.key for side, build in run.builds.items() if build.ok} == builds
    served = {one.name: _served(one) for one in run.plan.recipes}
    common = [one for one in plan.recipes if one.name in served]  # a run of one recipe is evidence for a run of two
    same_load = bool(common) and all(served[one.name] == _served(one) for one in common)
    return trees and keys and same_load and run.plan.box == plan.box and bool(run.pairs)


def _served(recipe: r.RecipePlan) -> tuple[str, dict[str, object], dict[str, str]]:
    """What makes two recipes of one name the same: what is asked of a server, its flags and its variables."""
    return recipe.workload, dict(recipe.flags), dict(recipe.environment)
