"""One step of a bisect: an ordinary run of one pair, in a folder of its own.

Builds, box checks, launches and facts are the gate's. What is added here is only how a run's end reads as a step's: a
number, a side that cannot be measured, or a box that could not measure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from perfgate import records as r
from perfgate.blame.bisect.evidence import PairNoise
from perfgate.blame.bisect.search import Step
from perfgate.errors import Exit, PerfgateError
from perfgate.records.files import RESULT_FILE, read_facts, read_result, write_whole
from perfgate.run.gate import GateOutcome, run_gate
from perfgate.run.plan import GateRequest
from perfgate.run.progress import Progress

STEP_FILE = "step.json"
TRIES = 3
"""Of one step that the box spoiled."""


@dataclass(frozen=True)
class Asked:
    """Whose speed is compared, and by which metric."""

    recipe: str
    metric: str


@dataclass(frozen=True)
class Told:
    """What a step's run came to. `slowdown` None: then `broken` says which side cannot be measured."""

    slowdown: float | None
    broken: r.Side | None
    minutes: float
    launches: int
    noise: PairNoise | None = None
    budget: float | None = None
    slowdowns: dict[str, float] | None = None  # of every metric of the recipe
    result: r.Result | None = None
    recipes: tuple[r.RecipePlan, ...] = ()


class Interrupted(Exception):
    """Somebody wanted the run to end; --resume goes on."""

    def __init__(self, exit_code: Exit) -> None:
        self.exit_code = exit_code
        super().__init__()


class CannotMeasure(PerfgateError):
    """The box does not let this be measured."""

    exit_code = Exit.CANNOT


Run = Callable[[GateRequest, Progress], GateOutcome]


def measure(
    folder: Path,
    request: GateRequest,
    step: Step,
    shas: tuple[str, str],
    asked: Asked,
    progress: Progress,
    run: Run = run_gate,
) -> Told:
    """The pair of one step, measured now or found measured. `folder`: of this step alone."""
    wanted = {"older": shas[0], "newer": shas[1], "why": step.why.value}
    folder.mkdir(parents=True, exist_ok=True)
    _check_step(folder / STEP_FILE, wanted)
    spoiled = ""
    for number in range(1, TRIES + 1):
        out = folder / f"try{number}"
        if not (out / RESULT_FILE).exists():
            of_step = replace(
                request,
                base=shas[0],
                head=shas[1],
                out=out,
                recipes=(asked.recipe,),
                max_pairs=1,
                exact=True,
                resume=out.exists(),
                seed=_seed(request.seed, folder.name, number),
            )
            outcome = run(of_step, progress)
            if outcome.result is None:
                raise Interrupted(outcome.exit_code)
        told = _read(out, asked)
        if told.slowdown is not None or told.broken is not None:
            return told
        spoiled = told.result.reason if told.result else ""
    raise CannotMeasure(f"a pair could not be measured in {TRIES} tries: {spoiled}", where=str(folder))


def _seed(seed: int | None, name: str, number: int) -> int:
    """Which side goes first is drawn anew for every step, and the same again when it is resumed."""
    return ((seed or 0) * 1_000_003 + int(name) * 101 + number) % 2**31


def _check_step(file: Path, wanted: dict[str, Any]) -> None:
    """A resumed search asks the same steps again; anything else is another search."""
    if file.exists():
        if json.loads(file.read_text()) != wanted:
            raise PerfgateError("holds a step of another bisect", where=str(file.parent), remedy="give another --out")
    else:
        write_whole(file, json.dumps(wanted) + "\n")


def _read(out: Path, asked: Asked) -> Told:
    result = read_result(out)
    minutes = result.cost.wall_s / 60
    plan = next(fact for fact in reversed(read_facts(out)) if isinstance(fact, r.Plan))
    launches = {launch.id.split("/")[2]: launch for launch in result.launches if launch.valid and launch.paired}
    common = Told(
        slowdown=None,
        broken=None,
        minutes=minutes,
        launches=result.cost.launches,
        noise=_noise(plan, asked),
        budget=_budget(plan, asked),
        result=result,
        recipes=plan.recipes,
    )
    if result.verdict in (r.Verdict.BUILD_FAILED, r.Verdict.BENCH_FAILED) and result.failed_side is not None:
        return replace(common, broken=result.failed_side)
    if result.verdict is r.Verdict.SKIPPED:  # what lies between was taken back: both serve the same
        return replace(common, slowdown=0.0)
    if result.verdict is r.Verdict.ENVIRONMENT or len(launches) != 2:
        return common
    slowdowns = _slowdowns(launches["base"].values, launches["head"].values)
    first = next((one for one in plan.metrics if (one.recipe, one.metric) == (asked.recipe, asked.metric)), None)
    if first is None:
        raise PerfgateError(f"recipe {asked.recipe} has no metric {asked.metric}", where="--metric")
    found = slowdowns.get(f"{asked.metric}@{first.concurrency}")
    return replace(
        common, slowdown=found, slowdowns={name.partition("@")[0]: value for name, value in slowdowns.items()}
    )


def _slowdowns(base: Any, head: Any) -> dict[str, float]:
    """Log differences, + = head is slower."""
    found: dict[str, float] = {}
    for name, before in base.items():
        after = head.get(name)
        if before and after and before > 0 and after > 0:
            better = r.METRICS[name.partition("@")[0]].better
            found[name] = math.log(before / after) * (1 if better is r.Better.HIGHER else -1)
    return found


def _budget(plan: r.Plan, asked: Asked) -> float | None:
    found = (one for one in plan.metrics if (one.recipe, one.metric) == (asked.recipe, asked.metric))
    return next((one.budget for one in found), None)


def _noise(plan: r.Plan, asked: Asked) -> PairNoise | None:
    metric = next((one for one in plan.metrics if (one.recipe, one.metric) == (asked.recipe, asked.metric)), None)
    if metric is None or metric.prior_sd is None:
        return None
    return PairNoise(metric.prior_sd, metric.prior_df or 3.0)
