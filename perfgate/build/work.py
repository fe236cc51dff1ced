"""What is built on the box for two commits, decided once for both sides, and from which of their files.

SGLang from 0.5.21 serves with a Rust TreeCore, which its wheels bring and a checkout does not: there it calls cargo at
start where `cargo --version` works, dies where that is too old, and uses Python code that no wheel serves where there
is none. Nothing of that may be left to a server's PATH: the module is built here where the tools for it are there; else
both sides are told to use the Python TreeCore, and the result says so.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from perfgate.config.model import BuildRules
from perfgate.errors import PerfgateError
from perfgate.records import Commit
from perfgate.source.diff import DiffClass
from perfgate.source.pins import PYPROJECT, read_pins
from perfgate.source.repository import Repository
from perfgate.source.rust import WORKSPACE_MANIFEST
from perfgate.source.table import KERNEL_HEADERS, KERNEL_PROJECTS, TREE_CORE_CRATES

RUST_TOOLS = ("cargo", "cc")
_KERNEL_PACKAGES = ("sgl-kernel", "sglang-kernel")
_KERNEL_MODULE = "python/sgl_kernel"
_VERSION = re.compile(rb"""^__version__\s*=\s*["']([^"']{1,60})["']""", re.MULTILINE)
_EDITION_NEEDS: Mapping[str, tuple[int, ...]] = {"2021": (1, 56), "2024": (1, 85)}
_NUMBERS = re.compile(r"(\d{1,4})\.(\d{1,4})")


@dataclass(frozen=True)
class LocalWork:
    """What is built or laid over here, on both sides alike."""

    kernel: bool = False
    kernel_python: bool = False  # the kernel package's Python files over the wheel that is installed
    rust: bool = False  # the TreeCore
    python_core: str = ""  # why servers are told to use the Python TreeCore instead; empty: they are not

    @property
    def any(self) -> bool:
        return self.kernel or self.rust

    @property
    def variables(self) -> Mapping[str, str]:
        """What servers are given, the same on both sides.

        In a source tree SGLang otherwise ignores extension modules that lie there and calls cargo when it starts.
        """
        if self.rust:
            return {"SGLANG_RUST_BUILD_MODE": "never"}
        return {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"} if self.python_core else {}

    @property
    def note(self) -> str:
        """One sentence for the result; empty where all is as a release would have it."""
        if not self.python_core:
            return ""
        return f"Both sides served with the Python TreeCore, not with SGLang's default in Rust: {self.python_core}."


def work_for(
    repository: Repository, commits: Iterable[Commit], diff: DiffClass, rules: BuildRules, path: str
) -> LocalWork:
    """The work that the diff between two commits asks for. `path`: where tools are looked for."""
    both = tuple(commits)
    touched = diff.kernel or (diff.kernel_python and not all(_kernel_as_pinned(repository, one) for one in both))
    kernel = rules.kernel == "local" or (rules.kernel == "auto" and touched)
    with_core = [commit for commit in both if tree_core_crate(repository, commit.sha)]
    lacking = _why_no_tree_core(repository, with_core, rules, path) if with_core else ""
    asked = bool(with_core) and rules.rust == "auto" and (diff.rust or not lacking)  # what it changes must be built
    return LocalWork(
        kernel=kernel,
        kernel_python=diff.kernel_python and not kernel and rules.kernel == "auto",
        rust=asked,
        python_core="" if asked else lacking,
    )


def work_of_fixed(repository: Repository, commits: Iterable[Commit]) -> LocalWork:
    """For an environment that no commit changes, as the cpu profile's: nothing is built."""
    core = any(tree_core_crate(repository, commit.sha) for commit in commits)
    return LocalWork(python_core="its environment is fixed, nothing is built in it" if core else "")


def _kernel_as_pinned(repository: Repository, commit: Commit) -> bool:
    """Whether the kernel package in the tree has the version that the tree asks to be installed."""
    project = kernel_project_of(repository, commit.sha)
    content = repository.read_file(commit.sha, f"{project}/{_KERNEL_MODULE}/version.py") if project else None
    pyproject = repository.read_file(commit.sha, PYPROJECT)
    found = _VERSION.search(content) if content else None
    if not found or pyproject is None:
        return False
    try:
        pins = [Requirement(text) for text in read_pins(pyproject).requirements]
    except PerfgateError:
        return False
    wanted = {str(pin.specifier) for pin in pins if canonicalize_name(pin.name) in _KERNEL_PACKAGES}
    return wanted == {f"=={found[1].decode('utf-8', 'replace')}"}


