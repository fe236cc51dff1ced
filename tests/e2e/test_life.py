"""A pull request's life: from the event to the verdict, on a GitHub of our own."""

from __future__ import annotations

import dataclasses
import re

import pytest

from perfgate.errors import PerfgateError
from perfgate.github import say
from perfgate.github.comment import MARKER, Own, text_of
from perfgate.github.commits import FetchError, Origin, fetch_commits
from perfgate.records import MetricVerdict, Result, Side, Verdict
from perfgate.records.files import result_to_json
from tests.e2e.hub import payloads
from tests.e2e.hub.stage import NAME, Done, Stage
from tests.e2e.hub.world import BOT, PullRequest, User

DOCS: dict[str, str | None] = {"docs/readme.md": "words\n"}


def passed(result: Result) -> Result:
    metrics = tuple(
        dataclasses.replace(one, verdict=MetricVerdict.PASS) if one.gated else one for one in result.metrics
    )
    return dataclasses.replace(result, verdict=Verdict.PASS, exit_code=0, metrics=metrics, reason="No loss.")


def without_numbers(result: Result, verdict: Verdict, code: int, side: Side | None = None) -> Result:
    return dataclasses.replace(
        result, verdict=verdict, exit_code=code, metrics=(), failed_side=side, reason="So it was."
    )


def measured(stage: Stage, pull: PullRequest, **how: str) -> Done:
    """The maintainer's command, authorised."""
    stage.person("maintainer", "write")
    done = stage.say(pull, "maintainer", f"/perfgate run {pull.head}", **how)
    assert done.outputs["measure"] == "true"
    return done


# ------------------------------------------------------------------------------------------------ from push to verdict


def test_push_to_verdict(stage: Stage) -> None:
    pull = stage.pull()
    done = stage.event(pull, "opened")
    assert done.outputs["measure"] == "true"
    assert "measuring" in stage.sticky(pull).body
    assert f"/actions/runs/{done.request.run}" in stage.sticky(pull).body
    assert "planned launches: 4 to 48" in stage.sticky(pull).body
    assert "expected end" in stage.sticky(pull).body
    assert stage.check(pull.head)["status"] == "in_progress"

    published = stage.publish(done.request, stage.result(done.request))
    assert stage.check(pull.head)["conclusion"] == "failure"
    assert "regression" in stage.sticky(pull).body
    assert len(stage.said(pull)) == len(stage.checks(pull.head)) == 1
    assert published.outputs["verdict"] == "regression"
    assert published.outputs["conclusion"] == "failure"
    assert f"issuecomment-{stage.sticky(pull).id}" in published.outputs["comment-url"]
    assert "regression" in published.summary
    assert published.exit == 0  # the check tells it
    assert len(stage.hub.calls()) <= 25


def test_request_binds_full_shas_trees_and_the_base_branchs_configuration(stage: Stage) -> None:
    pull = stage.pull()
    stage.configure("limits: {minutes: 30}\ngithub: {fail_on: [environment]}\n")
    request = stage.event(pull).request
    assert request.head == pull.head
    assert request.head_tree == stage.upstream.tree(pull.head)
    assert request.base == stage.upstream.sha("main~1")
    assert request.config == stage.upstream.sha("main")
    assert request.fail_on == ("environment",)
    assert request.minutes == 30 + 180 + 45


def test_heads_own_configuration_changes_nothing(stage: Stage) -> None:
    hostile = {
        **dict.fromkeys(["python/sglang/x.py"], "x"),
        ".github/perfgate.yml": "github: {who: {run: read}, auto: 'off'}\n",
    }
    pull = stage.pull(hostile)
    assert stage.event(pull).outputs["measure"] == "true"


def test_a_comment_is_updated_wherever_it_is(stage: Stage) -> None:
    """perfgate's comment is on the third page, and another one looks like it."""
    pull = stage.pull()
    stage.comment(pull, "mallory", f"{MARKER}\nI am perfgate.")
    for number in range(205):
        stage.comment(pull, "somebody", f"Comment {number}")
    ours = stage.hub.world.comment(stage.repository, pull.number, BOT, f"{MARKER}\n<!-- perfgate:state {{}} -->\nold")
    done = stage.event(pull)
    stage.publish(done.request, stage.result(done.request))
    assert stage.said(pull) == [ours]
    assert "regression" in ours.body
    assert len(stage.hub.calls()) <= 25


