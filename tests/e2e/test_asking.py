"""Who may ask for what, and what the answer is; on a GitHub of our own."""

from __future__ import annotations

import pytest

from perfgate.errors import PerfgateError
from perfgate.github.comment import MARKER, state_line, state_of
from tests.e2e.hub.payloads import issue_comment
from tests.e2e.hub.stage import Done, Stage
from tests.e2e.hub.world import BOT, Comment, PullRequest, User
from tests.e2e.test_life import measured, passed

LEVELS = ("none", "read", "triage", "write", "maintain", "admin")


def reactions(comment: Comment) -> list[str]:
    return [one.content for one in comment.reactions]


@pytest.mark.parametrize("level", LEVELS)
def test_write_permission_starts_a_fork(stage: Stage, level: str) -> None:
    pull = stage.pull(fork=True, author="stranger")
    stage.person("asker", level)
    comment = stage.comment(pull, "asker", f"/perfgate run {pull.head}")
    done = stage.deliver_comment(pull, comment)
    if level in ("write", "maintain", "admin"):
        assert done.outputs["measure"] == "true"
        assert done.request.fork
        assert done.request.head == pull.head
        assert reactions(comment) == ["eyes", "rocket"]
        assert stage.replies(pull) == []
    else:
        assert done.outputs == {}
        assert "needs write permission" in stage.replies(pull)[0]
        assert stage.checks(pull.head) == []


def test_somebody_github_has_never_heard_of(stage: Stage) -> None:
    pull = stage.pull()
    comment = stage.hub.world.comment(stage.repository, pull.number, User("unheard-of", 99), "/perfgate run")
    assert stage.deliver_comment(pull, comment).outputs == {}


def test_a_login_that_changed_hands_has_no_say(stage: Stage) -> None:
    pull = stage.pull()
    stage.person("maintainer", "admin")
    comment = stage.hub.world.comment(stage.repository, pull.number, User("maintainer", 99), "/perfgate run")
    assert stage.deliver_comment(pull, comment).outputs == {}
    assert "needs write" in stage.replies(pull)[0]


@pytest.mark.parametrize("command", ["run", "cancel", "accept because", "rerun"])
def test_authors_may_rerun_their_own_branch(stage: Stage, command: str) -> None:
    pull = stage.pull(author="author")
    stage.repository.levels["author"] = "read"
    done = stage.say(pull, "author", f"/perfgate {command}")
    assert ("measure" in done.outputs) is (command == "rerun")


def test_authors_of_forks_may_not(stage: Stage) -> None:
    pull = stage.pull(fork=True, author="stranger")
    measured(stage, pull)
    stage.repository.runs.clear()
    assert stage.say(pull, "stranger", "/perfgate rerun").outputs == {}


def test_who_may_is_configurable(stage: Stage) -> None:
    stage.configure("github: {who: {run: maintain}}\n")
    pull = stage.pull()
    stage.person("writer", "write")
    stage.person("keeper", "maintain")
    assert stage.say(pull, "writer", "/perfgate run").outputs == {}
    assert "needs maintain" in stage.replies(pull)[0]
    assert "measure" in stage.say(pull, "keeper", "/perfgate run").outputs


# ------------------------------------------------------------------------------------------------ which head


def test_a_fork_needs_the_sha_that_was_read(stage: Stage) -> None:
    pull = stage.pull(fork=True, author="stranger")
    stage.person("maintainer", "write")
    assert stage.say(pull, "maintainer", "/perfgate run").outputs == {}
    assert f"/perfgate run {pull.head}" in stage.replies(pull)[0]

    old = pull.head
    stage.push(pull, {"python/sglang/evil.py": "import os\n"})
    assert stage.say(pull, "maintainer", f"/perfgate run {old}").outputs == {}
    assert "is not the head" in stage.replies(pull)[1]
    assert f"/perfgate run {pull.head}" in stage.replies(pull)[1]
    assert stage.repository.checks == {}


def test_own_branches_bind_the_head_that_is_there(stage: Stage) -> None:
    pull = stage.pull()
    done = measured(stage, pull)
    assert done.request.head == pull.head
    assert pull.head[:10] in stage.sticky(pull).body


