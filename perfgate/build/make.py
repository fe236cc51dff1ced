"""The making of one environment, step by step. See `environment` for the order and its reasons.

Two kinds of steps, and a line between them: what perfgate itself runs works in `ours`, on the environment and on the
tools' environments; what may run PR code writes into a workplace of its own and nowhere else (see `workplace`).
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import parse_wheel_filename

from perfgate.build.failures import Refused, box_failure, side_failure
from perfgate.build.keys import Inputs
from perfgate.build.local import (
    KERNEL_WHEELS,
    PYTHON_PROJECT,
    Toolchain,
    build_requirements,
    copy_source,
    kernel_project,
    kernel_settings,
    kernel_variables,
    read_inside,
    rust_variables,
    take_compiled,
    write_shim,
)
from perfgate.build.origin import OriginAnswer, ask, read_answer
from perfgate.build.overlay import bytecode
from perfgate.build.steps import BuildStep, Runner, StepFailed
from perfgate.build.uv import (
    Uv,
    check_chosen,
    environment,
    laid_over,
    local_folders,
    requirement_lines,
    says_same_version,
    split_off,
    with_address,
    with_versions,
    without_wheels,
)
from perfgate.build.work import LocalWork
from perfgate.build.workplace import Workplace, wheel_left
from perfgate.errors import PerfgateError
from perfgate.host.sandbox import interpreter_folders
from perfgate.records.files import short_hash, write_whole
from perfgate.store.removal import remove_tree
from perfgate.store.strangers import take_text, take_tree

RUST_FOLDER = "rust"
"""Below an environment: compiled extension modules, to be laid into the tree."""

_UVS_LOCK = ".lock"
"""What uv holds on to while it works on an environment, and makes in a `--prefix`, too."""

_NEEDS_SOURCES = "building from source is disabled"


@dataclass(frozen=True)
class _Installed:
    """A package of the tree, built and installed by a confined step."""

    package: str
    files: Path


@dataclass(frozen=True, kw_only=True)
class Making:
    """All that the making of one environment needs. `tree()` gives the commit's files, for local builds."""

    place: Path
    scratch: Path
    runner: Runner
    inputs: Inputs
    resolution: Path  # kept beyond the environment's life
    like: Path | None  # resolution of base
    links: tuple[str, ...]  # folders and addresses with wheels
    cache: Path  # of uv, for steps that run none of the packages' code
    tool_path: Sequence[str]
    given: Mapping[str, str]
    work: LocalWork
    core: str | None  # the module that the tree's TreeCore becomes; None: the tree has none
    rust_paths: tuple[str, ...]  # all that its build may read
    kernel_python: str | None  # folder of the tree whose Python files are laid over the kernel wheel's
    toolchain: Toolchain | None
    tree: Callable[[], Path]

    @property
    def venv(self) -> Path:
        return self.place / "venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def _ours(self) -> Path:
        """Perfgate's own files: confined steps may read them."""
        return self.scratch / "ours"

    def make(self) -> Mapping[str, Any]:
        """Makes the environment at its place; what there is to know about it."""
        for folder in (self.place, *(self._ours / name for name in ("home", "tmp"))):
            folder.mkdir(parents=True, exist_ok=True)
        uv = Uv(venv=self.venv, links=self.links)
        self._make_venv(uv, "make a virtual environment")
        self._check_python()
        self._resolve(uv)
        kernel = self._kernel(uv) if self.work.kernel else None
        if self.work.rust and self.core:
            self._rust(self.core)
        nccl = [self.inputs.nccl] if self.inputs.nccl else []
        dropped = ["sglang", *([kernel.package] if kernel else [])]
        chosen = laid_over(self._chosen.read_text(), nccl, dropped=dropped)
        self._install(uv, chosen)
        if kernel:
            take_tree(kernel.files, self.venv, without=(_UVS_LOCK,))
        if self.kernel_python:
            self._lay_kernel_python(self.kernel_python)
        bytecode(self.runner, self.python, self.venv / "lib", self.venv / "lib")
        answer = self._ask()
        write_whole(self.resolution, self._chosen.read_text())
        remove_tree(self.scratch)
        return {
            "python": answer.python,
            "prefix": str(answer.prefix),
            "versions": {**answer.versions, "python": answer.python, "resolution": short_hash(chosen)},
        }

    # --------------------------------------------------------------------------------------------- steps

    def _trusted(
        self,
        what: str,
        argv: Sequence[str],
        more: Mapping[str, str] | None = None,
        *,
        handles_theirs: bool = False,
    ) -> str:
        variables = {**environment(self._ours, self.cache, self.tool_path, self.given), **(more or {})}
        variables["UV_PYTHON_INSTALL_DIR"] = str(self._pythons)
        step = BuildStep(what=what, argv=argv, environment=variables, cwd=self._ours, handles_theirs=handles_theirs)
        return self.runner.run(step)

    def _workplace(self, name: str) -> Workplace:
        return Workplace.new(self.scratch / "workplaces" / name)

    @cached_property
    def _sources_place(self) -> Workplace:
        """Where packages without a wheel are built: to choose versions, then to install them."""
        return self._workplace("sources")

    def _confined(
        self,
        what: str,
        argv: Sequence[str],
        place: Workplace,
        variables: Mapping[str, str] | None = None,
        readable: Sequence[Path] = (),
    ) -> str:
        """A step that may run PR code: it sees its tools and writes into its workplace only."""
        tools = (Path(argv[0]).parent, *map(Path, self.tool_path), *local_folders(self.links))
        return self.runner.run(
            BuildStep(
                what=what,
                argv=argv,
                environment={
                    **environment(place.path, place.cache, self.tool_path, self.given, linked=True),
                    **(variables or {}),
                },
                cwd=place.path,
                theirs=True,
                readable=(self._ours, *interpreter_folders(self.python), *tools, *readable),
                writable=(place.path,),
            )
        )

    def _make_venv(self, uv: Uv, what: str) -> None:
        """With a Python of uv's, which brings the headers that compilers at run time need; else with the box's own.

        What something is built with has the environment's Python, so only for that is it tried.
        """
        argv = uv.make_venv(self.inputs.python)
        managed = {"UV_PYTHON_PREFERENCE": "only-managed"}
        if uv.venv != self.venv:
            self._trusted(what, argv, managed if self._pythons.is_dir() else {})
            return
        try:
            self._trusted(what, argv, managed)
        except StepFailed:  # no network, or downloads are forbidden
            remove_tree(uv.venv)
            remove_tree(self._pythons)
            self._trusted(what, argv)

    @property
    def _pythons(self) -> Path:
        """Where uv puts the Python that it brings."""
        return self.place / "python"

    def _check_python(self) -> None:
        wanted, found = self.inputs.requires_python, _version_of(self.venv)
        try:
            fits = not wanted or found is None or SpecifierSet(wanted).contains(found)
        except InvalidSpecifier as error:
            raise Refused(side_failure(f"its requires-python makes no sense: {wanted!r}")) from error
        if not fits:
            remedy = "set build.python in perfgate.yml"
            raise Refused(side_failure(f"it asks for Python {wanted}, and environments here have {found}", remedy))

    @property
    def _chosen(self) -> Path:
        return self._ours / "resolution.txt"

    def _resolve(self, uv: Uv) -> None:
        """Writes the chosen versions."""
        for known in (self.resolution, self.like):
            if known is not None and known.is_file():
                shutil.copyfile(known, self._chosen)
                break
        asked = (*self.inputs.requirements, *self.inputs.extra)
        plain = tuple(text for text in asked if not says_same_version(text))
        self._choose(uv, plain)
        if len(plain) < len(asked):
            try:
                asked = tuple(with_versions(text, self._chosen.read_text()) for text in asked)
            except KeyError as missing:
                what = f"build.extra asks for the version of {missing.args[0]}, which is not installed"
                raise Refused(box_failure(what, "mend build.extra in perfgate.yml")) from missing
            self._choose(uv, asked)

    def _choose(self, uv: Uv, asked: tuple[str, ...]) -> None:
        wanted = self._ours / "wanted.in"
        wanted.write_text(requirement_lines(asked))
        if any(map(with_address, asked)):  # to look at one means to fetch it, and a checkout does what its files say
            self._choose_confined(uv, wanted, asked)
            return
        try:
            self._trusted("choose versions", uv.resolve(wanted, self._chosen))
        except StepFailed as failed:
            if _NEEDS_SOURCES not in failed.output:
                raise
            self._choose_confined(uv, wanted, asked)

    def _choose_confined(self, uv: Uv, wanted: Path, asked: tuple[str, ...]) -> None:
        place = self._sources_place.again()
        theirs = place.out / self._chosen.name
        if self._chosen.exists():
            shutil.copyfile(self._chosen, theirs)
        with_sources = dataclasses.replace(uv, sources=True)
        self._confined("choose versions, some from source", with_sources.resolve(wanted, theirs), place)
        chosen = take_text(theirs)
        check_chosen(chosen, asked)
        self._chosen.write_text(chosen)

    def _install(self, uv: Uv, chosen: str) -> None:
        """Fills the environment: what has a wheel by a trusted step, the few that have none by a confined one.

        Afterwards no trusted uv is let near it: it starts the Python, which runs what is in it.
        """
        apart, rest = self._split(uv, chosen)
        if rest:
            listed = self._ours / "install.txt"
            listed.write_text(rest)
            self._trusted("install", uv.install(listed), handles_theirs=True)
        if apart:
            listed = self._ours / "install-from-source.txt"
            listed.write_text(apart)
            place = self._sources_place.again()  # what was built to choose versions is not built once more
            with_sources = dataclasses.replace(uv, sources=True)
            self._confined("install what has no wheel", with_sources.install(listed, prefix=place.out), place)
            take_tree(place.out, self.venv, without=(_UVS_LOCK,))

    def _split(self, uv: Uv, chosen: str) -> tuple[str, str]:
        """What has to be had from somebody's address or to be built, and the rest, which wheels of an index give."""
        names: frozenset[str] = frozenset()
        while True:
            apart, rest = split_off(chosen, names)
            if not self._sources_used or not rest:
                return apart, rest
            listed = self._ours / "wheels.in"
            listed.write_text(rest)
            try:
                self._trusted("see what has wheels", uv.check_wheels(listed, self._ours / "wheels.txt"))
            except StepFailed as failed:
                found = without_wheels(failed.output) - names
                if not found:  # uv says it in words that are not known: then all is built where it may be
                    return chosen, ""
                names |= found
                continue
            return apart, rest

    @property
    def _sources_used(self) -> bool:
        """Whether versions were chosen with packages that have to be built."""
        return "_sources_place" in vars(self)

    def _ask(self) -> OriginAnswer:
        step = ask(self.python, (), self._workplace("ask").path, interpreter_folders(self.python))
        return read_answer(self.runner.run(step))

    # ------------------------------------------------------------------------------------- local builds

    def _kernel(self, uv: Uv) -> _Installed:
        """The tree's kernel project, built and installed beside the environment, whose layout it has."""
        assert self.toolchain is not None
        project = kernel_project(self.tree())
        if project is None:
            raise Refused(side_failure("its kernel package has no pyproject.toml"))
        place, tools = self._workplace("kernel"), self._tools("kernel")
        shim = write_shim(self._ours / "bin", tools.python)
        variables = kernel_variables(self.toolchain, shim)
        settings = kernel_settings(self.toolchain)
        wheel = self._local_wheel(project, place, tools, settings, variables, brought=KERNEL_WHEELS)
        where = ("--prefix", str(place.installed))
        self._confined(f"install what {project} became", uv.install_wheel(wheel, *where), place)
        return _Installed(parse_wheel_filename(wheel.name)[0], place.installed)

    def _lay_kernel_python(self, folder: str) -> None:
        """The tree's Python files over those of the kernel wheel that was installed."""
        for installed in self.venv.glob("lib/python3*/site-packages/sgl_kernel"):
            take_tree(self.tree() / folder, installed, replacing=True)

    def _rust(self, module: str) -> None:
        assert self.toolchain is not None
        place, tools = self._workplace("rust"), self._tools("rust")
        variables = rust_variables(self.toolchain, place.path, self.tree().name, module)
        wheel = self._local_wheel(PYTHON_PROJECT, place, tools, (), variables, only=self.rust_paths)
        argv = tools.install_wheel(wheel, "--target", str(place.installed))
        self._confined("unpack the extension modules", argv, place, readable=interpreter_folders(tools.python))
        if not take_compiled(place.installed, module, self.place / RUST_FOLDER):
            raise Refused(side_failure(f"its Rust crate did not become {module}"))

    def _tools(self, name: str) -> Uv:
        """What a project is built with. Each has its own: where strangers' packages lie, uv starts no Python again."""
        return Uv(venv=self.scratch / f"{name}-tools", links=self.links)

    def _local_wheel(
        self,
        project: str,
        place: Workplace,
        tools: Uv,
        settings: Sequence[str],
        variables: Mapping[str, str],
        only: Sequence[str] = (),
        brought: Sequence[str] = (),
    ) -> Path:
        """Builds a project of the tree with its build requirements in the versions of the resolution.

        `only`: the paths of the tree that it may read; none: all. `brought`: tools that come as wheels.
        """
        wanted = self._ours / f"{place.path.name}-tools.in"
        wanted.write_text(requirement_lines((*self._build_requirements(project), *brought)))
        self._make_venv(tools, "make an environment to build in")
        if wanted.stat().st_size:
            like = self._ours / "constraint.txt"
            like.write_text(split_off(self._chosen.read_text(), ())[1])  # nothing that a trusted step would fetch
            what, argv = f"install what {project} needs to build", tools.install_tools(wanted, like)
            self._trusted(what, argv, handles_theirs=True)
        copy_source(self.tree(), place.source, only)
        path = os.pathsep.join([str(tools.venv / "bin"), *self.tool_path, "/usr/local/bin", "/usr/bin", "/bin"])
        self._confined(
            f"build {project}",
            tools.build_wheel(place.source / project, place.out, settings),
            place,
            {**variables, "PATH": path},
            interpreter_folders(tools.python),
        )
        return wheel_left(place.out)

    def _build_requirements(self, project: str) -> tuple[str, ...]:
        pyproject = read_inside(self.tree(), f"{project}/pyproject.toml")
        if pyproject is None:
            raise Refused(side_failure(f"{project} has no pyproject.toml"))
        try:
            return build_requirements(pyproject, project)
        except PerfgateError as error:
            raise Refused(side_failure(str(error))) from error


def _version_of(venv: Path) -> str | None:
    lines = (venv / "pyvenv.cfg").read_text().splitlines()
    found = dict(line.split(" = ", 1) for line in lines if " = " in line)
    return found.get("version_info") or found.get("version")
