"""Kernels and Rust extensions built here: the real uv and a real C compiler, with stand-ins for nvcc, cargo and co."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfgate.build import BuiltSide
from perfgate.build.environment import Builder
from perfgate.build.failures import BuildFailed
from perfgate.build.local import KERNEL_TOOLS
from perfgate.build.work import RUST_TOOLS, LocalWork
from perfgate.host.sandbox import UNCONFINED, Confinement
from perfgate.records import Blame, Side
from perfgate.source.diff import classify
from perfgate.store.folders import Store
from tests.integration.build.lab import BUILD_SYSTEM, Lab, backend, make_wheel, pyproject, run_python

KERNEL = LocalWork(kernel=True)
SHOW = "print('ENV', sorted(os.environ.items()))"
LOAD = (
    "import ctypes, sgl_kernel, pathlib;"
    " print(ctypes.CDLL(str(pathlib.Path(sgl_kernel.__file__).parent / '_C.so')).answer())"
)
CORE = {
    "rust/Cargo.toml": "[workspace]\n",
    "rust/sglang-radix-tree/Cargo.toml": "[package.metadata.sglang]\npython-module = 'sglang.srt._core'\n",
}
LOAD_RUST = LOAD.replace("sgl_kernel", "sglang").replace("_C.so", "srt/_core.so")


@pytest.fixture
def tools(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins that are found but do nothing; the C compiler stays the real one."""
    folder = lab.root / "tools"
    folder.mkdir()
    for name in ("cmake", "ninja"):
        make_wheel(lab.index, name, "3.31.0")
    for name in {*KERNEL_TOOLS, *RUST_TOOLS} - {"cc", "c++", "git"}:
        (folder / name).write_text("#!/bin/sh\necho release 1\n")
        (folder / name).chmod(0o755)
    lab.box["tools"] = {"stand-ins": str(folder)}
    return folder


def _kernel(answer: int, project: str = "sgl-kernel", *, source: str | None = None) -> dict[str, str | None]:
    return {
        f"{project}/pyproject.toml": BUILD_SYSTEM + "[project]\nname = 'sgl-kernel'\nversion = '0.3.21'\n",
        f"{project}/backend.py": backend("sgl-kernel", "0.3.21", "sgl_kernel", so="_C.so", hook=SHOW),
        f"{project}/source.c": source or f"int answer(void) {{ return {answer}; }}\n",
    }


def _build(builder: Builder, side: Side, ref: str, like: BuiltSide | None = None) -> BuiltSide:
    return builder.build(side, builder.repository.resolve(ref), log=builder.store.root / f"{side}.log", like=like)


def _builder(lab: Lab, store: Store, work: LocalWork, confinement: Confinement) -> Builder:
    return lab.builder(store, {"cuda_arch": "12.0a", "jobs": 1}, work=work, confinement=confinement)


def test_both_sides_kernels_are_built_here(lab: Lab, store: Store, tools: Path, confinement: Confinement) -> None:
    make_wheel(lab.index, "sgl_kernel", "0.3.21")
    base_sha = lab.commit("sgl-kernel==0.3.21", "tiny==1.0", files=_kernel(41))
    head_sha = lab.commit("sgl-kernel==0.3.21", "tiny==1.0", files=_kernel(42), more="# \n")
    builder = _builder(lab, store, KERNEL, confinement)
    assert classify(builder.repository.changed_paths(base_sha, head_sha)).kernel
    base = _build(builder, Side.BASE, base_sha)
    head = _build(builder, Side.HEAD, head_sha, base)
    assert base.key != head.key
    assert run_python(base.python, base.path_entries, LOAD) == "41"
    assert run_python(head.python, head.path_entries, LOAD) == "42"
    assert base.versions["sgl-kernel"] == head.versions["sgl-kernel"] == "0.3.21 (built here)"
    for log in ("base.log", "head.log"):
        said = (store.root / log).read_text()
        assert "('TORCH_CUDA_ARCH_LIST', '12.0a')" in said
        assert "('CMAKE_BUILD_PARALLEL_LEVEL', '1')" in said
    assert _build(builder, Side.BASE, base_sha).cached


