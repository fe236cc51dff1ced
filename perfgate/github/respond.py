"""`perfgate respond`: the first job. Who asks, for which full SHA, may they, and is there anything to measure?

Runs on a hosted runner with a token, and with no code of the pull request: git reads its commits, nothing is checked
out. What is allowed leaves as one `Request`; everything else ends here.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

from perfgate.config.files import load
from perfgate.config.model import Config
from perfgate.config.places import CONFIG_PATH
from perfgate.config.resolve import builtin, merge
from perfgate.errors import PerfgateError
from perfgate.github import decide, words
from perfgate.github.client import Client, GithubError, Pull
from perfgate.github.commands import Accept, Command, Help, Malformed, parse_command
from perfgate.github.comment import Accepted, Entry, State, now
from perfgate.github.commits import Origin
from perfgate.github.conclusion import Outcome
from perfgate.github.events import CommentEvent, DispatchEvent, Event, MergeGroupEvent, PullEvent
from perfgate.github.job import Job
from perfgate.github.request import Request
from perfgate.github.say import Change, Desk, Sticky
from perfgate.github.settle import Subject, opened_id, settle, tells_a_loss, with_checks
from perfgate.github.study import Study, study
from perfgate.records import Verdict

SLACK_MINUTES = 45  # of the job beside measuring and building: installing, the box's lock, cleaning up
LONGEST_MINUTES = 5 * 24 * 60  # of a job on a runner of one's own
MAX_SUMMARY_TEXT = 60_000  # characters of a report in the job summary
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,200}")


@dataclass(frozen=True)
class Case:
    """A pull request, and the rules of the branch it goes to."""

    pull: Pull
    tip: str  # of that branch: the configuration is read there, once
    config: Config
    sticky: Sticky


def respond(desk: Desk, event: Event) -> None:
    """Answers one event. Outputs `measure`, `cancel`, `pr`, `request`, `timeout-minutes` say what the workflow does."""
    match event:
        case PullEvent():
            _on_pull(desk, event)
        case CommentEvent():
            _on_comment(desk, event)
        case DispatchEvent():
            _on_dispatch(desk, event)
        case MergeGroupEvent():
            _on_merge_group(desk, event)


# ------------------------------------------------------------------------------------------------ a push or a label


def _on_pull(desk: Desk, event: PullEvent) -> None:
    if decide.read_only(event):
        desk.job.write_summary(words.fork_summary(event.number, event.head))
        return
    case = _case(desk, event.number)
    level = desk.client.level(event.sender) if event.label is not None else "none"
    match decide.on_pull(event, case.pull, case.config.github, level):
        case decide.Start(head=head) if _seen_to(desk, case, head):
            desk.job.write_summary(f"{words.sha(head)} was measured already, or is being measured.")
        case decide.Start() as start:
            _begin(desk, case, start, comment=None)
        case decide.DropLabel(why=why):
            kept = tuple(label for label in case.pull.labels if label != case.config.github.label)
            desk.client.set_labels(event.number, kept)
            desk.job.write_summary(why)
        case decide.Leave(why=why):
            desk.job.write_summary(why)


def _seen_to(desk: Desk, case: Case, head: str) -> bool:
    """Whether an earlier delivery has seen to this head. A job that is run again on purpose sees to it again."""
    entry = next((one for one in case.sticky.state.entries if one.head == head), None)
    if entry is None or desk.job.attempt > 1 or entry.word == "cancelled":
        return False
    return not (entry.open and _dead(desk, entry))


def _dead(desk: Desk, entry: Entry) -> bool:
    """Whether the run of an open entry has ended without a word, or is this one, started again."""
    return entry.run == desk.job.run or desk.client.run_is_over(entry.run)


# ------------------------------------------------------------------------------------------------ a comment


def _on_comment(desk: Desk, event: CommentEvent) -> None:
    robot = event.commenter.bot or event.sender.bot or event.sender.id != event.commenter.id
    command = parse_command(event.body) if event.action == "created" and event.on_pull_request and not robot else None
    if command is None:
        return
    if not desk.client.claim(event.comment) and desk.job.attempt == 1:
        desk.job.write_summary("This comment was answered already.")
    elif isinstance(command, Malformed):
        _reply(desk, event, words.malformed(command.hint))
    elif isinstance(command, Help):
        _reply(desk, event, words.usage())
    else:
        _on_command(desk, event, command)


def _on_command(desk: Desk, event: CommentEvent, command: Command) -> None:
    try:
        case = _case(desk, event.number)
    except BrokenConfig as error:
        _reply(desk, event, words.broken_config(error.what))
        raise
    level = desk.client.level(event.commenter)
    state = _remembered(desk, case) if isinstance(command, Accept) else case.sticky.state
    newest = state.newest
    match decide.on_command(command, event, case.pull, case.config.github, level, state):
        case decide.Reply(text=text):
            _reply(desk, event, text)
        case decide.Start(head=head) if newest and newest.open and newest.head == head and not _dead(desk, newest):
            _reply(desk, event, words.already_running(head, f"{desk.job.runs_url}/{newest.run}"))
        case decide.Start(recipes=recipes) if unknown := sorted(set(recipes) - set(_names(case.config))):
            _reply(desk, event, words.unknown_recipes(unknown, _names(case.config)))
        case decide.Start() as start:
            _begin(desk, case, start, comment=event.comment)
        case decide.Stop() if newest is None or _dead(desk, newest):
            _reply(desk, event, "Nothing is being measured here: that run has ended.")
        case decide.Stop():
            desk.job.write_output("cancel", "true")
            desk.job.write_output("pr", str(event.number))
            _done(desk, event.comment)
        case decide.AcceptLoss() as loss:
            _accept(desk, case, event, loss, state)


def _reply(desk: Desk, event: CommentEvent, text: str) -> None:
    """One answer to one comment, however often it is sent."""
    marker = f"<!-- perfgate:reply {event.comment} -->"
    desk.client.comment_once(event.number, f"{marker}\n@{event.commenter.login} {text}", marker)


def _done(desk: Desk, comment: int) -> None:
    """A courtesy: nothing is undone where it fails."""
    with suppress(GithubError):
        desk.client.react(comment, "rocket")


def _remembered(desk: Desk, case: Case) -> State:
    """The state of the comment, and what only the checks of the head still know."""
    head = case.pull.head
    return with_checks(case.sticky.state, desk.client.checks(head), head)


def _accept(desk: Desk, case: Case, event: CommentEvent, loss: decide.AcceptLoss, state: State) -> None:
    """The check of that head becomes neutral, and stays so for every later regression of the same head."""
    accepted = Accepted(head=loss.head, by=event.commenter.login, reason=loss.reason, at=event.at)
    for check in desk.client.checks(loss.head):
        if check.conclusion == "failure" and tells_a_loss(check):
            details = desk.check_details(
                f"{accepted.by} accepts the loss", words.accepted(accepted), conclusion="neutral"
            )
            desk.client.update_check(check.id, details)
    text = f"{words.note(words.accepted(accepted))}\n{case.sticky.newest_text}"
    newest = state.entries[0]
    change = Change(newest, lambda _: state.with_accepted(accepted), lambda limit: text[:limit])
    desk.write_sticky(event.number, case.sticky, change)
    _done(desk, event.comment)


# ------------------------------------------------------------------------------------------------ the other two


def _on_merge_group(desk: Desk, event: MergeGroupEvent) -> None:
    """A required check must not hang here; the pull request was measured on its own."""
    if event.action != "checks_requested":
        return
    text = "skipped: measured on the PR"
    details = desk.check_details(text, text, conclusion="success")
    desk.client.create_check(event.head, opened_id(desk.job.run, desk.job.attempt), details)
    desk.job.write_summary(text)


def _on_dispatch(desk: Desk, event: DispatchEvent) -> None:
    """Two refs of this repository, named by somebody who may start workflows. Without a base: the merge base."""
    for name, ref in (("base", event.base), ("head", event.head)):
        if (ref or name == "head") and not (_REF.fullmatch(ref) and ".." not in ref):
            raise PerfgateError("not the name of a branch, a tag or a SHA", where=f"input {name}")
    config = read_config(desk.client, desk.job.sha)
    head = desk.client.resolve(event.head)
    tip = desk.client.resolve(event.base) if event.base else desk.job.sha
    found = _study(desk.job, tip, head, config, exact=bool(event.base))
    if found.diff.nothing:
        desk.job.write_summary(words.nothing_to_measure(found.diff.reason))
        return
    _hand_over(desk.job, _request(desk.job, found, config, desk.job.sha))


# ------------------------------------------------------------------------------------------------ parts


class BrokenConfig(PerfgateError):
    """The base branch's perfgate.yml cannot be used."""


