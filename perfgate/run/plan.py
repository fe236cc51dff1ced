"""What a run will do, before it does anything: the commits, the configuration, the order of recipes, the plan."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from perfgate import __version__
from perfgate import records as r
from perfgate.config import files as config_file
from perfgate.config.model import BoxFile, Config, Resolved, ResolvedRecipe
from perfgate.config.places import BOX_PATH, CONFIG_PATH
from perfgate.config.profile import Profile
from perfgate.errors import PerfgateError
from perfgate.judge.evidence import Evidence, RunFacts
from perfgate.judge.power import LaunchCost
from perfgate.records.files import short_hash
from perfgate.run.evidence import earlier_runs, usual_costs, without_disturbed
from perfgate.run.ledger import LEDGER_FILE, Ledger
from perfgate.run.noise import recall, with_known_noise, with_planned_samples
from perfgate.run.pairs import continued_orders, orders
from perfgate.source.diff import DiffClass, classify, deciding_files
from perfgate.source.repository import Repository

BUILT_IN = "built-in defaults"


@dataclass(frozen=True, kw_only=True)
class GateRequest:
    """What was asked for. References are names here and nowhere later."""

    repo: Path
    head: str
    base: str | None = None  # default: merge base of head and the base branch
    base_branch: str | None = None  # default: the repository's default branch
    config: Path | None = None
    box: Path | None = None
    profile: Profile = Profile.GPU
    out: Path | None = None
    max_pairs: int | None = None
    recipes: tuple[str, ...] = ()  # the only ones that the run is about; none: all
    measure: tuple[str, ...] = ()  # of those, the only ones that get more pairs; judged are all
    resume: bool = False
    seed: int | None = None
    force: bool = False  # measured even where the diff touches nothing that a server runs
    calibration: bool = False  # all pairs are measured, whatever the judge says: to learn the box's noise
    exact: bool = False  # `max_pairs` pairs are measured, whatever the judge says; earlier runs' do not count
    wait_s: float = 0.0  # for the box, when another gate has it
    pr: r.PullRequest | None = None
    workflow_run: int | None = None  # that asked for it; the run's id names it, so that no other answers for it
    hidden: tuple[Path, ...] = ()  # folders that PR code must not see, besides perfgate's own
    isolation: Literal["none"] | None = None  # in place of what the box's file says, where all code is trusted


@dataclass(frozen=True, kw_only=True)
class Commits:
    base: r.Commit
    head: r.Commit
    diff: DiffClass
    touched: tuple[r.Touched, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Configuration:
    resolved: Resolved
    source: str  # full SHA of the base branch, or the file it came from


def find_commits(
    repository: Repository, request: GateRequest, say: Callable[[str], None] = lambda _: None
) -> tuple[r.Commit, r.Commit]:
    """Base and head as full SHAs."""
    head = repository.resolve(request.head)
    for name in (request.head, request.base, request.base_branch):
        if name and (told := repository.also_a_branch(name)):
            say(told)
    if request.base is not None:
        base = repository.resolve(request.base)
    else:
        branch = repository.resolve(request.base_branch or repository.default_branch())
        base = repository.merge_base(branch.sha, head.sha)
    for commit in (base, head):
        repository.check_sglang(commit.sha)
    return base, head


def compare_commits(
    repository: Repository,
    base: r.Commit,
    head: r.Commit,
    ignore: tuple[str, ...] = (),
    *,
    cpu_serves: bool = False,
    force: bool = False,
) -> Commits:
    """What lies between them. `ignore`: more path patterns with nothing to measure; `force`: it is measured anyway."""
    paths = repository.changed_paths(base.sha, head.sha)
    contents = {path: repository.read_both(base.sha, head.sha, path) for path in deciding_files(paths)}
    diff = classify(paths, ignore=ignore, contents=contents, cpu_serves=cpu_serves)
    if diff.nothing and force:
        diff = replace(diff, python=True, reason=f"{diff.reason} Measured because of --force.")
    elif base.sha == head.sha:
        what = f"Base and head are one commit: {head.sha[:12]} is already in the base branch, or was named twice"
        diff = replace(diff, reason=f"{what}. Name the commit to compare with: --base.")
    return Commits(base=base, head=head, diff=diff, touched=repository.touched_between(base.sha, head.sha))


def find_configuration(
    repository: Repository | None, request: GateRequest, layers: Callable[[Profile], tuple[Config, ...]]
) -> Configuration:
    """perfgate.yml at the tip of the base branch (never head's), or the file given; overlaid by profile and box.

    Where a file is given nothing is looked up in the repository.
    """
    tip = ""
    if request.config is not None:
        config, source = config_file.load_file(request.config), request.config.name  # facts are public, folders are not
    else:
        repository = repository or Repository(request.repo)
        tip = repository.resolve(request.base_branch or request.base or repository.default_branch()).sha
        text = repository.read_file(tip, CONFIG_PATH)
        config, source = (config_file.load(text, CONFIG_PATH), tip) if text else (Config(), BUILT_IN)
    box = find_box(request)
    try:
        resolved = config_file.resolve(config, box, *layers(request.profile), profile=request.profile)
    except config_file.ConfigError as error:
        if source != BUILT_IN:
            raise
        raise _no_configuration(request, tip) from error
    return Configuration(resolved=_narrowed(resolved, request), source=source)


def _no_configuration(request: GateRequest, tip: str) -> PerfgateError:
    """The defaults alone name no model, so nothing can be measured without a file."""
    lies_there = (request.repo / CONFIG_PATH).is_file()
    return PerfgateError(
        f"no {CONFIG_PATH} at {tip[:12]}, so no model is named",
        where=str(request.repo),
        remedy=f"commit the {CONFIG_PATH} of the work tree, or give it: --config {CONFIG_PATH}"
        if lies_there
        else "`perfgate init` writes one; commit it, or give it: --config FILE",
    )


def find_box(request: GateRequest) -> BoxFile:
    """The box's file; without one a laptop keeps its state below the user's cache."""
    if request.box is not None or BOX_PATH.exists():
        box = config_file.load_box(request.box or BOX_PATH)
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        box = BoxFile(name=request.profile.box_name, state_dir=str(cache / "perfgate"))
    return box if request.isolation is None else box.model_copy(update={"isolation": request.isolation})


def _narrowed(resolved: Resolved, request: GateRequest) -> Resolved:
    """Only the recipes asked for, and the number of pairs asked for."""
    known = [recipe.name for recipe in resolved.recipes]
    for name in (*request.recipes, *request.measure):
        if name not in known:
            raise PerfgateError(f"no recipe {name!r}", where="--recipes", remedy=f"one of {', '.join(known)}")
    wanted = request.recipes or known
    limits = resolved.limits
    if request.max_pairs is not None:
        limits = limits.model_copy(update={"max_pairs": request.max_pairs})  # one pair still fails nobody
    recipes = tuple(recipe for recipe in resolved.recipes if recipe.name in wanted)
    return replace(resolved, recipes=recipes, limits=limits)


def with_models(resolved: Resolved, folders: Mapping[str, Path]) -> Resolved:
    """The same, with models that lie in these folders."""

    def path(name: str | None, before: str | None) -> str | None:
        return str(folders[name]) if name is not None and name in folders else before

    recipes = tuple(
        replace(
            recipe,
            model_path=path(recipe.model, recipe.model_path) or recipe.model_path,
            draft_path=path(recipe.draft, recipe.draft_path),
        )
        for recipe in resolved.recipes
    )
    return replace(resolved, recipes=recipes)


def make_plan(
    request: GateRequest,
    commits: Commits,
    configuration: Configuration,
    *,
    metrics: tuple[r.MetricPlan, ...],
    workloads: Mapping[str, str],
    isolation: str,
    autotune: str,
    continues: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> r.Plan:
    """The plan of a new run. `workloads`: recipe → hash of what its client sends."""
    resolved = configuration.resolved
    seed = request.seed if request.seed is not None else secrets.randbelow(2**31)
    order = commits.diff.order({recipe.name: recipe.speculative for recipe in resolved.recipes})
    limits = resolved.limits
    return r.Plan(
        id="plan",
        run_id=_run_id(commits.head.sha, request.workflow_run),
        perfgate=__version__,
        box=resolved.box.name,
        profile=resolved.profile,
        base=commits.base,
        head=commits.head,
        diff_class=commits.diff.name,
        diff_reason=commits.diff.reason,
        seed=seed,
        recipes=recipe_plans(resolved, workloads, order, seed),
        metrics=metrics,
        limits=r.RunLimits(
            max_pairs=limits.max_pairs,
            min_pairs_to_fail=limits.min_pairs_to_fail,
            minutes=limits.minutes,
            alpha=resolved.errors.alpha,
            beta=resolved.errors.beta,
        ),
        config=configuration.source,
        config_hash=resolved.hash,
        environment=resolved.environment.model_dump(),
        pr=request.pr,
        continues=continues,
        autotune=autotune,
        isolation=isolation,
        notes=notes,
        calibration=request.calibration,
        measured=request.measure,
        touched=commits.touched,
        exact=request.exact,
    )


def recipe_plans(
    resolved: Resolved, workloads: Mapping[str, str], order: Sequence[str] | None = None, seed: int = 0
) -> tuple[r.RecipePlan, ...]:
    """How each recipe will be measured; in the order of the configuration where none is given."""
    names = order or [recipe.name for recipe in resolved.recipes]
    return tuple(_recipe_plan(resolved.recipe(name), resolved, workloads[name], seed) for name in names)


def _recipe_plan(recipe: ResolvedRecipe, resolved: Resolved, workload: str, seed: int) -> r.RecipePlan:
    return r.RecipePlan(
        name=recipe.name,
        flags=dict(recipe.flags),
        environment={**resolved.nccl, **recipe.env},
        workload=workload,
        concurrencies=tuple(recipe.workload.concurrency),
        samples=recipe.workload.sample_count,
        speculative=recipe.speculative,
        model=recipe.model,
        first_orders=orders(seed, recipe.name, resolved.limits.max_pairs),
    )


def _run_id(head: str, workflow_run: int | None) -> str:
    own = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{head[:9]}-{short_hash(secrets.token_hex(8), 4)}"
    return own if workflow_run is None else f"{own}{workflow_suffix(workflow_run)}"


def workflow_suffix(workflow_run: int) -> str:
    """How the id of a run ends that a workflow run asked for."""
    return f"-w{workflow_run}"


# ------------------------------------------------------------------------------------------------ before it measures


def completed_plan(run: RunFacts, resolved: Resolved, state: Path) -> r.Plan:
    """The plan with what only builds and box can tell: evidence on file, noise, samples, orders, what a launch takes.

    Once something was launched it stays: a run that is resumed is judged as if it had never been interrupted.
    """
    plan, runs = run.plan, state / "runs"
    if run.launches:
        return plan
    earlier, told = without_disturbed(() if plan.calibration or plan.exact else earlier_runs(runs, run))
    memory = recall(plan, Ledger(state / LEDGER_FILE), run.fingerprint)
    costs = usual_costs(runs, plan.box, plan.recipes)
    undecided = [recipe.name for recipe in resolved.recipes if recipe.workload.samples == "auto"]
    plan = with_known_noise(with_planned_samples(plan, memory, costs, undecided), memory)
    return replace(
        plan,
        continues=tuple(one.plan.run_id for one in earlier),
        recipes=tuple(_completed(one, costs.get(one.name), Evidence(run, earlier)) for one in plan.recipes),
        notes=tuple(dict.fromkeys((*plan.notes, *memory.warnings, *told))),
    )


def _completed(recipe: r.RecipePlan, cost: LaunchCost | None, evidence: Evidence) -> r.RecipePlan:
    orders = continued_orders(recipe, evidence)
    return replace(recipe, expected_launch_s=cost.seconds(recipe.samples) if cost else None, first_orders=orders)
