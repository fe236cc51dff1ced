"""What came of a request, and everything that is to be written about it; pure, as `decide` is.

A result, or the cause why there is none, becomes a check, the one comment and the job's summary. What stood before
counts as `comment` says: a regression stands, a loss is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from perfgate.errors import PerfgateError
from perfgate.github import words
from perfgate.github.comment import (
    Entry,
    State,
    Word,
    external_id,
    now,
    order_of,
    remembered,
    standing_regression,
    without_next_step,
)
from perfgate.github.gather import Past
from perfgate.github.job import Job, shorten
from perfgate.github.request import Authorised
from perfgate.records import Result, Side, Verdict
from perfgate.report.comment import Links, length, render_comment
from perfgate.report.headline import Headline, headline
from perfgate.text import visible

MAX_CHECK_TEXT = 65_000  # bytes of a check run's summary; GitHub takes 65,535
MAX_SUMMARY_TEXT = 900_000  # characters of the job summary; GitHub drops one over 1 MiB

Conclusion = Literal["success", "failure", "neutral", "cancelled", "action_required"]


# ------------------------------------------------------------------------------------------------ what is to be written


@dataclass(frozen=True, kw_only=True)
class CheckWord:
    """What one check run is set to. `id` None: the request's own, which is made if it is not there."""

    sha: str
    external_id: str
    title: str
    summary: str
    conclusion: Conclusion | None = None  # None: it is open
    id: int | None = None


@dataclass(frozen=True, kw_only=True)
class CommentWord:
    """What changes in the one comment. It is read again before it is written, so the texts are made then."""

    state: Callable[[State], State]
    now: Callable[[State], str]
    report: Callable[[int], str] | None = None  # given the room there is; None: the one that is there stays
    order: tuple[int, int] | None = None  # whose word it is: where a later request has the word, the text stays
    new: bool = True  # whether a comment is made where there is none


@dataclass(frozen=True, kw_only=True)
class Response:
    """Everything that is to be written."""

    number: int | None = None  # of the pull request
    locked: bool = False  # so that nobody may comment
    summary: str = ""
    reply: str = ""  # to the comment that asked
    check: CheckWord | None = None
    others: tuple[CheckWord, ...] = ()  # earlier check runs of the same head
    comment: CommentWord | None = None
    drop_label: str = ""
    outputs: Mapping[str, str] = field(default_factory=dict)
    done: bool = False  # the command was carried out
    conclusion: Conclusion | None = None
    error: PerfgateError | None = None  # how the job ends, once all is said


# ------------------------------------------------------------------------------------------------ what came of it


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a request: a result, or the cause why there is none. `reason` may hold strangers' text."""

    result: Result | None = None
    cause: words.NoResult = words.NOTHING_CAME
    reason: str = ""

    @property
    def verdict(self) -> Verdict:
        return self.result.verdict if self.result else self.cause.verdict

    @property
    def word(self) -> Word:
        return "cancelled" if self.result is None and self.cause is words.CANCELLED else self.verdict

    @property
    def headline(self) -> Headline:
        return headline(self.result) if self.result else self.cause.headline


def conclude(outcome: Outcome, fail_on: Collection[str] = ()) -> Conclusion:
    """`failure`: the change made serving slower, or its head cannot be built or served while base can.

    What perfgate could not find out is `neutral`, which a required check lets pass, unless `fail_on` names it.
    """
    if outcome.word == "cancelled":
        return "cancelled"
    verdict = outcome.verdict
    if verdict in (Verdict.PASS, Verdict.SKIPPED):
        return "success"
    on_head = outcome.result is not None and outcome.result.failed_side is Side.HEAD
    head_failed = verdict in (Verdict.BUILD_FAILED, Verdict.BENCH_FAILED) and on_head
    return "failure" if verdict is Verdict.REGRESSION or head_failed or verdict in fail_on else "neutral"


def on_outcome(
    request: Authorised, outcome: Outcome, past: Past, job: Job, head_now: str | None, locked: bool
) -> Response:
    """The last word on a request. Without a pull request the summary tells it, and how the job ends."""
    if request.pr is None:
        conclusion = conclude(outcome, request.fail_on)
        now_text, report = _texts(request.head, outcome, outcome.headline, [], job)
        outputs = {"verdict": outcome.word, "conclusion": conclusion, "comment-url": ""}
        return Response(summary=f"{now_text}\n\n{report(MAX_SUMMARY_TEXT)}", outputs=outputs, conclusion=conclusion)
    entry = Entry(
        run=request.run,
        attempt=request.attempt,
        at=now(),
        head=request.head,
        base=request.base,
        base_tree=request.base_tree,
        head_tree=request.head_tree,
        word="running",
        comment=request.comment,
        stale=head_now is not None and head_now != request.head,
    )
    notes = [words.own_config(request.note)] if request.note else []
    if entry.stale and head_now is not None:
        notes.append(words.stale(entry.head, head_now))
    return settled(entry, outcome, past, job, number=request.pr, locked=locked, fail_on=request.fail_on, notes=notes)


