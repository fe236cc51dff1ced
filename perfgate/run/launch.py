"""The bench of the real thing: one launch of SGLang of one side, its samples, phases and proofs in the journal."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal

from perfgate import records as r
from perfgate.build import BuiltSide
from perfgate.build.homes import Home
from perfgate.config.model import FlagValue, Resolved, ResolvedRecipe
from perfgate.engine import server
from perfgate.engine.command import EnvironmentParts, child_environment, server_command
from perfgate.engine.device_timer import cycles_of, device_timer, read_metrics
from perfgate.engine.faults import LaunchError
from perfgate.engine.launch import LaunchHooks, LaunchPlan, run_launch
from perfgate.engine.prompts import prompts_for
from perfgate.engine.server import Server
from perfgate.engine.watchdog import Watchdog
from perfgate.errors import PerfgateError
from perfgate.host.canary import CanaryProcess
from perfgate.host.gpu import share_of
from perfgate.host.handover import hand_over, take_back
from perfgate.host.inputs import Given, check_seen, given_to
from perfgate.host.sandbox import Confinement
from perfgate.host.watch import BoxWatch
from perfgate.probe.inside import copy_probe, probe_environment
from perfgate.probe.phases import phases_of
from perfgate.probe.proofs import proofs_of
from perfgate.probe.reading import read_probe
from perfgate.records import LaunchId
from perfgate.records.files import short_hash
from perfgate.run.caches import LaunchCaches
from perfgate.run.folder import LOGS_FOLDER
from perfgate.run.journal import Journal
from perfgate.run.pairs import ATTEMPTS, next_attempt
from perfgate.run.progress import Progress
from perfgate.store.folders import Store, require_free
from perfgate.store.removal import remove_tree

NCCL_FOLDER = "nccl"  # below HOME
NCCL_TELLS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV"}
PROBE_WRITES_S = 0.3  # after the last sample, for the probe's last lines to be on disk
LAUNCH_GB = 2.0  # to find free before a launch, for JIT caches
RUN_GB = 0.2  # and for the run's own files
MAX_NCCL_FILES = 4096
CLIENT = 3  # goes up when the client asks or counts differently: evidence of before is not joined then


def workload_hash(recipe: ResolvedRecipe) -> str:
    """Of all that the client sends, to which weights, and how it counts; evidence is joined only where it is equal.

    The number of samples is no part of it: a launch's value is their median, whatever their number.
    """
    prompts = [(prompt.id, prompt.kind, prompt.text) for prompt in prompts_for(recipe.workload)]
    asked = recipe.workload.model_dump(exclude={"prompts", "request_timeout_s", "samples"})
    target = (recipe.model, recipe.revision, files_of(recipe.model_path))
    draft = (recipe.draft, recipe.draft_revision, files_of(recipe.draft_path))
    return short_hash(json.dumps([CLIENT, prompts, asked, target, draft], sort_keys=True))


def files_of(model: str | None) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a model in a folder of the box, which has no revision. Empty for one of the hub.

    Weights are never read: a draft that was trained on has other times, and hundreds of gigabytes take minutes.
    """
    if model is None or not model.startswith("/"):
        return []
    found = []
    for folder, folders, names in os.walk(model):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(folder) / name for name in names if not name.startswith(".")):
            with suppress(OSError):  # a link to nowhere
                about = path.stat()
                found.append((str(path.relative_to(model)), about.st_size, about.st_mtime_ns))
    return sorted(found)


