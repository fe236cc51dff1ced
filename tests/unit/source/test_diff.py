from __future__ import annotations

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
        ("python/sglang/srt/managers/scheduler.py", "python"),
        ("python/sglang/jit_kernel/csrc/x.cuh", "python"),
        ("python/sglang/kernels/jit/x.cuh", "python"),
        ("sgl-kernel/csrc/x.cu", "kernel"),
        ("python/sglang/kernels/aot/CMakeLists.txt", "kernel"),
        ("rust/Cargo.lock", "rust"),
        ("proto/sglang.proto", "rust"),
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
        "Nothing that a server runs was changed: docs/0.txt, docs/1.txt, docs/2.txt, docs/3.txt, docs/4.txt and 2 more."
    )


def _pyproject(*pins: str, more: str = "") -> bytes:
    return f"[project]\nname='sglang'\ndependencies={list(pins)!r}\n{more}".encode()


def test_pins_decide_whether_the_environment_changes() -> None:
    base = _pyproject("torch==2.9.1", "flashinfer_python==0.6.1")
    same = _pyproject("flashinfer_python==0.6.1", "torch == 2.9.1", more="[tool.ruff]\nline-length = 9\n")
    other = _pyproject("torch==2.9.1", "flashinfer_python==0.6.3")
    assert classify([PYPROJECT], base_pyproject=base, head_pyproject=same).name == "nothing"
    changed = classify([PYPROJECT], base_pyproject=base, head_pyproject=other)
    assert changed.name == "environment"
    assert changed.tuned
    assert "flashinfer_python==0.6.1 → flashinfer_python==0.6.3" in changed.reason


@pytest.mark.parametrize("head", [None, b"not [toml", b""])
def test_a_file_that_cannot_be_read_counts_as_changed_pins(head: bytes | None) -> None:
    assert classify([PYPROJECT], base_pyproject=_pyproject("a"), head_pyproject=head).environment


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
    assert set(diff.kinds) == set(diff.deciding)
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