def test_older_verdicts_are_folded(stage: Stage) -> None:
    pull = stage.pull()
    first = stage.event(pull)
    stage.publish(first.request, stage.result(first.request))
    old = pull.head
    stage.push(pull, {"python/sglang/more.py": "x = 1\n"})
    second = stage.event(pull, "synchronize")
    body = stage.sticky(pull).body
    assert body.index("measuring") < body.index("<details>") < body.rindex(old[:10])
    stage.publish(second.request, passed(stage.result(second.request)))
    body = stage.sticky(pull).body
    assert "pass" in body.split("<details>")[0]
    assert "❌ regression" in body
    assert stage.check(old)["conclusion"] == "failure"
    assert stage.check(pull.head)["conclusion"] == "success"
    assert len(stage.said(pull)) == 1


def test_publish_again_changes_nothing(stage: Stage) -> None:
    pull = stage.pull()
    request = stage.event(pull).request
    for _ in range(3):
        stage.publish(request, stage.result(request))
    assert len(stage.said(pull)) == len(stage.checks(pull.head)) == 1
    assert stage.sticky(pull).body.count("❌ regression") == 0  # nothing of it is folded as an earlier run


# ------------------------------------------------------------------------------------------------ what is not measured


def test_docs_only_ends_green_without_a_comment(stage: Stage) -> None:
    pull = stage.pull(DOCS)
    done = stage.event(pull)
    assert "measure" not in done.outputs
    assert stage.check(pull.head)["conclusion"] == "success"
    assert "nothing to measure" in stage.check(pull.head)["output"]["title"]
    assert stage.said(pull) == []
    assert "docs/readme.md" in done.summary


def test_docs_only_on_request_is_answered(stage: Stage) -> None:
    pull = stage.pull(DOCS)
    stage.person("maintainer", "write")
    done = stage.say(pull, "maintainer", "/perfgate run")
    assert "measure" not in done.outputs
    assert "nothing to measure" in stage.sticky(pull).body


def test_a_fork_is_only_told_how(stage: Stage) -> None:
    pull = stage.pull(fork=True, author="stranger")
    done = stage.event(pull, token="fork")
    assert done.outputs == {}
    assert f"/perfgate run {pull.head}" in done.summary
    assert stage.hub.calls() == []  # its token could write nothing, and nothing is asked


def test_dependabot_is_told_what_it_is(stage: Stage) -> None:
    pull = stage.pull(author="dependabot[bot]")
    done = stage.event(pull, sender=User("dependabot[bot]", 49699333, "Bot"), token="fork")
    assert done.outputs == {}
    assert "dependabot" in done.summary
    assert "fork" not in done.summary
    assert stage.hub.calls() == []


def test_merge_group_does_not_hang(stage: Stage) -> None:
    pull = stage.pull()
    sender = stage.person("github-merge-queue[bot]")
    stage.respond("merge_group", payloads.merge_group(stage.repository, pull.head, sender))
    assert stage.check(pull.head)["conclusion"] == "success"
    assert stage.check(pull.head)["output"]["title"] == "skipped: measured on the PR"
    stage.respond("merge_group", payloads.merge_group(stage.repository, pull.head, sender, "destroyed"))
    assert len(stage.checks(pull.head)) == 1


def test_auto_off(stage: Stage) -> None:
    stage.configure("github: {auto: 'off'}\n")
    pull = stage.pull()
    assert stage.event(pull).outputs == {}
    assert stage.checks(pull.head) == []
    assert measured(stage, pull)


def test_the_callers_auto_wins(stage: Stage) -> None:
    pull = stage.pull()
    assert stage.event(pull, PERFGATE_AUTO="off").outputs == {}
    with pytest.raises(PerfgateError, match="PERFGATE_AUTO"):
        stage.event(pull, PERFGATE_AUTO="always")


def test_auto_label(stage: Stage) -> None:
    stage.configure("github: {auto: label, label: bench}\n")
    pull, maintainer = stage.pull(), stage.person("maintainer", "write")
    helper = stage.person("helper", "triage")
    assert stage.event(pull).outputs == {}
    pull.labels = ["bench", "other"]
    assert stage.event(pull, "labeled", helper, label="bench").outputs == {}
    assert stage.event(pull, "labeled", maintainer, label="other").outputs == {}
    assert stage.event(pull, "labeled", maintainer, label="bench").outputs["measure"] == "true"

    stage.push(pull, {"python/sglang/more.py": "x = 1\n"})
    assert stage.event(pull, "synchronize").outputs == {}
    assert pull.labels == ["other"]
    pull.labels = ["bench"]
    assert stage.event(pull, "synchronize").outputs == {}
    assert pull.labels == []


