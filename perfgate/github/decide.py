"""What to do about an event: all of it here, all of it pure. What a verdict becomes is in `outcome`, as pure.

What is known is handed in (`gather` read it); what is to be written is handed back (`say` writes it). An event ends in
a `Response`, or in `Measure`, which asks for one thing more to be read: what the commits change.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import timedelta

from perfgate.config.model import Config, GithubRules
from perfgate.errors import PerfgateError
from perfgate.github import words
from perfgate.github.client import LEVELS
from perfgate.github.commands import Accept, Cancel, Command, Help, Malformed, Rerun, Run
from perfgate.github.comment import (
    Accepted,
    Entry,
    now,
    opened_id,
    order_of,
    tells_a_loss,
)
from perfgate.github.commits import Comparison
from perfgate.github.events import CommentEvent, MergeGroupEvent, PullEvent
from perfgate.github.gather import Known, Refs
from perfgate.github.job import Job
from perfgate.github.outcome import CheckWord, CommentWord, Outcome, Response, settled
from perfgate.github.request import Authorised
from perfgate.records import Verdict
from perfgate.report.headline import Headline

ROBOTS = frozenset(("dependabot[bot]",))
"""GitHub hands their events a read-only token, as it does for forks."""

MOVED = frozenset(("opened", "reopened", "synchronize", "ready_for_review"))
"""Actions after which the head has to be looked at."""

SLACK_MINUTES = 45  # of the job beside measuring and building: installing, the box's lock, cleaning up
LONGEST_MINUTES = 5 * 24 * 60  # of a job on a runner of one's own


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Measure this head, if what it changes can move serving."""

    head: str
    recipes: tuple[str, ...] = ()
    comment: int | None = None  # that asked for it
    new_base: bool = False


# ------------------------------------------------------------------------------------------------ who may


def at_least(level: str, needed: str) -> bool:
    return LEVELS.index(level) >= LEVELS.index(needed)


def needed(command: str, rules: GithubRules) -> str:
    return str(getattr(rules.who, command))


def may(
    command: str,
    level: str,
    rules: GithubRules,
    *,
    author_of_own_branch: bool = False,
    granted: Collection[str] = (),
) -> bool:
    """Whether a command of somebody of this level is allowed. `help` is everybody's.

    `author_of_own_branch`: the pull request is this person's own and comes from no fork; enough for `rerun`.
    `granted`: what a file of the base branch lets this person do.
    """
    if command == "help" or command in granted:
        return True
    if command == "rerun" and author_of_own_branch:
        return True
    return at_least(level, needed(command, rules))


# ------------------------------------------------------------------------------------------------ a push or a label


def at_once(event: PullEvent | CommentEvent | MergeGroupEvent, job: Job) -> Response | None:
    """What needs nothing to be read: None where something does."""
    match event:
        case MergeGroupEvent():
            return _on_merge_group(event, job)
        case PullEvent() if event.action != "closed" and event.sender.login in ROBOTS:
            return Response(summary=words.robot_summary(event.number, event.sender.login))
        case PullEvent() if event.action != "closed" and event.fork:
            return Response(summary=words.fork_summary(event.number, event.head))
        case _:
            return None


def _on_merge_group(event: MergeGroupEvent, job: Job) -> Response:
    """A required check must not hang here; the pull request was measured on its own."""
    if event.action != "checks_requested":
        return Response()
    text = "skipped: measured on the PR"
    identity = opened_id(job.run, job.attempt)
    check = CheckWord(sha=event.head, external_id=identity, title=text, summary=text, conclusion="success")
    return Response(summary=text, check=check)


def on_pull(event: PullEvent, known: Known, job: Job) -> Response | Measure:
    """Something happened to a pull request of this repository's own branches, or any was closed."""
    pull, rules = known.pull, known.config.github
    running = known.open_entry()
    if event.action == "closed":
        if running is None:
            return Response(summary="Nothing is being measured.")
        return Response(summary="The measurement is ended.", outputs={"cancel": "true", "pr": str(pull.number)})
    if not pull.open:
        return Response(summary="The pull request is closed.")
    if pull.head != event.head:
        return Response(summary="A newer push is on its way; that one is measured.")
    looked_at = event.action in MOVED or event.new_base
    if rules.auto == "paths" and looked_at and not (pull.draft and event.action != "ready_for_review"):
        seen = None if event.new_base or job.attempt > 1 else _seen(known)
        if seen is None:
            return Measure(head=event.head, new_base=event.new_base)
        why = f"{words.sha(pull.head)} was measured already, or is being measured."
        return _moved(known, job, why, words.again_headline(seen)) if seen.told else Response(summary=why)
    if rules.auto == "label" and event.action == "labeled" and event.label == rules.label:
        if at_least(known.level, rules.who.run):
            return Measure(head=event.head)
        return Response(summary=f"The label counts only from somebody with {rules.who.run} permission.")
    return _left(event, known, job)