def _case(desk: Desk, number: int) -> Case:
    pull = desk.client.pull(number)
    tip = desk.client.resolve(f"heads/{pull.base_ref}")
    config = read_config(desk.client, tip)
    if desk.job.auto:
        rules = config.github.model_copy(update={"auto": desk.job.auto})
        config = config.model_copy(update={"github": rules})
    return Case(pull, tip, config, desk.find_sticky(number))


def read_config(client: Client, sha: str) -> Config:
    """perfgate.yml of a commit over the built-in defaults."""
    text = client.file(CONFIG_PATH, sha)
    if text is None:
        return builtin()
    try:
        return merge((builtin(), load(text.encode(), CONFIG_PATH)))
    except PerfgateError as error:
        raise BrokenConfig(str(error), where=f"the base branch, {sha[:12]}") from error


def _study(job: Job, tip: str, head: str, config: Config, *, exact: bool) -> Study:
    with tempfile.TemporaryDirectory(prefix="perfgate-git-") as folder:
        origin = Origin(job.clone_url, job.token)
        return study(Path(folder), origin, tip, head, exact=exact, ignore=config.ignore_paths)


def _begin(desk: Desk, case: Case, start: decide.Start, comment: int | None) -> None:
    """Opens the check and the comment, reads the difference, and hands over what there is to measure."""
    subject, sticky = _open(desk, case, start, comment)
    try:
        found = _study(desk.job, case.tip, start.head, case.config, exact=False)
    except PerfgateError as error:
        settle(desk, subject, Outcome(Verdict.ENVIRONMENT, error.what), sticky, current=start.head)
        raise
    subject = replace(subject, base=found.base.sha, trees=(found.base.tree, found.head.tree))
    if found.diff.nothing:
        settled = settle(desk, subject, Outcome(Verdict.SKIPPED, found.diff.reason), sticky, current=start.head)
        desk.job.write_summary(settled.text(MAX_SUMMARY_TEXT))
        return
    text = words.running(start.head, found.base.sha, desk.job.run_url, planned(case.config, start.recipes))
    text += words.own_config(found.note)
    sticky = _write_open(desk, subject, sticky, "running", text)
    details = desk.check_details("On the box, or waiting for it", text, status="in_progress")
    desk.set_check(subject.check, start.head, opened_id(subject.run, subject.attempt), details)
    asked = {
        "pr": case.pull.number,
        "fork": case.pull.fork,
        "recipes": start.recipes,
        "comment": comment,
        "check": subject.check,
        "sticky": sticky.id,
    }
    _hand_over(desk.job, _request(desk.job, found, case.config, case.tip).model_copy(update=asked))
    if comment is not None:
        _done(desk, comment)


