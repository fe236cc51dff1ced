"""Whatever GitHub does to a call, no check stays open, there are never two comments, and errors are one clear line.

Every call of both jobs × every fault × once or always. Each case then lives on: the same command is given once more on
a GitHub that is well again, and must end as if nothing had happened. Commits are read from a table here instead of by
git, which makes a case a few hundredths of a second.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.errors import PerfgateError
from perfgate.github import respond as respond_module
from perfgate.github.client import GithubError
from perfgate.github.commits import Comparison
from perfgate.records import Commit
from perfgate.source.diff import DiffClass
from tests.e2e.hub.in_process import in_process
from tests.e2e.hub.repositories import MODELS, Upstream
from tests.e2e.hub.server import Fault
from tests.e2e.hub.stage import FORK, NAME, Done, Stage, raised
from tests.e2e.hub.world import PullRequest, Repository

BASE, HEAD, BASE_TREE, HEAD_TREE = "a" * 40, "b" * 40, "c" * 40, "d" * 40

PULL = ("GET", r"/pulls/\d+$")
COMMIT = ("GET", r"/commits/heads%2Fmain$")
FILE = ("GET", r"/contents/")
COMMENTS = ("GET", r"/issues/\d+/comments$")
PERMISSION = ("GET", r"/permission$")
CHECKS = ("GET", r"/check-runs$")
REACTION = ("POST", r"/reactions$")
NEW_CHECK = ("POST", r"/check-runs$")
NEW_COMMENT = ("POST", r"/issues/\d+/comments$")
CHECK = ("PATCH", r"/check-runs/\d+$")
COMMENT = ("PATCH", r"/issues/comments/\d+$")
RESPOND = (PULL, COMMIT, FILE, COMMENTS, PERMISSION, CHECKS, REACTION, NEW_CHECK, NEW_COMMENT)
AGAIN = (COMMENT, CHECK)  # of a second command
PUBLISH = (PULL, COMMENTS, CHECKS, CHECK, COMMENT, NEW_CHECK, NEW_COMMENT)

SECONDARY = "You have exceeded a secondary rate limit"
FAULTS: dict[str, Fault] = {
    "401": Fault("", "", 401, message="Bad credentials"),
    "403": Fault("", "", 403, message="Resource not accessible by integration"),
    "403 Retry-After": Fault("", "", 403, headers={"Retry-After": "0"}, message=SECONDARY),
    "404": Fault("", "", 404, message="Not Found"),
    "410": Fault("", "", 410, message="Gone"),
    "422": Fault("", "", 422, message="Validation Failed"),
    "429 Retry-After": Fault("", "", 429, headers={"Retry-After": "0"}, message="Too many requests"),
    "500": Fault("", "", 500),
    "502 after": Fault("", "", 502, when="after"),
    "dropped before": Fault("", ""),
    "dropped after": Fault("", "", when="after"),
    "200 {} after": Fault("", "", 200, when="after", raw="{}"),
    "200 {} before": Fault("", "", 200, raw="{}"),
    "200 HTML": Fault("", "", 200, raw="<html><body>Sign in to the proxy</body></html>"),
}
PASSING = {
    *("403 Retry-After", "429 Retry-After", "500", "502 after"),
    *("dropped before", "dropped after"),
}
ALWAYS = 10_000
JOBS = [(job, call) for job, calls in (("respond", RESPOND), ("again", AGAIN), ("publish", PUBLISH)) for call in calls]
MATRIX = list(itertools.product(JOBS, FAULTS, (1, ALWAYS)))


def name_of(value: object) -> str:
    return str(value).replace(r"\d+$", "").replace("$", "").replace("\\", "")


@pytest.fixture(scope="module")
def no_git(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    """A repository of two commits that is a table."""
    patch = pytest.MonkeyPatch()
    shas = {"heads/main": BASE, BASE: BASE, HEAD: HEAD}
    compared = Comparison(
        base=Commit(sha=BASE, tree=BASE_TREE, title="", date=""),
        head=Commit(sha=HEAD, tree=HEAD_TREE, title="", date=""),
        diff=DiffClass(python=True),
    )
    patch.setattr(Repository, "sha", lambda self, ref: shas.get(ref))
    patch.setattr(
        Repository, "file", lambda self, sha, path: MODELS.encode() if path.endswith("perfgate.yml") else None
    )
    patch.setattr(respond_module, "read_comparison", lambda *_, **__: compared)
    upstream = Upstream.__new__(Upstream)
    upstream.work = upstream.bare = tmp_path_factory.mktemp("nothing")
    yield upstream
    patch.undo()


@pytest.fixture
def stage(tmp_path: Path, no_git: Upstream) -> Iterator[Stage]:
    with raised(tmp_path, no_git) as stage, in_process(stage.hub):
        stage.person("maintainer", "write")
        yield stage


@pytest.fixture
def pull(stage: Stage) -> PullRequest:
    made = PullRequest(7, stage.person("stranger"), HEAD, "change", FORK, "main")
    stage.repository.pulls[7] = made
    return made


def command(stage: Stage, pull: PullRequest) -> Done:
    return stage.say(pull, "maintainer", f"/perfgate run {HEAD}")


def ordered(stage: Stage, job: str, call: tuple[str, str], fault: str, times: int) -> Fault:
    made = replace(FAULTS[fault], method=call[0], path=call[1], times=times)
    stage.hub.faults = [made]
    return made


def check_state(stage: Stage, pull: PullRequest) -> None:
    """What must hold whenever both jobs are over."""
    assert len([one for one in stage.said(pull) if one.body.startswith("<!-- perfgate -->")]) <= 1
    markers = [text.split("\n")[0] for text in stage.replies(pull)]
    assert len(set(markers)) == len(markers)
    checks = stage.checks(HEAD)
    if checks:
        assert stage.check(HEAD)["status"] == "completed", "the check that GitHub shows is open"


@pytest.mark.parametrize(("job", "fault", "times"), MATRIX, ids=name_of)
def test_no_open_check_and_never_two_comments(
    stage: Stage, pull: PullRequest, job: tuple[str, tuple[str, str]], fault: str, times: int
) -> None:
    which, call = job
    done = None
    if which == "respond":
        ordered(stage, which, call, fault, times)
    with suppress(PerfgateError):
        done = command(stage, pull)
    if which == "again" and done is not None:
        stage.publish(done.request, stage.result(done.request))
        ordered(stage, which, call, fault, times)
        done = None
        with suppress(PerfgateError):
            done = command(stage, pull)
    if done is not None and "request" in done.outputs:
        if which == "publish":
            ordered(stage, which, call, fault, times)
        elif times == 1:
            stage.hub.faults = []
        with suppress(PerfgateError):
            stage.publish(done.request, stage.result(done.request))
        stage.repository.runs[done.request.run] = "completed"
    check_state(stage, pull)
    if times == 1 and fault in PASSING:
        assert done is not None
        assert stage.check(HEAD)["conclusion"] == "failure"
        assert "regression" in stage.sticky(pull).body

    stage.hub.faults = []  # and it is well again
    again = command(stage, pull)
    stage.publish(again.request, stage.result(again.request))
    check_state(stage, pull)
    assert stage.check(HEAD)["conclusion"] == "failure"
    assert "regression" in stage.sticky(pull).body


def test_the_matrix_is_as_large_as_it_should_be() -> None:
    assert len(MATRIX) >= 300


@pytest.mark.parametrize("fault", ["401", "403", "404", "422", "200 {} before", "200 HTML"])
@pytest.mark.parametrize("call", [PULL, COMMIT, COMMENTS, CHECKS, NEW_CHECK], ids=name_of)
def test_what_lasts_ends_respond_in_one_clear_line_under_the_command(
    stage: Stage, pull: PullRequest, call: tuple[str, str], fault: str
) -> None:
    ordered(stage, "respond", call, fault, ALWAYS)
    with pytest.raises(GithubError) as caught:
        command(stage, pull)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    assert caught.value.where == "GitHub"
    if call is not COMMENTS:  # without them nobody knows whether it was told already
        (reply,) = stage.replies(pull)
        assert "could not be carried out" in reply


@pytest.mark.parametrize("call", [COMMENT, COMMENTS, NEW_COMMENT], ids=name_of)
def test_without_a_comment_the_check_tells_all(stage: Stage, pull: PullRequest, call: tuple[str, str]) -> None:
    if call is NEW_COMMENT:
        ordered(stage, "respond", call, "403", ALWAYS)
    done = command(stage, pull)
    assert done.outputs["measure"] == "true"
    if call is not NEW_COMMENT:
        ordered(stage, "publish", call, "403", ALWAYS)
    with pytest.raises(GithubError, match="forbids"):
        stage.publish(done.request, stage.result(done.request))
    check = stage.check(HEAD)
    assert check["conclusion"] == "failure"
    assert "88.6" in check["output"]["summary"] or "tok/s" in check["output"]["summary"]


def test_a_locked_pull_request_is_measured_and_told_by_its_check(stage: Stage, pull: PullRequest) -> None:
    pull.locked = True
    done = command(stage, pull)
    stage.publish(done.request, stage.result(done.request))
    assert stage.check(HEAD)["conclusion"] == "failure"
    assert stage.said(pull) == []
    assert "needs write permission" in stage.say(pull, "mallory", "/perfgate run").summary


def test_a_pass_does_not_hide_a_past_that_could_not_be_read(stage: Stage, pull: PullRequest) -> None:
    done = command(stage, pull)
    ordered(stage, "publish", COMMENTS, "500", ALWAYS)
    from tests.e2e.test_life import passed

    with pytest.raises(GithubError):
        stage.publish(done.request, passed(stage.result(done.request)))
    check = stage.check(HEAD)
    assert check["conclusion"] == "neutral"
    assert "could not be read" in check["output"]["title"]


def test_a_github_that_hangs_is_given_up(stage: Stage, pull: PullRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.e2e.hub.stage.IMPATIENT", replace(stage_patience(), tries=2, timeout_s=1))
    stage.hub.faults = [Fault(*PULL, 200, hangs_s=1.5, times=ALWAYS)]
    with pytest.raises(GithubError, match="did not answer"):
        command(stage, pull)


def stage_patience():  # type: ignore[no-untyped-def]
    from tests.e2e.hub.stage import IMPATIENT

    return IMPATIENT


def test_a_post_waits_as_long_as_github_asks(stage: Stage, pull: PullRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("perfgate.github.client.time.sleep", waited.append)
    monkeypatch.setattr("tests.e2e.hub.stage.IMPATIENT", replace(stage_patience(), longest_wait_s=40.0))
    stage.hub.faults = [Fault(*NEW_CHECK, 403, headers={"Retry-After": "17"}, message=SECONDARY)]
    command(stage, pull)
    assert 17.0 in waited


def test_without_a_token(stage: Stage, pull: PullRequest) -> None:
    with pytest.raises(PerfgateError, match="token"):
        stage.event(pull, "closed", token="")


def test_the_table_is_of_this_repository(stage: Stage) -> None:
    assert stage.repository.name == NAME
