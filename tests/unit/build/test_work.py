"""What is built for two commits: read from real git repositories, with stand-ins of cargo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from perfgate.build.work import LocalWork, rust_sources, tree_core_module, work_for
from perfgate.config.model import BuildRules
from perfgate.source.diff import classify
from perfgate.source.repository import Repository
from tests.standin.repository import Behaviour, commit_change, make_history

CRATE = "rust/sglang-radix-tree"
MODULE = "sglang.srt.mem_cache.rust_tree_core.mem_cache"
CORE: Mapping[str, str | None] = {
    "rust/Cargo.toml": "[workspace]\nmembers = ['sglang-radix-tree']\n[workspace.package]\nedition = '2024'\n",
    f"{CRATE}/Cargo.toml": (
        "[package]\nname = 'sglang-radix-tree'\nrust-version = '1.92'\n"
        f"[package.metadata.sglang]\npython-module = '{MODULE}'\nsource-inputs = ['../../python/sglang/srt/wire.h']\n"
    ),
    f"{CRATE}/src/lib.rs": "",
    "python/sglang/srt/wire.h": "",
    "python/setup.py": "",
}


class _World:
    def __init__(self, folder: Path) -> None:
        self.source, self.tools = folder / "sglang", folder / "tools"
        make_history(self.source, [Behaviour()])
        self.repository = Repository(self.source)
        self.base = self.repository.resolve("HEAD")
        self.tools.mkdir()
        self.tool("cc", "")

    def tool(self, name: str, script: str) -> None:
        (self.tools / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.tools / name).chmod(0o755)

    def begin(self, files: Mapping[str, str | None]) -> None:
        commit_change(self.source, files)
        self.base = self.repository.resolve("HEAD")

    def work(self, files: Mapping[str, str | None], **rules: str) -> LocalWork:
        commit_change(self.source, files)
        head = self.repository.resolve("HEAD")
        paths = self.repository.changed_paths(self.base.sha, head.sha)
        both = (self.base, head)
        return work_for(
            self.repository, both, classify(paths), BuildRules.model_validate(rules), f"{self.tools}:/nowhere"
        )


@pytest.fixture
def world(tmp_path: Path) -> _World:
    return _World(tmp_path)


CHANGE: Mapping[str, str | None] = {"python/sglang/srt/x.py": "1"}


def test_a_tree_without_a_tree_core_has_nothing_to_decide(world: _World) -> None:
    assert world.work(CHANGE) == LocalWork()
    assert world.work({"python/setup.py": "# before there was one"}) == LocalWork()


def test_with_a_good_cargo_the_tree_core_is_built_for_both_sides_of_any_change(world: _World) -> None:
    world.begin(CORE)
    world.tool("cargo", "echo cargo 1.93.0")
    work = world.work(CHANGE)
    assert work == LocalWork(rust=True)
    assert work.variables == {"SGLANG_RUST_BUILD_MODE": "never"}
    assert not work.note


@pytest.mark.parametrize(
    ("cargo", "why"),
    [
        (None, "cargo is not installed"),
        ("echo cargo 1.75.0", "cargo is 1.75, and 1.92 is needed"),  # Debian's and Ubuntu's
        ("echo 'error: no override and no default toolchain set' >&2; exit 1", "no default toolchain set"),
        ("exit 1", "exit code 1"),
    ],
)
def test_without_one_both_sides_are_told_to_use_the_python_core_and_the_result_says_so(
    world: _World, cargo: str | None, why: str
) -> None:
    """SGLang itself would ask its PATH for cargo when it starts, and die of one that is too old."""
    world.begin(CORE)
    if cargo:
        world.tool("cargo", cargo)
    work = world.work(CHANGE)
    assert (work.kernel, work.rust) == (False, False)
    assert why in work.python_core
    assert work.variables == {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
    assert "Python TreeCore" in work.note
    assert why in work.note


def test_a_change_of_the_tree_core_is_never_measured_without_it(world: _World) -> None:
    world.begin(CORE)
    assert world.work({f"{CRATE}/src/lib.rs": "// faster"}) == LocalWork(rust=True)  # and find_toolchain refuses it
    assert world.work({f"{CRATE}/src/lib.rs": "// slower"}, rust="none").python_core == "build.rust is none"


def test_a_core_that_only_head_has_is_decided_for_both(world: _World) -> None:
    assert world.work(CORE).rust
    world.tool("cargo", "echo cargo 1.92.0")
    assert world.work(CHANGE).rust


def test_the_key_of_rust_holds_all_that_its_build_reads(world: _World) -> None:
    world.begin(CORE)
    found = rust_sources(world.repository, world.base.sha)
    assert {"rust", "python/setup.py", "python/pyproject.toml", "python/sglang/srt/wire.h"} <= set(found)
    assert "python/sglang" not in found
    assert tree_core_module(world.repository, world.base.sha) == MODULE
    world.begin({f"{CRATE}/Cargo.toml": "[package.metadata.sglang]\npython-module = 'all, none'\n"})
    assert tree_core_module(world.repository, world.base.sha) is None


KERNEL = "sgl-kernel/python/sgl_kernel"


def _kernel(version: str, pin: str) -> dict[str, str | None]:
    return {
        "sgl-kernel/pyproject.toml": "[project]\nname = 'sgl-kernel'\n",
        f"{KERNEL}/version.py": f'__version__ = "{version}"\n',
        f"{KERNEL}/moe.py": "1",
        "python/pyproject.toml": f"[project]\nname = 'sglang'\ndependencies = ['sgl-kernel=={pin}']\n",
    }


def test_python_of_the_kernel_package_needs_no_compiler_where_the_wheel_has_its_version(world: _World) -> None:
    world.begin(_kernel("0.3.21", "0.3.21"))
    assert world.work({f"{KERNEL}/moe.py": "2"}) == LocalWork(kernel_python=True)
    assert world.work({f"{KERNEL}/moe.py": "3"}, kernel="wheel") == LocalWork()
    world.begin(_kernel("0.3.22", "0.3.21"))  # the tree is ahead: its Python may ask for operators that no wheel has
    assert world.work({f"{KERNEL}/moe.py": "4"}) == LocalWork(kernel=True)
    assert world.work({f"{KERNEL}/moe.py": "5", "sgl-kernel/csrc/a.cu": ""}) == LocalWork(kernel=True)
