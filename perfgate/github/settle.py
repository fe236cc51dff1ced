"""Writes what came of a request where people look: the check on the head and the one comment.

Can be done again with the same outcome and changes nothing then. What stood before is read from GitHub; the outcome's
own word about it counts only as far as `standing_regression` lets it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from perfgate.github import words
from perfgate.github.client import Check
from perfgate.github.comment import Entry, State, Word, now, standing_regression
from perfgate.github.conclusion import MAX_CHECK_TEXT, Conclusion, Outcome, conclude
from perfgate.github.request import Request
from perfgate.github.say import Change, Desk, Render, Sticky
from perfgate.records import Verdict
from perfgate.report.comment import length
from perfgate.text import visible


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Whose outcome it is: one request on the head of one pull request."""

    number: int
    head: str
    run: int
    attempt: int
    base: str | None = None
    trees: tuple[str, str] | None = None  # base, head
    check: int | None = None
    fail_on: tuple[str, ...] = ()
    note: str = ""  # about head's own perfgate.yml
    quiet: bool = False  # no comment where there is none yet

    def entry(self, word: Word, reason: str = "") -> Entry:
        base_tree, head_tree = self.trees or (None, None)
        return Entry(
            run=self.run,
            attempt=self.attempt,
            at=now(),
            head=self.head,
            base=self.base,
            base_tree=base_tree,
            head_tree=head_tree,
            word=word,
            reason=visible(reason, 300),
        )


@dataclass(frozen=True, kw_only=True)
class Settled:
    conclusion: Conclusion
    title: str
    text: Render
    comment_url: str = ""


def subject_of(request: Request, number: int) -> Subject:
    return Subject(
        number=number,
        head=request.head,
        run=request.run,
        attempt=request.attempt,
        base=request.base,
        trees=(request.base_tree, request.head_tree),
        check=request.check,
        note=request.note,
        fail_on=request.fail_on,
    )


def settle(desk: Desk, subject: Subject, outcome: Outcome, sticky: Sticky, current: str) -> Settled:
    """`sticky`: the comment as just read; `current`: the head of the pull request now."""
    entry = entry_of(subject, outcome, stale=current != subject.head)
    checks = desk.client.checks(subject.head)

    def change(before: State) -> State:
        return with_checks(before, checks, subject.head).with_entry(entry)

    state = change(sticky.state)
    settled = _decide(desk, state, outcome, entry, subject, current)
    details = desk.check_details(settled.title, settled.text(MAX_CHECK_TEXT - 200), conclusion=settled.conclusion)
    desk.set_check(subject.check, subject.head, external_id(entry), details)
    if sticky.id is None and subject.quiet:
        return settled
    written = desk.write_sticky(subject.number, sticky, Change(entry, change, settled.text))
    return replace(settled, comment_url=written.url)


def entry_of(subject: Subject, outcome: Outcome, *, stale: bool) -> Entry:
    entry = subject.entry("cancelled" if outcome.cancelled else outcome.verdict, outcome.reason)
    measured = outcome.result.run_id if outcome.result else None
    contains = tuple(outcome.result.continues) if outcome.result else ()
    return entry.model_copy(update={"measured": measured, "contains": contains, "stale": stale})


def _decide(desk: Desk, state: State, outcome: Outcome, entry: Entry, subject: Subject, current: str) -> Settled:
    conclusion, title = conclude(outcome, subject.fail_on), outcome.title
    notes = [words.own_config(subject.note)] if subject.note else []
    if entry.stale:
        notes.append(words.stale(entry.head, current))
    standing = standing_regression(state, entry)
    if standing is not None:
        conclusion, title = "failure", "A regression of the same two trees stands"
        notes.append(words.stands(f"{desk.job.runs_url}/{standing.run}"))
    loss = state.accepted_for(entry.head)
    lost = outcome.verdict is Verdict.REGRESSION or (standing and conclude(outcome, subject.fail_on) != "failure")
    if loss and lost:
        conclusion, title = "neutral", f"{loss.by} accepts the loss"
        notes.append(words.note(words.accepted(loss)))

    def text(limit: int) -> str:
        above = "".join(f"{note}\n" for note in notes)
        if outcome.result is not None:
            return above + desk.report(outcome.result, limit - length(above))
        return above + words.without_numbers(outcome.title, entry.head, outcome.reason, desk.job.run_url)

    return Settled(conclusion=conclusion, title=title, text=text)


# ------------------------------------------------------------------------------------------------ the check's memory

_EXTERNAL = re.compile(
    r"(?P<run>\d{1,18})/(?P<attempt>\d{1,6}) (?P<word>[a-z_]{1,20}) (?P<measured>[A-Za-z0-9._:-]{1,60}) "
    r"(?P<base>[0-9a-f]{40}) (?P<head>[0-9a-f]{40})"
)


def opened_id(run: int, attempt: int) -> str:
    """The external id of a check run while its request is open; also how the completed one begins."""
    return f"{run}/{attempt}"


def external_id(entry: Entry) -> str:
    """What a completed check run remembers, for the case that somebody deletes the comment."""
    base, head = entry.trees or ("-", "-")
    return f"{opened_id(*entry.order)} {entry.word} {entry.measured or '-'} {base} {head}"


def tells_a_loss(check: Check) -> bool:
    """Whether a failed check fails for a regression, found by itself or standing, and for nothing else."""
    match = _EXTERNAL.fullmatch(check.external_id)
    return match is not None and match["word"] not in (Verdict.BUILD_FAILED, Verdict.BENCH_FAILED)


def with_checks(state: State, checks: list[Check], sha: str) -> State:
    """The state with the regressions that only check runs still remember."""
    for check in checks:
        match = _EXTERNAL.fullmatch(check.external_id)
        if match is None or match["word"] != Verdict.REGRESSION:
            continue
        remembered = Entry(
            run=int(match["run"]),
            attempt=int(match["attempt"]),
            at=check.completed_at or now(),
            head=sha,
            base_tree=match["base"],
            head_tree=match["head"],
            word=Verdict.REGRESSION,
            reason="as its check remembers",
            measured=match["measured"],
        )
        if state.entry(remembered.order) is None:
            state = state.with_entry(remembered)
    return state
