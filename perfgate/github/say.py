"""What `respond` and `publish` share: the check and the one comment of a pull request, read and written together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfgate.github import words
from perfgate.github.client import Check, Client, GithubError, Remark
from perfgate.github.comment import (
    MARKER,
    Entry,
    State,
    assemble,
    is_ours,
    room_for_text,
    state_of,
    text_of_newest,
)
from perfgate.github.conclusion import MAX_CHECK_TEXT, Conclusion
from perfgate.github.job import Job, shorten
from perfgate.records import Result

Render = Callable[[int], str]
"""The newest run's text, given how many characters there are for it."""

Report = Callable[[Result, int], str]
"""The Markdown of a result within so many characters."""


@dataclass(frozen=True)
class Sticky:
    """perfgate's comment as it was read; `id` None: there is none yet."""

    id: int | None = None
    body: str = ""
    url: str = ""

    @property
    def state(self) -> State:
        return state_of(self.body)

    @property
    def newest_text(self) -> str:
        return text_of_newest(self.body)


@dataclass(frozen=True)
class Change:
    """A word on one request: how it changes the state, and what the comment says if it is the newest."""

    entry: Entry
    state: Callable[[State], State]
    text: Render


@dataclass(frozen=True)
class Desk:
    """Where one job writes from."""

    job: Job
    client: Client
    report: Report

    def find_sticky(self, number: int, known: int | None = None) -> Sticky:
        """The comment of ours: the known one, else the first on any page with our marker and our author."""
        if known is not None:
            remark = self.client.remark(known)
            if remark is not None and self._is_ours(remark):
                return _sticky(remark)
        found = next(filter(self._is_ours, self.client.remarks(number)), None)
        return _sticky(found) if found else Sticky()

    def _is_ours(self, remark: Remark) -> bool:
        return is_ours(remark.author, remark.body, self.job.author)

    def write_sticky(self, number: int, old: Sticky, change: Change) -> Sticky:
        """Writes the comment: the text of the newest entry, everything else folded.

        It is read again first, for another run may have had a word since. Where two runs make the first comment at
        the same time, the later one is taken back and its word goes into the earlier one.
        """
        now = self.find_sticky(number, old.id) if old.id is not None else old
        if now.id is not None:
            return self._edit(now, change)
        made = _sticky(self.client.comment_once(number, self._body(now, change), MARKER))
        first = self.find_sticky(number)
        if first.id is None or made.id is None or first.id >= made.id:
            return made
        self.client.delete_comment(made.id)
        return self._edit(first, change)

    def _edit(self, old: Sticky, change: Change) -> Sticky:
        body = self._body(old, change)
        if old.id is not None and body != old.body:
            self.client.edit_comment(old.id, body)
        return Sticky(old.id, body, old.url)

    def _body(self, old: Sticky, change: Change) -> str:
        """Where the change is not about the newest entry (a later run has the word), that one's text stays as it is."""
        state = change.state(old.state)
        earlier = words.earlier(state.entries[1:], state.accepted, self.job.runs_url)
        own = state.newest is None or state.newest.order == change.entry.order
        return assemble(state, change.text(room_for_text(state, earlier)) if own else old.newest_text, earlier)

    def set_check(self, check: int | None, sha: str, external_id: str, details: dict[str, Any]) -> Check:
        """Sets the check run that was opened for a request; opens it where it is not there any more."""
        if check is not None:
            try:
                return self.client.update_check(check, {**details, "external_id": external_id})
            except GithubError as error:
                if error.status != 404:
                    raise
        return self.client.create_check(sha, external_id, details)

    def check_details(
        self, title: str, summary: str, *, status: str = "completed", conclusion: Conclusion | None = None
    ) -> dict[str, Any]:
        """What a check run is set to. Strangers' words in `summary` have been escaped."""
        cut = f"\n\n*Shortened: [the rest]({self.job.run_url}).*"
        output = {"title": title[:250], "summary": shorten(summary, MAX_CHECK_TEXT, cut)}
        details = {"status": status, "details_url": self.job.run_url, "output": output}
        return {**details, "conclusion": conclusion} if conclusion else details


def _sticky(remark: Remark) -> Sticky:
    return Sticky(remark.id, remark.body, remark.url)
