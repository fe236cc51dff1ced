"""Both sides built, and that written down: by uv on the box, or over the cpu profile's fixed environment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfgate import records as r
from perfgate.build import BuiltSide
from perfgate.build.environment import BUILD_ERRORS, Builder, failure_of
from perfgate.build.failures import BuildFailed
from perfgate.build.overlay import Overlay
from perfgate.build.served import fixed_side
from perfgate.build.steps import Runner
from perfgate.build.work import LocalWork
from perfgate.cpu.environment import CpuEnvironment
from perfgate.host.sandbox import Confinement
from perfgate.run.folder import LOGS_FOLDER
from perfgate.run.journal import Journal
from perfgate.source.repository import Repository
from perfgate.store.folders import Store

ORIGIN_S = 600.0  # to compile a tree's bytecode and ask where sglang is imported from

Make = Callable[[r.Side, r.Commit, Path, BuiltSide | None], BuiltSide]
"""side, commit, log, base's build when head is made → the build."""


def build_sides(
    make: Make, commits: Mapping[r.Side, r.Commit], journal: Journal, logs: Path, say: Callable[[str], None]
) -> dict[r.Side, BuiltSide] | None:
    """Base first, then head. None where one cannot be built; which and why is in the facts."""
    built: dict[r.Side, BuiltSide] = {}
    for side in (r.Side.BASE, r.Side.HEAD):
        commit = commits[side]
        say(f"building {side.value} {commit.sha[:12]}")
        log = logs / f"build-{side.value}.log"
        try:
            built[side] = make(side, commit, log, built.get(r.Side.BASE))
        except BuildFailed as failed:
            journal.append(_failed(side, failed))
            return None
        journal.append(_done(built[side]))
        how = "from the cache" if built[side].cached else f"{built[side].seconds:.0f} s"
        say(f"    environment {built[side].key[:12]}, {how}")
    return built


def _done(built: BuiltSide) -> r.Build:
    return r.Build(
        id=f"build/{built.side.value}",
        side=built.side,
        key=built.key,
        ok=True,
        cached=built.cached,
        seconds=round(built.seconds, 3),
        origin=f"{built.tree.name}/python/sglang",
        versions=dict(built.versions),
        log=f"{LOGS_FOLDER}/{built.log.name}" if built.log else None,
    )


def _failed(side: r.Side, failed: BuildFailed) -> r.Build:
    return r.Build(
        id=f"build/{side.value}",
        side=side,
        key=failed.key,
        ok=False,
        log=f"{LOGS_FOLDER}/build-{side.value}.log",
        reason=f"{side.value} does not build: {failed.failure.reason}",
        lines=failed.failure.lines,
        blame=failed.failure.blame,
    )


@dataclass(frozen=True)
class FixedEnvironment:
    """The cpu profile's: the same interpreter for every commit; only the tree differs."""

    repository: Repository
    store: Store
    cpu: CpuEnvironment
    confinement: Confinement
    work: LocalWork

    def make(self, side: r.Side, commit: r.Commit, log: Path, _like: BuiltSide | None) -> BuiltSide:
        try:
            return self._make(side, commit, log)
        except BUILD_ERRORS as error:
            raise BuildFailed(side, failure_of(error), key=self.cpu.key, log=log) from error

    def _make(self, side: r.Side, commit: r.Commit, log: Path) -> BuiltSide:
        runner = Runner(log=log, deadline=time.monotonic() + ORIGIN_S, confinement=self.confinement)
        overlay = Overlay(python=self.cpu.python, version=self.cpu.versions["python"], compiled=None)
        tree = overlay.lay(self.repository, commit, self.store, runner)
        self.store.keep(tree.hold)
        given = self.work.variables
        return fixed_side(side, tree.path, self.cpu.python, key=self.cpu.key, runner=runner, environment=given)


def by_uv(builder: Builder) -> Make:
    return lambda side, commit, log, like: builder.build(side, commit, log=log, like=like)