def test_rerun_of_a_fork_is_for_the_head_that_was_started(stage: Stage) -> None:
    pull = stage.pull(fork=True, author="stranger")
    first = measured(stage, pull).request
    stage.publish(first, stage.result(first))
    assert "measure" in stage.say(pull, "maintainer", "/perfgate rerun").outputs
    stage.repository.runs.clear()
    stage.push(pull, {"python/sglang/evil.py": "import os\n"})
    assert stage.say(pull, "maintainer", "/perfgate rerun").outputs == {}
    assert "was not measured yet" in stage.replies(pull)[0]


def test_a_closed_pull_request(stage: Stage) -> None:
    pull = stage.pull()
    pull.state = "closed"
    stage.person("maintainer", "write")
    assert stage.say(pull, "maintainer", "/perfgate run").outputs == {}
    assert "closed" in stage.replies(pull)[0]


# ------------------------------------------------------------------------------------------------ once


def test_a_comment_is_answered_once(stage: Stage) -> None:
    pull = stage.pull()
    stage.person("maintainer", "write")
    for body in ("/perfgate run", "/perfgate help", "/perfgate nonsense", "/perfgate accept it"):
        comment = stage.comment(pull, "maintainer", body)
        answers = [stage.deliver_comment(pull, comment).outputs for _ in range(3)]
        assert answers[1:] == [{}, {}]
    assert len(stage.replies(pull)) == 3
    assert len(stage.checks(pull.head)) == 1


def test_edited_and_deleted_comments_are_nothing(stage: Stage) -> None:
    pull = stage.pull()
    stage.person("maintainer", "write")
    comment = stage.comment(pull, "maintainer", "/perfgate run")
    for action in ("edited", "deleted"):
        assert stage.deliver_comment(pull, comment, action).outputs == {}
    assert stage.hub.calls() == []


def test_bots_and_comments_for_others_are_nothing(stage: Stage) -> None:
    pull = stage.pull()
    stage.person("maintainer", "admin")
    comments = (
        stage.hub.world.comment(stage.repository, pull.number, BOT, "/perfgate run"),
        stage.comment(pull, "robot[bot]", "/perfgate run"),
        stage.comment(pull, "maintainer", "Looks good.\n/perfgate run"),
    )
    for comment in comments:
        assert stage.deliver_comment(pull, comment).outputs == {}
    payload = issue_comment(stage.repository, pull, stage.comment(pull, "maintainer", "/perfgate run"))
    del payload["issue"]["pull_request"]  # an issue
    assert stage.respond("issue_comment", payload).outputs == {}
    assert stage.hub.calls() == []


def test_asking_for_what_runs_already(stage: Stage) -> None:
    pull = stage.pull()
    first = measured(stage, pull).request
    assert stage.say(pull, "maintainer", "/perfgate run").outputs == {}
    assert f"runs/{first.run}" in stage.replies(pull)[0]
    stage.repository.runs[first.run] = "completed"  # it died without a word
    assert "measure" in stage.say(pull, "maintainer", "/perfgate run").outputs


# ------------------------------------------------------------------------------------------------ the other words


def test_help_and_nonsense(stage: Stage) -> None:
    pull = stage.pull()
    assert stage.say(pull, "anybody", "/perfgate help").outputs == {}
    assert stage.say(pull, "anybody", "/perfgate rnu $(id) @everyone").outputs == {}
    first, second = stage.replies(pull)
    assert "/perfgate accept REASON" in first
    assert "There is no such command" in second
    assert "everyone" not in second


def test_rerun_knows_its_recipes(stage: Stage) -> None:
    pull = stage.pull()
    stage.person("maintainer", "write")
    assert stage.say(pull, "maintainer", "/perfgate rerun eagle4").outputs == {}
    assert "`baseline`, `eagle3`" in stage.replies(pull)[0]
    assert stage.say(pull, "maintainer", "/perfgate rerun eagle3").request.recipes == ("eagle3",)


def test_cancel(stage: Stage) -> None:
    pull = stage.pull()
    stage.person("maintainer", "write")
    assert stage.say(pull, "maintainer", "/perfgate cancel").outputs == {}
    assert "Nothing is being measured" in stage.replies(pull)[0]
    first = measured(stage, pull).request
    outputs = stage.say(pull, "maintainer", "/perfgate cancel").outputs
    assert outputs == {"cancel": "true", "pr": str(pull.number)}
    stage.publish(first, None, "cancelled")
    assert stage.check(pull.head)["conclusion"] == "cancelled"
    assert stage.say(pull, "maintainer", "/perfgate cancel").outputs == {}
    assert "measure" in stage.say(pull, "maintainer", "/perfgate run").outputs


