"""Each state of a pull request has its own first line and the right check, whatever happened before it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from perfgate.errors import PerfgateError
from perfgate.github.comment import text_of
from perfgate.records.files import result_to_json
from tests.e2e.hub import payloads
from tests.e2e.hub.stage import Done, Stage
from tests.e2e.hub.world import BOT, PullRequest, Reaction
from tests.e2e.test_life import first_line, measured, passed


def shown(stage: Stage, pull: PullRequest) -> str:
    return first_line(stage.sticky(pull).body)


def judged(stage: Stage, pull: PullRequest, *, good: bool, action: str = "synchronize") -> Done:
    """A push, measured."""
    done = stage.event(pull, action)
    result = stage.result(done.request)
    stage.publish(done.request, passed(result) if good else result)
    return done


def edited(stage: Stage, pull: PullRequest, **how: Any) -> Done:
    """The pull request goes to another branch now."""
    payload = payloads.pull_request(stage.repository, pull, "edited")
    return stage.respond("pull_request", {**payload, "changes": {"base": {"ref": {"from": "main"}}}}, **how)


# ------------------------------------------------------------------------------------------------ another base


def other_branch(stage: Stage, pull: PullRequest) -> None:
    stage.upstream.branch("release", {"python/sglang/release.py": "x = 1\n"})
    stage.upstream.push("release")
    pull.base_ref = "release"


def test_retargeting_takes_the_old_success_away(stage: Stage) -> None:
    pull = stage.pull()
    judged(stage, pull, good=True, action="opened")
    assert stage.check(pull.head)["conclusion"] == "success"
    stage.upstream.branch("old", {"python/sglang/old.py": "x = 1\n"}, start="main")
    pull.head = stage.upstream.branch(pull.head_ref, {"python/sglang/x.py": "y = 1\n"}, start="old")
    stage.upstream.push_pull(pull.number, pull.head)
    judged(stage, pull, good=True)
    stage.upstream.push("old", "refs/heads/release")
    pull.base_ref = "release"  # the merge base is another commit now
    done = edited(stage, pull)
    assert done.outputs["measure"] == "true"
    assert stage.check(pull.head)["status"] == "in_progress"
    stage.publish(done.request, stage.result(done.request))
    assert {check.values["conclusion"] for check in stage.checks(pull.head)} == {"failure"}


def test_retargeting_to_the_same_merge_base_changes_nothing(stage: Stage) -> None:
    pull = stage.pull()
    judged(stage, pull, good=True, action="opened")
    other_branch(stage, pull)
    assert edited(stage, pull).outputs == {}
    assert stage.check(pull.head)["conclusion"] == "success"


def test_retargeting_under_auto_off_leaves_no_success(stage: Stage) -> None:
    pull = stage.pull()
    request = measured(stage, pull).request
    stage.publish(request, passed(stage.result(request)))
    other_branch(stage, pull)
    stage.upstream.push("release")
    edited(stage, pull, PERFGATE_AUTO="off")
    assert stage.check(pull.head)["conclusion"] == "action_required"
    assert "another base" in shown(stage, pull)


def test_an_edited_title_is_nothing(stage: Stage) -> None:
    pull = stage.pull()
    judged(stage, pull, good=True, action="opened")
    before = stage.sticky(pull).body
    payload = {**payloads.pull_request(stage.repository, pull, "edited"), "changes": {"title": {"from": "x"}}}
    assert stage.respond("pull_request", payload).outputs == {}
    assert stage.sticky(pull).body == before


# ------------------------------------------------------------------------------------------------ pushes


def test_a_push_back_to_a_slow_head_does_not_leave_a_pass_on_top(stage: Stage) -> None:
    pull = stage.pull()
    judged(stage, pull, good=False, action="opened")
    slow = pull.head
    stage.push(pull, {"python/sglang/more.py": "x = 1\n"})
    judged(stage, pull, good=True)
    assert "pass" in shown(stage, pull)
    assert pull.head[:10] in shown(stage, pull)
    pull.head = slow
    stage.upstream.push_pull(pull.number, slow)
    assert stage.event(pull, "synchronize").outputs == {}
    assert "regression" in shown(stage, pull)
    assert slow[:10] in shown(stage, pull)
    assert "Measured last:** ✅ pass" in stage.sticky(pull).body


@pytest.mark.parametrize("auto", ["off", "label"])
def test_a_push_that_is_not_measured_is_told(stage: Stage, auto: str) -> None:
    pull = stage.pull()
    request = measured(stage, pull).request
    stage.publish(request, passed(stage.result(request)))
    old = pull.head
    stage.push(pull, {"python/sglang/more.py": "x = 1\n"})
    assert stage.event(pull, "synchronize", PERFGATE_AUTO=auto).outputs == {}
    assert pull.head[:10] in shown(stage, pull)
    assert "was not measured" in shown(stage, pull)
    assert old[:10] in shown(stage, pull)
    assert text_of(stage.sticky(pull).body).report.count("Measured last") == 1
    stage.push(pull, {"python/sglang/evenmore.py": "x = 1\n"})
    stage.event(pull, "synchronize", PERFGATE_AUTO=auto)
    assert text_of(stage.sticky(pull).body).report.count("Measured last") == 1


def test_drafts_wait(stage: Stage) -> None:
    pull = stage.pull()
    pull.draft = True
    done = stage.event(pull, "opened")
    assert done.outputs == {}
    assert "draft" in done.summary
    assert stage.event(pull, "synchronize").outputs == {}
    assert measured(stage, pull)
    pull.draft = False
    other = stage.pull()
    assert stage.event(other, "ready_for_review").outputs["measure"] == "true"


# ------------------------------------------------------------------------------------------------ the table stays


def test_the_last_table_stays_while_other_things_happen(stage: Stage) -> None:
    pull = stage.pull()
    judged(stage, pull, good=False, action="opened")
    table = "| **eagle3** | tok/s | 94.13 | 60.26 |"
    assert table in stage.sticky(pull).body
    assert "**What next.**" in stage.sticky(pull).body
    stage.person("maintainer", "write")
    again = stage.say(pull, "maintainer", "/perfgate rerun").request
    assert "measuring" in shown(stage, pull)
    assert table in stage.sticky(pull).body
    stage.publish(again, None, "cancelled")
    assert "regression" in shown(stage, pull)  # it stands
    assert table in stage.sticky(pull).body
    stage.say(pull, "maintainer", "/perfgate accept it is worth it")
    body = stage.sticky(pull).body
    assert "is accepted by maintainer – nobody has to act" in shown(stage, pull)
    assert "the author has to act" not in body
    assert "**What next.**" not in body
    assert table in body
    assert stage.check(pull.head)["conclusion"] == "neutral"


def test_a_second_accept_does_not_stack(stage: Stage) -> None:
    pull = stage.pull()
    judged(stage, pull, good=False, action="opened")
    stage.person("maintainer", "write")
    stage.say(pull, "maintainer", "/perfgate accept first reason")
    stage.say(pull, "maintainer", "/perfgate accept second reason")
    text = text_of(stage.sticky(pull).body)
    assert "second reason" in text.now
    assert "first reason" not in text.now
    assert text.report.count("Measured last") == 1


def test_accept_binds_to_what_its_writer_could_read(stage: Stage) -> None:
    """−36 % at A, −4 % at B; a force-push back to A, and then somebody accepts what he read of B."""
    pull = stage.pull()
    judged(stage, pull, good=False, action="opened")
    slow = pull.head
    stage.push(pull, {"python/sglang/more.py": "x = 1\n"})
    judged(stage, pull, good=False)
    less_slow, pull.head = pull.head, slow
    stage.upstream.push_pull(pull.number, slow)
    stage.event(pull, "synchronize")
    stage.person("maintainer", "write")
    stage.say(pull, "maintainer", "/perfgate accept 4 % is fine")
    assert less_slow[:10] in stage.replies(pull)[0]
    assert "Nothing is accepted" in stage.replies(pull)[0]
    assert stage.check(slow)["conclusion"] == "failure"
    assert stage.check(less_slow)["conclusion"] == "failure"


# ------------------------------------------------------------------------------------------------ checks of one head


def test_a_later_pass_leaves_no_older_check_failing(stage: Stage) -> None:
    """Those of every suite: GitHub shows the latest of each."""
    pull = stage.pull()
    first = judged(stage, pull, good=False, action="opened").request
    stage.checks(pull.head)[0].suite = 77
    stage.person("maintainer", "write")
    second = stage.say(pull, "maintainer", "/perfgate rerun").request
    contained = passed(stage.result(second, continues=(f"run-{first.run}",)))
    stage.publish(second, contained)
    assert [check.values["conclusion"] for check in stage.checks(pull.head)] == ["success", "success"]
    third = stage.say(pull, "maintainer", "/perfgate rerun").request
    stage.publish(third, passed(stage.result(third, continues=(f"run-{first.run}",))))
    assert stage.check(pull.head)["conclusion"] == "success"


def test_a_check_of_another_workflow_is_left_alone(stage: Stage) -> None:
    pull = stage.pull()
    done = stage.event(pull)
    mine = stage.checks(pull.head)[0]
    other = dataclasses.replace(mine, id=1, values={**mine.values, "external_id": "lint", "conclusion": None})
    stage.repository.checks[1] = other
    stage.publish(done.request, stage.result(done.request))
    assert other.values["status"] == "in_progress"


# ------------------------------------------------------------------------------------------------ commands


def test_eyes_of_another_workflow_silence_nothing(stage: Stage) -> None:
    """All workflows of a repository react as the same account."""
    pull = stage.pull()
    stage.person("maintainer", "write")
    comment = stage.comment(pull, "maintainer", "/perfgate run")
    comment.reactions.append(Reaction(1, BOT, "eyes"))
    assert stage.deliver_comment(pull, comment).outputs["measure"] == "true"
    assert stage.deliver_comment(pull, comment).outputs == {}
    assert len(stage.checks(pull.head)) == 1


def test_closing_ends_a_measurement_and_cancel_works_on_a_closed_one(stage: Stage) -> None:
    pull = stage.pull(fork=True, author="stranger")
    first = measured(stage, pull).request
    pull.state = "closed"
    assert stage.event(pull, "closed", token="fork").outputs == {"cancel": "true", "pr": str(pull.number)}
    assert stage.say(pull, "maintainer", "/perfgate cancel").outputs == {"cancel": "true", "pr": str(pull.number)}
    stage.publish(first, None, "cancelled")
    assert stage.check(pull.head)["conclusion"] == "cancelled"
    assert stage.event(pull, "closed", token="fork").outputs == {}


def test_twelve_digits_do_not_name_a_forks_commit(stage: Stage) -> None:
    pull = stage.pull(fork=True, author="stranger")
    stage.person("maintainer", "write")
    assert stage.say(pull, "maintainer", f"/perfgate run {pull.head[:12]}").outputs == {}
    assert f"/perfgate run {pull.head}\n" in stage.replies(pull)[0]
    own = stage.pull()
    assert stage.say(own, "maintainer", f"/perfgate run {own.head[:7]}").outputs["measure"] == "true"


@pytest.mark.parametrize("body", [" /perfgate run", "/Perfgate run", "/PERFGATE RUN"])
def test_capitals_and_a_blank_do_not_matter(stage: Stage, body: str) -> None:
    pull = stage.pull()
    stage.person("maintainer", "write")
    assert stage.say(pull, "maintainer", body).outputs["measure"] == "true"


def test_people_of_the_ci_permissions_file_may(stage: Stage) -> None:
    path = ".github/CI_PERMISSIONS.json"
    people = '{"Alice-CI": {"can_tag_run_ci_label": true, "can_rerun_failed_ci": false}, "bob": {}, "eve": [1]}'
    stage.upstream.commit({path: people}, "Permissions")
    stage.configure(f"github: {{ci_permissions: {path}}}\n")
    pull = stage.pull(fork=True, author="stranger")
    assert "measure" in stage.say(pull, "alice-ci", f"/perfgate run {pull.head}").outputs
    for login, command in (
        ("alice-ci", "rerun"),
        ("bob", f"run {pull.head}"),
        ("eve", "rerun"),
        ("alice-ci", "cancel"),
    ):
        assert stage.say(pull, login, f"/perfgate {command}").outputs == {}


def test_labels_added_meanwhile_stay(stage: Stage) -> None:
    stage.configure("github: {auto: label, label: bench}\n")
    pull = stage.pull()
    pull.labels = ["bench"]
    payload = payloads.pull_request(stage.repository, pull, "synchronize")
    pull.labels += ["put on while the job ran"]
    stage.respond("pull_request", payload)
    assert pull.labels == ["put on while the job ran"]


def test_a_base_without_models_is_refused_before_the_box(stage: Stage) -> None:
    stage.upstream.commit({".github/perfgate.yml": "version: 1\n"}, "Config")
    stage.upstream.push("main")
    pull = stage.pull()
    with pytest.raises(PerfgateError, match="has no model"):
        stage.event(pull)
    assert stage.check(pull.head)["conclusion"] == "neutral"
    assert "perfgate.yml of the base branch cannot be used" in stage.check(pull.head)["output"]["title"]
    stage.person("maintainer", "write")
    with pytest.raises(PerfgateError, match="has no model"):
        stage.say(pull, "maintainer", "/perfgate run")
    assert "has no model" in stage.replies(pull)[0]


def test_a_forks_commit_by_hand_is_a_forks(stage: Stage) -> None:
    pull = stage.pull(fork=True, author="stranger")
    sender = stage.person("maintainer", "write")
    stage.upstream.branch("experiment", {"python/sglang/x.py": "x = 1\n"})
    stage.upstream.push("experiment")
    for head, fork in ((pull.head, True), ("experiment", False), (stage.upstream.sha("experiment"), True)):
        payload = payloads.workflow_dispatch(stage.repository, sender, "", head)
        assert stage.respond("workflow_dispatch", payload).request.fork is fork


def test_what_the_box_says_is_not_taken(stage: Stage) -> None:
    """The artifact's own result is not even looked at."""
    pull = stage.pull()
    request = stage.event(pull).request
    place = stage.facts(request, stage.folder / "artifact")
    (place / "result.json").write_text(result_to_json(passed(stage.result(request))))
    stage.publish(request, None, artifact=place)
    assert stage.check(pull.head)["conclusion"] == "failure"
