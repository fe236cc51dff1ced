"""Sides over the cpu profile's fixed environment: whose fault it is where one cannot be had."""

from __future__ import annotations

import platform
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from perfgate.build import BuiltSide
from perfgate.build.failures import BuildFailed
from perfgate.build.work import LocalWork
from perfgate.cpu.environment import CpuEnvironment
from perfgate.host.sandbox import Confinement
from perfgate.records import Blame, Side
from perfgate.run.builds import FixedEnvironment, Make, by_uv
from perfgate.source.repository import Repository
from perfgate.store.entries import Hold
from perfgate.store.folders import Store
from tests.integration.build.lab import Lab
from tests.standin.repository import GIT_ENVIRONMENT, commit_change


@pytest.fixture
def fixed(lab: Lab, store: Store, confinement: Confinement) -> FixedEnvironment:
    cpu = CpuEnvironment(
        key="k",
        path=lab.root,
        python=Path(sys.executable),
        site=lab.root,
        model_dir=lab.root,
        wheel_tree=lab.root,
        versions={"python": platform.python_version()},
        cached=True,
        hold=Hold(lab.root, True, -1),
    )
    return FixedEnvironment(Repository(lab.source), store, cpu, confinement, LocalWork())


def _make(make: Make, lab: Lab, ref: str) -> BuiltSide:
    return make(Side.HEAD, Repository(lab.source).resolve(ref), lab.root / "logs" / "build-head.log", None)


def _refusal(make: Make, lab: Lab, ref: str) -> str:
    with pytest.raises(BuildFailed) as error:
        _make(make, lab, ref)
    assert error.value.failure.blame is Blame.SIDE
    return str(error.value)


def test_a_commit_is_served_from_its_own_tree(lab: Lab, fixed: FixedEnvironment) -> None:
    built = _make(fixed.make, lab, "HEAD")
    assert built.path_entries == (built.tree / "python",)
    assert built.versions["python"] == platform.python_version()


def test_code_that_ends_the_interpreter_when_it_starts_is_the_sides(lab: Lab, fixed: FixedEnvironment) -> None:
    sha = commit_change(lab.source, {"python/sitecustomize.py": "import os\nos._exit(3)\n"})
    assert "exit code 3" in _refusal(fixed.make, lab, sha)


def test_folders_that_it_nests_without_end_when_it_starts_are_removed(
    lab: Lab, fixed: FixedEnvironment, swept_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = swept_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    nest = "home = os.getcwd()\n[(os.mkdir('d'), os.chdir('d')) for _ in range(1500)]\nos.chdir(home)\n"
    code = f"import os, sys\nif sys.argv[0] == '-c':\n{textwrap.indent(nest, '    ')}    print('nested')\n"
    _make(fixed.make, lab, commit_change(lab.source, {"python/sitecustomize.py": code}))
    assert "nested" in (lab.root / "logs" / "build-head.log").read_text()
    assert not list(temporary.iterdir())


def test_an_answer_that_cannot_be_read_is_the_sides(lab: Lab, fixed: FixedEnvironment) -> None:
    for answer in ("[" * 100_000, '{"versions": {}, "origin": "\\ud800"}'):
        code = f"import os\nprint('perfgate-origin:' + {answer!r}, flush=True)\nos._exit(0)\n"
        said = _refusal(fixed.make, lab, commit_change(lab.source, {"python/sitecustomize.py": code}))
        assert "does not say" in said or "finds nothing" in said


def test_a_tree_that_nobody_can_check_out_is_the_sides(lab: Lab, store: Store, fixed: FixedEnvironment) -> None:
    sha = _with_file_called(lab.source, "x" * 300)
    for make in (fixed.make, by_uv(lab.builder(store))):
        assert "no checkout may have" in _refusal(make, lab, sha)


def test_a_pyproject_that_is_too_large_is_the_sides(lab: Lab, store: Store) -> None:
    sha = commit_change(lab.source, {"python/pyproject.toml": "#" * (5 * 2**20)})
    assert "too many to read" in _refusal(by_uv(lab.builder(store)), lab, sha)


def _with_file_called(repository: Path, name: str) -> str:
    """A commit that no file system could have made."""
    blob = _git(repository, "hash-object", "-w", "--stdin", said="x")
    tree = _git(repository, "mktree", said=f"{_git(repository, 'ls-tree', 'HEAD')}\n100644 blob {blob}\t{name}\n")
    return _git(repository, "commit-tree", "-m", "odd", "-p", "HEAD", tree)


def _git(repository: Path, *arguments: str, said: str = "") -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=repository,
        env={**GIT_ENVIRONMENT, "PATH": "/usr/bin:/bin"},
        input=said,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
