from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.source.diff import classify

PYPROJECT = "python/pyproject.toml"
NAME = st.text(st.sampled_from("abcmdpy_.0"), min_size=1, max_size=8).filter(lambda name: name.strip("."))
FOLDERS = (
    *(
        "docs/",
        "docs_new/x/",
        "test/srt/",
        ".github/workflows/",
        "python/sglang/multimodal_gen/",
        "sgl-model-gateway/src/",
    ),
    *(
        "python/sglang/srt/",
        "python/sglang/",
        "sgl-kernel/csrc/",
        "python/sglang/kernels/aot/",
        "rust/a/",
        "proto/",
        "new/",
        "",
    ),
)
PATHS = st.lists(st.tuples(st.sampled_from(FOLDERS), NAME).map("".join), max_size=12)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("docs/start.py", "nothing"),
        ("docs_new/start.mdx", "nothing"),
        ("README.md", "nothing"),
        ("python/sglang/srt/README.md", "nothing"),
        (".github/workflows/x.yml", "nothing"),
        ("test/srt/test_eagle.py", "nothing"),
        ("python/sglang/multimodal_gen/runtime/server_args/server_args.py", "nothing"),
        ("sgl-model-gateway/src/main.rs", "nothing"),
        ("python/pyproject_cpu.toml", "nothing"),
        ("sgl-kernel/README.md", "nothing"),
        ("sgl-kernel/tests/test_moe.py", "nothing"),
        ("sgl-kernel/csrc/cpu/moe.cpp", "nothing"),
        ("sgl-kernel/csrc/common_extension_musa.cc", "nothing"),
        ("sgl-kernel/csrc/allreduce/custom_all_reduce_hip.cuh", "nothing"),
        ("sgl-kernel/csrc/allreduce/custom_all_reduce.cu", "kernel"),
        ("sgl-kernel/include/hip/utils.h", "nothing"),
        ("sgl-kernel/Dockerfile", "nothing"),
        ("sgl-kernel/build.sh", "nothing"),
        ("sgl-kernel/csrc/metal/norm.metal", "nothing"),
        ("python/sglang/kernels/aot/setup_metal.py", "nothing"),
        ("python/sglang/kernels/aot/docker/build.Dockerfile", "nothing"),
        ("sgl-kernel/cmake/utils.cmake", "kernel"),
        ("sgl-kernel/python/sgl_kernel/moe.py", "python"),
        ("sgl-kernel/python/sgl_kernel/version.py", "nothing"),
        ("python/sglang/kernels/jit/include/sgl_kernel/vec.cuh", "kernel"),
        ("python/sglang/kernels/ops/diffusion/norm.py", "nothing"),
        ("python/sglang/kernels/ops/gemm/hip_gemm.py", "nothing"),
        ("python/sglang/srt/layers/attention/aiter_backend.py", "nothing"),
        ("python/sglang/srt/layers/quantization/fp8_hip.py", "nothing"),
        ("python/sglang/srt/hardware_backend/npu/moe/topk.py", "nothing"),
        ("python/sglang/srt/layers/quantization/configs/device_name=AMD_Instinct_MI300X.json", "nothing"),
        ("python/sglang/srt/model_executor/cpu_graph_runner.py", "nothing"),
        ("python/sglang/srt/observability/cpu_monitor.py", "python"),  # servers on GPUs have CPUs, too
        ("python/sglang/srt/models/membership_amdahl.py", "python"),  # a word within a word
        ("python/sglang/test/test_utils.py", "nothing"),
        ("python/sglang/test/scripted_runtime/scheduler_hook.py", "python"),
        ("python/sglang/bench_serving.py", "nothing"),
        ("python/sglang/cli/serve.py", "nothing"),
        ("python/sglang/srt/layers/quantization/quark/quark.py", "python"),  # AMD's name, served on any GPU
        ("rust/sglang-server/src/lib.rs", "nothing"),
        ("rust/sglang-radix-tree/src/lib.rs", "rust"),
        ("rust/new-crate/src/lib.rs", "rust"),
        ("python/sglang/srt/managers/scheduler.py", "python"),
        ("python/sglang/jit_kernel/csrc/x.cuh", "python"),
        ("python/sglang/kernels/jit/x.cuh", "python"),
        ("sgl-kernel/csrc/x.cu", "kernel"),
        ("python/sglang/kernels/aot/CMakeLists.txt", "kernel"),
        ("rust/Cargo.lock", "rust"),
        ("proto/sglang.proto", "nothing"),
        ("python/setup.py", "rust"),
        ("something/new.txt", "python"),
        ("", "python"),
    ],
)
def test_one_path(path: str, name: str) -> None:
    assert classify([path]).name == name