@dataclass(frozen=True, kw_only=True)
class SglangBench:
    """Launches sides of a run. Everything a server is given is the same for both, but the tree and its own HOME."""

    journal: Journal
    run: Path
    resolved: Resolved
    commits: Mapping[r.Side, r.Commit]
    sides: Mapping[r.Side, BuiltSide]
    store: Store
    confinement: Confinement
    watchdog: Watchdog
    watch: BoxWatch
    canary: CanaryProcess
    progress: Progress
    caches: LaunchCaches

    def launch(self, launch: LaunchId) -> r.LaunchEnd:
        """One whole launch, its caches warmed before where they are cold."""
        self.store.make_room(LAUNCH_GB)
        require_free(self.run, RUN_GB)
        if self.resolved.profile.has_gpus:
            for side in r.Side:  # before a pair, never in between its launches
                if self.caches.lacks(side, launch.recipe) and not self._threw_away(side, launch.recipe):
                    self._warm_up_caches(side, launch.recipe)
        return self._launch(launch, self._recipe(launch.recipe))

    def _recipe(self, name: str) -> ResolvedRecipe:
        """With as many samples as the plan says."""
        recipe = self.resolved.recipe(name)
        workload = recipe.workload.model_copy(update={"samples": self.journal.run().recipe(name).samples})
        return dataclasses.replace(recipe, workload=workload)

    def _threw_away(self, side: r.Side, recipe: str) -> bool:
        """One throw-away launch is enough, also for a side that does not serve; what the box spoiled is tried again."""
        run = self.journal.run()
        tries = [
            fact
            for fact in run.facts
            if isinstance(fact, r.LaunchEnd) and (fact.pair, fact.side, fact.recipe) == (0, side, recipe)
            if run.is_current(run.launches[fact.id])
        ]
        spoiled = sum(one.blame is r.Blame.BOX for one in tries)
        return len(tries) > spoiled or spoiled >= ATTEMPTS

    def _warm_up_caches(self, side: r.Side, name: str) -> None:
        """A throw-away launch: its samples belong to no pair."""
        recipe = self.resolved.recipe(name)
        once = recipe.workload.model_copy(update={"samples": 1, "prompts_per_kind": 1, "concurrency": [1]})
        attempt = next_attempt(self.journal.run(), name, 0, side)
        launch = LaunchId(recipe=name, pair=0, side=side, position=0, attempt=attempt)
        self.progress.say(f"{side.value} never served {name} here: a throw-away launch warms its caches")
        self._launch(launch, dataclasses.replace(recipe, workload=once))

    def _launch(self, launch: LaunchId, recipe: ResolvedRecipe) -> r.LaunchEnd:
        probe_dir = self._probe_dir(launch)
        with _preparing(launch.launch_id):
            home = self.caches.home(launch.side)
            autotune = self.caches.prepare(launch.side, launch.recipe)
            self._take_back_homes()
            self._forget(home, probe_dir)
        plan = dataclasses.replace(self._plan(launch, recipe, home, probe_dir), autotune=autotune)
        self.progress.launch_begins(launch, self.journal.run())
        check_seen(self._given.files, self.confinement, self._given.readable)
        self._read_canary(launch, "before")
        try:
            end = run_launch(
                plan,
                self.journal.append,
                hooks=self._hooks(plan, home, probe_dir),
                progress=self.progress.step,
                watchdog=self.watchdog,
                gpus_free=self.watch.gpus_free,
            )
        finally:
            take_back((home.path, probe_dir), self.confinement)
        self._read_canary(launch, "after")
        self.progress.launch_ends(end, self.journal.run())
        if end.valid:
            self.caches.served(launch.side, launch.recipe, throw_away=launch.pair == 0)
        return end

    def _take_back_homes(self) -> None:
        """Of both sides and of earlier commits: whom this server runs as has written them all."""
        take_back(self.store.folder("homes").iterdir(), self.confinement)

    def _forget(self, home: Home, probe_dir: Path) -> None:
        """Folders for what probe and NCCL will write, made anew, whatever the last server has left in their place."""
        home.path.chmod(0o700)  # the last server could lock it
        for folder in (probe_dir, home.path / NCCL_FOLDER):
            remove_tree(folder)
            folder.mkdir(parents=True)
        hand_over((home.path, probe_dir), self.confinement)

    # ------------------------------------------------------------------------------------------ what it is given

    def _plan(self, launch: LaunchId, recipe: ResolvedRecipe, home: Home, probe_dir: Path) -> LaunchPlan:
        built = self.sides[launch.side]
        log = f"{LOGS_FOLDER}/{launch.launch_id.replace('/', '-')}.log"
        argv = server_command(
            built.python,
            recipe.flags,
            model=recipe.model_path,
            revision=recipe.revision,
            draft=recipe.draft_path,
            draft_revision=recipe.draft_revision,
            port=server.PORTS.start,
        )
        spec = server.LaunchSpec(
            argv=argv,
            environment=self._environment(launch, recipe, built, home, probe_dir),
            cwd=home.path,
            port=server.PORTS.start,
            log=self.run / log,
            stall_s=self.resolved.limits.launch_stall_s,
            stop_s=self.resolved.limits.stop_s,
            confinement=self.confinement,
            readable=(*built.readable, built.tree, self._probe.parent, *self._given.readable),
            writable=(home.path, probe_dir),
            name=launch.launch_id,
        )
        return LaunchPlan(
            launch=launch,
            sha=self.commits[launch.side].sha,
            build=built.key,
            spec=spec,
            workload=recipe.workload,
            speculative=recipe.speculative,
            seed=self.journal.run().plan.seed,
            log=log,
        )

    def given(self, launch: LaunchId) -> dict[str, str]:
        """The environment that its server would be given now."""
        recipe, built, home = self._recipe(launch.recipe), self.sides[launch.side], self.caches.home(launch.side)
        return self._environment(launch, recipe, built, home, self._probe_dir(launch))

    def _probe_dir(self, launch: LaunchId) -> Path:
        return self.run / "probe" / launch.launch_id.replace("/", "-")

    def _environment(
        self, launch: LaunchId, recipe: ResolvedRecipe, built: BuiltSide, home: Home, probe_dir: Path
    ) -> dict[str, str]:
        box = self.resolved.box
        parts = EnvironmentParts(
            python=built.python,
            path_entries=(self._probe, *built.path_entries),
            home=home.variables,
            hf_home=Path(box.hf_home) if box.hf_home else None,
            build=built.environment,
            recipe={**recipe.env, **(share_of(box).variables if self.resolved.profile.has_gpus else {})},
            nccl={**self.resolved.nccl, **self._nccl_tells(home)},
            probe=probe_environment(probe_dir, launch=launch.launch_id),
            tmp=Path("/tmp") if self.confinement.private_tmp else None,
        )
        return child_environment(os.environ, parts)

    def _nccl_tells(self, home: Home) -> dict[str, str]:
        """What makes NCCL write down what it took and chose, at its start alone; below HOME, so the same for both."""
        if not self.resolved.profile.has_gpus:
            return {}
        return {**NCCL_TELLS, "NCCL_DEBUG_FILE": str(home.path / NCCL_FOLDER / "%h.%p")}

    @cached_property
    def _given(self) -> Given:
        return given_to(self.resolved, os.environ)

    @cached_property
    def _probe(self) -> Path:
        """One copy for both sides, where a second user can read it."""
        return copy_probe(self.run / "probe")

    # ------------------------------------------------------------------------------------------ the box meanwhile

    def _read_canary(self, launch: LaunchId, when: Literal["before", "after"]) -> None:
        """One reading of the canary. A throw-away launch needs none."""
        if launch.pair == 0:
            return
        reading = self.canary.before_launch() if when == "before" else self.canary.measure()
        if readings := reading.readings:
            name = launch.launch_id
            self.journal.append(r.Canary(id=f"{name}/canary/{when}", launch=name, when=when, readings=readings))

    def _hooks(self, plan: LaunchPlan, home: Home, probe_dir: Path) -> LaunchHooks:
        watch = self.watch.launch(plan.launch, self.journal.append)
        offered = bool(self.resolved.recipe(plan.launch.recipe).flags.get("enable-metrics"))
        metrics: list[str] = []  # before the first sample, and after the last one at one request at a time
        written_at = 0.0  # when all that the probe has to say is on disk

        def over_again() -> None:
            with _preparing(plan.launch.launch_id):
                self._forget(home, probe_dir)

        def before_sample(server: Server, _concurrency: int, number: int) -> None:
            if offered and number == 0:
                metrics[:] = [read_metrics(server.url)]
            watch.before_sample(server.pids)

        def after_sample(server: Server, sample: r.Sample) -> None:
            nonlocal written_at
            written_at = sample.end + PROBE_WRITES_S
            watch.after_sample(sample.sample, sample.begin, sample.end, server.pids)
            if offered and sample.concurrency == 1:
                metrics[1:] = [read_metrics(server.url)]

        def before_stop(_server: Server) -> None:
            time.sleep(max(0.0, written_at - time.monotonic()))
            _refuse(watch.unfit())

        def after_stop(samples: Sequence[r.Sample]) -> None:
            timer = device_timer(metrics[0], metrics[1], cycles_of(samples)) if len(metrics) == 2 else {}
            self._read_probe(plan, probe_dir, samples, timer)
            flags = self.resolved.recipe(plan.launch.recipe).flags
            watch.after_stop(plan.spec.log, _regular_files(plan.spec.cwd / NCCL_FOLDER), ranks_of(flags), flags)

        return LaunchHooks(
            over_again=over_again,
            ready=lambda server: watch.ready(server.pids),
            before_sample=before_sample,
            after_sample=after_sample,
            before_stop=before_stop,
            after_stop=after_stop,
        )

    # ------------------------------------------------------------------------------------------ what it said

    def _read_probe(
        self, plan: LaunchPlan, probe_dir: Path, samples: Sequence[r.Sample], timer: Mapping[str, float]
    ) -> None:
        """Phases and proofs, before the launch's end is written."""
        reading = read_probe(probe_dir, launch=plan.launch.launch_id)
        concurrency = {sample.sample: sample.concurrency for sample in samples}
        phases = phases_of(
            reading,
            [(sample.sample, sample.begin, sample.end) for sample in samples],
            client_cycle_ms={s.sample: s.cycle_ms for s in samples if s.concurrency == 1 and s.cycle_ms},
            device_timer_ms=timer,
            expected_ranks=ranks_of(self.resolved.recipe(plan.launch.recipe).flags),
        )
        for fact in phases.facts(plan.launch, concurrency):
            self.journal.append(fact)
        for proof in proofs_of(reading, plan.launch, plan.spec.environment):
            self.journal.append(proof)


