"""Kernels and Rust extensions built on the box: what is needed, and with which commands.

If either side needs one, both sides' are built here with the same toolchain and flags: a wheel from the index against
a local build would compare compilers. Sources are copied, the build is confined, and neither side can write what the
other reads. No compiler cache is shared: what one build leaves in it would decide what another is made of.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from packaging.requirements import InvalidRequirement, Requirement

from perfgate.build.failures import BuildFault, box_failure
from perfgate.build.work import RUST_TOOLS, LocalWork
from perfgate.config.model import BuildRules
from perfgate.errors import PerfgateError
from perfgate.records.files import short_hash
from perfgate.source.table import KERNEL_PROJECTS
from perfgate.store.strangers import is_regular, take_file, walk

PYTHON_PROJECT = "python"

GB_A_JOB = 4.0
"""Of memory for one compiler of attention kernels; the published builds are known to be killed below that."""

KERNEL_TOOLS = ("nvcc", "c++", "git")
KERNEL_WHEELS = ("cmake>=3.26", "ninja")
"""Tools that come as wheels, since those of a distribution are often too old (Ubuntu 22.04: CMake 3.22)."""


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """Found tools, and how many of them may run at a time."""

    tools: Mapping[str, Path]
    jobs: int
    arch: str | None  # e.g. "12.0a"


def find_toolchain(work: LocalWork, path: str, rules: BuildRules, arch: str | None) -> Toolchain | BuildFault:
    """The tools for local builds, or what is missing."""
    wanted = (*(KERNEL_TOOLS if work.kernel else ()), *(RUST_TOOLS if work.rust else ()))
    found = {tool: Path(where) for tool in wanted if (where := shutil.which(tool, path=path))}
    missing = [tool for tool in wanted if tool not in found]
    if missing:
        what = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        remedy = "install it, or name its folder under tools in the box's file"
        return box_failure(f"{what}, needed to build {_what(work)}", remedy)
    if work.kernel and arch is None:
        remedy = 'set build.cuda_arch in perfgate.yml, e.g. "12.0a" for RTX PRO 6000'
        return box_failure("the architecture of this box's GPUs is not known", remedy)
    memory = psutil.virtual_memory().available / 2**30
    jobs = rules.jobs or max(1, min(psutil.cpu_count() or 1, int(memory / GB_A_JOB)))
    if work.kernel and memory < GB_A_JOB * jobs:
        what = f"{memory:.0f} GiB of memory free, {GB_A_JOB * jobs:.0f} GiB needed to build kernels in {jobs} jobs"
        return box_failure(what, "free memory, or lower build.jobs")
    return Toolchain(tools=found, jobs=jobs, arch=arch)


def _what(work: LocalWork) -> str:
    return " and ".join(name for name, wanted in (("kernels", work.kernel), ("Rust extensions", work.rust)) if wanted)


def kernel_project(tree: Path) -> str | None:
    """Where a tree keeps its kernel package."""
    there = (project for project in KERNEL_PROJECTS if read_inside(tree, f"{project}/pyproject.toml") is not None)
    return next(there, None)


def read_inside(tree: Path, name: str) -> bytes | None:
    """A file of a stranger's tree; None where it is missing or a link leads out of the tree, or to itself."""
    try:
        path = (tree / name).resolve()
    except (OSError, RuntimeError):  # a loop of links: RuntimeError up to Python 3.12
        return None
    if not path.is_relative_to(tree.resolve()) or not path.is_file():
        return None
    return path.read_bytes()


def build_requirements(pyproject: bytes, where: str) -> tuple[str, ...]:
    """What a project needs to be built: names and versions from an index only."""
    try:
        listed = tomllib.loads(pyproject.decode()).get("build-system", {}).get("requires", [])
        found = [Requirement(text) for text in listed]
    except (ValueError, TypeError, AttributeError, RecursionError, InvalidRequirement) as error:
        raise PerfgateError("its [build-system] cannot be read", where=where) from error
    if any(requirement.url for requirement in found):
        raise PerfgateError("its build requirements may only be had from an index", where=where)
    return tuple(str(requirement) for requirement in found)