def kernel_project_of(repository: Repository, sha: str) -> str | None:
    """Where a commit keeps its kernel package."""
    there = (one for one in KERNEL_PROJECTS if repository.object_at(sha, f"{one}/pyproject.toml"))
    return next(there, None)


def kernel_python_folder(repository: Repository, sha: str) -> str | None:
    project = kernel_project_of(repository, sha)
    folder = f"{project}/{_KERNEL_MODULE}"
    return folder if project and repository.object_at(sha, folder) else None


def kernel_sources() -> tuple[str, ...]:
    """All that the build of a kernel package reads."""
    return (*KERNEL_PROJECTS, *KERNEL_HEADERS)


# ------------------------------------------------------------------------------------------------ the TreeCore


def tree_core_crate(repository: Repository, sha: str) -> str | None:
    there = (crate for crate in TREE_CORE_CRATES if repository.object_at(sha, f"{crate}/Cargo.toml"))
    return next(there, None)


def tree_core_module(repository: Repository, sha: str) -> str | None:
    """The module that the crate becomes, by its manifest."""
    crate = tree_core_crate(repository, sha)
    manifest = _toml(repository.read_file(sha, f"{crate}/Cargo.toml")) if crate else {}
    module = _table(manifest, "package", "metadata", "sglang").get("python-module")
    return module if isinstance(module, str) and re.fullmatch(r"[A-Za-z_][\w.]{0,200}", module) else None


def rust_sources(repository: Repository, sha: str) -> tuple[str, ...]:
    """All that the build of the extension module may read, and nothing else is copied for it: paths of a commit.

    The whole Rust workspace, what setuptools reads, and what crates say that they read besides (`source-inputs`).
    """
    beside = [f"python/{name}" for name in repository.names_in(sha, "python") if name != "sglang"]
    inputs: set[str] = set()
    for crate in repository.names_in(sha, "rust"):
        manifest = _toml(repository.read_file(sha, f"rust/{crate}/Cargo.toml"))
        listed = _table(manifest, "package", "metadata", "sglang").get("source-inputs")
        for given in listed if isinstance(listed, list) else ():
            path = posixpath.normpath(f"rust/{crate}/{given}")
            if isinstance(given, str) and not path.startswith(("/", "..", "rust/")):
                inputs.add(path)
    fixed = ("rust", "python/sglang/srt/rust_extensions", "README.md", "LICENSE")
    return tuple(path for path in (*fixed, *sorted(beside), *sorted(inputs)) if repository.object_at(sha, path))


def _why_no_tree_core(repository: Repository, commits: Iterable[Commit], rules: BuildRules, path: str) -> str:
    """In words, why the module cannot be built here; empty where it can."""
    if rules.rust == "none":
        return "build.rust is none"
    missing = [tool for tool in RUST_TOOLS if shutil.which(tool, path=path) is None]
    if missing:
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
    needed = max(_rust_needed(repository, commit.sha) for commit in commits)
    found, said = _cargo_version(path)
    if found is None:
        return f"cargo does not work ({said})"
    if found < needed:
        return f"cargo is {_dotted(found)}, and {_dotted(needed)} is needed"
    return ""


def _rust_needed(repository: Repository, sha: str) -> tuple[int, ...]:
    """The oldest Rust that a commit's crate can be built with, as far as its manifests say."""
    crate = tree_core_crate(repository, sha)
    packages = [
        _table(_toml(repository.read_file(sha, f"{crate}/Cargo.toml")), "package"),
        _table(_toml(repository.read_file(sha, WORKSPACE_MANIFEST)), "workspace", "package"),
    ]
    found = [(1, 56)]
    for package in packages:
        match = _NUMBERS.search(str(package.get("rust-version", "")))
        found += [(int(match[1]), int(match[2]))] if match else []
        edition = _EDITION_NEEDS.get(str(package.get("edition")))
        found += [(edition[0], edition[1])] if edition else []
    return max(found)


def _cargo_version(path: str) -> tuple[tuple[int, ...] | None, str]:
    """Of the cargo on a path, or what it says instead: rustup's stand-in says that no toolchain is the default."""
    try:
        done = subprocess.run(
            [str(shutil.which("cargo", path=path)), "--version"],
            env={"PATH": path, "HOME": str(Path.home())},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    match = _NUMBERS.search(done.stdout)
    if done.returncode or not match:
        return None, next(iter((done.stderr or done.stdout).strip().splitlines()), f"exit code {done.returncode}")
    return (int(match[1]), int(match[2])), ""


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _toml(content: bytes | None) -> Mapping[str, Any]:
    try:
        return tomllib.loads(content.decode()) if content else {}
    except (ValueError, RecursionError):
        return {}


def _table(document: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    found: Any = document
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