@contextmanager
def _preparing(launch: str) -> Iterator[None]:
    """Whatever the last server did to its HOME, a gate that cannot go on has a result and says why."""
    try:
        yield
    except (OSError, RecursionError) as error:
        remedy = "remove the side's folder in homes/ of the state directory"
        raise PerfgateError(f"its folders cannot be prepared: {error}", where=launch, remedy=remedy) from error


def _regular_files(folder: Path) -> list[Path]:
    """Files there; PR code could write the folder, so no link is followed, and one that is locked holds none."""
    try:
        if folder.is_symlink() or not folder.is_dir():
            return []
        found = (path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
        return sorted(islice(found, MAX_NCCL_FILES))
    except OSError:
        return []


def _refuse(sentences: Sequence[str]) -> None:
    """The box disturbed this launch: it is repeated."""
    if sentences:
        raise BoxDisturbed("box_disturbed", sentences[0])


class BoxDisturbed(LaunchError):
    """Something on the box makes a launch say nothing about its commit."""

    blame = r.Blame.BOX


def ranks_of(flags: Mapping[str, FlagValue]) -> int:
    """Ranks that a server of these flags has."""
    size = flags.get("tp-size", flags.get("tp", 1))
    return int(size) if isinstance(size, int | str) and str(size).isdecimal() else 1
