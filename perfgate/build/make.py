"""The making of one environment, step by step. See `environment` for the order and its reasons."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from perfgate.build.failures import Refused, side_failure
from perfgate.build.keys import Inputs
from perfgate.build.local import (
    PYTHON_PROJECT,
    LocalWork,
    Toolchain,
    build_requirements,
    ccache_variables,
    compiled_parts,
    copy_source,
    kernel_project,
    kernel_settings,
    kernel_variables,
    only_wheel,
    read_inside,
    rust_variables,
    write_shim,
)
from perfgate.build.origin import Answer, ask, read_answer
from perfgate.build.overlay import bytecode
from perfgate.build.steps import Runner, Step, StepFailed
from perfgate.build.uv import Uv, environment, laid_over, local_folders
from perfgate.errors import PerfgateError
from perfgate.facts import short_hash, write_whole
from perfgate.host.sandbox import interpreter_folders
from perfgate.records import Side

RUST_FOLDER = "rust"
"""Below an environment: compiled extension modules, to be laid into the tree."""

_NEEDS_SOURCES = "building from source is disabled"


@dataclass(frozen=True, kw_only=True)
class Making:
    """All that the making of one environment needs. `tree()` gives the commit's files, for local builds."""

    place: Path
    scratch: Path
    runner: Runner
    side: Side
    inputs: Inputs
    resolution: Path  # kept beyond the environment's life
    like: Path | None  # resolution of base
    links: tuple[str, ...]  # folders and addresses with wheels
    cache: Path  # of uv, for steps that run none of the packages' code
    ccache: Path
    tool_path: Sequence[str]
    given: Mapping[str, str]
    work: LocalWork
    toolchain: Toolchain | None
    tree: Callable[[], Path]

    @property
    def venv(self) -> Path:
        return self.place / "venv"

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    def make(self) -> Mapping[str, Any]:
        """Makes the environment at its place; what there is to know about it."""
        for folder in (self.place, *(self.scratch / name for name in ("home", "tmp", "wheels"))):
            folder.mkdir(parents=True, exist_ok=True)
        uv = Uv(venv=self.venv, links=self.links)
        self._trusted("make a virtual environment", uv.make_venv(self.inputs.python))
        self._check_python()
        uv = self._resolve(uv)
        kernel = [str(self._local_wheel(*self._kernel()))] if self.work.kernel else []
        if self.work.rust:
            self._rust()
        nccl = [self.inputs.nccl] if self.inputs.nccl else []
        chosen = laid_over(self._chosen.read_text(), [*kernel, *nccl], dropped=["sglang"])
        self._install(uv, chosen)
        bytecode(self.runner, self.python, self.venv / "lib", self.venv / "lib")
        answer = self._ask()
        write_whole(self.resolution, self._chosen.read_text())
        shutil.rmtree(self.scratch, ignore_errors=True)
        return {
            "python": answer.python,
            "prefix": str(answer.prefix),
            "versions": {**answer.versions, "python": answer.python, "resolution": short_hash(chosen)},
        }

    # --------------------------------------------------------------------------------------------- steps

    def _trusted(self, what: str, argv: Sequence[str]) -> str:
        variables = environment(self.scratch, self.cache, self.tool_path, self.given)
        variables["UV_PYTHON_INSTALL_DIR"] = str(self.place / "python")
        return self.runner.run(Step(what=what, argv=argv, environment=variables, cwd=self.scratch))

    def _confined(self, what: str, argv: Sequence[str], more: Mapping[str, str] | None = None) -> str:
        """A step that may run PR code: it sees its tools and writes into this environment only."""
        variables = environment(self.scratch, self.scratch / "cache", self.tool_path, self.given)
        readable = (
            *(Path(argv[0]).parent, *interpreter_folders(self.python)),
            *(*map(Path, self.tool_path), *local_folders(self.links)),
        )
        return self.runner.run(
            Step(
                what=what,
                argv=argv,
                environment={**variables, **(more or {})},
                cwd=self.scratch,
                theirs=True,
                readable=readable,
                writable=(self.place, self.scratch),
            )
        )

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
        return self.scratch / "resolution.txt"

    def _resolve(self, uv: Uv) -> Uv:
        """Writes the chosen versions; the uv that can install them."""
        wanted = self.scratch / "wanted.in"
        wanted.write_text("".join(f"{line}\n" for line in (*self.inputs.requirements, *self.inputs.extra)))
        for known in (self.resolution, self.like):
            if known is not None and known.is_file():
                shutil.copyfile(known, self._chosen)
                break
        try:
            self._trusted("choose versions", uv.resolve(wanted, self._chosen))
        except StepFailed as failed:
            if _NEEDS_SOURCES not in failed.output:
                raise
            uv = dataclasses.replace(uv, sources=True)
            self._confined("choose versions, some from source", uv.resolve(wanted, self._chosen))
        return uv

    def _install(self, uv: Uv, chosen: str) -> None:
        listed = self.scratch / "install.txt"
        listed.write_text(chosen)
        if not chosen:
            return
        run = self._confined if uv.sources else self._trusted
        run("install", uv.install(listed))

    def _ask(self) -> Answer:
        cwd = self.scratch / "tmp"
        return read_answer(self.runner.run(ask(self.python, (), cwd, interpreter_folders(self.python))))

    # ------------------------------------------------------------------------------------- local builds

    def _kernel(self) -> tuple[str, Sequence[str], Mapping[str, str]]:
        """Where the kernel project is, its settings and its variables."""
        assert self.toolchain is not None
        project = kernel_project(self.tree())
        if project is None:
            raise Refused(side_failure("its kernel package has no pyproject.toml"))
        private = self.scratch / "ccache"
        shim = write_shim(self.scratch / "bin", self.scratch / "tools" / "bin" / "python")
        ccache = ccache_variables(self.side, private, self.ccache) if self.toolchain.ccache else {}
        return project, kernel_settings(self.toolchain), kernel_variables(self.toolchain, shim, ccache)

    def _rust(self) -> None:
        assert self.toolchain is not None
        variables = rust_variables(self.toolchain, self.scratch, self.tree().name)
        wheel = self._local_wheel(PYTHON_PROJECT, (), variables)
        compiled_parts(wheel, self.place / RUST_FOLDER)

    def _local_wheel(self, project: str, settings: Sequence[str], variables: Mapping[str, str]) -> Path:
        """Builds a project of the tree with its build requirements in the versions of the resolution."""
        pyproject = read_inside(self.tree(), f"{project}/pyproject.toml")
        if pyproject is None:
            raise Refused(side_failure(f"{project} has no pyproject.toml"))
        try:
            requirements = build_requirements(pyproject, project)
        except PerfgateError as error:
            raise Refused(side_failure(str(error))) from error
        tools = Uv(venv=self.scratch / "tools", links=self.links)
        if not tools.venv.exists():
            self._trusted("make an environment to build in", tools.make_venv(self.inputs.python))
        wanted = self.scratch / "tools.in"
        wanted.write_text("".join(f"{line}\n" for line in requirements))
        if requirements:
            self._trusted(f"install what {project} needs to build", tools.install_tools(wanted, self._chosen))
        source, out = self.scratch / "source", self.scratch / "wheels" / project
        if not source.exists():
            copy_source(self.tree(), source)
        path = os.pathsep.join([str(tools.venv / "bin"), *self.tool_path, "/usr/local/bin", "/usr/bin", "/bin"])
        self._confined(
            f"build {project}", tools.build_wheel(source / project, out, settings), {**variables, "PATH": path}
        )
        try:
            return only_wheel(out)
        except PerfgateError as error:
            raise Refused(side_failure(f"{project}: {error.what}")) from error


def _version_of(venv: Path) -> str | None:
    lines = (venv / "pyvenv.cfg").read_text().splitlines()
    found = dict(line.split(" = ", 1) for line in lines if " = " in line)
    return found.get("version_info") or found.get("version")