def test_an_overtaken_push_is_left_alone(stage: Stage) -> None:
    pull = stage.pull()
    payload = payloads.pull_request(stage.repository, pull, "synchronize")
    stage.push(pull, {"python/sglang/more.py": "x = 1\n"})
    assert stage.respond("pull_request", payload).outputs == {}
    pull.state = "closed"
    assert stage.event(pull).outputs == {}


def test_a_second_delivery_of_a_push_does_nothing(stage: Stage) -> None:
    pull = stage.pull()
    first = stage.event(pull)
    assert stage.event(pull).outputs == {}  # while it runs
    stage.publish(first.request, stage.result(first.request))
    assert stage.event(pull, "reopened").outputs == {}  # and after
    assert len(stage.checks(pull.head)) == 1


def test_a_run_that_died_does_not_block_the_next(stage: Stage) -> None:
    pull = stage.pull()
    first = stage.event(pull)
    stage.repository.runs[first.request.run] = "completed"  # and nobody said a word
    assert stage.event(pull).outputs["measure"] == "true"


def test_running_the_workflow_again_on_purpose_measures_again(stage: Stage) -> None:
    pull = stage.pull()
    first = stage.event(pull)
    stage.publish(first.request, stage.result(first.request))
    again = stage.event(pull, run=first.request.run, attempt=2)
    assert again.request.attempt == 2


# ------------------------------------------------------------------------------------------------ conclusions


@pytest.mark.parametrize(
    ("verdict", "code", "side", "conclusion"),
    [
        (Verdict.INCONCLUSIVE, 3, None, "neutral"),
        (Verdict.ENVIRONMENT, 4, None, "neutral"),
        (Verdict.BUILD_FAILED, 4, Side.HEAD, "failure"),
        (Verdict.BUILD_FAILED, 4, Side.BASE, "neutral"),
        (Verdict.BUILD_FAILED, 4, None, "neutral"),
        (Verdict.BENCH_FAILED, 4, Side.HEAD, "failure"),
        (Verdict.BENCH_FAILED, 4, Side.BASE, "neutral"),
        (Verdict.SKIPPED, 0, None, "success"),
    ],
)
def test_conclusion(stage: Stage, verdict: Verdict, code: int, side: Side | None, conclusion: str) -> None:
    pull = stage.pull()
    request = stage.event(pull).request
    stage.publish(request, without_numbers(stage.result(request), verdict, code, side))
    assert stage.check(pull.head)["conclusion"] == conclusion


def test_fail_on(stage: Stage) -> None:
    stage.configure("github: {fail_on: [inconclusive]}\n")
    pull = stage.pull()
    request = stage.event(pull).request
    stage.publish(request, without_numbers(stage.result(request), Verdict.INCONCLUSIVE, 3))
    assert stage.check(pull.head)["conclusion"] == "failure"


@pytest.mark.parametrize(
    ("measured", "more", "conclusion", "said", "acts"),
    [
        ("failure", {}, "neutral", "the runner was lost", "the box's owner"),
        ("failure", {"PERFGATE_REASON": "no model"}, "neutral", "the box refused", "the box's owner"),
        ("success", {}, "neutral", "sent no result back", "the box's owner"),
        ("skipped", {}, "neutral", "sent no result back", "the box's owner"),
        ("cancelled", {}, "cancelled", "cancelled", "nobody"),
        ("cancelled", {"PERFGATE_BEGAN": "1000"}, "neutral", "ran out of its time", "the box's owner"),
        ("cancelled", {"PERFGATE_BEGAN": "99999999999"}, "cancelled", "cancelled", "nobody"),
    ],
)
def test_each_cause_has_its_own_words(
    stage: Stage, measured: str, more: dict[str, str], conclusion: str, said: str, acts: str
) -> None:
    """What, who acts, and the next step; never that the box was not the same for both sides."""
    pull = stage.pull()
    request = stage.event(pull).request
    stage.publish(request, None, measured, **more)
    check, body = stage.check(pull.head), stage.sticky(pull).body
    assert check["conclusion"] == conclusion
    for text in (check["output"]["title"], first_line(body)):
        assert said in text
        assert f"{acts} has to act" in text or f"{acts} has to act, not the author" in text
    assert "not the same" not in body + str(check)
    assert "**What next.**" in text_of(body).now


def first_line(body: str) -> str:
    return text_of(body).now.split("\n")[0]


def test_the_box_says_why(stage: Stage) -> None:
    pull = stage.pull()
    request = stage.event(pull).request
    stage.publish(request, None, "failure", PERFGATE_REASON="no model @everyone <img src=x>\u202e")
    body = stage.sticky(pull).body
    assert "no model" in body
    assert "@everyone" not in body
    assert "\\<img" in body


