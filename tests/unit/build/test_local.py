from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfgate.build import local
from perfgate.build.failures import BuildFault, Refused
from perfgate.build.local import (
    Toolchain,
    build_requirements,
    copy_source,
    find_toolchain,
    kernel_project,
    kernel_settings,
    kernel_variables,
    read_inside,
    take_compiled,
)
from perfgate.build.work import RUST_TOOLS, LocalWork
from perfgate.config.model import BuildRules
from perfgate.errors import PerfgateError
from perfgate.records import Blame
from perfgate.store.entries import protect
from perfgate.store.removal import remove_tree

KERNEL = LocalWork(kernel=True)


class _Memory:
    def __init__(self, gib: float) -> None:
        self.available = int(gib * 2**30)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    for name in (*local.KERNEL_TOOLS, *RUST_TOOLS):
        tool = tmp_path / "tools" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text("#!/bin/sh\necho version 1\n")
        tool.chmod(0o755)
    return tmp_path / "tools"


def _memory(monkeypatch: pytest.MonkeyPatch, gib: float, cpus: int = 64) -> None:
    monkeypatch.setattr(local.psutil, "virtual_memory", lambda: _Memory(gib))
    monkeypatch.setattr(local.psutil, "cpu_count", lambda: cpus)


def test_tools_are_found_and_jobs_fit_the_memory(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _memory(monkeypatch, 42)
    found = find_toolchain(KERNEL, str(tools), BuildRules(), "12.0a")
    assert isinstance(found, Toolchain)
    assert found.jobs == 10
    assert found.tools["nvcc"] == tools / "nvcc"


def _refusal(result: Toolchain | BuildFault) -> str:
    assert isinstance(result, BuildFault)
    assert result.blame is Blame.BOX
    assert result.remedy
    return f"{result.reason} → {result.remedy}"


def test_what_is_missing_is_told_before_anything_is_built(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _memory(monkeypatch, 42)
    assert "cuda_arch" in _refusal(find_toolchain(KERNEL, str(tools), BuildRules(), None))
    (tools / "nvcc").unlink()
    (tools / "git").unlink()
    text = _refusal(find_toolchain(KERNEL, str(tools), BuildRules(), "9.0"))
    assert "nvcc and git are not installed, needed to build kernels" in text
    (tools / "cargo").unlink()
    assert "cargo is not installed, needed to build Rust" in _refusal(
        find_toolchain(LocalWork(rust=True), str(tools), BuildRules(), None)
    )


def test_too_little_memory_is_told_before_anything_is_built(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _memory(monkeypatch, 3)
    text = _refusal(find_toolchain(KERNEL, str(tools), BuildRules(), "9.0"))
    assert "3 GiB of memory free, 4 GiB needed" in text
    _memory(monkeypatch, 42)
    assert "lower build.jobs" in _refusal(find_toolchain(KERNEL, str(tools), BuildRules(jobs=16), "9.0"))


def test_both_sides_get_the_same_flags(tmp_path: Path) -> None:
    toolchain = Toolchain(tools={"nvcc": Path("/cuda/nvcc")}, jobs=4, arch="12.0a")
    made = kernel_variables(toolchain, tmp_path / "nvcc")
    assert made["TORCH_CUDA_ARCH_LIST"] == made["PERFGATE_CUDA_ARCH"] == "12.0a"
    assert made["CMAKE_BUILD_PARALLEL_LEVEL"] == made["MAX_JOBS"] == "4"
    assert made["CUDACXX"] == str(tmp_path / "nvcc")


def test_the_kernel_project_is_found_wherever_a_version_keeps_it(tmp_path: Path) -> None:
    assert kernel_project(tmp_path) is None
    for project in ("sgl-kernel", "python/sglang/kernels/aot"):
        (tmp_path / project).mkdir(parents=True)
        (tmp_path / project / "pyproject.toml").write_text("")
        assert kernel_project(tmp_path) == project


def test_links_out_of_the_tree_are_not_read(tmp_path: Path) -> None:
    tree, secret = tmp_path / "tree", tmp_path / "secret"
    tree.mkdir()
    secret.write_text("secret")
    (tree / "out").symlink_to(secret)
    (tree / "up").symlink_to("../secret")
    (tree / "file").write_text("fine")
    (tree / "in").symlink_to("file")
    assert read_inside(tree, "out") is None
    assert read_inside(tree, "up") is None
    assert read_inside(tree, "../secret") is None
    assert read_inside(tree, "in") == b"fine"
    (tree / "loop").symlink_to("loop")
    assert read_inside(tree, "loop") is None


@pytest.mark.parametrize(
    "body", [b"\xff", b"[", b"build-system = 1", b'[build-system]\nrequires=["-r x"]', b"[build-system]\nrequires=[1]"]
)
def test_hostile_build_systems_are_refused(body: bytes) -> None:
    with pytest.raises(PerfgateError, match="cannot be read"):
        build_requirements(body, "sgl-kernel")
    with pytest.raises(PerfgateError, match="from an index"):
        build_requirements(b'[build-system]\nrequires=["a @ https://x/a.whl"]', "sgl-kernel")


def test_sources_are_copied_writable_with_links_kept(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "x").write_text("1")
    (tree / "a" / "link").symlink_to("/etc/passwd")
    protect(tree)
    copy_source(tree, tmp_path / "copy")
    (tmp_path / "copy" / "a" / "new").write_text("2")
    (tmp_path / "copy" / "a" / "x").write_text("2")
    assert (tmp_path / "copy" / "a" / "link").is_symlink()
    assert (tree / "a" / "x").read_text() == "1"
    remove_tree(tree)


def test_only_the_module_that_was_asked_for_is_taken(tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    for name in ("sglang/srt/_core.abi3.so", "sglang/srt/_core.py", "sglang/srt/_corelike.so", "other/y.so", "z.so"):
        (installed / name).parent.mkdir(parents=True, exist_ok=True)
        (installed / name).write_text("binary")
    (installed / "sglang" / "srt" / "_core.so").symlink_to("/etc/passwd")
    assert take_compiled(installed, "sglang.srt._core", tmp_path / "out") == ("sglang/srt/_core.abi3.so",)
    assert [path.name for path in tmp_path.joinpath("out").rglob("*.so")] == ["_core.abi3.so"]
    with pytest.raises(FileExistsError):  # a folder that somebody else made may hold links
        take_compiled(installed, "sglang.srt._core", tmp_path / "out")


@contextmanager
def _refused(text: str) -> Iterator[None]:
    with pytest.raises(Refused, match=text) as error:
        yield
    assert error.value.failure.blame is Blame.SIDE


@pytest.mark.parametrize(
    ("arch", "fa3", "below"),
    [("8.0", "ON", "ON"), ("8.9", "ON", "ON"), ("9.0a", "ON", "OFF"), ("10.0a", "OFF", "OFF"), ("12.0a", "OFF", "OFF")],
)
def test_kernels_that_no_gpu_of_the_box_runs_are_left_out(arch: str, fa3: str, below: str) -> None:
    settings = kernel_settings(Toolchain(tools={}, jobs=1, arch=arch))
    assert f"cmake.define.SGL_KERNEL_ENABLE_FA3={fa3}" in settings
    assert f"cmake.define.ENABLE_BELOW_SM90={below}" in settings
