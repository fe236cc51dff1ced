"""Run directories: where a run's files lie, and which earlier run is resumed."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from perfgate import __version__
from perfgate import records as r
from perfgate.errors import PerfgateError
from perfgate.records.files import FACTS_FILE, RESULT_FILE, read_facts, write_whole

RUN_FILE = "run.json"
COMMENT_FILE = "comment.md"
PAGE_FILE = "index.html"
LOGS_FOLDER = "logs"


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
    for run, about in sorted(run_files(runs), reverse=True):
        wanted = (about.base, about.head, about.config_hash, about.calibration, about.measured) == asked
        if wanted and not (run / RESULT_FILE).exists() and plan_of(run) is not None:
            return run
    return None


def run_files(runs: Path) -> Iterator[tuple[Path, RunFile]]:
    for path in sorted(runs.glob("*")):
        if (about := read_run_file(path)) is not None:
            yield path, about
