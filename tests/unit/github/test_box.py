from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfgate.errors import Exit, PerfgateError
from perfgate.github import box as module
from perfgate.github.box import check_isolated, gate_request, gate_request_step, runner_folders
from perfgate.github.request import Authorised, request_from_line
from perfgate.host.sandbox import Isolation
from perfgate.records import PullRequest
from perfgate.run.gate import GateOutcome
from perfgate.run.progress import Progress
from tests.e2e.hub.stage import read_outputs

STORY = Path(__file__).parents[2] / "fixtures" / "run-story"
A, B, C, D = "a" * 40, "b" * 40, "c" * 40, "d" * 40
REQUEST = Authorised(
    repository="sgl-project/sglang",
    run=5,
    attempt=1,
    pr=7,
    fork=True,
    base=A,
    base_tree=B,
    head=C,
    head_tree=D,
    config=A,
    recipes=("eagle3",),
    minutes=90,
)


def environment(tmp_path: Path) -> dict[str, str]:
    return {
        "GITHUB_EVENT_NAME": "issue_comment",
        "GITHUB_EVENT_PATH": "x",
        "GITHUB_REPOSITORY": "sgl-project/sglang",
        "GITHUB_RUN_ID": "5",
        "GITHUB_RUN_ATTEMPT": "1",
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "PERFGATE_REQUEST": REQUEST.to_line(),
        "PERFGATE_FETCH_TOKEN": "secret",
        "GITHUB_TOKEN": "other",
    }


def test_the_request_survives_its_line() -> None:
    assert request_from_line(REQUEST.to_line(), "SGL-Project/sglang") == REQUEST
    assert "\n" not in REQUEST.to_line()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (C, "main"),
        (C, C[:12]),
        ('"pr":7', '"pr":-7'),
        ('"eagle3"', '"--config=/etc/passwd"'),
        ('"minutes":90', '"minutes":9000000'),
        ('"v":1', '"v":2'),
        ('"v":1', '"v":1,"more":1'),
        ("{", "["),
    ],
)
def test_another_request_is_refused(old: str, new: str) -> None:
    line = REQUEST.to_line()
    assert old in line
    with pytest.raises(PerfgateError):
        request_from_line(line.replace(old, new, 1), "sgl-project/sglang")


def test_what_the_gate_is_asked(tmp_path: Path) -> None:
    asked = gate_request(REQUEST, tmp_path, tmp_path / "box.yml", (tmp_path,))
    assert (asked.base, asked.head, asked.base_branch) == (A, C, A)
    assert (asked.recipes, asked.measure) == ((), ("eagle3",))
    assert asked.pr == PullRequest(repository="sgl-project/sglang", number=7)
    assert asked.hidden == (tmp_path,)


def test_forks_need_isolation() -> None:
    with pytest.raises(PerfgateError, match="forks are refused"):
        check_isolated(Isolation.NONE, ())
    check_isolated(Isolation.BUBBLEWRAP, (Path("/usr"),))


def test_a_second_user_must_not_reach_the_runners_files(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "work").mkdir(parents=True)
    closed.chmod(0o700)
    check_isolated(Isolation.USER, (closed, closed / "work", tmp_path / "closed"))
    with pytest.raises(PerfgateError, match="every user can read"):
        check_isolated(Isolation.USER, (closed, Path("/usr")))


def test_the_runners_folders() -> None:
    found = runner_folders({"GITHUB_WORKSPACE": "/opt/runner/_work/x/x", "RUNNER_TEMP": "/opt/runner/_work/_temp"})
    assert found == (Path("/opt/runner/_work"), Path("/opt/runner/_work/x"))
    assert runner_folders({"GITHUB_WORKSPACE": "/w"}) == ()


@pytest.mark.parametrize(
    ("outcome", "code"),
    [(Exit.REGRESSION, 0), (Exit.INCONCLUSIVE, 0), (Exit.INTERRUPTED, 130)],
)
def test_a_verdict_ends_the_step_well_and_an_interruption_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Exit, code: int
) -> None:
    """And no token is left in the environment when the gate begins."""
    own = environment(tmp_path)
    seen: dict[str, str] = {}
    (tmp_path / "box.yml").write_text("name: box-a\nstate_dir: /var/lib/perfgate\n")
    shutil.copytree(STORY, tmp_path / "run")

    def gate(*_: Any) -> GateOutcome:
        seen.update(own)
        result: Any = object() if outcome is not Exit.INTERRUPTED else None
        return GateOutcome(tmp_path / "run", result, outcome)

    monkeypatch.setattr(module, "_gate", gate)
    assert gate_request_step(own, tmp_path / "box.yml", Progress()) == code
    assert not {"GITHUB_TOKEN", "PERFGATE_FETCH_TOKEN"} & set(seen)
    assert read_outputs((tmp_path / "output").read_text()) == {"run-directory": str(tmp_path / "run/public")}
    assert (tmp_path / "run" / "public" / "facts.jsonl").exists()


def test_why_nothing_was_measured_is_handed_on(tmp_path: Path) -> None:
    own = environment(tmp_path)
    with pytest.raises(PerfgateError):
        gate_request_step(own, tmp_path / "missing.yml", Progress())
    assert "missing.yml" in read_outputs((tmp_path / "output").read_text())["reason"]
    assert os.environ.get("PERFGATE_FETCH_TOKEN") is None
