from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.act import PERFGATE, Act, Ran, caller_files, installed, perfgate_repository
from tests.e2e.hub import payloads
from tests.e2e.hub.repositories import Upstream, git
from tests.e2e.hub.stage import NAME, STORY, Stage, raised
from tests.e2e.hub.world import PullRequest, User

CONFIG = "version: 1\n"


@dataclass
class Theatre:
    """A stage whose workflow is run by act."""

    stage: Stage
    act: Act
    reference: str  # perfgate's SHA

    def deliver(self, event: str, payload: object, run: int | None = None, token: str = "full", **more: str) -> Ran:
        run = run or next(self.stage.runs)
        self.stage.repository.runs[run] = "in_progress"
        try:
            return self.act.run(event, payload, run, token, **self.names(), **more)
        finally:
            self.stage.repository.runs[run] = "completed"

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


@pytest.fixture(scope="session")
def canned_perfgate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """perfgate as it is, but for the measuring."""
    canned = (Path(__file__).parent / "canned_box.py").read_text()
    return perfgate_repository(tmp_path_factory.mktemp("canned"), {"perfgate/github/box.py": canned})


@pytest.fixture(scope="session")
def calling_upstream(tmp_path_factory: pytest.TempPathFactory, canned_perfgate: tuple[Path, str]) -> Path:
    """A repository that uses perfgate."""
    folder = tmp_path_factory.mktemp("upstream")
    upstream = Upstream(folder)
    upstream.commit(caller_files(canned_perfgate[1], CONFIG), "Use perfgate")
    upstream.push("main")
    git(upstream.work, "remote", "add", "origin", f"https://github.com/{NAME}")
    return folder


@pytest.fixture(scope="session")
def canned_venv(tmp_path_factory: pytest.TempPathFactory, canned_perfgate: tuple[Path, str]) -> Path:
    return installed(tmp_path_factory.mktemp("installed"), canned_perfgate[0])


@pytest.fixture
def theatre(
    tmp_path: Path, canned_perfgate: tuple[Path, str], canned_venv: Path, calling_upstream: Path
) -> Iterator[Theatre]:
    folder = tmp_path / "jobs"
    folder.mkdir()
    upstream = Upstream.copy(calling_upstream, tmp_path / "upstream")
    with raised(folder, upstream) as stage:
        stage.hub.world.repository(PERFGATE, canned_perfgate[0])
        act = Act(tmp_path, stage.hub.url, stage.hub.api, upstream.work, venv=canned_venv)
        yield Theatre(stage, act, canned_perfgate[1])
