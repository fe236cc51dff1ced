"""One side's environment: what its tree asks for, installed once, and the tree laid over it.

The project itself is never installed: `PYTHONPATH=<tree>/python` puts its files before everything, so commits with the
same pins share an environment. In order:

1. versions are chosen (`uv pip compile`). Base's choice is head's starting point: what no pin of the PR changes
   stays as base has it, whatever appeared on the index meanwhile. The choice is kept, an evicted environment returns
   with the same versions.
2. kernels and Rust extensions are built where the diff needs it (`local`), confined.
3. everything is installed by one command from wheels alone, which runs none of their code. Only where a package has
   no wheel, choosing and installing run confined, with a package cache of their own, into a folder of their own; what
   they left there is copied.
4. bytecode is compiled without `site`, so that no `.pth` file runs; then the environment is made read-only and its
   manifest written. It is checked before each use.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from perfgate.build import BuiltSide
from perfgate.build.failures import BuildFailed, BuildFault, Refused, box_failure, explain, side_failure
from perfgate.build.keys import Inputs, key_beside, this_platform, wheel_names
from perfgate.build.local import Toolchain, find_toolchain, tool_versions
from perfgate.build.make import RUST_FOLDER, Making
from perfgate.build.origin import WrongOrigin
from perfgate.build.overlay import Overlay
from perfgate.build.served import verify_origin
from perfgate.build.steps import Runner, StepFailed
from perfgate.build.uv import SYSTEM_PATH, find_links, index_settings, passed
from perfgate.build.work import (
    LocalWork,
    kernel_python_folder,
    kernel_sources,
    rust_sources,
    tree_core_module,
)
from perfgate.config.model import BoxFile, BuildRules
from perfgate.errors import PerfgateError
from perfgate.host.sandbox import UNCONFINED, Confinement, interpreter_folders
from perfgate.records import Commit, Side
from perfgate.source.pins import PYPROJECT, Pins, read_pins
from perfgate.source.repository import Repository, Worktree
from perfgate.source.trees import OddTree
from perfgate.store.entries import Hold, Made, companion, discard, hold, made_once
from perfgate.store.folders import NoSpace, Store
from perfgate.store.strangers import OddFiles

ENVIRONMENT_GB = 15.0
KERNEL_GB = 25.0
"""What a build needs on the disk while it runs, rounded up generously."""

CACHE_SHARE = 0.25
"""Of the size limit, for the package cache."""


@dataclass(frozen=True, kw_only=True)
class Builder:
    """Builds sides of one repository. What it returns stays until the store is closed."""

    repository: Repository
    store: Store
    rules: BuildRules = field(default_factory=BuildRules)
    box: BoxFile = field(default_factory=BoxFile)
    work: LocalWork = field(default_factory=LocalWork)
    confinement: Confinement = UNCONFINED
    gpu_arch: str | None = None  # of this box, where build.cuda_arch does not say
    surroundings: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    room_gb: float | None = None  # to find free before a build; None: an estimate

    def build(self, side: Side, commit: Commit, *, log: Path, like: BuiltSide | None = None) -> BuiltSide:
        """A side ready to be launched; `like`: base's, when head is built. BuildFailed says why not and whose it is."""
        begun = time.monotonic()
        key = ""
        try:
            inputs = self._inputs(commit)
            key = key_beside(inputs, like.key if like else None)
            made = self._environment(key, commit, inputs, like, log)
            tree = self._tree(commit, made, log)
            built = self._built(side, key, made, tree, log)
            verify_origin(built, self._runner(log))
            return dataclasses.replace(built, seconds=time.monotonic() - begun)
        except BuildFailed:
            raise
        except BUILD_ERRORS as error:
            raise BuildFailed(side, failure_of(error), key=key, log=log) from error

    # ------------------------------------------------------------------------------------------- the key

    def _inputs(self, commit: Commit) -> Inputs:
        pins = self._pins(commit)
        for text in (*self.rules.extra, *([self.rules.nccl] if self.rules.nccl else [])):
            _check_requirement(text)
        return Inputs(
            requirements=pins.requirements,
            requires_python=pins.requires_python,
            python=self.rules.python,
            platform=this_platform(),
            extra=tuple(sorted(self.rules.extra)),
            nccl=self.rules.nccl,
            wheels=wheel_names(self._wheels),
            index=index_settings(self._given),
            kernel=self._sources(commit, kernel_sources()) if self.work.kernel else None,
            kernel_python=self._sources(commit, _listed(self._kernel_python(commit))),
            rust=self._sources(commit, self._rust_paths(commit)) if self.work.rust else None,
            arch=self._arch if self.work.kernel else None,
            tools=tool_versions(self._toolchain),
        )

    def _pins(self, commit: Commit) -> Pins:
        content = self.repository.read_file(commit.sha, PYPROJECT)
        if content is None:
            raise Refused(side_failure(f"the commit has no {PYPROJECT}"))
        try:
            return read_pins(content)
        except PerfgateError as error:
            raise Refused(side_failure(str(error))) from error

    def _sources(self, commit: Commit, paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{path} {self.repository.object_at(commit.sha, path)}" for path in paths)

    def _kernel_python(self, commit: Commit) -> str | None:
        return kernel_python_folder(self.repository, commit.sha) if self.work.kernel_python else None

    def _rust_paths(self, commit: Commit) -> tuple[str, ...]:
        """Empty for a tree that has no TreeCore to build."""
        return rust_sources(self.repository, commit.sha) if tree_core_module(self.repository, commit.sha) else ()

    @property
    def _arch(self) -> str | None:
        return self.rules.cuda_arch or self.gpu_arch

    @property
    def _wheels(self) -> tuple[Path, ...]:
        return tuple(map(Path, self.box.wheels))

    @property
    def _given(self) -> Mapping[str, str]:
        return passed({**self.surroundings, **self.box.env})

    @property
    def _tool_path(self) -> tuple[str, ...]:
        return tool_folders(self.box, self._given)

    @cached_property
    def _toolchain(self) -> Toolchain | None:
        if not self.work.any:
            return None
        found = find_toolchain(self.work, search_path(self.box, self._given), self.rules, self._arch)
        if isinstance(found, BuildFault):
            raise Refused(found)
        return found

    # --------------------------------------------------------------------------- the environment, the tree

    def _runner(self, log: Path, lock: int | None = None) -> Runner:
        deadline = time.monotonic() + self.rules.minutes * 60
        return Runner(log=log, deadline=deadline, confinement=self.confinement, lock=lock)

    def _environment(self, key: str, commit: Commit, inputs: Inputs, like: BuiltSide | None, log: Path) -> Made:
        entry = self.store.entry("environments", key)
        resolutions = self.store.folder("resolutions")

        def make(place: Path, held: Hold) -> Mapping[str, Any]:
            self.store.cap("caches", "uv", CACHE_SHARE)
            self.store.evict()
            self.store.make_room(self._room())
            making = Making(
                place=place,
                scratch=companion(entry, "scratch"),
                runner=self._runner(log, held.file),
                inputs=inputs,
                resolution=resolutions / f"{key}.txt",
                like=resolutions / f"{like.key}.txt" if like else None,
                links=find_links(self._wheels, self._given),
                cache=self.store.use("caches", "uv"),
                tool_path=self._tool_path,
                given=self._given,
                work=self.work,
                core=tree_core_module(self.repository, commit.sha) if self.work.rust else None,
                rust_paths=self._rust_paths(commit) if self.work.rust else (),
                kernel_python=self._kernel_python(commit),
                toolchain=self._toolchain,
                tree=lambda: self._plain_tree(commit),
            )
            return making.make()

        made = self._made(entry, make)
        if not (made.path / "venv/bin/python").exists():  # the box's own Python has gone since
            made.hold.release()
            with hold(entry, shared=False):
                discard(entry)
            made = self._made(entry, make)
        self.store.keep(made.hold)
        return made

    def _core(self, made: Made) -> dict[str, str]:
        """Which TreeCore the side is given, where the two sides' trees have a choice."""
        if (made.path / RUST_FOLDER).is_dir():
            return {"TreeCore": "Rust (built here)"}
        return {"TreeCore": "Python"} if self.work.python_core else {}

    def _made(self, entry: Path, make: Any) -> Made:
        return made_once(entry, make, in_place=True, wait_s=self.rules.minutes * 60)

    def _room(self) -> float:
        if self.room_gb is not None:
            return self.room_gb
        return ENVIRONMENT_GB + (KERNEL_GB if self.work.any else 0.0)

    def _plain_tree(self, commit: Commit) -> Path:
        tree = self.repository.worktree(commit, self.store.folder("trees"))
        self.store.keep(tree.hold)
        return tree.path

    def _tree(self, commit: Commit, made: Made, log: Path) -> Worktree:
        """The tree to serve from: its files, what was compiled for it, and their bytecode."""
        compiled = made.path / RUST_FOLDER
        overlay = Overlay(
            python=made.path / "venv/bin/python",
            version=str(made.about["python"]),
            compiled=compiled if compiled.is_dir() else None,
        )
        tree = overlay.lay(self.repository, commit, self.store, self._runner(log))
        self.store.keep(tree.hold)
        return tree

    def _built(self, side: Side, key: str, made: Made, tree: Worktree, log: Path) -> BuiltSide:
        python, versions = made.path / "venv/bin/python", made.about["versions"]
        return BuiltSide(
            side=side,
            key=key,
            python=python,
            tree=tree.path,
            path_entries=(tree.path / "python",),
            environment=self.work.variables,
            versions={
                **{str(name): str(version) for name, version in versions.items()},
                **self._core(made),
            },
            readable=(made.path, *interpreter_folders(python)),
            cached=made.cached and tree.cached,
            log=log if log.exists() else None,
        )


def tool_folders(box: BoxFile, given: Mapping[str, str]) -> tuple[str, ...]:
    """Where tools are looked for before the system's own folders."""
    cuda = Path(given.get("CUDA_HOME", "/usr/local/cuda")) / "bin"
    return tuple(dict.fromkeys([*box.tools.values(), *([str(cuda)] if cuda.is_dir() else [])]))


def search_path(box: BoxFile, given: Mapping[str, str]) -> str:
    return os.pathsep.join([*tool_folders(box, given), SYSTEM_PATH])


def _listed(path: str | None) -> tuple[str, ...]:
    return (path,) if path else ()


def _check_requirement(text: str) -> None:
    try:
        Requirement(re.sub(r"\{[A-Za-z0-9._-]+\}", "0", text))
    except InvalidRequirement as error:
        remedy = "mend build.extra or build.nccl in perfgate.yml"
        raise Refused(box_failure(f"not a requirement: {text!r}", remedy)) from error


BUILD_ERRORS = (StepFailed, Refused, PerfgateError, OSError, RecursionError)
"""All that a build may end with. RecursionError: of walking through folders that somebody nested a thousandfold."""


def failure_of(error: Exception) -> BuildFault:
    """Whose fault it is that a build ended."""
    if isinstance(error, RecursionError):
        return side_failure("its folders are nested too deep")
    if isinstance(error, StepFailed):
        return explain(error)
    if isinstance(error, Refused):
        return error.failure
    if isinstance(error, WrongOrigin | OddTree | OddFiles):
        return side_failure(f"{error.where}: {error.what}" if error.where else error.what, error.remedy)
    if isinstance(error, NoSpace):
        return box_failure(f"the disk is too full to begin: {error.what}", error.remedy)
    if isinstance(error, OSError):
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return box_failure("the disk is full" if full else f"the box refused: {error}", "perfgate doctor")
    return box_failure(str(error))
