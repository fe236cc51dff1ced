"""What lies between two commits: each commit with its parents, and what it changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfgate.source import repository as source
from perfgate.source.repository import Repository
from tests.standin import Behaviour
from tests.standin.repository import commit_all, git, make_history


@pytest.fixture
def shas(tmp_path: Path) -> list[str]:
    return list(make_history(tmp_path / "sglang", [Behaviour(seed=number) for number in range(4)]).commits)


def test_commits_and_their_paths_newest_first(tmp_path: Path, shas: list[str]) -> None:
    repository = Repository(tmp_path / "sglang")
    touched = repository.touched_between(shas[0], shas[3])
    assert [one.sha for one in touched] == shas[:0:-1]
    assert {one.paths for one in touched} == {("python/sglang/srt/behaviour.py",)}
    assert touched[0].title == "Change number 3 of the stand-in"
    assert repository.touched_between(shas[3], shas[3]) == ()


def test_a_merge_is_told_by_the_commits_it_brings(tmp_path: Path, shas: list[str]) -> None:
    path = tmp_path / "sglang"
    git(path, "checkout", "-q", "-b", "side", shas[1])
    (path / "python/sglang/srt/side.py").write_text("1\n")
    side = commit_all(path, "Side", 50)
    git(path, "checkout", "-q", "change")
    git(path, "merge", "-q", "--no-ff", "-m", "Merge", "side")
    merge = git(path, "rev-parse", "HEAD").strip()
    repository = Repository(path)
    assert {one.sha for one in repository.touched_between(shas[3], merge)} == {side}
    assert [sha for sha, _ in repository.history(shas[3], merge)] == [merge]  # first parents
    assert [sha for sha, _ in repository.history(shas[3], merge, first_parent=False)] == [side, merge]


def test_too_many_commits_are_nobodys_suspicion(
    tmp_path: Path, shas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_TOUCHED", 2)
    assert Repository(tmp_path / "sglang").touched_between(shas[0], shas[3]) == ()