def test_a_cmake_of_the_box_that_is_too_old_is_not_met(
    lab: Lab, store: Store, tools: Path, confinement: Confinement
) -> None:
    (tools / "cmake").write_text("#!/bin/sh\necho cmake version 3.22.1\n")  # as Ubuntu 22.04 has it
    (tools / "cmake").chmod(0o755)
    script = "#!/bin/sh\necho cmake version 3.31.0\n"
    make_wheel(lab.index, "cmake", "3.31.0", {"cmake-3.31.0.data/scripts/cmake": script})
    hook = "print('CMAKE', subprocess.run(['cmake', '--version'], capture_output=True, text=True).stdout)"
    files = _kernel(1) | {"sgl-kernel/backend.py": backend("sgl-kernel", "0.3.21", "sgl_kernel", so="_C.so", hook=hook)}
    _build(_builder(lab, store, KERNEL, confinement), Side.HEAD, lab.commit("tiny==1.0", files=files))
    said = (store.root / "head.log").read_text()
    assert "CMAKE cmake version 3.31.0" in said
    # no Python may be downloaded here: it is tried once, and what the kernels are built with has the environment's
    assert said.count("# make a virtual environment\n") == 2
    assert said.count("# make an environment to build in\n") == 1


def test_the_later_place_of_the_kernels(lab: Lab, store: Store, tools: Path, confinement: Confinement) -> None:
    sha = lab.commit("tiny==1.0", files=_kernel(7, "python/sglang/kernels/aot"))
    built = _build(_builder(lab, store, KERNEL, confinement), Side.HEAD, sha)
    assert run_python(built.python, built.path_entries, LOAD) == "7"


def test_from_the_index_it_is_not_called_built_here(lab: Lab, store: Store) -> None:
    make_wheel(lab.index, "sgl_kernel", "0.3.21")
    built = _build(lab.builder(store), Side.BASE, lab.commit("sgl-kernel==0.3.21", files=_kernel(1)))
    assert built.versions["sgl-kernel"] == "0.3.21"


def test_a_kernel_that_does_not_compile_is_the_sides(
    lab: Lab, store: Store, tools: Path, confinement: Confinement
) -> None:
    sha = lab.commit("tiny", files=_kernel(0, source="int answer(void) { return missing; }\n"))
    with pytest.raises(BuildFailed) as error:
        _build(_builder(lab, store, KERNEL, confinement), Side.HEAD, sha)
    assert error.value.failure.blame is Blame.SIDE
    assert "source.c" in error.value.failure.reason
    assert "missing" in error.value.failure.reason
    assert any("missing" in line for line in error.value.failure.lines)


def test_a_tool_that_is_missing_is_told_before_anything_is_made(lab: Lab, store: Store, tools: Path) -> None:
    (tools / "nvcc").write_text("")
    (tools / "nvcc").chmod(0o644)
    builder = lab.builder(store, {"cuda_arch": "12.0a"}, work=LocalWork(rust=True, kernel=True))
    lab.box["tools"] = {}
    (tools / "cargo").unlink()
    with pytest.raises(BuildFailed) as error:
        _build(builder, Side.HEAD, lab.commit("tiny", files=_kernel(1)))
    assert error.value.failure.blame is Blame.BOX
    assert "cargo" in str(error.value)
    assert "not installed" in str(error.value)
    assert not list(store.folder("environments").iterdir())


def test_a_tree_without_a_kernel_project_is_the_sides(
    lab: Lab, store: Store, tools: Path, confinement: Confinement
) -> None:
    with pytest.raises(BuildFailed) as error:
        _build(_builder(lab, store, KERNEL, confinement), Side.HEAD, lab.commit("tiny"))
    assert error.value.failure.blame is Blame.SIDE
    assert "has no pyproject.toml" in str(error.value)