def _seen(known: Known) -> Entry | None:
    """What an earlier delivery came to on this head; None where it was never measured, or given up."""
    entry = next((one for one in known.past.own.state.entries if one.head == known.pull.head), None)
    gone = entry is None or entry.word == "cancelled" or (entry.open and entry != known.open_entry())
    return None if gone else entry


def _left(event: PullEvent, known: Known, job: Job) -> Response:
    """Nothing is measured; the comment and the checks do not go on speaking of another head, or of another base."""
    pull, rules = known.pull, known.config.github
    drop = rules.label if event.action == "synchronize" and rules.label in pull.labels else ""
    match rules.auto:
        case "off":
            why = "perfgate.yml says `auto: off`: `/perfgate run` starts a measurement."
        case "label":
            why = "perfgate.yml says `auto: label`: the label starts a measurement."
            why = "The label was for the head before this push and is taken off." if drop else why
        case _ if pull.draft:
            why = "A draft is not measured by itself: `/perfgate run` does, and it is when it is ready for review."
        case _:
            why = f"Nothing is measured on `{event.action}`." if event.action.isidentifier() else "Nothing to do."
    drop = drop if rules.auto == "label" else ""
    if event.new_base:
        return _other_base(known, job, why)
    if event.action != "synchronize" or known.open_entry():
        return Response(number=pull.number, summary=why, drop_label=drop)
    seen = _seen(known)
    told = words.again_headline(seen) if seen else words.moved_headline(known.past.own.state.reported)
    return _moved(known, job, why, told, drop)


def _moved(known: Known, job: Job, why: str, told: Headline, drop_label: str = "") -> Response:
    """The comment says what is known of the head that is there now."""
    text = words.without_numbers(known.pull.head, told, "", "", job.run_url)
    word = CommentWord(state=lambda state: state, now=lambda _: text, new=False)
    has_one = known.past.own.id is not None
    return Response(
        number=known.pull.number,
        locked=known.pull.locked,
        summary=why,
        comment=word if has_one else None,
        drop_label=drop_label,
    )


def _other_base(known: Known, job: Job, why: str) -> Response:
    """No check goes on saying that a head is fine which was measured against another base."""
    text = words.without_numbers(
        known.pull.head, words.OTHER_BASE, words.other_base(known.pull.base_ref), "", job.run_url
    )
    checks = tuple(
        CheckWord(
            id=check.id,
            sha=known.pull.head,
            external_id=check.external_id,
            title=words.title(known.pull.head, words.OTHER_BASE),
            summary=text,
            conclusion="action_required",
        )
        for check in known.past.checks
        if order_of(check) and check.status == "completed"
    )
    word = CommentWord(state=lambda state: state, now=lambda _: text, new=False)
    return Response(
        number=known.pull.number,
        locked=known.pull.locked,
        summary=why,
        others=checks,
        comment=word if known.past.own.id is not None else None,
    )


# ------------------------------------------------------------------------------------------------ a comment


def is_meant(event: CommentEvent) -> bool:
    """Whether a person wrote a new comment on a pull request."""
    robot = event.commenter.bot or event.sender.bot or event.sender.id != event.commenter.id
    return event.action == "created" and event.on_pull_request and not robot


