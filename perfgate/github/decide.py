"""What to do about an event: pure decisions. What they need to know is handed in; what is to be done is handed back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from perfgate.config.model import GithubRules
from perfgate.github import words
from perfgate.github.access import at_least, may
from perfgate.github.client import Pull
from perfgate.github.commands import Accept, Cancel, Command, Help, Rerun, Run
from perfgate.github.comment import State
from perfgate.github.events import CommentEvent, PullEvent
from perfgate.records import Verdict

READ_ONLY_BOTS = frozenset(("dependabot[bot]",))
"""GitHub hands their events a read-only token, as it does for forks."""

MOVED = frozenset(("opened", "reopened", "synchronize", "ready_for_review"))
"""Actions after which the head has to be looked at."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Measure this head."""

    head: str
    recipes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leave:
    """Nothing to do; `why` goes into the job summary."""

    why: str


@dataclass(frozen=True)
class DropLabel:
    """The approval was for another head."""

    why: str


@dataclass(frozen=True)
class Reply:
    """One answer under the pull request, no run."""

    text: str


@dataclass(frozen=True)
class Stop:
    """Cancel what is being measured."""


@dataclass(frozen=True)
class AcceptLoss:
    head: str
    reason: str


Decision: TypeAlias = Start | Leave | DropLabel | Reply | Stop | AcceptLoss


def read_only(event: PullEvent) -> bool:
    """Whether this event's token can write nothing, and the event is no reason to measure by itself."""
    return event.fork or event.sender.login in READ_ONLY_BOTS


def on_pull(event: PullEvent, pull: Pull, rules: GithubRules, sender_level: str) -> Decision:
    """A push to, or a label on, a pull request of this repository's own branches."""
    if not pull.open:
        return Leave("The pull request is closed.")
    if pull.head != event.head:
        return Leave("A newer push is on its way; that one is measured.")
    match rules.auto:
        case "off":
            return Leave("perfgate.yml says `auto: off`: `/perfgate run` starts a measurement.")
        case "label":
            return _on_label(event, pull, rules, sender_level)
        case _ if event.action in MOVED:
            return Start(head=event.head)
        case _:
            return Leave(
                f"Nothing is measured on `{event.action}`." if event.action.isidentifier() else "Nothing to do."
            )


def _on_label(event: PullEvent, pull: Pull, rules: GithubRules, sender_level: str) -> Decision:
    if event.action == "labeled" and event.label == rules.label:
        if not at_least(sender_level, rules.who.run):
            return Leave(f"The label counts only from somebody with {rules.who.run} permission.")
        return Start(head=event.head)
    if event.action == "synchronize" and rules.label in pull.labels:
        return DropLabel("The label was for the head before this push and is taken off.")
    return Leave("perfgate.yml says `auto: label`: the label starts a measurement.")


def on_command(
    command: Command, event: CommentEvent, pull: Pull, rules: GithubRules, level: str, state: State
) -> Decision:
    """A command of somebody with this permission level, on the pull request as it is now."""
    if isinstance(command, Help):
        return Reply(words.usage())
    own = not pull.fork and event.commenter.id == pull.author.id
    if not may(command.name, level, rules, author_of_own_branch=own):
        return Reply(words.not_allowed(command.name, rules))
    if not pull.open:
        return Reply("The pull request is closed.")
    match command:
        case Run():
            return _run(command, pull)
        case Rerun():
            return _rerun(command, pull, state)
        case Cancel():
            newest = state.newest
            return Stop() if newest and newest.open else Reply("Nothing is being measured here.")
        case Accept():
            return _accept(command, event, pull, state)


def _run(command: Run, pull: Pull) -> Decision:
    if command.sha is None and pull.fork:
        return Reply(words.sha_needed(pull.head))
    if command.sha is not None and not pull.head.startswith(command.sha):
        return Reply(words.sha_is_not_head(command.sha, pull.head))
    return Start(head=pull.head)


def _rerun(command: Rerun, pull: Pull, state: State) -> Decision:
    """More pairs for a head that was measured; for a fork that is the head somebody read and started before."""
    if any(entry.head == pull.head for entry in state.entries):
        return Start(head=pull.head, recipes=command.recipes)
    if pull.fork:
        return Reply("This head was not measured yet. " + words.sha_needed(pull.head))
    return Start(head=pull.head, recipes=command.recipes)


def _accept(command: Accept, event: CommentEvent, pull: Pull, state: State) -> Decision:
    newest = state.newest
    if newest and newest.open:
        return Reply("It is being measured. Accept its loss when it has one.")
    losses = [entry for entry in state.entries if entry.head == pull.head and entry.word is Verdict.REGRESSION]
    if not losses:
        return Reply(f"There is no regression of the current head {words.sha(pull.head)} to accept.")
    if all(loss.at > event.at for loss in losses):
        return Reply("That verdict is newer than your comment. Accept it again if you have read it.")
    return AcceptLoss(head=pull.head, reason=command.reason)