@pytest.mark.parametrize("change", ["other", "earlier", "cut", "garbage", "infinite"])
def test_an_artifact_that_cannot_be_trusted(stage: Stage, change: str) -> None:
    pull = stage.pull()
    request = stage.event(pull).request
    asked = request.model_copy(update={"head": "f" * 40}) if change == "other" else request
    place = stage.facts(asked, stage.folder / "hostile", run=request.run - 1 if change == "earlier" else None)
    file = place / "facts.jsonl"
    text = file.read_text()
    endless = re.sub(r'"decode_s":[0-9.]+', '"decode_s":Infinity', text)
    changed = {"cut": text[:200], "garbage": "<script>", "infinite": endless}
    file.write_text(changed.get(change, text))
    stage.publish(request, None, artifact=place)
    assert stage.check(pull.head)["conclusion"] == "neutral"
    assert "is not believed" in first_line(stage.sticky(pull).body)


def test_the_facts_are_judged_again_and_nothing_else_is_taken(stage: Stage) -> None:
    """A result that says pass lies beside facts that show a loss."""
    pull = stage.pull()
    request = stage.event(pull).request
    place = stage.facts(request, stage.folder / "artifact")
    (place / "result.json").write_text(result_to_json(passed(stage.result(request))))
    stage.publish(request, None, artifact=place)
    assert stage.check(pull.head)["conclusion"] == "failure"
    assert "regression" in first_line(stage.sticky(pull).body)


def test_another_runs_request_is_refused(stage: Stage) -> None:
    pull = stage.pull()
    request = stage.event(pull).request
    with pytest.raises(PerfgateError, match="run"):
        stage.publish(request, stage.result(request), GITHUB_RUN_ID="1")
    with pytest.raises(PerfgateError, match="runs in"):
        stage.publish(request.model_copy(update={"repository": "other/repo"}), stage.result(request))


# ------------------------------------------------------------------------------------------------ what gives no way


def test_a_stale_result_is_marked(stage: Stage) -> None:
    pull = stage.pull()
    request = stage.event(pull).request
    old = pull.head
    stage.push(pull, {"python/sglang/more.py": "x = 1\n"})
    stage.publish(request, passed(stage.result(request)))
    assert stage.check(old)["conclusion"] == "success"  # it is that commit's verdict
    assert stage.checks(pull.head) == []
    assert "was not measured here" in stage.sticky(pull).body


def test_a_stale_result_never_overwrites_a_newer_verdict(stage: Stage) -> None:
    pull = stage.pull()
    first = stage.event(pull).request
    stage.push(pull, {"python/sglang/more.py": "x = 1\n"})
    second = stage.event(pull, "synchronize").request
    stage.publish(second, stage.result(second))
    newest = text_of(stage.sticky(pull).body)
    stage.publish(first, passed(stage.result(first)))
    body = stage.sticky(pull).body
    assert "regression" in newest.now
    assert (text_of(body).now, text_of(body).report) == (newest.now, newest.report)
    assert "✅ pass (stale)" in body


@pytest.mark.parametrize("keep_comment", [True, False])
def test_no_rerun_until_green(stage: Stage, keep_comment: bool) -> None:
    """A regression of the same two trees stands until a pass contains its evidence, comment deleted or not."""
    pull = stage.pull()
    first = stage.event(pull).request
    stage.publish(first, stage.result(first))
    if not keep_comment:
        del stage.repository.comments[stage.sticky(pull).id]
    stage.person("maintainer", "write")
    second = stage.say(pull, "maintainer", "/perfgate rerun").request
    stage.publish(second, passed(stage.result(second)))
    assert stage.check(pull.head)["conclusion"] == "failure"
    assert "regression stands" in stage.sticky(pull).body

    third = stage.say(pull, "maintainer", "/perfgate rerun").request
    stage.publish(third, without_numbers(stage.result(third), Verdict.ENVIRONMENT, 4))
    assert stage.check(pull.head)["conclusion"] == "failure"

    fourth = stage.say(pull, "maintainer", "/perfgate rerun").request
    contained = (f"run-{first.run}", f"run-{second.run}")
    stage.publish(fourth, passed(stage.result(fourth, continues=contained)))
    assert stage.check(pull.head)["conclusion"] == "success"
    assert "regression stands" not in stage.sticky(pull).body