def on_command(command: Command | Malformed, event: CommentEvent, known: Known, job: Job) -> Response | Measure:
    """A command of somebody of this permission level, on the pull request as it is now."""
    pull, rules, state = known.pull, known.config.github, known.past.own.state
    if isinstance(command, Malformed):
        return _reply(known, words.malformed(command.hint))
    if isinstance(command, Help):
        return _reply(known, words.usage())
    own = not pull.fork and event.commenter.id == pull.author.id
    if not may(command.name, known.level, rules, author_of_own_branch=own, granted=known.granted):
        return _reply(known, words.not_allowed(command.name, needed(command.name, rules)))
    answered = {*(one.comment for one in state.entries), *(one.comment for one in state.accepted)}
    if event.comment in answered and job.attempt == 1:
        return Response(summary="This comment was answered already.")
    if isinstance(command, Cancel):
        return _cancel(known)
    if not pull.open:
        return _reply(known, "The pull request is closed.")
    if isinstance(command, Accept):
        return _accept(command, event, known, job)
    if known.fault:
        error = PerfgateError(known.fault, where=f"the base branch, {words.sha(known.tip)}")
        return _reply(known, words.broken_config(known.fault), error)
    answer = _run(command, known) if isinstance(command, Run) else _rerun(command, known)
    running = known.open_entry()
    if answer is None and running and running.head == pull.head:
        answer = words.already_running(pull.head, f"{job.runs_url}/{running.run}")
    if answer is not None:
        return _reply(known, answer)
    recipes = command.recipes if isinstance(command, Rerun) else ()
    return Measure(head=pull.head, recipes=recipes, comment=event.comment)


def _reply(known: Known, text: str, error: PerfgateError | None = None) -> Response:
    return Response(number=known.pull.number, locked=known.pull.locked, reply=text, error=error)


def _run(command: Run, known: Known) -> str | None:
    """Why not; None where nothing is against it. Of a fork all 40 digits: fewer are easily made to fit two commits."""
    pull = known.pull
    if pull.fork and (command.sha is None or (len(command.sha) < 40 and pull.head.startswith(command.sha))):
        return words.sha_needed(pull.head)
    if command.sha is not None and not pull.head.startswith(command.sha):
        return words.sha_is_not_head(command.sha, pull.head)
    return None


def _rerun(command: Rerun, known: Known) -> str | None:
    """More pairs for a head that was measured; for a fork that is the head somebody read and started before."""
    pull = known.pull
    names = enabled_recipes(known.config)
    if unknown := sorted(set(command.recipes) - set(names)):
        return words.unknown_recipes(unknown, names)
    if pull.fork and all(entry.head != pull.head for entry in known.past.own.state.entries):
        return "This head was not measured yet. " + words.sha_needed(pull.head)
    return None


def _cancel(known: Known) -> Response:
    """Also of a closed pull request: the box goes on measuring it all the same."""
    newest = known.past.own.state.newest
    if known.open_entry():
        return Response(number=known.pull.number, outputs={"cancel": "true", "pr": str(known.pull.number)}, done=True)
    ended = " here: that run has ended." if newest and newest.open else " here."
    return _reply(known, f"Nothing is being measured{ended}")


def _accept(command: Accept, event: CommentEvent, known: Known, job: Job) -> Response:
    """Binds to what its writer could have read, the newest verdict at that time; its check stays neutral then."""
    pull, state = known.pull, known.past.state
    if known.open_entry():
        return _reply(known, "It is being measured. Accept its loss when it has one.")
    losses = [one for one in state.entries if one.head == pull.head and one.word is Verdict.REGRESSION]
    if not losses:
        return _reply(known, f"There is no regression of the current head {words.sha(pull.head)} to accept.")
    if all(loss.at > event.at for loss in losses):
        return _reply(known, "That verdict is newer than your comment. Accept it again if you have read it.")
    read = next(one for one in state.entries if one.told and one.at <= event.at)
    if read.head != pull.head:
        return _reply(known, words.newest_is_of_another_head(read.head, pull.head))
    loss = Accepted(
        head=pull.head,
        base_tree=losses[0].base_tree,
        by=event.commenter.login,
        reason=command.reason,
        at=event.at,
        comment=event.comment,
    )
    told = words.accepted_headline(loss)
    text = f"{words.first_line(pull.head, told)}\n\n{words.accepted(loss)}"
    checks = tuple(
        CheckWord(
            id=check.id,
            sha=pull.head,
            external_id=check.external_id,
            title=words.title(pull.head, told),
            summary=text,
            conclusion="neutral",
        )
        for check in known.past.checks
        if check.conclusion == "failure" and tells_a_loss(check)
    )
    return Response(
        number=pull.number,
        locked=pull.locked,
        others=checks,
        comment=CommentWord(state=lambda _: state.with_accepted(loss), now=lambda _: text),
        done=True,
    )


