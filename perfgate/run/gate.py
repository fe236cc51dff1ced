"""The main job: two commits built, served in alternation, compared, and a verdict.

    commits, configuration → run directory → lock, watchdog → doctor → both builds → pairs until decided → result

Whatever happens is a fact on disk first. The result is made from those facts alone, by `conclude`, which `perfgate
judge` calls, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from perfgate import records as r
from perfgate.build import BuiltSide
from perfgate.build.autotune import mode_for
from perfgate.build.environment import Builder, search_path
from perfgate.build.work import LocalWork, work_for, work_of_fixed
from perfgate.config.model import Resolved
from perfgate.config.resolve import metric_plans, refuse_abbreviations
from perfgate.cpu.environment import prepare
from perfgate.cpu.profile import layers, models
from perfgate.engine.faults import LaunchError
from perfgate.engine.watchdog import Swept, Watchdog, sweep
from perfgate.errors import Exit, PerfgateError
from perfgate.host.canary import CPU_RANKS, CanaryProcess, CanarySetup
from perfgate.host.doctor import Patient, run_doctor, why_refused
from perfgate.host.gpu import GpuShare, cuda_arch, share_of
from perfgate.host.gpus_free import gpus_free_command
from perfgate.host.handover import check_readable
from perfgate.host.inputs import given_to
from perfgate.host.lock import BoxLock
from perfgate.host.nvml import Nvml, NvmlAbsentError
from perfgate.host.sandbox import Confinement
from perfgate.host.temporary import sweep_temporary
from perfgate.host.trial import choose
from perfgate.host.watch import BoxWatch
from perfgate.judge.evidence import RunFacts
from perfgate.records.files import read_facts
from perfgate.report.terminal import render_plan
from perfgate.run.builds import FixedEnvironment, Make, build_sides, by_uv
from perfgate.run.caches import LaunchCaches
from perfgate.run.conclude import conclude
from perfgate.run.evidence import keep_evidence, kept_evidence
from perfgate.run.folder import (
    LOGS_FOLDER,
    check_new,
    check_same,
    check_workloads,
    find_unfinished,
    plan_of,
    write_run_file,
)
from perfgate.run.journal import Journal
from perfgate.run.launch import SglangBench, ranks_of, workload_hash
from perfgate.run.ledger import LEDGER_FILE, Ledger
from perfgate.run.noise import kind_of, remember
from perfgate.run.pairs import Measuring, end_here, stopped, what_is_left
from perfgate.run.plan import (
    Commits,
    Configuration,
    GateRequest,
    compare_commits,
    completed_plan,
    find_commits,
    find_configuration,
    make_plan,
    with_models,
)
from perfgate.run.progress import Progress, minutes_left
from perfgate.run.signals import Cancelled, cancellable
from perfgate.source.arguments import server_flags
from perfgate.source.repository import Repository
from perfgate.store.folders import Store

CLEAN_UP_S = 60.0
CANCELLED_CLEAN_UP_S = 5.0  # a runner kills ten seconds after a cancel; the watchdog goes on without us


class LeftBehind(PerfgateError):
    """Nothing is measured beside what an earlier run left and nobody can end."""

    exit_code = Exit.CANNOT

    def __init__(self, found: Swept) -> None:
        remedy = "look for its processes; what is stuck in the driver ends with a reboot"
        super().__init__(f"{found.name} of an earlier run does not end", where="the box", remedy=remedy)


@dataclass(frozen=True)
class GateOutcome:
    """`result` None: cancelled; what was measured is on disk and `--resume` goes on."""

    run: Path
    result: r.Result | None
    exit_code: Exit


@dataclass(frozen=True)
class GateJob:
    """All that a run is about, once it is known."""

    repository: Repository
    configuration: Configuration
    commits: Commits
    store: Store
    progress: Progress
    confinement: Confinement
    base_branch: str | None
    canary: CanarySetup | None = None

    @property
    def resolved(self) -> Resolved:
        return self.configuration.resolved

    @cached_property
    def work(self) -> LocalWork:
        """What is built on the box, for both sides alike."""
        both, box = (self.commits.base, self.commits.head), self.resolved.box
        if not self.resolved.profile.has_gpus:
            return work_of_fixed(self.repository, both)
        path = search_path(box, {**os.environ, **box.env})
        return work_for(self.repository, both, self.commits.diff, self.resolved.build, path)


def run_gate(request: GateRequest, progress: Progress) -> GateOutcome:
    """The whole job. Raises PerfgateError for what is wrong before anything was begun."""
    repository = Repository(request.repo)
    base, head = find_commits(repository, request, progress.say)
    configuration = find_configuration(repository, request, layers)
    resolved = configuration.resolved
    cpu_serves = not resolved.profile.has_gpus
    commits = compare_commits(repository, base, head, resolved.ignore_paths, cpu_serves=cpu_serves, force=request.force)
    refuse_abbreviations(resolved, server_flags(repository, base.sha))
    with Store(Path(resolved.box.state_dir).absolute(), resolved.caches) as store, cancellable():
        hidden = (store.root, *request.hidden)
        confinement = choose(resolved.box.isolation, run_as=resolved.box.run_as, hidden=hidden)
        job = GateJob(repository, configuration, commits, store, progress, confinement, request.base_branch)
        run, plan = _begin(job, request)
        try:
            with Journal(run) as journal:
                left = what_is_left(journal.facts, plan, kept_evidence(run, plan.continues))
                if left.recipe is None:  # nothing is left that needs the box, so nothing on it changes the verdict
                    end_here(journal, plan, left)
                    progress.say(f"nothing is left to measure: {left.reason}")
                else:
                    check_workloads(run, plan, _workloads(job.resolved))
                    _carry_out(job, run, journal, plan, wait_s=request.wait_s)
            _remember(job, run)  # before there is a result: a run that was killed in between is resumed, and told again
            result = conclude(run)
            _tidy(store, progress.say)
        except Cancelled as cancelled:
            command = "calibrate" if plan.calibration else "gate"
            progress.say(f"cancelled; go on with: perfgate {command} … --out {run} --resume")
            return GateOutcome(run, None, cancelled.exit_code)
    return GateOutcome(run, result, Exit(result.exit_code))


def _tidy(store: Store, say: Callable[[str], None]) -> None:
    """Keeps the state directory within its limit. The result stands, whatever comes of it."""
    try:
        stuck = store.evict().stuck
    except (OSError, PerfgateError) as error:
        stuck = (str(error),)
    for what in stuck:
        say(f"the state directory could not be tidied: {what}")


def _begin(job: GateJob, request: GateRequest) -> tuple[Path, r.Plan]:
    """The run's directory, new or to go on with, and its plan."""
    out = request.out.absolute() if request.out else None
    runs = job.store.folder("runs")
    if request.resume:
        asked = (job.commits.base.sha, job.commits.head.sha, job.resolved.hash)
        found = out or find_unfinished(runs, *asked, calibration=request.calibration, measured=request.measure)
        plan = plan_of(found) if found else None
        if found and plan:
            check_same(found, plan, *asked, [recipe.name for recipe in job.resolved.recipes])
            return _held(job, found), replace(plan, isolation=str(job.confinement))
        job.progress.say("there is nothing to resume: starting anew")
    elif out is not None:
        check_new(out)
    plan = make_plan(
        request,
        job.commits,
        job.configuration,
        metrics=metric_plans(job.resolved),
        workloads=_workloads(job.resolved),
        isolation=str(job.confinement),
        autotune=mode_for(job.resolved.caches, job.commits.diff),
        notes=(*job.resolved.profile.notes, *([job.work.note] if job.work.note else [])),
    )
    run = out or runs / plan.run_id
    write_run_file(run, plan)
    return _held(job, run), plan