def test_kinds_combine_and_say_why() -> None:
    diff = classify(["rust/a.rs", "sgl-kernel/csrc/b.cu", "python/sglang/srt/c.py", "docs/d.md"])
    assert diff.name == "python+kernel+rust"
    assert diff.deciding == {
        "kernel": ("sgl-kernel/csrc/b.cu",),
        "rust": ("rust/a.rs",),
        "python": ("python/sglang/srt/c.py",),
    }
    assert diff.reason == (
        "The diff touches the kernels (sgl-kernel/csrc/b.cu); the Rust extensions (rust/a.rs); "
        "Python code (python/sglang/srt/c.py)."
    )


def test_nothing_says_what_was_changed() -> None:
    assert classify([]).reason == "The two commits have the same tree."
    assert classify([f"docs/{n}.txt" for n in range(7)]).reason == (
        "Nothing that a server runs was changed: "
        "documentation (docs/0.txt, docs/1.txt, docs/2.txt, docs/3.txt, docs/4.txt and 2 more)."
    )


def _pyproject(*pins: str, more: str = "") -> bytes:
    return f"[project]\nname='sglang'\ndependencies={list(pins)!r}\n{more}".encode()


def test_pins_decide_whether_the_environment_changes() -> None:
    base = _pyproject("torch==2.9.1", "flashinfer_python==0.6.1")
    same = _pyproject("flashinfer_python==0.6.1", "torch == 2.9.1", more="[tool.ruff]\nline-length = 9\n")
    other = _pyproject("torch==2.9.1", "flashinfer_python==0.6.3")
    assert classify([PYPROJECT], contents={PYPROJECT: (base, same)}).name == "nothing"
    changed = classify([PYPROJECT], contents={PYPROJECT: (base, other)})
    assert changed.name == "environment"
    assert changed.tuned
    assert "flashinfer_python==0.6.1 → flashinfer_python==0.6.3" in changed.reason


@pytest.mark.parametrize("head", [None, b"not [toml", b""])
def test_a_file_that_cannot_be_read_counts_as_changed_pins(head: bytes | None) -> None:
    assert classify([PYPROJECT], contents={PYPROJECT: (_pyproject("a"), head)}).environment


def test_tuned_jit_and_speculative_code() -> None:
    moe = classify(["python/sglang/srt/layers/moe/topk.py"])
    assert (moe.tuned, moe.jit, moe.speculative) == (True, False, False)
    jit = classify(["python/sglang/jit_kernel/x.py"])
    assert (jit.tuned, jit.jit) == (True, True)
    eagle = classify(["python/sglang/srt/speculative/eagle_worker_v2.py"])
    assert (eagle.tuned, eagle.speculative) == (False, True)
    assert not classify(["python/sglang/srt/managers/scheduler.py"]).tuned


def test_order_of_recipes() -> None:
    recipes = {"baseline": False, "eagle3": True, "chat": False}
    eagle = classify(["python/sglang/srt/speculative/eagle_info.py"])
    assert eagle.order(recipes) == ("eagle3", "baseline", "chat")
    assert classify(["python/sglang/srt/x.py"]).order(recipes) == ("baseline", "eagle3", "chat")


def test_ignored_paths_win() -> None:
    paths = ["python/sglang/srt/grpc/a.py", "sgl-kernel/csrc/x.cu"]
    assert classify(paths, ignore=["python/sglang/srt/grpc/**"]).name == "kernel"
    assert classify(paths, ignore=["python/**", "sgl-kernel/**"]).nothing


@given(PATHS)
def test_every_path_counts_once_or_not_at_all(paths: list[str]) -> None:
    diff = classify(paths)
    deciding = [path for found in diff.deciding.values() for path in found]
    assert len(deciding) == len(set(deciding))
    assert set(deciding) <= set(paths)
    assert diff.nothing == (not deciding)
    assert set(diff.kinds) == {"python" if kind == "kernel_python" else kind for kind in diff.deciding}
    left_out = [path for found in diff.left_out.values() for path in found]
    assert sorted(deciding + left_out) == sorted(set(paths))
    assert diff.reason.endswith(".")


@given(PATHS, PATHS)
def test_more_paths_never_mean_less(paths: list[str], more: list[str]) -> None:
    assert set(classify(paths).kinds) <= set(classify([*paths, *more]).kinds)


@given(PATHS)
def test_order_and_repetition_do_not_matter(paths: list[str]) -> None:
    assert classify(paths) == classify([*reversed(paths), *paths])


@given(st.lists(st.text(max_size=40), max_size=6))
def test_any_file_name_is_classified(paths: list[str]) -> None:
    classify(paths, ignore=["*.md", "**"])
    assert classify(paths, ignore=["**"]).nothing or "" in paths