def test_a_regression_of_other_code_does_not_stand(stage: Stage) -> None:
    pull = stage.pull()
    first = stage.event(pull).request
    stage.publish(first, stage.result(first))
    stage.push(pull, {"python/sglang/more.py": "x = 1\n"})
    second = stage.event(pull, "synchronize").request
    stage.publish(second, passed(stage.result(second)))
    assert stage.check(pull.head)["conclusion"] == "success"


def test_a_rerun_of_some_recipes_is_judged_on_all(stage: Stage) -> None:
    """Which of them got more pairs is the box's affair; what comes back speaks of the change as a whole."""
    pull = stage.pull()
    stage.person("maintainer", "write")
    request = stage.say(pull, "maintainer", "/perfgate rerun baseline").request
    assert request.recipes == ("baseline",)
    stage.publish(request, passed(stage.result(request)))
    assert stage.check(pull.head)["conclusion"] == "success"


# ------------------------------------------------------------------------------------------------ two refs by hand


def test_dispatch(stage: Stage) -> None:
    stage.upstream.branch("experiment", {"python/sglang/x.py": "x = 1\n"})
    stage.upstream.push("experiment")
    sender = stage.person("maintainer", "write")

    def dispatch(base: str, head: str) -> Done:
        return stage.respond("workflow_dispatch", payloads.workflow_dispatch(stage.repository, sender, base, head))

    done = dispatch("", "experiment")
    assert done.request.pr is None
    assert done.request.base == stage.upstream.sha("main")
    assert dispatch(stage.upstream.sha("main"), "experiment").request.base == stage.upstream.sha("main")
    published = stage.publish(done.request, stage.result(done.request))
    assert published.exit == 1
    assert "regression" in published.summary
    assert stage.repository.checks == {}
    assert stage.publish(done.request, passed(stage.result(done.request))).exit == 0
    for hostile in ("$(id)", "--upload-pack=id", "a..b", "", "a b", "../../x"):
        with pytest.raises(PerfgateError, match="input head"):
            dispatch("", hostile)
    with pytest.raises(PerfgateError, match="find the commit"):
        dispatch("", "no-such-branch")


def test_a_changed_configuration_is_only_looked_at(stage: Stage) -> None:
    pull = stage.pull({"python/sglang/x.py": "x", ".github/perfgate.yml": "limits: {minuets: '@everyone'}\n"})
    request = stage.event(pull).request
    assert "minuets" in stage.sticky(pull).body
    stage.publish(request, stage.result(request))
    assert "minuets" in stage.sticky(pull).body
    assert "@everyone" not in stage.sticky(pull).body


def test_a_private_repository_is_read_with_the_token_alone(stage: Stage) -> None:
    stage.repository.private = True
    pull = stage.pull()
    stage.hub.world.token("blind", contents="none", checks="write", pull_requests="write", actions="read")
    assert "measure" in stage.event(pull).outputs
    folder = stage.folder / "copy"
    origin = Origin(f"{stage.hub.url}/{NAME}.git", "full")
    assert "full" not in repr(origin)
    fetch_commits(folder, origin, [pull.head], blobs=True)
    assert "full" not in (folder / "config").read_text()
    for token in ("", "blind", "unknown"):
        with pytest.raises(FetchError):
            fetch_commits(stage.folder / f"other{token}", Origin(origin.url, token), [pull.head], blobs=True)


def test_two_runs_that_both_make_the_first_comment(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each saw none. The later comment is taken back, and its word is in the earlier one."""
    pull = stage.pull()
    first = measured(stage, pull).request
    stage.push(pull, {"python/sglang/more.py": "x = 1\n"})
    find, unseen = say.find_own, iter([Own()])
    monkeypatch.setattr(say, "find_own", lambda *known: next(unseen, None) or find(*known))
    stage.event(pull, "synchronize")
    body = stage.sticky(pull).body
    assert len(stage.said(pull)) == 1
    assert pull.head[:10] in body
    assert first.head[:10] in body


def test_an_accepted_loss_covers_no_other_failure(stage: Stage) -> None:
    pull = stage.pull()
    first = measured(stage, pull).request
    stage.publish(first, stage.result(first))
    stage.say(pull, "maintainer", "/perfgate accept it is worth it")
    second = stage.say(pull, "maintainer", "/perfgate rerun").request
    stage.publish(second, without_numbers(stage.result(second), Verdict.BUILD_FAILED, 4, Side.HEAD))
    assert stage.check(pull.head)["conclusion"] == "failure"
    stage.say(pull, "maintainer", "/perfgate accept that, too")
    assert stage.check(pull.head)["conclusion"] == "failure"
