"""Which configuration counts, and what is said where there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perfgate.config.places import CONFIG_PATH
from perfgate.cpu.profile import layers
from perfgate.errors import PerfgateError
from perfgate.run.plan import GateRequest, compare_commits, find_configuration
from perfgate.source.repository import Repository

CONFIG = "recipes:\n  baseline: {model: org/m}\n  eagle3: {enabled: false}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with one commit and no perfgate.yml."""
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "file").write_text("text")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True).stdout


def commit(folder: Path) -> str:
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-q", "-m", "message")
    return git(folder, "rev-parse", "HEAD").strip()


def write(folder: Path) -> None:
    path = folder / CONFIG_PATH
    path.parent.mkdir(parents=True)
    path.write_text(CONFIG)


def find(folder: Path, **asked: Path) -> str:
    request = GateRequest(repo=folder, head="HEAD", **asked)
    return find_configuration(Repository(folder), request, layers).source


def test_without_a_file_the_next_step_is_told(folder: Path) -> None:
    with pytest.raises(PerfgateError, match="so no model is named") as caught:
        find(folder)
    assert "perfgate init" in str(caught.value)


def test_a_file_that_is_not_committed_does_not_count_and_that_is_told(folder: Path) -> None:
    write(folder)
    with pytest.raises(PerfgateError, match="of the work tree") as caught:
        find(folder)
    assert f"--config {CONFIG_PATH}" in str(caught.value)
    assert find(folder, config=folder / CONFIG_PATH) == "perfgate.yml"


def test_the_file_of_the_base_branch_counts(folder: Path) -> None:
    write(folder)
    tip = commit(folder)
    assert find(folder) == tip


def test_a_diff_with_nothing_to_measure_names_its_paths_and_is_measured_when_forced(folder: Path) -> None:
    base = Repository(folder).resolve("HEAD")
    (folder / "docs").mkdir()
    (folder / "docs" / "a.md").write_text("text")
    commit(folder)
    repository = Repository(folder)
    head = repository.resolve("HEAD")
    skipped = compare_commits(repository, base, head).diff
    assert skipped.nothing
    assert "documentation (docs/a.md)" in skipped.reason
    forced = compare_commits(repository, base, head, force=True).diff
    assert forced.name == "python"
    assert forced.reason.endswith("Measured because of --force.")


def test_a_head_that_is_already_in_the_base_branch_is_told_with_the_next_step(folder: Path) -> None:
    """It would pass as a diff that touches no code that serves."""
    write(folder)
    commit(folder)
    repository = Repository(folder)
    head = repository.resolve("HEAD~")
    base = repository.merge_base(repository.resolve("main").sha, head.sha)
    diff = compare_commits(repository, base, head).diff
    assert diff.nothing
    assert "already in the base branch" in diff.reason
    assert "--base" in diff.reason