def test_a_version_is_no_change_of_the_kernels_but_a_flag_is() -> None:
    project, version = "sgl-kernel/pyproject.toml", "sgl-kernel/python/sgl_kernel/version.py"
    base = b"[project]\nname = 'sgl-kernel'\nversion = '0.3.21'\n[tool.scikit-build]\ncmake.args = ['-O3']\n"
    bumped = base.replace(b"0.3.21", b"0.3.22")
    assert classify([project, version], contents={project: (base, bumped)}).nothing
    assert classify([project, version], contents={project: (base, bumped.replace(b"-O3", b"-O0"))}).kernel
    assert classify([project, version], contents={project: (base, None)}).kernel
    assert classify([project, version]).nothing  # as far as paths can tell
    assert classify([project]).kernel


LOCK = b"""
[[package]]
name = "sglang-radix-tree"
version = "0.1.0"
dependencies = ["tch", "sha2 0.10.1"]
[[package]]
name = "tch"
version = "0.22.0"
[[package]]
name = "sha2"
version = "0.10.1"
[[package]]
name = "axum"
version = "0.7.1"
"""


@pytest.mark.parametrize(
    ("head", "rust"),
    [
        (LOCK.replace(b"0.7.1", b"0.7.2"), False),
        (LOCK.replace(b"0.22.0", b"0.22.1"), True),
        (LOCK.replace(b"0.10.1", b"0.10.2"), True),
        (b"not [ toml", True),
        (None, True),
    ],
)
def test_a_rust_lock_counts_by_what_the_served_crate_needs(head: bytes | None, rust: bool) -> None:
    assert classify(["rust/Cargo.lock"], contents={"rust/Cargo.lock": (LOCK, head)}).rust is rust
    before = b"[[package]]\nname = 'sglang-grpc'\nversion = '1'\n"  # no crate that is served
    assert classify(["rust/Cargo.lock"], contents={"rust/Cargo.lock": (before, before + b"# \n")}).nothing


def test_a_workspace_manifest_that_lists_one_crate_more_changes_no_served_crate() -> None:
    manifest = "rust/Cargo.toml"
    base = b"[workspace]\nmembers = ['a']\n[profile.release]\nlto = true\n"
    assert classify([manifest], contents={manifest: (base, base.replace(b"'a'", b"'a', 'b'"))}).nothing
    assert classify([manifest], contents={manifest: (base, base.replace(b"true", b"false"))}).rust


def test_what_is_asked_of_other_machines_and_of_python_is_no_change_of_the_environment() -> None:
    base = _pyproject("torch==2.9.1", more="requires-python = '>=3.10'\n")
    head = _pyproject(
        *("torch==2.9.1", "mlx==1; sys_platform == 'darwin'", "x==1; platform_machine == 'aarch64'"),
        more="requires-python = '>=3.11'\n",
    )
    assert classify([PYPROJECT], contents={PYPROJECT: (base, head)}).nothing
    older = _pyproject("torch==2.9.1", "tomli==2; python_version < '3.11'", more="requires-python = '>=3.10'\n")
    assert classify([PYPROJECT], contents={PYPROJECT: (base, older)}).environment


def test_on_the_cpu_profile_code_for_cpus_is_served() -> None:
    path = "python/sglang/srt/layers/amx_utils.py"
    assert classify([path]).nothing
    assert classify([path], cpu_serves=True).python


def test_nothing_says_which_paths_and_what_they_are() -> None:
    diff = classify(["sgl-kernel/csrc/cpu/moe.cpp", "docs/a.md", "rust/sglang-grpc/build.rs"])
    assert diff.reason == (
        "Nothing that a server runs was changed: documentation (docs/a.md); Rust crates that are off unless asked for "
        "(rust/sglang-grpc/build.rs); code for CPU servers (sgl-kernel/csrc/cpu/moe.cpp)."
    )


REAL = Path(__file__).parents[2] / "fixtures" / "diffs" / "sglang-2026.txt"


def _real_commits() -> Iterator[tuple[str, str, list[str]]]:
    for block in REAL.read_text().split("\n\n"):
        first, *paths = (line.strip() for line in block.splitlines() if not line.startswith("#"))
        sha, _date, kinds = first.split()
        yield sha, kinds, paths


def test_real_commits_of_sglang() -> None:
    """What is asked to be installed is left aside: it needs the files' contents."""
    real = list(_real_commits())
    said = {sha: "+".join(kind for kind in classify(paths).kinds if kind != "environment") for sha, _, paths in real}
    assert len(real) > 100
    assert {sha: kinds or "nothing" for sha, kinds in said.items()} == {sha: kinds for sha, kinds, _ in real}