def _open(desk: Desk, case: Case, start: decide.Start, comment: int | None) -> tuple[Subject, Sticky]:
    """Says `queued`. A push alone does so in the check only: what has nothing to measure makes no new comment."""
    job, head = desk.job, start.head
    text = words.queued(head, job.run_url)
    details = desk.check_details("Queued", text, status="queued")
    check = desk.client.create_check(head, opened_id(job.run, job.attempt), details)
    subject = Subject(
        number=case.pull.number,
        head=head,
        run=job.run,
        attempt=job.attempt,
        check=check.id,
        fail_on=tuple(case.config.github.fail_on),
        quiet=comment is None,
    )
    if comment is None and case.sticky.id is None:
        return subject, case.sticky
    return subject, _write_open(desk, subject, case.sticky, "queued", text)


def _write_open(desk: Desk, subject: Subject, sticky: Sticky, word: Literal["queued", "running"], text: str) -> Sticky:
    entry = subject.entry(word)
    change = Change(entry, lambda state: state.with_entry(entry), lambda _: text)
    return desk.write_sticky(subject.number, sticky, change)


def _request(job: Job, found: Study, config: Config, config_sha: str) -> Request:
    minutes = config.limits.minutes + config.build.minutes + SLACK_MINUTES
    return Request(
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


def _hand_over(job: Job, request: Request) -> None:
    job.write_output("measure", "true")
    job.write_output("pr", str(request.pr or f"run-{request.run}"))
    job.write_output("request", request.to_line())
    job.write_output("timeout-minutes", str(request.minutes))


def _names(config: Config) -> tuple[str, ...]:
    return tuple(name for name, recipe in config.recipes.items() if recipe.enabled)


def planned(config: Config, recipes: tuple[str, ...]) -> words.Planned:
    """From what configuration alone allows; the box prints its own plan, which knows how long its launches take."""
    names = recipes or _names(config)
    minutes = int(config.limits.minutes)
    return words.Planned(
        recipes=names,
        fewest_launches=2 * len(names),
        most_launches=2 * len(names) * config.limits.max_pairs,
        minutes=minutes,
        ends_by=now() + timedelta(minutes=minutes),
    )