def test_rust_extensions_are_laid_into_the_tree(lab: Lab, store: Store, tools: Path, confinement: Confinement) -> None:
    files = {
        "python/backend.py": backend("sglang", "0", "sglang", so="srt/_core.so", hook=SHOW),
        "python/source.c": "int answer(void) { return 9; }\n",
    }
    sha = lab.commit("tiny==1.0", files={**CORE, **files}, more=BUILD_SYSTEM)
    built = _build(_builder(lab, store, LocalWork(rust=True), confinement), Side.HEAD, sha)
    assert run_python(built.python, built.path_entries, LOAD_RUST) == "9"
    assert "sglang.version" in run_python(
        built.python, built.path_entries, "import sglang.version as v; print(v.__name__)"
    )
    said = (store.root / "head.log").read_text()
    assert "('SGLANG_BUILD_RUST_EXTS', 'sglang.srt._core')" in said
    assert built.environment == {"SGLANG_RUST_BUILD_MODE": "never"}
    assert built.versions["TreeCore"] == "Rust (built here)"
    plain = _build(lab.builder(store), Side.BASE, sha)
    assert plain.tree != built.tree
    assert plain.environment == {}
    assert not (plain.tree / "python/sglang/srt/_core.so").exists()


def test_a_module_that_lies_in_a_tree_is_served_to_nobody_else(
    lab: Lab, store: Store, tools: Path, confinement: Confinement
) -> None:
    """Two commits with one key of Rust: the one adds compiled files, and what setup.py would have packed with them."""
    honest = {
        "python/backend.py": backend("sglang", "0", "sglang", so="srt/_core.so", hook="leave(wheel_directory)").replace(
            "def leave_trace", "def leave(_): assert not os.path.exists('sglang/srt/evil.so')\ndef leave_trace"
        ),
        "python/source.c": "int answer(void) { return 9; }\n",
        **CORE,
    }
    base_sha = lab.commit("tiny==1.0", files=honest, more=BUILD_SYSTEM)
    head_sha = lab.commit("tiny==1.0", files={"python/sglang/srt/evil.so": "not built by cargo"}, more=BUILD_SYSTEM)
    builder = _builder(lab, store, LocalWork(rust=True), confinement)
    head = _build(builder, Side.HEAD, head_sha)  # the first to be built
    base = _build(builder, Side.BASE, base_sha)
    assert base.key == head.key
    assert not (base.tree / "python/sglang/srt/evil.so").exists()
    assert (head.tree / "python/sglang/srt/evil.so").exists()  # its own file, as in its commit
    assert run_python(base.python, base.path_entries, LOAD_RUST) == "9"


def test_python_of_the_kernel_package_is_laid_over_its_wheel(lab: Lab, store: Store) -> None:
    make_wheel(lab.index, "sgl_kernel", "0.3.21", {"sgl_kernel/__init__.py": "A = 'wheel'\n"})
    folder = "sgl-kernel/python/sgl_kernel"
    work = LocalWork(kernel_python=True)
    built = {}
    for side in (Side.BASE, Side.HEAD):
        files = {"sgl-kernel/pyproject.toml": "", f"{folder}/__init__.py": f"A = '{side}'\n"}
        sha = lab.commit("sgl-kernel==0.3.21", files=files)
        built[side] = _build(lab.builder(store, work=work), side, sha, built.get(Side.BASE))
        said = run_python(built[side].python, built[side].path_entries, "import sgl_kernel; print(sgl_kernel.A)")
        assert said == str(side)
    assert built[Side.BASE].key != built[Side.HEAD].key


def test_a_header_that_the_kernels_include_is_in_their_key(
    lab: Lab, store: Store, tools: Path, confinement: Confinement
) -> None:
    """With kernel: local, too, head must not be given base's wheel."""
    header = "python/sglang/kernels/jit/include/sgl_kernel/vec.cuh"
    base_sha = lab.commit("tiny==1.0", files={**_kernel(41, "python/sglang/kernels/aot"), header: "// 1\n"})
    head_sha = lab.commit("tiny==1.0", files={header: "// 2\n"}, more="# \n")
    builder = _builder(lab, store, KERNEL, confinement)
    assert classify(builder.repository.changed_paths(base_sha, head_sha)).kernel
    base = _build(builder, Side.BASE, base_sha)
    assert _build(builder, Side.HEAD, head_sha, base).key != base.key