def regression(stage: Stage, pull: PullRequest) -> Done:
    done = measured(stage, pull)
    stage.publish(done.request, stage.result(done.request))
    return done


def test_accepting_a_loss(stage: Stage) -> None:
    pull = stage.pull()
    stage.person("maintainer", "write")
    assert stage.say(pull, "maintainer", "/perfgate accept because").outputs == {}
    assert "no regression" in stage.replies(pull)[0]
    regression(stage, pull)
    stage.say(pull, "maintainer", "/perfgate accept it is <b>exact</b> @everyone")
    check = stage.check(pull.head)
    assert check["conclusion"] == "neutral"
    assert (
        check["output"]["title"] == f"the regression of {pull.head[:10]} is accepted by maintainer – nobody has to act"
    )
    body = stage.sticky(pull).body
    for text in (body, check["output"]["summary"]):
        assert "exact" in text
        assert "@everyone" not in text
        assert "<b>" not in text.replace("\\<b", "")
    assert "regression" in body  # the numbers stay

    again = stage.say(pull, "maintainer", "/perfgate rerun").request
    stage.publish(again, stage.result(again))
    assert stage.check(pull.head)["conclusion"] == "neutral"  # the same head
    other = stage.push(pull, {"python/sglang/more.py": "x = 1\n"})
    regression(stage, pull)
    assert stage.check(other)["conclusion"] == "failure"  # and no other


def test_accepting_after_somebody_deleted_the_comment(stage: Stage) -> None:
    pull = stage.pull()
    regression(stage, pull)
    del stage.repository.comments[stage.sticky(pull).id]
    stage.say(pull, "maintainer", "/perfgate accept it is worth it")
    assert stage.check(pull.head)["conclusion"] == "neutral"
    assert "it is worth it" in stage.sticky(pull).body


def test_only_what_was_seen_can_be_accepted(stage: Stage) -> None:
    pull = stage.pull()
    stage.person("maintainer", "write")
    early = issue_comment(stage.repository, pull, stage.comment(pull, "maintainer", "/perfgate accept fine"))
    early["comment"]["created_at"] = "2000-01-01T00:00:00Z"
    regression(stage, pull)
    stage.respond("issue_comment", early)
    assert "newer than your comment" in stage.replies(pull)[0]
    assert stage.check(pull.head)["conclusion"] == "failure"


# ------------------------------------------------------------------------------------------------ forged and broken


def test_a_forged_state_is_not_believed(stage: Stage) -> None:
    """Somebody writes a comment like perfgate's, with a state that says that all is accepted."""
    pull = stage.pull()
    request = measured(stage, pull).request
    real = stage.sticky(pull)
    state = state_line(state_of(real.body))
    stage.comment(pull, "mallory", f"{MARKER}\n{state}\nAll is fine.")
    stage.publish(request, stage.result(request))
    assert stage.check(pull.head)["conclusion"] == "failure"
    assert "regression" in stage.sticky(pull).body


def test_a_broken_configuration_is_told_in_one_reply(stage: Stage) -> None:
    stage.configure("limits: {minuets: 5}\n")
    pull = stage.pull()
    stage.person("maintainer", "write")
    with pytest.raises(PerfgateError, match="minuets"):
        stage.say(pull, "maintainer", "/perfgate run")
    (reply,) = stage.replies(pull)
    assert "minuets" in reply


def test_unrelated_histories_end_in_a_verdict(stage: Stage) -> None:
    pull = stage.pull()
    pull.head = stage.upstream.orphan({"python/sglang/x.py": "x = 1\n"})
    stage.upstream.push_pull(pull.number, pull.head)
    with pytest.raises(PerfgateError, match="unrelated"):
        stage.event(pull)
    assert stage.check(pull.head)["conclusion"] == "neutral"


def test_a_pass_after_all(stage: Stage) -> None:
    pull = stage.pull(fork=True, author="stranger")
    request = measured(stage, pull).request
    stage.publish(request, passed(stage.result(request)))
    assert stage.check(pull.head)["conclusion"] == "success"