# ------------------------------------------------------------------------------------------------ what it changes


def on_comparison(start: Measure, known: Known, found: Comparison | PerfgateError, job: Job) -> Response:
    """Hands over to the box what there is to measure; settles at once what there is not."""
    pull, config = known.pull, known.config
    entry = _entry(job, start)
    quiet = start.comment is None  # what has nothing to measure, and nobody asked for, makes no new comment

    def settle(outcome: Outcome) -> Response:
        return settled(entry, outcome, known.past, job, number=pull.number, locked=pull.locked, quiet=quiet)

    if isinstance(found, PerfgateError):
        cause = words.NOT_CONFIGURED if known.fault else words.COMMITS_UNREAD
        return replace(settle(Outcome(cause=cause, reason=found.what)), error=found)
    entry = entry.model_copy(
        update={"base": found.base.sha, "base_tree": found.base.tree, "head_tree": found.head.tree}
    )
    seen = _seen(known)
    if start.new_base and seen is not None and seen.trees == entry.trees:
        return Response(summary="It goes to another branch, but was measured against the same base.")
    if found.diff.nothing:
        return settle(Outcome(cause=NOTHING, reason=found.diff.reason))
    request = _request(job, found, config, known.tip).model_copy(
        update={"pr": pull.number, "fork": pull.fork, "recipes": start.recipes, "comment": start.comment}
    )
    text = words.running(pull.head, found.base.sha, job.run_url, planned(config, start.recipes))
    if found.note:
        text += f"\n\n{words.own_config(found.note)}"
    check = CheckWord(
        sha=pull.head,
        external_id=opened_id(job.run, job.attempt),
        title=words.title(pull.head, words.MEASURING),
        summary=text,
    )
    running = entry.model_copy(update={"word": "running"})
    return Response(
        number=pull.number,
        locked=pull.locked,
        check=check,
        comment=CommentWord(state=lambda state: state.with_entry(running), now=lambda _: text, order=running.order),
        outputs=_handed_over(request),
        done=start.comment is not None,
    )


NOTHING = words.NoResult(words.NOTHING, "", Verdict.SKIPPED)


def on_refs(refs: Refs, found: Comparison, job: Job) -> Response:
    """Two refs by hand: no pull request, so the summary tells it and the job's end."""
    if found.diff.nothing:
        return Response(summary=words.nothing_to_measure(found.diff.reason))
    request = _request(job, found, refs.config, job.sha).model_copy(update={"fork": refs.fork})
    return Response(outputs=_handed_over(request))


def _entry(job: Job, start: Measure) -> Entry:
    return Entry(run=job.run, attempt=job.attempt, at=now(), head=start.head, word="queued", comment=start.comment)


def _request(job: Job, found: Comparison, config: Config, config_sha: str) -> Authorised:
    minutes = config.limits.minutes + config.build.minutes + SLACK_MINUTES
    return Authorised(
        repository=job.repository,
        run=job.run,
        attempt=job.attempt,
        base=found.base.sha,
        base_tree=found.base.tree,
        head=found.head.sha,
        head_tree=found.head.tree,
        config=config_sha,
        minutes=int(min(minutes, LONGEST_MINUTES)),
        fail_on=tuple(config.github.fail_on),
        note=found.note,
    )


def _handed_over(request: Authorised) -> dict[str, str]:
    return {
        "measure": "true",
        "pr": str(request.pr or f"run-{request.run}"),
        "request": request.to_line(),
        "timeout-minutes": str(request.minutes),
    }


def enabled_recipes(config: Config) -> tuple[str, ...]:
    return tuple(name for name, recipe in config.recipes.items() if recipe.enabled)


def planned(config: Config, recipes: tuple[str, ...]) -> words.Planned:
    """From what configuration alone allows; the box prints its own plan, which knows how long its launches take."""
    names = recipes or enabled_recipes(config)
    minutes = int(config.limits.minutes)
    return words.Planned(
        recipes=names,
        fewest_launches=2 * len(names),
        most_launches=2 * len(names) * config.limits.max_pairs,
        minutes=minutes,
        ends_by=now() + timedelta(minutes=minutes),
    )
