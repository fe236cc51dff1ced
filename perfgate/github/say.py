"""Everything that is written, in one order: the check, which a merge may wait for, then the comment, then the rest.

A check that was opened does not stay open whatever happens after it. Where the comment cannot be written the check
tells all: then the last job fails, so that somebody looks, and a measurement that was handed over still goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from perfgate.github import words
from perfgate.github.client import Client, GithubError
from perfgate.github.comment import MARKER, Own, Text, assemble, room_for_report, without_next_step
from perfgate.github.events import CommentEvent
from perfgate.github.gather import find_own
from perfgate.github.job import Job
from perfgate.github.outcome import CheckWord, CommentWord, Response, check_details
from perfgate.report.escape import plain


def say(job: Job, client: Client, decision: Response, event: CommentEvent | None = None) -> None:
    """`event`: the comment that is answered."""
    opens = decision.check is not None and decision.check.conclusion is None
    failures: list[GithubError] = []
    url = ""
    with _kept([] if opens else failures, raising=opens):
        if decision.check is not None:
            set_check(job, client, decision.check)
    try:
        for other in decision.others:
            with _kept(failures):
                set_check(job, client, other)
        with _kept(failures):
            url = _write_comment(job, client, decision)
        with _kept(failures):
            _answer(job, client, decision, event)
    except BaseException:
        if decision.check is not None and opens:
            close_check(job, client, decision.check)
        raise
    _hand_back(job, decision, url, failures)
    if decision.error is not None:
        raise decision.error
    if failures and not opens:
        raise failures[0]


@contextmanager
def _kept(failures: list[GithubError], *, raising: bool = False) -> Iterator[None]:
    """What GitHub refuses is kept for the end, so that the rest is said all the same."""
    try:
        yield
    except GithubError as error:
        if raising:
            raise
        failures.append(error)


def _hand_back(job: Job, decision: Response, url: str, failures: list[GithubError]) -> None:
    told = [decision.summary, *(f"> [!WARNING]\n> {plain(str(error))}" for error in failures)]
    if any(told):
        job.write_summary("\n\n".join(part for part in told if part))
    for name, value in decision.outputs.items():
        job.write_output(name, value)
    if "conclusion" in decision.outputs:
        job.write_output("comment-url", url)


# ------------------------------------------------------------------------------------------------ checks


def set_check(job: Job, client: Client, word: CheckWord) -> None:
    """Sets the check run of a request, wherever it is; makes one where there is none, or where it cannot be changed."""
    known = word.id if word.id is not None else _find(client, word)
    if known is not None:
        try:
            client.update_check(known, check_details(word, job))
            return
        except GithubError:
            if word.id is not None:
                raise
    details = check_details(word, job)
    external_id = str(details.pop("external_id"))
    client.create_check(word.sha, external_id if known is None else f"{external_id} again", details)


def _find(client: Client, word: CheckWord) -> int | None:
    """The check run that was opened for the same request."""
    name = word.external_id.split(" ")[0]
    with suppress(GithubError):
        return next((check.id for check in client.checks(word.sha) if check.external_id.split(" ")[0] == name), None)
    return None


def close_check(job: Job, client: Client, opened: CheckWord) -> None:
    """The last resort of a job that cannot go on: no check waits for a word that never comes."""
    cause = words.ENDED_EARLY
    text = words.without_numbers(opened.sha, cause.headline, "", cause.step, job.run_url)
    with suppress(GithubError):
        set_check(
            job,
            client,
            CheckWord(
                sha=opened.sha,
                external_id=opened.external_id,
                title=words.title(opened.sha, cause.headline),
                summary=text,
                conclusion="neutral",
            ),
        )


# ------------------------------------------------------------------------------------------------ the comment


def _write_comment(job: Job, client: Client, decision: Response) -> str:
    """Its address. It is read first, for another run may have had a word since.

    Where two runs make the first comment at the same time, the later one is taken back and its word goes into the
    earlier one. On a locked pull request nobody may comment.
    """
    word, number = decision.comment, decision.number
    if word is None or number is None or decision.locked:
        return ""
    own = find_own(job, client, number)
    if own.id is not None:
        return _edit(job, client, own, word)
    if not word.new:
        return ""
    made = client.comment_once(number, _body(job, own, word), MARKER)
    first = find_own(job, client, number)
    if first.id is None or first.id >= made.id:
        return made.url
    client.delete_comment(made.id)
    return _edit(job, client, first, word)


def _edit(job: Job, client: Client, own: Own, word: CommentWord) -> str:
    body = _body(job, own, word)
    if own.id is not None and body != own.body:
        client.edit_comment(own.id, body)
    return own.url


def _body(job: Job, own: Own, word: CommentWord) -> str:
    """Where the word is not about the newest request (a later one has it), the texts stay as they are."""
    state, before = word.state(own.state), own.text
    earlier = words.earlier(state.entries[1:], state.accepted, job.runs_url)
    overtaken = word.order is not None and state.newest is not None and state.newest.order != word.order
    if overtaken:
        kept = state.model_copy(update={"report": own.state.report})
        return assemble(kept, Text(before.now, before.report, earlier))
    text = Text(word.now(state), "", earlier)
    if word.report is not None:
        return assemble(state, Text(text.now, word.report(room_for_report(state, text)), earlier))
    return assemble(state, Text(text.now, _kept_report(job, own), earlier))


def _kept_report(job: Job, own: Own) -> str:
    """The report of what was measured last, which says itself what it is now that it is not the first thing said."""
    reported, report = own.state.reported, own.text.report
    if reported is None or not report:
        return ""
    title = words.report_of(reported, job.runs_url)
    return report if report.startswith(title) else f"{title}\n\n{without_next_step(report)}"


# ------------------------------------------------------------------------------------------------ answers


def _answer(job: Job, client: Client, decision: Response, event: CommentEvent | None) -> None:
    number = decision.number
    if decision.drop_label and number is not None:
        client.drop_label(number, decision.drop_label)
    if event is None:
        return
    if decision.reply:
        reply(job, client, event, decision.reply, locked=decision.locked)
    if decision.done:
        with suppress(GithubError):  # a courtesy
            client.react(event.comment, "rocket")


def reply(job: Job, client: Client, event: CommentEvent, text: str, *, locked: bool = False) -> None:
    """One answer to one comment, however often it is sent."""
    marker = f"<!-- perfgate:reply {event.comment} -->"
    if locked:
        job.write_summary(text)
    elif client.ours(event.number, marker) is None:
        client.comment_once(event.number, f"{marker}\n@{event.commenter.login} {text}", marker)
