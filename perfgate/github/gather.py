"""Everything that is read before perfgate decides: the pull request, its rules, who asks, what was said before."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from perfgate.config.files import load
from perfgate.config.model import Config
from perfgate.config.places import CONFIG_PATH
from perfgate.config.resolve import builtin, merge, problems_of
from perfgate.errors import PerfgateError
from perfgate.github.client import CheckRun, Client, GithubError, Pull
from perfgate.github.comment import MARKER, Entry, Own, State, remembered
from perfgate.github.commits import Comparison, Origin, compare
from perfgate.github.events import CommentEvent, DispatchEvent, Person, PullEvent
from perfgate.github.job import Job
from perfgate.github.request import Authorised

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Past:
    """What perfgate said before, in its comment and in the checks of one head. Both remember, should one be gone."""

    own: Own = field(default_factory=Own)
    checks: tuple[CheckRun, ...] = ()
    head: str = ""
    unread: str = ""  # what of it could not be read

    @property
    def state(self) -> State:
        return remembered(self.own.state, self.checks, self.head)


@dataclass(frozen=True, kw_only=True)
class Known:
    """What an event on a pull request is decided by."""

    pull: Pull
    tip: str  # of the branch it goes to: the configuration is read there, once
    config: Config
    fault: str = ""  # why that configuration cannot be used
    level: str = "none"  # of who asks
    granted: frozenset[str] = frozenset()  # commands that a file of the base branch grants besides
    past: Past = field(default_factory=Past)
    over: frozenset[int] = frozenset()  # of the runs that the comment calls open, those that have ended

    def open_entry(self) -> Entry | None:
        """What is being measured now."""
        newest = self.past.own.state.newest
        return newest if newest and newest.open and newest.run not in self.over else None


@dataclass(frozen=True, kw_only=True)
class Refs:
    """Two refs that somebody named by hand."""

    tip: str
    head: str
    config: Config
    fault: str
    fork: bool  # the head is neither a branch nor a tag of this repository


def gather(job: Job, client: Client, event: PullEvent | CommentEvent) -> Known:
    pull = client.pull(event.number)
    tip = client.resolve(f"heads/{pull.base_ref}")
    config, fault = read_config(client, tip)
    if job.auto:
        config = config.model_copy(update={"github": config.github.model_copy(update={"auto": job.auto})})
    own = find_own(job, client, event.number)
    asks = event.commenter if isinstance(event, CommentEvent) else event.sender
    wants_level = isinstance(event, CommentEvent) or event.label is not None
    newest = own.state.newest
    ended = newest is not None and newest.open and (newest.run == job.run or client.run_is_over(newest.run))
    return Known(
        pull=pull,
        tip=tip,
        config=config,
        fault=fault,
        level=client.level(asks) if wants_level else "none",
        granted=read_grants(client, config, tip, asks) if wants_level else frozenset(),
        past=Past(own=own, checks=client.checks(pull.head), head=pull.head),
        over=frozenset({newest.run}) if newest is not None and ended else frozenset(),
    )


def gather_refs(job: Job, client: Client, event: DispatchEvent) -> Refs:
    config, fault = read_config(client, job.sha)
    head = client.resolve(event.head)
    return Refs(
        tip=client.resolve(event.base) if event.base else job.sha,
        head=head,
        config=config,
        fault=fault,
        fork=not client.names(event.head, head),
    )


def gather_past(job: Job, client: Client, request: Authorised, number: int) -> tuple[Past, Pull | None]:
    """For the last job, which has to say its word whatever cannot be read."""
    unread: list[str] = []

    def tried(read: Callable[[], T], instead: T) -> T:
        try:
            return read()
        except GithubError as error:
            unread.append(error.what)
            return instead

    pull = tried(lambda: client.pull(number), None)
    missed = len(unread)  # without the head of now a verdict is a verdict all the same
    none: tuple[CheckRun, ...] = ()
    checks = tried(lambda: client.checks(request.head), none)
    own = tried(lambda: find_own(job, client, number), Own())
    return Past(own=own, checks=checks, head=request.head, unread="; ".join(unread[missed:])), pull


def find_own(job: Job, client: Client, number: int) -> Own:
    """perfgate's comment: the first on any page with its marker, by its author."""
    found = client.ours(number, MARKER)
    return Own(found.id, found.body, found.url) if found else Own()


def read_config(client: Client, sha: str) -> tuple[Config, str]:
    """perfgate.yml of a commit over the built-in defaults, and what is wrong with it."""
    text = client.file(CONFIG_PATH, sha)
    try:
        config = merge((builtin(), load(text.encode(), CONFIG_PATH))) if text is not None else builtin()
    except PerfgateError as error:
        return builtin(), str(error)
    problems = problems_of(config)
    return config, f"{'.'.join(map(str, problems[0].path))} {problems[0].reason}" if problems else ""


_GRANTS = {"run": "can_tag_run_ci_label", "rerun": "can_rerun_failed_ci"}
"""Command → what SGLang's file of CI permissions calls it."""


def read_grants(client: Client, config: Config, tip: str, person: Person) -> frozenset[str]:
    """What the file of CI permissions on the base branch, if one is configured, lets this person do."""
    path = config.github.ci_permissions
    text = client.file(path, tip) if path else None
    try:
        people = {str(name).lower(): rights for name, rights in json.loads(text or "{}").items()}
    except (ValueError, AttributeError, RecursionError):
        return frozenset()
    own = people.get(person.login.lower())
    return frozenset(name for name, key in _GRANTS.items() if isinstance(own, dict) and own.get(key) is True)


def read_comparison(job: Job, tip: str, head: str, config: Config, *, exact: bool) -> Comparison:
    """By git, without a checkout."""
    with tempfile.TemporaryDirectory(prefix="perfgate-git-") as folder:
        origin = Origin(job.clone_url, job.token)
        return compare(Path(folder), origin, tip, head, exact=exact, ignore=config.ignore_paths)
