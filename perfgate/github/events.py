"""What happened, out of the webhook payload that GitHub hands to a workflow.

GitHub made the structure, strangers wrote many of the texts in it. Only what is needed is read, each with its type and
shape; titles and branch names are never read at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from perfgate.errors import PerfgateError

MAX_PAYLOAD = 25_000_000  # bytes; GitHub's own limit for a webhook

FullSha = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Repository = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}/[A-Za-z0-9_.-]{1,100}$")]
Login = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,60}(\[bot\])?$")]


@dataclass(frozen=True)
class Person:
    """Somebody as an event names them. The number is the identity; a login can change hands."""

    login: str
    id: int
    bot: bool = False


GHOST = Person("ghost", 0)


@dataclass(frozen=True, kw_only=True)
class PullEvent:
    """Something happened to a pull request itself."""

    action: str
    number: int
    head: str  # full SHA at the time of the event
    fork: bool  # comes from another repository, or from one that is gone
    sender: Person
    author: Person
    label: str | None = None  # the label of a `labeled` event
    new_base: bool = False  # `edited`: it goes to another branch now


@dataclass(frozen=True, kw_only=True)
class CommentEvent:
    """Somebody wrote under a pull request or an issue."""

    action: str
    number: int
    on_pull_request: bool
    comment: int
    at: datetime
    body: str  # a stranger's
    sender: Person
    commenter: Person
    author: Person  # of the pull request


@dataclass(frozen=True, kw_only=True)
class DispatchEvent:
    """Somebody with write permission started the workflow by hand, on two refs."""

    base: str  # refs as given: names or SHAs; checked when they are resolved
    head: str
    sender: Person


@dataclass(frozen=True, kw_only=True)
class MergeGroupEvent:
    action: str
    head: str


Event: TypeAlias = PullEvent | CommentEvent | DispatchEvent | MergeGroupEvent


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _User(_Part):
    login: Login
    id: int
    type: str = "User"

    def person(self) -> Person:
        return Person(self.login, self.id, bot=self.type == "Bot" or self.login.endswith("[bot]"))


def _author(user: _User | None) -> Person:
    """GitHub says null for an account that was deleted: nobody, with a number that nobody has."""
    return user.person() if user else GHOST


class _Repository(_Part):
    full_name: Repository


class _End(_Part):
    sha: FullSha
    repo: _Repository | None = None

    @property
    def repository(self) -> str | None:
        return self.repo.full_name if self.repo else None


class _Pull(_Part):
    number: int = Field(gt=0)
    head: _End
    base: _End
    user: _User | None = None


class _Label(_Part):
    name: str


class _Changes(_Part):
    """What an `edited` event says was there before; titles and texts are not read."""

    base: dict[str, Any] | None = None


class _PullPayload(_Part):
    action: str
    pull_request: _Pull
    sender: _User
    label: _Label | None = None
    changes: _Changes | None = None

    def event(self) -> PullEvent:
        pull = self.pull_request
        return PullEvent(
            action=self.action,
            number=pull.number,
            head=pull.head.sha,
            fork=is_fork(pull.head.repository, pull.base.repository),
            sender=self.sender.person(),
            author=_author(pull.user),
            label=self.label.name if self.label else None,
            new_base=self.action == "edited" and self.changes is not None and self.changes.base is not None,
        )


class _Issue(_Part):
    number: int = Field(gt=0)
    user: _User | None = None
    pull_request: dict[str, Any] | None = None


class _Comment(_Part):
    id: int = Field(gt=0)
    created_at: AwareDatetime
    body: str
    user: _User


class _CommentPayload(_Part):
    action: str
    issue: _Issue
    comment: _Comment
    sender: _User

    def event(self) -> CommentEvent:
        return CommentEvent(
            action=self.action,
            number=self.issue.number,
            on_pull_request=self.issue.pull_request is not None,
            comment=self.comment.id,
            at=self.comment.created_at,
            body=self.comment.body,
            sender=self.sender.person(),
            commenter=self.comment.user.person(),
            author=_author(self.issue.user),
        )


class _Inputs(_Part):
    base: str = ""
    head: str = ""


class _DispatchPayload(_Part):
    inputs: _Inputs | None = None
    sender: _User

    def event(self) -> DispatchEvent:
        inputs = self.inputs or _Inputs()
        return DispatchEvent(base=inputs.base, head=inputs.head, sender=self.sender.person())


class _Group(_Part):
    head_sha: FullSha


class _MergeGroupPayload(_Part):
    action: str
    merge_group: _Group

    def event(self) -> MergeGroupEvent:
        return MergeGroupEvent(action=self.action, head=self.merge_group.head_sha)


_PAYLOADS: Mapping[str, type[_PullPayload | _CommentPayload | _DispatchPayload | _MergeGroupPayload]] = {
    "pull_request": _PullPayload,
    "issue_comment": _CommentPayload,
    "workflow_dispatch": _DispatchPayload,
    "merge_group": _MergeGroupPayload,
}


def is_fork(head_repository: str | None, base_repository: str | None) -> bool:
    """Unknown counts as a fork: it is the careful answer."""
    return head_repository is None or base_repository is None or head_repository.lower() != base_repository.lower()


def parse_event(name: str, payload: object) -> Event:
    """The event of a payload; PerfgateError for an event or a shape that perfgate does not know."""
    kind = _PAYLOADS.get(name)
    if kind is None:
        known = ", ".join(_PAYLOADS)
        raise PerfgateError(f"nothing to do on {name!r}", where="workflow", remedy=f"trigger it on {known}")
    try:
        return kind.model_validate(payload).event()
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise PerfgateError(f"{place}: {first['msg']}", where=f"payload of {name}") from error


def read_event(name: str, path: Path) -> Event:
    """The event in the file that GitHub put the payload into."""
    try:
        if path.stat().st_size > MAX_PAYLOAD:
            raise PerfgateError("larger than any payload of GitHub's", where=str(path))
        payload = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise PerfgateError(f"no payload of an event: {error}", where=str(path)) from error
    return parse_event(name, payload)