def test_a_build_sees_no_token_and_no_other_side(lab: Lab, store: Store, tools: Path, confined: Confinement) -> None:
    hook = (
        "print('ENV', sorted(os.environ));"
        f" print('STATE', sorted(os.listdir({str(lab.root / 'state')!r})));"
        f" leave_trace({str(lab.root / 'state' / 'caches' / 'uv' / 'trace')!r})"
    )
    files = _kernel(1) | {"sgl-kernel/backend.py": backend("sgl-kernel", "0.3.21", "sgl_kernel", so="_C.so", hook=hook)}
    surroundings = {"UV_FIND_LINKS": str(lab.index), "UV_OFFLINE": "1", "HF_TOKEN": "hf_x", "GITHUB_TOKEN": "gh_x"}
    builder = _builder(lab, store, KERNEL, confined)
    builder = Builder(**{**vars(builder), "surroundings": surroundings})
    _build(builder, Side.HEAD, lab.commit("tiny", files=files))
    said = (store.root / "head.log").read_text()
    assert "TOKEN" not in said
    assert "STATE ['environments']" in said
    assert not (store.root / "caches" / "uv" / "trace").exists()


# --------------------------------------------------------------------------------- what a build may leave behind


PLANT = """
import os
HOME = os.environ["HOME"]
def everywhere():
    yield from (HOME, os.path.dirname(HOME), os.path.dirname(os.path.dirname(HOME)))
    for folder, folders, _ in os.walk({state!r}):
        yield folder
def plant(name, target):
    for folder in everywhere():
        path = os.path.join(folder, name)
        try:
            os.path.lexists(path) and os.unlink(path)
            os.symlink(target, path)
        except OSError:
            pass
"""
"""Puts links wherever a build can write, in its own folders and in all of perfgate's that it finds."""


def _hostile(lab: Lab, hook: str, *, name: str = "sgl-kernel", package: str = "sgl_kernel", so: str = "_C.so") -> str:
    module = PLANT.format(state=str(lab.root / "state")) + "\n" + hook
    return backend(name, "0.3.21", package, so=so, hook=f"exec({module!r}, {{}})")


@pytest.fixture
def victim(lab: Lab) -> Iterator[Path]:
    """A file of the box that no build may reach."""
    path = lab.root / "victim"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


def test_links_that_a_build_plants_are_not_written_through(
    lab: Lab, store: Store, tools: Path, victim: Path, confined: Confinement
) -> None:
    names = ("install.txt", "resolution.txt", "wanted.in", "tools.in", "nvcc", "rust", "venv", "rust-tools")
    hook = f"for name in {names!r}: plant(name, {str(victim)!r})"
    files = _kernel(7) | {"sgl-kernel/backend.py": _hostile(lab, hook)}
    built = _build(_builder(lab, store, KERNEL, confined), Side.HEAD, lab.commit("tiny==1.0", files=files))
    assert run_python(built.python, built.path_entries, LOAD) == "7"


def test_a_choice_of_versions_is_not_changed_by_a_build(
    lab: Lab, store: Store, tools: Path, confined: Confinement
) -> None:
    hook = (
        "for folder in everywhere():\n"
        "  try: open(os.path.join(folder, 'resolution.txt'), 'w').write('other==1.0')\n"
        "  except OSError: pass\n"
    )
    files = _kernel(7) | {"sgl-kernel/backend.py": _hostile(lab, hook)}
    built = _build(_builder(lab, store, KERNEL, confined), Side.HEAD, lab.commit("tiny==1.0", files=files))
    assert run_python(built.python, built.path_entries, "import tiny; print(tiny.VERSION)") == "1.0"
    assert (store.folder("resolutions") / f"{built.key}.txt").read_text() == "tiny==1.0\n"


