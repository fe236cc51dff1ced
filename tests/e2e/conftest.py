from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.act import Act, Ran, caller_files, installed, perfgate_repository
from tests.e2e.hub import payloads
from tests.e2e.hub.repositories import MODELS, Upstream, git
from tests.e2e.hub.stage import NAME, STORY, Stage, raised
from tests.e2e.hub.world import PullRequest, User
from tests.needs import require
from tests.unit.github.workflows import PERFGATE


@dataclass
class Theatre:
    """A stage whose workflow is run by act."""

    stage: Stage
    act: Act

    def deliver(self, event: str, payload: object, run: int | None = None, token: str = "full", **more: str) -> Ran:
        run = run or next(self.stage.runs)
        self.stage.repository.runs[run] = "in_progress"
        try:
            return self.act.run(event, payload, run, token, **{**self.names(), **more})
        finally:
            self.stage.repository.runs[run] = "completed"

    def start(self, event: str, payload: object, run: int, **more: str) -> subprocess.Popen[str]:
        """As `deliver`, without waiting."""
        self.stage.repository.runs[run] = "in_progress"
        return self.act.start(event, payload, run, "full", **{**self.names(), **more})

    def names(self) -> dict[str, str]:
        sha = self.stage.repository.sha("heads/main") or ""
        ref = f"{NAME}/.github/workflows/perfgate.yml@refs/heads/main"
        return {"GITHUB_WORKFLOW_REF": ref, "GITHUB_WORKFLOW_SHA": sha, "E2E_CANNED": str(STORY)}

    def say(self, pull: PullRequest, login: str, body: str, **how: Any) -> Ran:
        """Somebody comments."""
        comment = self.stage.comment(pull, login, body)
        return self.deliver("issue_comment", payloads.issue_comment(self.stage.repository, pull, comment), **how)

    def push(self, pull: PullRequest, action: str = "synchronize", sender: User | None = None, **how: Any) -> Ran:
        payload = payloads.pull_request(self.stage.repository, pull, action, sender)
        return self.deliver("pull_request", payload, **how)


@pytest.fixture(scope="session")
def upstream_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    Upstream(folder)
    return folder


@pytest.fixture
def stage(tmp_path: Path, upstream_template: Path) -> Iterator[Stage]:
    """A repository on a GitHub of our own; perfgate's jobs run in this process."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    with raised(folder, Upstream.copy(upstream_template, tmp_path / "upstream")) as stage:
        yield stage


# ------------------------------------------------------------------------------------------------ under act


@dataclass(frozen=True)
class Perfgate:
    """One perfgate as other repositories see it: a bare repository at a SHA, and an environment with it."""

    bare: Path
    sha: str
    venv: Path


def perfgate_at(folder: Path, changes: dict[str, str]) -> Perfgate:
    require("act")
    bare, sha = perfgate_repository(folder, changes)
    return Perfgate(bare, sha, installed(folder, bare))


@pytest.fixture(scope="session")
def canned_perfgate(tmp_path_factory: pytest.TempPathFactory) -> Perfgate:
    """perfgate as it is, but for the measuring."""
    canned = (Path(__file__).parent / "canned_box.py").read_text()
    return perfgate_at(tmp_path_factory.mktemp("canned"), {"perfgate/github/box.py": canned})


@pytest.fixture(scope="session")
def real_perfgate(tmp_path_factory: pytest.TempPathFactory) -> Perfgate:
    return perfgate_at(tmp_path_factory.mktemp("real"), {})


@pytest.fixture(scope="session")
def calling_upstream(tmp_path_factory: pytest.TempPathFactory, canned_perfgate: Perfgate) -> Path:
    """A repository that uses perfgate."""
    folder = tmp_path_factory.mktemp("upstream")
    call(Upstream(folder), canned_perfgate, MODELS)
    return folder


def call(upstream: Upstream, perfgate: Perfgate, config: str, more: str = "") -> None:
    """Makes a repository use perfgate, as `perfgate init` would. `more`: lines for the end of the workflow."""
    files = caller_files(perfgate.sha, config)
    files[".github/workflows/perfgate.yml"] += more
    upstream.commit(files, "Use perfgate")
    upstream.push("main")
    git(upstream.work, "remote", "add", "origin", f"https://github.com/{NAME}")


@contextmanager
def opened(folder: Path, upstream: Upstream, perfgate: Perfgate) -> Iterator[Theatre]:
    jobs = folder / "jobs"
    jobs.mkdir()
    with raised(jobs, upstream) as stage:
        stage.hub.world.repository(PERFGATE, perfgate.bare)
        yield Theatre(stage, Act(folder, stage.hub.url, stage.hub.api, upstream.work, venv=perfgate.venv))


@pytest.fixture
def theatre(tmp_path: Path, canned_perfgate: Perfgate, calling_upstream: Path) -> Iterator[Theatre]:
    """A repository whose workflow act runs; what is measured is a recorded result."""
    with opened(tmp_path, Upstream.copy(calling_upstream, tmp_path / "upstream"), canned_perfgate) as theatre:
        yield theatre