def copy_source(tree: Path, into: Path, only: Sequence[str] = ()) -> None:
    """A tree's files to build in: writable, links kept as links. `only`: the paths that are copied; none: all.

    Compiled modules that lie in the tree are left out: what is taken afterwards has been built here.
    """
    leave = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
    for path in only or ("",):
        source, target = tree / path, into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, target, symlinks=True, ignore=leave)
        else:
            shutil.copy2(source, target, follow_symlinks=False)
    for found, about in walk(into):
        if not stat.S_ISLNK(about.st_mode):
            Path(os.fsdecode(found)).chmod(stat.S_IMODE(about.st_mode) | stat.S_IWUSR)


def kernel_settings(toolchain: Toolchain) -> tuple[str, ...]:
    """CMake definitions, for versions built by scikit-build-core; others ignore them.

    What no GPU of this box runs is left out: FlashAttention 3 but for sm_8x and sm_9x, code below sm_90 from there on.
    """
    number = re.match(r"\d+", (toolchain.arch or "").replace(".", ""))
    architecture = int(number[0]) if number else 0
    return (
        "cmake.define.SGL_KERNEL_COMPILE_THREADS=1",
        f"cmake.define.CMAKE_CUDA_ARCHITECTURES={(toolchain.arch or '').replace('.', '')}",
        f"cmake.define.SGL_KERNEL_ENABLE_FA3={'ON' if architecture // 10 in (8, 9) else 'OFF'}",
        f"cmake.define.ENABLE_BELOW_SM90={'ON' if architecture < 90 else 'OFF'}",
    )


def kernel_variables(toolchain: Toolchain, shim: Path) -> dict[str, str]:
    return {
        "CUDACXX": str(shim),
        "PERFGATE_NVCC": str(toolchain.tools["nvcc"]),
        "PERFGATE_CUDA_ARCH": toolchain.arch or "",
        "TORCH_CUDA_ARCH_LIST": toolchain.arch or "",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(toolchain.jobs),
        "MAX_JOBS": str(toolchain.jobs),
        "NVCC_THREADS": "1",
    }


def rust_variables(toolchain: Toolchain, place: Path, tree: str, module: str) -> dict[str, str]:
    return {
        "SGLANG_BUILD_RUST_EXTS": module.lower(),  # the project compares so
        "CARGO_HOME": str(place / "cargo"),
        "CARGO_TARGET_DIR": str(place / "target"),
        "CARGO_BUILD_JOBS": str(toolchain.jobs),
        "SETUPTOOLS_SCM_PRETEND_VERSION": f"0.0.0+tree.{tree[:12]}",
    }


def write_shim(folder: Path, python: Path) -> Path:
    """The stand-in before nvcc, run by the build environment's own Python."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("nvcc_shim.py").read_text(encoding="utf-8")
    shim = folder / "nvcc"
    shim.write_text(f"#!{python} -IS\n{source}", encoding="utf-8")
    shim.chmod(0o755)
    return shim


def take_compiled(installed: Path, module: str, into: Path) -> tuple[str, ...]:
    """Takes one extension module from where its wheel was installed into a new folder; its files' names there."""
    into.mkdir()
    *folders, name = module.split(".")
    folder = Path(*folders)
    (into / folder).mkdir(parents=True)
    found = sorted(path for path in (installed / folder).glob(f"{name}.*so") if is_regular(path))
    for path in found:
        take_file(path, into / folder / path.name)
    return tuple(str(folder / path.name) for path in found)


def tool_versions(toolchain: Toolchain | None) -> tuple[str, ...]:
    """Tools with a hash of what each says about itself, for the key: another compiler, another environment."""
    if toolchain is None:
        return ()
    return tuple(f"{name} {short_hash(_version(tool))}" for name, tool in sorted(toolchain.tools.items()))


def _version(tool: Path) -> str:
    done = subprocess.run(
        [tool, "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
    )
    return done.stdout