def _workloads(resolved: Resolved) -> dict[str, str]:
    return {recipe.name: workload_hash(recipe) for recipe in resolved.recipes}


def _held(job: GateJob, run: Path) -> Path:
    """A run in the state directory is not evicted while it is carried out."""
    return job.store.use("runs", run.name) if run.parent == job.store.folder("runs") else run


def _carry_out(job: GateJob, run: Path, journal: Journal, plan: r.Plan, wait_s: float) -> None:
    """From the plan to the last fact. What stops it is a fact as well."""
    resumed = bool(journal.facts)
    if not resumed:
        journal.append(plan)
    if job.commits.diff.nothing and not plan.calibration:
        job.progress.say(f"nothing to measure: {job.commits.diff.reason}")
        return
    with _box(job, journal, wait_s) as watchdog:
        if resumed:  # by this line what went wrong before no longer counts: not before it can be tried again
            journal.append(plan)
        try:
            job, make = _equipped(job)
            if not _fit(job, journal):
                return
            check_readable(_models(job.resolved), job.confinement)
            sides = _build(job, make, run, journal)
            if sides is not None:
                _measure(job, run, journal, sides, watchdog)
        except PerfgateError as error:
            _note(error, journal)


def _models(resolved: Resolved) -> set[Path]:
    """Folders of models that servers read as the confined user; models on the hub lie in HF_HOME."""
    paths = {path for recipe in resolved.recipes for path in (recipe.model_path, recipe.draft_path) if path}
    local = {Path(path) for path in paths if path.startswith("/")}
    hub = {Path(resolved.box.hf_home)} if resolved.box.hf_home and len(local) < len(paths) else set()
    return {path for path in local | hub if path.exists()}


