from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import PerfgateError
from perfgate.github.events import (
    CommentEvent,
    DispatchEvent,
    MergeGroupEvent,
    PullEvent,
    is_fork,
    parse_event,
    read_event,
)

SHA = "0123456789abcdef0123456789abcdef01234567"
USER = {"login": "alice", "id": 7, "type": "User", "site_admin": False}


def pull_payload(**head: Any) -> dict[str, Any]:
    base = {"sha": "f" * 40, "ref": "main", "repo": {"full_name": "sgl-project/sglang"}}
    ends = {"head": {"sha": SHA, "ref": "x", "repo": {"full_name": "sgl-project/sglang"}, **head}, "base": base}
    pull = {"number": 7, "user": USER, "title": "$(id)", **ends}
    return {"action": "opened", "number": 7, "pull_request": pull, "sender": USER}


def comment_payload(**comment: Any) -> dict[str, Any]:
    body = {"id": 5, "body": "/perfgate help", "user": USER, "created_at": "2026-11-30T00:00:00Z", **comment}
    issue = {"number": 7, "user": USER, "pull_request": {"url": "https://example.org"}}
    return {"action": "created", "issue": issue, "comment": body, "sender": USER}


def test_pull_request() -> None:
    event = parse_event("pull_request", pull_payload())
    assert isinstance(event, PullEvent)
    assert (event.number, event.head, event.fork, event.sender.id) == (7, SHA, False, 7)


@pytest.mark.parametrize("repository", [None, {"full_name": "stranger/sglang"}])
def test_a_fork_and_a_fork_that_is_gone(repository: object) -> None:
    event = parse_event("pull_request", pull_payload(repo=repository))
    assert isinstance(event, PullEvent)
    assert event.fork


def test_the_account_of_an_author_that_is_gone() -> None:
    payload = pull_payload()
    payload["pull_request"]["user"] = None
    event = parse_event("pull_request", payload)
    assert isinstance(event, PullEvent)
    assert event.author.id == 0


def test_unknown_is_a_fork() -> None:
    assert is_fork(None, "a/b")
    assert is_fork("a/b", None)
    assert not is_fork("A/b", "a/B")


def test_comment() -> None:
    event = parse_event("issue_comment", comment_payload())
    assert isinstance(event, CommentEvent)
    assert event.on_pull_request
    assert not event.commenter.bot


@pytest.mark.parametrize("user", [{"login": "x[bot]", "id": 1, "type": "User"}, {"login": "x", "id": 1, "type": "Bot"}])
def test_bots_are_known_by_either_mark(user: dict[str, Any]) -> None:
    event = parse_event("issue_comment", comment_payload(user=user))
    assert isinstance(event, CommentEvent)
    assert event.commenter.bot


def test_the_other_two() -> None:
    dispatch = parse_event("workflow_dispatch", {"inputs": {"base": "", "head": "x"}, "sender": USER})
    assert isinstance(dispatch, DispatchEvent)
    group = parse_event("merge_group", {"action": "checks_requested", "merge_group": {"head_sha": SHA}})
    assert isinstance(group, MergeGroupEvent)


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("push", {}),
        ("pull_request", {}),
        ("pull_request", []),
        ("pull_request", pull_payload(sha="main")),
        ("pull_request", pull_payload(sha=SHA[:12])),
        ("pull_request", pull_payload(repo={"full_name": "a/b/../../c"})),
        ("issue_comment", comment_payload(id=-1)),
        ("issue_comment", comment_payload(user={"login": "../../orgs/x", "id": 1})),
        ("issue_comment", comment_payload(body=None)),
    ],
)
def test_other_shapes_are_refused_in_one_line(name: str, payload: object) -> None:
    with pytest.raises(PerfgateError) as caught:
        parse_event(name, payload)
    assert "\n" not in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.sampled_from(["pull_request", "issue_comment", "workflow_dispatch", "merge_group"]), json_values)
def test_any_json_is_an_event_or_an_error(name: str, payload: object) -> None:
    try:
        parse_event(name, payload)
    except PerfgateError:
        return


@pytest.mark.parametrize("text", ["", "{", "\xff"])
def test_a_broken_payload_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "event.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(PerfgateError):
        read_event("pull_request", path)
    with pytest.raises(PerfgateError):
        read_event("pull_request", tmp_path / "missing.json")


def test_a_payload_file(tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps(pull_payload()))
    assert isinstance(read_event("pull_request", path), PullEvent)
