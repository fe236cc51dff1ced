"""A pull request's life: from the event to the verdict, on a GitHub of our own."""

from __future__ import annotations

from tests.e2e.hub.stage import Stage


def test_push_to_verdict(stage: Stage) -> None:
    pull = stage.pull()
    done = stage.event(pull, "opened")
    assert done.outputs["measure"] == "true"
    assert "running" in stage.sticky(pull).body
    assert stage.check(pull.head)["status"] == "in_progress"

    stage.publish(done.request, stage.result(done.request))
    assert stage.check(pull.head)["conclusion"] == "failure"
    assert "regression" in stage.sticky(pull).body
    assert len(stage.said(pull)) == 1
    assert len(stage.hub.calls()) <= 25