def _note(error: PerfgateError, journal: Journal) -> None:
    """What the box refused in mid-run is the run's result, not its end; where no fact can be written it is its end."""
    fault = r.Fault(id="fault/box", code="box_refused", text=str(error), blame=r.Blame.BOX)
    if isinstance(error, LaunchError):  # of the launch whose end was written last
        ends = [fact for fact in journal.facts if isinstance(fact, r.LaunchEnd)]
        told = f"{ends[-1].id}: {error}" if ends else str(error)
        launch = ends[-1].id if ends else None
        fault = replace(fault, code=error.code, text=told, launch=launch, lines=error.lines)
    try:
        journal.append(fault)
    except PerfgateError:
        raise error from None


def _fit(job: GateJob, journal: Journal) -> bool:
    """Whether the doctor lets the run begin on this box; what it found is a fact."""
    patient = Patient(
        box=job.resolved.box,
        resolved=job.resolved,
        profile=job.resolved.profile,
        holds_lock=True,
        canary=job.canary,
        confinement=job.confinement,
    )
    doctor = journal.append(run_doctor(patient))
    for check in doctor.checks:
        if check.status == "warn":
            job.progress.say(f"the box: {check.text}")
    if not doctor.ok:
        text = f"the box is not fit: {why_refused(doctor)}"
        job.progress.say(text)
        journal.append(r.Fault(id="fault/doctor", code=r.DOCTOR_FAULT, text=text, blame=r.Blame.BOX))
    return doctor.ok


@contextmanager
def _box(job: GateJob, journal: Journal, wait_s: float) -> Iterator[Watchdog]:
    """The box for us alone; when it is left, everything that was started on it is gone."""
    root = job.store.root
    lock_path = Path(job.resolved.box.lock or root / "box.lock")
    head = job.commits.head.sha[:12]
    with (
        _told_if_cancelled(journal),
        BoxLock.acquire(lock_path, f"perfgate gate of {head}", wait_s, job.progress.say) as lock,
    ):
        records = root / "running"
        for found in sweep(records) if records.is_dir() else ():
            if not found.clean:
                raise LeftBehind(found)
            job.progress.say(f"ended what an earlier run had left: {found.name}, {found.processes} processes")
        sweep_temporary(job.confinement.uid)
        watchdog = Watchdog.start(
            lock.fd, records, gpus_free_command(share_of(job.resolved.box)) if job.resolved.needs_gpus else ()
        )
        limit_s = CLEAN_UP_S
        try:
            with _told_if_cancelled(journal):  # before the clean-up, which may outlive us
                yield watchdog
        except Cancelled:
            limit_s = CANCELLED_CLEAN_UP_S
            raise
        finally:
            watchdog.close(limit_s)


@contextmanager
def _told_if_cancelled(journal: Journal) -> Iterator[None]:
    """Writes down, once, that somebody wanted the run to end."""
    try:
        yield
    except Cancelled as cancelled:
        last = journal.facts[-1]
        if not isinstance(last, r.Fault) or last.code != r.STOPPED_FAULT:
            journal.append(stopped(f"cancelled by {cancelled}"))
        raise


def _build(job: GateJob, make: Make, run: Path, journal: Journal) -> dict[r.Side, BuiltSide] | None:
    commits = {r.Side.BASE: job.commits.base, r.Side.HEAD: job.commits.head}
    logs = run / LOGS_FOLDER
    logs.mkdir(exist_ok=True)
    return build_sides(make, commits, journal, logs, job.progress.say)


