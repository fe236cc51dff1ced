"""The workflow run for real by act, from a caller in another repository, on a GitHub of our own.

What is measured is a recorded result, for the gate itself is in test_gate.py. What needs no workflow is in test_life.py
and test_asking.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from perfgate.github.comment import text_of
from tests.e2e.act import Ran
from tests.e2e.conftest import Theatre
from tests.e2e.hub import payloads
from tests.e2e.hub.stage import STORY
from tests.unit.report.rendering import active, hidden_characters

JOBS = ("authorise", "measure", "cancel", "publish")


def jobs(ran: Ran) -> dict[str, str]:
    return {name: ran.job(name) for name in JOBS if ran.job(name)}


def test_a_maintainer_starts_a_fork_with_nothing_prepared(theatre: Theatre) -> None:
    """Each job makes its own environment, by the action's own commands."""
    stage, theatre.act.venv = theatre.stage, None
    stage.person("maintainer", "write")
    pull = stage.pull(fork=True, author="stranger")
    ran = theatre.say(pull, "maintainer", f"/perfgate run {pull.head}")
    assert ran.code == 0, ran.log
    assert jobs(ran) == {"authorise": "success", "measure": "success", "publish": "success"}
    assert stage.check(pull.head)["conclusion"] == "failure"
    assert "regression" in stage.sticky(pull).body
    assert len(stage.said(pull)) == 1
    assert len(stage.hub.calls()) <= 25


def test_events_that_end_without_the_box(theatre: Theatre) -> None:
    stage = theatre.stage
    fork = stage.pull(fork=True, author="stranger")
    ran = theatre.push(fork, "opened", token="fork")
    assert (ran.code, jobs(ran)) == (0, {"authorise": "success"})
    assert {call.method for call in stage.hub.calls()} <= {"GET"}
    assert f"/perfgate run {fork.head}" in ran.log  # the job summary

    docs = stage.pull({"docs/words.md": "more\n"})
    ran = theatre.push(docs, "opened")
    assert (ran.code, jobs(ran)) == (0, {"authorise": "success"})
    assert stage.check(docs.head)["conclusion"] == "success"

    queue = stage.person("github-merge-queue[bot]")
    ran = theatre.deliver("merge_group", payloads.merge_group(stage.repository, docs.head, queue))
    assert (ran.code, jobs(ran)) == (0, {"authorise": "success"})
    assert stage.check(docs.head)["output"]["title"] == "skipped: measured on the PR"


def test_two_refs_by_hand(theatre: Theatre) -> None:
    stage = theatre.stage
    stage.upstream.branch("experiment", {"python/sglang/x.py": "x = 1\n"})
    stage.upstream.push("experiment")
    payload = payloads.workflow_dispatch(stage.repository, stage.person("maintainer", "write"), "", "experiment")
    ran = theatre.deliver("workflow_dispatch", payload)
    assert jobs(ran) == {"authorise": "success", "measure": "success", "publish": "failure"}  # nothing else tells it
    assert stage.repository.checks == {}
    assert "regression" in ran.log


def test_what_the_box_sends_is_not_believed(theatre: Theatre) -> None:
    """The artifact holds the facts of another commit."""
    pull = theatre.stage.pull()
    ran = theatre.push(pull, "opened", E2E_RAW=str(STORY / "facts.jsonl"))
    assert jobs(ran) == {"authorise": "success", "measure": "success", "publish": "success"}
    assert theatre.stage.check(pull.head)["conclusion"] == "neutral"
    assert "is not believed" in theatre.stage.sticky(pull).body


# ------------------------------------------------------------------------------------------------ injection


def evil(canary: Path) -> str:
    """One text that tries everything at once, wherever it is pasted."""
    return (
        f"a$(touch {canary})b`touch {canary}`c\";touch {canary};'d'${{{{ github.token }}}} @everyone #1 "
        f"![x](https://evil.example/i.png) <img src=x onerror=alert(1)> <!-- perfgate --> </details> ``` | "
        f"\u202e\u200b https://evil.example/y"
    )


def test_no_text_of_a_stranger_executes_or_escapes(theatre: Theatre, tmp_path: Path) -> None:
    """Title, branch, comment, commit messages, file names, log lines and recipe names."""
    stage, canary = theatre.stage, tmp_path / "canary"
    text = evil(canary)
    branch = f"x$(touch${{IFS}}{canary})`touch${{IFS}}{canary}`"
    files: dict[str, str | None] = {
        f"python/sglang/$(touch {canary.name})`id`;x.py": "x\n",
        "python/sglang/y.py": "y\n",
    }
    pull = stage.pull(files, fork=True, author="stranger", title=text)
    pull.head_ref = branch
    stage.person("maintainer", "write")
    hostile = {"E2E_CANNED": str(hostile_story(tmp_path / "story", text))}

    ran = theatre.say(pull, "maintainer", f"/perfgate run {pull.head}\n{text}\n::add-path::/tmp", **hostile)
    assert jobs(ran) == {"authorise": "success", "measure": "success", "publish": "success"}, ran.log
    assert stage.check(pull.head)["conclusion"] == "failure"
    theatre.say(pull, "maintainer", f"/perfgate accept {text[:200].replace(chr(0x202E), '')}")
    theatre.say(pull, "mallory", f"/perfgate {text}")

    assert not canary.exists()
    assert list(Path(theatre.act.folder / "home").rglob(canary.name)) == []
    outputs = re.findall(r"set-output:: run-directory=(\S*)", ran.log.replace("\\n", " "))
    assert outputs
    assert "/etc" not in outputs  # a line of the log that says so
    assert "evil" in stage.sticky(pull).body  # it is shown, and does nothing
    for body in [one.body for one in stage.said(pull)] + [stage.check(pull.head)["output"]["summary"]]:
        check_harmless(body, text)


def hostile_story(folder: Path, text: str) -> Path:
    """The recorded regression, with a stranger's text wherever facts hold text of one."""
    spoilt = {"title", "reason", "text", "why", "what", "recipe_note", "box", "output", "notes"}

    def spoil(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: spoil(one, key) for key, one in value.items()}
        if isinstance(value, list):
            return [spoil(one, name) for one in value]
        return text if name in spoilt and isinstance(value, str) else value

    facts = [json.loads(line) for line in (STORY / "facts.jsonl").read_text().splitlines()]
    facts[0]["notes"] = [text, f"::add-path::{text}"]
    folder.mkdir()
    (folder / "facts.jsonl").write_text("".join(json.dumps(spoil(fact)) + "\n" for fact in facts))
    return folder


def check_harmless(body: str, text: str) -> None:
    """As GitHub would render it: nothing of the text is a link, an image, an element, a mention or a marker."""
    assert body.count("<!-- perfgate -->") <= 1
    assert text not in body
    assert hidden_characters(body.replace("\ufe0f", "")) == []
    text_shown = text_of(body)
    shown = f"{text_shown.now}\n{text_shown.report}" if body.startswith("<!-- perfgate -->") else body
    words = ("everyone", "evil", "img", "onerror", "canary", "token", "comment ' perfgate '")
    assert [one for one in active(shown, links=True) if any(word in one for word in words)] == []
