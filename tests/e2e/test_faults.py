"""Whatever GitHub does to a call, the end is the right state or one clear error, and never two comments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perfgate.errors import PerfgateError
from perfgate.github.client import GithubError
from tests.e2e.hub.server import Fault
from tests.e2e.hub.stage import Done, Stage
from tests.e2e.hub.world import PullRequest

PULL = r"^/repos/[^/]+/[^/]+/pulls/\d+$"
COMMIT = r"/commits/heads%2Fmain$"
FILE = r"/contents/"
COMMENTS = r"/issues/\d+/comments$"
COMMENT = r"/issues/comments/\d+$"
REACTIONS = r"/reactions$"
CHECKS = r"/check-runs$"
CHECK = r"/check-runs/\d+$"
PERMISSION = r"/permission$"

RESPOND = [
    ("POST", REACTIONS),
    ("GET", PULL),
    ("GET", COMMIT),
    ("GET", FILE),
    ("GET", COMMENTS),
    ("GET", PERMISSION),
    ("POST", CHECKS),
    ("POST", COMMENTS),
    ("PATCH", COMMENT),
    ("PATCH", CHECK),
]
PUBLISH = [("GET", PULL), ("GET", COMMENT), ("GET", CHECKS), ("PATCH", CHECK), ("PATCH", COMMENT)]
SECONDARY = "You have exceeded a secondary rate limit"


def dropped(when: str) -> Callable[[str, str], Fault]:
    return lambda method, path: Fault(method, path, when=when)  # type: ignore[arg-type]


def status(code: int, message: str = "Something", when: str = "before", **headers: str) -> Callable[[str, str], Fault]:
    fixed = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda method, path: Fault(method, path, code, when, fixed, message)  # type: ignore[arg-type]


PASSING = {
    "403 with Retry-After": status(403, SECONDARY, Retry_After="0"),
    "403 secondary": status(403, SECONDARY),
    "429": status(429, "Too many requests"),
    "429 with Retry-After": status(429, "Too many requests", Retry_After="0"),
    "500": status(500),
    "502 after": status(502, when="after"),
    "503": status(503),
    "dropped before": dropped("before"),
    "dropped after": dropped("after"),
}
LASTING = {
    "401": status(401, "Bad credentials"),
    "403": status(403, "Resource not accessible by integration"),
    "404": status(404, "Not Found"),
    "422": status(422, "Validation Failed"),
}


def respond(stage: Stage) -> tuple[PullRequest, Done]:
    pull = stage.pull(fork=True, author="stranger")
    stage.person("maintainer", "write")
    return pull, stage.say(pull, "maintainer", f"/perfgate run {pull.head[:7]}")


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_what_passes_leaves_respond_in_the_right_state(stage: Stage, fault: Callable[[str, str], Fault]) -> None:
    """Every call of the job fails once in this way."""
    stage.hub.faults = [fault(*call) for call in RESPOND]
    pull, done = respond(stage)
    assert [one for one in stage.hub.faults if one.times] == [], "not every call was made"
    assert done.outputs["measure"] == "true"
    assert len(stage.said(pull)) == len(stage.checks(pull.head)) == 1
    assert stage.check(pull.head)["status"] == "in_progress"
    assert "running" in stage.sticky(pull).body


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
def test_what_passes_leaves_publish_in_the_right_state(stage: Stage, fault: Callable[[str, str], Fault]) -> None:
    pull, done = respond(stage)
    stage.hub.faults = [fault(*call) for call in PUBLISH]
    stage.publish(done.request, stage.result(done.request))
    assert [one for one in stage.hub.faults if one.times] == [], "not every call was made"
    assert len(stage.said(pull)) == len(stage.checks(pull.head)) == 1
    assert stage.check(pull.head)["conclusion"] == "failure"
    assert "regression" in stage.sticky(pull).body


@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING)
@pytest.mark.parametrize("call", RESPOND, ids=lambda call: "".join(char for char in "".join(call) if char.isalpha()))
def test_what_lasts_ends_respond_in_one_clear_error(
    stage: Stage, call: tuple[str, str], fault: Callable[[str, str], Fault]
) -> None:
    lasting = fault(*call)
    lasting.times = 100
    stage.hub.faults = [lasting]
    pull = stage.pull(fork=True, author="stranger")
    stage.person("maintainer", "write")
    told = lasting.status == 404 and call in [("GET", FILE), ("GET", PERMISSION), ("PATCH", CHECK)]  # an answer, too
    comment = stage.comment(pull, "maintainer", f"/perfgate run {pull.head[:7]}")
    if told:
        stage.deliver_comment(pull, comment)
    else:
        with pytest.raises(GithubError) as caught:
            stage.deliver_comment(pull, comment)
        check_error(caught.value)
    assert len(stage.said(pull)) <= 1


@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING)
@pytest.mark.parametrize("call", PUBLISH, ids=lambda call: "".join(char for char in "".join(call) if char.isalpha()))
def test_what_lasts_ends_publish_in_one_clear_error(
    stage: Stage, call: tuple[str, str], fault: Callable[[str, str], Fault]
) -> None:
    pull, done = respond(stage)
    lasting = fault(*call)
    lasting.times = 100
    stage.hub.faults = [lasting]
    told = lasting.status == 404 and call in [("GET", COMMENT), ("PATCH", CHECK)]  # gone: found, or made, anew
    if told:
        stage.publish(done.request, stage.result(done.request))
        assert stage.check(pull.head)["conclusion"] == "failure"
    else:
        with pytest.raises(GithubError) as caught:
            stage.publish(done.request, stage.result(done.request))
        check_error(caught.value)
    assert len(stage.said(pull)) == 1


def check_error(error: GithubError) -> None:
    assert "\n" not in str(error)
    assert error.remedy
    assert error.where == "GitHub"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_github_that_stays_away_is_given_up(stage: Stage, method: str) -> None:
    path = PULL if method == "GET" else CHECKS
    stage.hub.faults = [Fault(method, path, times=100)]
    with pytest.raises(GithubError, match="did not answer"):
        respond(stage)


def test_after_a_lost_claim_the_command_is_not_lost(stage: Stage) -> None:
    """The 👀 came through and only its answer was lost: the second try finds it there, and it is ours."""
    stage.hub.faults = [Fault("POST", REACTIONS, when="after")]
    assert respond(stage)[1].outputs["measure"] == "true"


def test_a_deleted_comment_is_made_again(stage: Stage) -> None:
    pull, done = respond(stage)
    del stage.repository.comments[stage.sticky(pull).id]
    stage.publish(done.request, stage.result(done.request))
    assert "regression" in stage.sticky(pull).body


def test_without_a_token(stage: Stage) -> None:
    pull = stage.pull()
    with pytest.raises(PerfgateError, match="token"):
        stage.event(pull, token="")
