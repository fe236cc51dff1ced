"""Webhook payloads as GitHub would send them, out of the world's state: the parts that anybody here reads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.e2e.hub.answers import pull_data
from tests.e2e.hub.openapi import description
from tests.e2e.hub.world import Comment, PullRequest, Repository, User


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _user(user: User) -> dict[str, Any]:
    return description().make("simple-user", {"login": user.login, "id": user.id, "type": user.type})


def _repository(repository: Repository) -> dict[str, Any]:
    owner, name = repository.name.split("/")
    overlay = {"full_name": repository.name, "name": name, "private": repository.private, "default_branch": "main"}
    return description().make("repository", {**overlay, "owner": _user(User(owner, 3, "Organization"))})


def pull_request(
    repository: Repository, pull: PullRequest, action: str, sender: User | None = None, label: str | None = None
) -> dict[str, Any]:
    payload = {
        "action": action,
        "number": pull.number,
        "pull_request": pull_data(repository, pull),
        "repository": _repository(repository),
        "sender": _user(sender or pull.user),
    }
    return {**payload, "label": {"id": 5, "name": label}} if label else payload


def issue_comment(
    repository: Repository, pull: PullRequest, comment: Comment, action: str = "created", sender: User | None = None
) -> dict[str, Any]:
    issue = description().make(
        "issue",
        {
            "number": pull.number,
            "title": pull.title,
            "user": _user(pull.user),
            "state": pull.state,
            "pull_request": {"url": "https://example.org/pull"},
        },
    )
    return {
        "action": action,
        "issue": issue,
        "comment": {
            "id": comment.id,
            "body": comment.body,
            "user": _user(comment.user),
            "created_at": _now(),
            "updated_at": _now(),
        },
        "repository": _repository(repository),
        "sender": _user(sender or comment.user),
    }


def workflow_dispatch(repository: Repository, sender: User, base: str, head: str) -> dict[str, Any]:
    return {
        "inputs": {"base": base, "head": head},
        "ref": "refs/heads/main",
        "repository": _repository(repository),
        "sender": _user(sender),
        "workflow": ".github/workflows/perfgate.yml",
    }


def merge_group(repository: Repository, head: str, sender: User, action: str = "checks_requested") -> dict[str, Any]:
    group = {"head_sha": head, "head_ref": "refs/heads/gh-readonly-queue/main/pr-7", "base_ref": "refs/heads/main"}
    return {
        "action": action,
        "merge_group": group,
        "repository": _repository(repository),
        "sender": _user(sender),
    }