def _equipped(job: GateJob) -> tuple[GateJob, Make]:
    """How sides are built; on the cpu profile also where its models are."""
    if not job.resolved.profile.has_gpus:
        cpu = prepare(job.store.root, job.progress.say)
        configuration = replace(job.configuration, resolved=with_models(job.resolved, models(cpu)))
        fixed = FixedEnvironment(job.repository, job.store, cpu, job.confinement, job.work)
        canary = CanarySetup(python=cpu.python, device="cpu", ranks=CPU_RANKS)
        return replace(job, configuration=configuration, canary=canary), fixed.make
    builder = Builder(
        repository=job.repository,
        store=job.store,
        rules=job.resolved.build,
        box=job.resolved.box,
        work=job.work,
        confinement=job.confinement,
        gpu_arch=_gpu_arch(share_of(job.resolved.box)) if job.resolved.needs_gpus else None,
    )
    return job, by_uv(builder)


def _gpu_arch(share: GpuShare) -> str | None:
    try:
        with Nvml.open(share.visible) as nvml:
            return cuda_arch(nvml)
    except NvmlAbsentError:
        return None  # the doctor tells


def _measure(job: GateJob, run: Path, journal: Journal, sides: dict[r.Side, BuiltSide], watchdog: Watchdog) -> None:
    begun = journal.run()
    plan = completed_plan(begun, job.resolved, job.store.root)
    if plan != begun.plan:  # the evidence that it stands on is kept with it
        keep_evidence(run, job.store.folder("runs"), plan.continues)
        plan = journal.append(plan)
        write_run_file(run, plan)
    job.progress.show(render_plan(plan, minutes_left(journal.run())))
    keep = partial(watchdog.keeping, "canary", user=job.confinement.sole_user)
    with _watch(job) as watch, CanaryProcess(_canary(job, sides), watch.read_gpus(), keep) as canary:
        bench = SglangBench(
            journal=journal,
            run=run,
            resolved=job.resolved,
            commits={r.Side.BASE: job.commits.base, r.Side.HEAD: job.commits.head},
            sides=sides,
            store=job.store,
            confinement=job.confinement,
            watchdog=watchdog,
            watch=watch,
            canary=canary,
            progress=job.progress,
            caches=LaunchCaches(
                store=job.store,
                sides=sides,
                autotune=plan.autotune,
                question=f"{job.resolved.hash} {watch.gpu_names()}",
            ),
        )
        measuring = Measuring(journal, bench, kept_evidence(run, plan.continues))
        step = measuring.all_pairs() if plan.calibration or plan.exact else measuring.until_decided()
    job.progress.say(f"done: {step.reason}")


def _watch(job: GateJob) -> BoxWatch:
    return (
        BoxWatch.open(share=share_of(job.resolved.box))
        if job.resolved.needs_gpus
        else BoxWatch(None, "no GPUs are used")
    )


def _canary(job: GateJob, sides: Mapping[r.Side, BuiltSide]) -> CanarySetup:
    """In base's environment: no pull request has a hand in it. Confined as servers are."""
    base = sides[r.Side.BASE]
    if job.canary is not None:
        return replace(job.canary, confinement=job.confinement, readable=base.readable)
    gpus = job.resolved.needs_gpus
    nccl = {**job.resolved.nccl, **job.resolved.box.env, **share_of(job.resolved.box).variables}
    return CanarySetup(
        python=base.python,
        device="cuda" if gpus else "cpu",
        ranks=max((ranks_of(recipe.flags) for recipe in job.resolved.recipes), default=1) if gpus else 1,
        environment=nccl,
        confinement=job.confinement,
        readable=(*base.readable, *given_to(job.resolved, os.environ).readable),
    )


def _remember(job: GateJob, run: Path) -> None:
    """Tells the ledger of the run. Only A/A pairs and commits of the base branch are learned from later."""
    facts = RunFacts.of(read_facts(run))
    if facts is not None and facts.pairs:
        kind = kind_of(facts.plan, job.repository, job.base_branch)
        remember(facts, Ledger(job.store.root / LEDGER_FILE), kind, job.progress.say)