def test_the_tree_may_not_lead_its_extensions_elsewhere(
    lab: Lab, store: Store, tools: Path, victim: Path, confinement: Confinement
) -> None:
    files = {
        "python/backend.py": backend("sglang", "0", "sglang", so="srt/_core.so"),
        "python/source.c": "int answer(void) { return 9; }\n",
    }
    (lab.source / "python/sglang/srt/_core.so").symlink_to(victim)
    sha = lab.commit("tiny==1.0", files={**CORE, **files}, more=BUILD_SYSTEM)
    with pytest.raises(BuildFailed) as error:
        _build(_builder(lab, store, LocalWork(rust=True), confinement), Side.HEAD, sha)
    assert error.value.failure.blame is Blame.SIDE


def test_a_build_changes_no_tool_that_perfgate_starts_afterwards(
    lab: Lab, store: Store, tools: Path, confined: Confinement
) -> None:
    trace = lab.root / "trace"
    script = f"#!/bin/sh\\n: > {trace}\\n"
    hook = (
        "for folder in everywhere():\n"
        "  if folder.endswith('/bin'):\n"
        "    for name in ('python', 'python3'):\n"
        "      try:\n"
        "        os.unlink(os.path.join(folder, name))\n"
        f"        open(os.path.join(folder, name), 'w').write('{script}')\n"
        "        os.chmod(os.path.join(folder, name), 0o755)\n"
        "      except OSError: pass\n"
    )
    files = _kernel(3) | {
        "sgl-kernel/backend.py": _hostile(lab, hook),
        "python/backend.py": backend("sglang", "0", "sglang", so="srt/_core.so"),
        "python/source.c": "int answer(void) { return 9; }\n",
        **CORE,
    }
    more = BUILD_SYSTEM.replace("requires = []", "requires = ['tiny']")
    make_wheel(lab.index, "tiny", "1.1")
    sha = lab.commit("tiny==1.0", files=files, more=more)
    built = _build(_builder(lab, store, LocalWork(kernel=True, rust=True), confined), Side.HEAD, sha)
    assert run_python(built.python, built.path_entries, LOAD_RUST) == "9"
    assert not trace.exists()


def test_a_kernel_wheel_that_cannot_be_installed_is_the_sides(
    lab: Lab, store: Store, tools: Path, confinement: Confinement
) -> None:
    name = "sgl_kernel-1-py3-none-any.whl"
    wheel = f"zipfile.ZipFile(os.path.join(wheel_directory, {name!r}), 'w')"
    metadata = "Metadata-Version: 2.1\\nName: sgl-kernel\\nVersion: 1\\n"
    broken = f"{wheel}.writestr('sgl_kernel-1.dist-info/METADATA', '{metadata}'); return {name!r}"
    files = _kernel(1) | {"sgl-kernel/backend.py": backend("sgl-kernel", "1", "sgl_kernel", hook=broken)}
    with pytest.raises(BuildFailed) as error:
        _build(_builder(lab, store, KERNEL, confinement), Side.HEAD, lab.commit("tiny", files=files))
    assert error.value.failure.blame is Blame.SIDE
    assert error.value.failure.reason.startswith("install what sgl-kernel became: ")


@pytest.mark.parametrize("requirement", ["tiny; os_name == 'x\\n-e /x\\n'"])
def test_what_a_project_needs_to_build_is_no_option_of_uv(
    lab: Lab, store: Store, tools: Path, requirement: str
) -> None:
    project = f"[build-system]\nrequires = [{json.dumps(requirement)}]\n[project]\nname = 'sgl-kernel'\nversion = '1'\n"
    sha = lab.commit("tiny", files=_kernel(1) | {"sgl-kernel/pyproject.toml": project})
    with pytest.raises(BuildFailed, match="not a requirement") as error:
        _build(_builder(lab, store, KERNEL, UNCONFINED), Side.HEAD, sha)
    assert error.value.failure.blame is Blame.SIDE


def test_the_lab_writes_what_it_says() -> None:
    assert "build-system" in pyproject("a", more=BUILD_SYSTEM)
