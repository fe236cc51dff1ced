"""The cpu profile for real: uv, the registry's wheels, git, SGLang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfgate.cpu.changes import EDITS, Change
from perfgate.cpu.demo import make_release_repository, make_repository, release_files
from perfgate.cpu.environment import RELEASE, RELEASES, TORCH, CpuEnvironment, prepare, release_tree
from perfgate.cpu.profile import models, settings
from perfgate.source.diff import classify
from perfgate.source.pins import PYPROJECT, read_pins
from perfgate.source.repository import Repository

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

BASE = "e2153df70b2a514dc997f47bb1090d5bdc8de4db"
BASE_TREE = "f1ee4b6cde072e30f0b8bee00627de5823886b10"
"""The same on every machine, because they depend on the released wheel alone."""


def test_the_environment_is_what_the_profile_says(cpu: CpuEnvironment) -> None:
    assert cpu.versions["sglang"] == RELEASE
    assert cpu.versions["torch"].split("+")[0] == TORCH
    code = "import importlib.util as u, torch, sgl_kernel, triton; print(torch.__version__, u.find_spec('sglang'))"
    found = subprocess.run([cpu.python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.split() == [cpu.versions["torch"], "None"]
    assert all((folder / "config.json").is_file() for folder in models(cpu).values())
    recipes = settings().recipes
    assert {recipes["baseline"].model, recipes["eagle3"].draft} == set(models(cpu))


def test_it_is_made_once(cpu: CpuEnvironment, state: Path) -> None:
    said: list[str] = []
    again = prepare(state, said.append)
    assert again.cached
    assert said == []
    assert again == cpu or not cpu.cached


def test_every_change_fits_the_release(cpu: CpuEnvironment) -> None:
    files = release_files(cpu.wheel_tree)
    for edit in EDITS.values():
        compile(edit.apply(files[f"python/{edit.path}"].decode()), edit.path, "exec")


def test_a_repository_of_the_release_is_a_tree_of_sglang(cpu: CpuEnvironment, tmp_path: Path) -> None:
    made = make_repository(cpu, Change.VERIFY, tmp_path / "repo")
    assert made.base_sha == BASE
    repository = Repository(made.path)
    for sha in (made.base_sha, made.head_sha):
        repository.check_sglang(sha)
    pyproject = repository.read_file(made.base_sha, PYPROJECT)
    assert pyproject is not None
    assert "torch==2.14.1" in read_pins(pyproject).requirements
    changed = repository.changed_paths(made.base_sha, made.head_sha)
    assert classify(changed, contents={PYPROJECT: (pyproject, pyproject)}).name == "python"


def test_two_releases(cpu: CpuEnvironment, state: Path, tmp_path: Path) -> None:
    base, head = (release_tree(state, release, cpu, print) for release in RELEASES)
    made = make_release_repository(base, head, tmp_path / "repo")
    repository = Repository(made.path)
    changed = repository.changed_paths(made.base_sha, made.head_sha)
    assert {PYPROJECT, "python/sglang/_version.py"} < set(changed)
    for sha, release in zip((made.base_sha, made.head_sha), RELEASES, strict=True):
        version = repository.read_file(sha, "python/sglang/_version.py")
        assert version is not None
        assert f"'{release}'".encode() in version
    assert repository.resolve(made.head_sha).tree == BASE_TREE


@pytest.mark.slow
def test_two_processes_make_it_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from perfgate.cpu.environment import prepare\n"
        "print(prepare(Path(sys.argv[1]), lambda text: None).cached)"
    )
    command = [sys.executable, "-c", code, tmp_path]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate(timeout=600)[0].strip() for process in both) == ["False", "True"]
    entries = [path.name for path in (tmp_path / "environments").iterdir() if not path.name.startswith(".")]
    assert len(entries) == 1


@pytest.mark.slow
def test_one_that_was_killed_half_way_is_made_again(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from perfgate.cpu.environment import prepare\n"
        "prepare(Path(sys.argv[1]), print)"
    )
    command = [sys.executable, "-u", "-c", code, tmp_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert any("PyTorch" in line for line in killed.stdout)
        killed.kill()
    assert [path.name for path in (tmp_path / "environments").iterdir() if not path.name.startswith(".")] == []
    made = prepare(tmp_path, print)
    assert not made.cached
    subprocess.run([made.python, "-I", "-c", "import torch, transformers"], check=True)
    assert [path.name for path in (tmp_path / "environments").glob("*making*")] == []