def settled(
    entry: Entry,
    outcome: Outcome,
    past: Past,
    job: Job,
    *,
    number: int,
    locked: bool,
    fail_on: Collection[str] = (),
    notes: Collection[str] = (),
    quiet: bool = False,
) -> Response:
    """Check, comment and summary of a request that has ended. What stood before counts as `comment` says."""
    entry = _told(entry, outcome)
    state = past.state.with_entry(entry)
    conclusion, told, notes = conclude(outcome, fail_on), outcome.headline, list(notes)
    standing = standing_regression(state, entry)
    if standing is not None:
        notes.append(words.stands(f"{job.runs_url}/{standing.run}"))
    loss = state.accepted_for(entry)
    lost = outcome.verdict is Verdict.REGRESSION or (standing is not None and conclusion != "failure")
    if standing is not None:
        conclusion, told = "failure", words.STANDS
    if loss and lost:
        conclusion, told = "neutral", words.accepted_headline(loss)
        notes.append(words.note(words.accepted(loss)))
    if past.unread and conclusion == "success":
        conclusion, told = "neutral", words.UNKNOWN_PAST
        notes.append(words.unknown_past(past.unread))
    now_text, report = _texts(entry.head, outcome, told, notes, job)
    whole = f"{now_text}\n\n{report(MAX_SUMMARY_TEXT)}".strip("\n")
    short = f"{now_text}\n\n{report(MAX_CHECK_TEXT - 1000 - length(now_text))}".strip("\n")
    remembers = external_id(entry)
    check = CheckWord(
        sha=entry.head, external_id=remembers, title=words.title(entry.head, told), summary=short, conclusion=conclusion
    )

    def with_word(before: State) -> State:
        kept = remembered(before, past.checks, past.head).with_entry(entry)
        return kept.model_copy(update={"report": entry.order}) if outcome.result else kept

    return Response(
        number=number,
        locked=locked,
        summary=whole,
        check=check,
        others=_overtaken(entry, outcome, past, told, conclusion, job),
        comment=CommentWord(
            state=with_word,
            now=lambda _: now_text,
            report=report if outcome.result else None,
            order=entry.order,
            new=not quiet,
        ),
        outputs={"verdict": outcome.word, "conclusion": conclusion},
        conclusion=conclusion,
    )


def _told(entry: Entry, outcome: Outcome) -> Entry:
    result = outcome.result
    reason = result.reason if result else outcome.reason or words.title(entry.head, outcome.headline)
    return entry.model_copy(
        update={
            "word": outcome.word,
            "reason": visible(reason, 300),
            "measured": result.run_id if result else None,
            "contains": tuple(result.continues) if result else (),
        }
    )


def _overtaken(
    entry: Entry, outcome: Outcome, past: Past, told: Headline, conclusion: Conclusion, job: Job
) -> tuple[CheckWord, ...]:
    """Our earlier check runs of the same head say what this one says, so that none goes on failing, or waiting.

    A request that measured nothing only ends those that still wait. What they remember stays in them.
    """
    summary = f"A later run has the word: [{words.title(entry.head, told)}]({job.run_url})."
    return tuple(
        CheckWord(
            id=check.id,
            sha=entry.head,
            external_id=check.external_id,
            title=words.title(entry.head, told),
            summary=summary,
            conclusion=conclusion,
        )
        for check in past.checks
        if (order := order_of(check)) is not None
        and order < entry.order
        and (check.status != "completed" or (outcome.result is not None and check.conclusion != conclusion))
    )


def _texts(
    head: str, outcome: Outcome, told: Headline, notes: Collection[str], job: Job
) -> tuple[str, Callable[[int], str]]:
    """What is the case, and the report within so many characters: empty where there is no result."""
    above = "".join(f"\n\n{note.strip()}" for note in notes)
    result = outcome.result
    if result is None:
        reason = (
            outcome.reason if told == outcome.headline else f"{words.title(head, outcome.headline)}. {outcome.reason}"
        )
        return words.without_numbers(head, told, reason, outcome.cause.step, job.run_url) + above, lambda _: ""
    links = Links(run=job.run_url, page=f"{job.run_url}#artifacts", repository=f"{job.server_url}/{job.repository}")

    def report(limit: int) -> str:
        body = render_comment(result, links=links, limit=limit).partition("\n")[2].strip("\n")
        return body if told == outcome.headline else without_next_step(body)

    return words.first_line(head, told) + above, report


def check_details(word: CheckWord, job: Job) -> dict[str, object]:
    """As GitHub takes them. Strangers' words in the summary have been escaped."""
    cut = f"\n\n*Shortened: [the rest]({job.run_url}).*"
    output = {"title": word.title[:250], "summary": shorten(word.summary, MAX_CHECK_TEXT, cut)}
    details: dict[str, object] = {"details_url": job.run_url, "external_id": word.external_id, "output": output}
    if word.conclusion is None:
        return {**details, "status": "in_progress"}
    return {**details, "status": "completed", "conclusion": word.conclusion}
