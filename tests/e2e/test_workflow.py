"""The workflow run for real by act, from a caller in another repository, on a GitHub of our own.

What is measured is a recorded result; the gate itself is in test_gate.py.
"""

from __future__ import annotations

from tests.e2e.conftest import Theatre


def test_a_maintainer_starts_a_fork(theatre: Theatre) -> None:
    stage = theatre.stage
    stage.person("maintainer", "write")
    pull = stage.pull(fork=True, author="stranger")
    ran = theatre.say(pull, "maintainer", f"/perfgate run {pull.head[:7]}")
    assert ran.code == 0, ran.log
    assert [ran.job(name) for name in ("authorise", "measure", "publish")] == ["success"] * 3
    assert stage.check(pull.head)["conclusion"] == "failure"
    assert "regression" in stage.sticky(pull).body
    assert len(stage.said(pull)) == 1
    assert len(stage.hub.calls()) <= 25
