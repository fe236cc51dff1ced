"""perfgate's one comment on a pull request: its state, hidden in it, and its parts.

    <!-- perfgate -->                 the marker, first in the comment; together with the author it makes it ours
    <!-- perfgate:state {…} -->       what happened so far, for the next job to read
    what is the case now              a first line of its own for each state, and what belongs to it
    <!-- perfgate:measured -->        then the report of what was measured last; it stays while other things happen
    <!-- perfgate:earlier -->         and from here what happened before, folded

The state is data of moderate trust (maintainers can edit a bot's comment): validated, bounded, never executed. It can
only make a check stricter (a regression that stands) or say what a maintainer could say anyway (an accepted loss).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from perfgate.github.client import CheckRun
from perfgate.github.events import FullSha, Login
from perfgate.records import Verdict
from perfgate.report.comment import COMMENT_LIMIT, length
from perfgate.text import visible

MARKER = "<!-- perfgate -->"
STATE_BEGIN = "<!-- perfgate:state "
STATE_END = " -->"
MEASURED = "<!-- perfgate:measured -->"
EARLIER = "<!-- perfgate:earlier -->"
MAX_ENTRIES = 8
MAX_OLD_REGRESSIONS = 4
MAX_ACCEPTED = 5
MAX_REASON = 120  # of an entry; the report says it in full

Word = Literal["queued", "running", "cancelled"] | Verdict
RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,60}$")]


class _State(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Entry(_State):
    """One request and what became of it. Identity: the run of the workflow and its attempt."""

    run: int = Field(gt=0)
    attempt: int = Field(gt=0)
    at: datetime
    head: FullSha
    base: FullSha | None = None
    head_tree: FullSha | None = None
    base_tree: FullSha | None = None
    word: Word
    reason: str = Field("", max_length=300)
    measured: RunId | None = None  # perfgate's own run id
    contains: tuple[RunId, ...] = Field((), max_length=1000)  # runs whose evidence it includes
    stale: bool = False  # the head had moved when it ended
    comment: int | None = Field(None, gt=0)  # that asked for it

    @property
    def order(self) -> tuple[int, int]:
        return self.run, self.attempt

    @property
    def open(self) -> bool:
        return self.word in ("queued", "running")

    @property
    def told(self) -> bool:
        """Whether it came to a verdict about its head: neither open, nor given up."""
        return not self.open and self.word != "cancelled"

    @property
    def trees(self) -> tuple[str, str] | None:
        return (self.base_tree, self.head_tree) if self.base_tree and self.head_tree else None


class Accepted(_State):
    """A maintainer accepts the loss of one head."""

    head: FullSha
    by: Login
    reason: str = Field(max_length=300)
    at: datetime
    comment: int | None = Field(None, gt=0)  # that said so
    base_tree: FullSha | None = None  # against which the loss was measured


class State(_State):
    v: Literal[1] = 1
    entries: tuple[Entry, ...] = Field((), max_length=50)  # newest first
    accepted: tuple[Accepted, ...] = Field((), max_length=50)
    report: tuple[int, int] | None = None  # whose report stands in the comment

    @property
    def reported(self) -> Entry | None:
        """Whose report stands in the comment."""
        return self.entry(self.report) if self.report else None

    @property
    def newest(self) -> Entry | None:
        return self.entries[0] if self.entries else None

    def entry(self, order: tuple[int, int]) -> Entry | None:
        return next((one for one in self.entries if one.order == order), None)

    def with_entry(self, entry: Entry) -> State:
        """The state with this entry in the place of an earlier word on the same request.

        Regressions outlive the bound on entries, so that no number of later runs makes one be forgotten.
        """
        others = (one for one in self.entries if one.order != entry.order)
        ordered = sorted((entry, *others), key=lambda one: one.order, reverse=True)
        kept = ordered[:MAX_ENTRIES]
        kept += [one for one in ordered[MAX_ENTRIES:] if one.word is Verdict.REGRESSION][:MAX_OLD_REGRESSIONS]
        return self.model_copy(update={"entries": tuple(map(_short(kept), kept))})

    def with_accepted(self, accepted: Accepted) -> State:
        same = (accepted.head, accepted.base_tree)
        others = tuple(one for one in self.accepted if (one.head, one.base_tree) != same)
        return self.model_copy(update={"accepted": (accepted, *others)[:MAX_ACCEPTED]})

    def accepted_for(self, entry: Entry) -> Accepted | None:
        """Who accepted the loss of this head against this base."""
        fits = (one for one in self.accepted if one.head == entry.head and one.base_tree in (None, entry.base_tree))
        return next(fits, None)


def _short(kept: list[Entry]) -> Callable[[Entry], Entry]:
    """Entries without what nobody will ask for: of the runs that one contains only remembered regressions."""
    remembered = {one.measured for one in kept if one.word is Verdict.REGRESSION}

    def shortened(entry: Entry) -> Entry:
        contains = tuple(name for name in entry.contains if name in remembered)
        return entry.model_copy(update={"contains": contains, "reason": visible(entry.reason, MAX_REASON)})

    return shortened


def standing_regression(state: State, entry: Entry) -> Entry | None:
    """The regression of the same two trees that this entry does not overcome; None where nothing stands against it.

    Only a pass, or an undecided judgement, of evidence that contains the regression's own takes its place. A run that
    could not measure says nothing about what was measured before.
    """
    if entry.word is Verdict.REGRESSION:
        return None
    same = [other for other in state.entries if _same_code(other, entry) and other.order <= entry.order]
    regressions = (other for other in same if other.word is Verdict.REGRESSION)
    return next((one for one in regressions if not any(_overcomes(later, one) for later in (entry, *same))), None)


def _same_code(other: Entry, entry: Entry) -> bool:
    """The same two trees; where a run ended before it knew its own, the same head."""
    return other.trees == entry.trees if entry.trees else other.head == entry.head


def _overcomes(later: Entry, regression: Entry) -> bool:
    told = later.word in (Verdict.PASS, Verdict.INCONCLUSIVE) and later.order > regression.order
    return told and regression.measured is not None and regression.measured in later.contains


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


@dataclass(frozen=True)
class Own:
    """perfgate's comment as it was read; `id` None: there is none yet."""

    id: int | None = None
    body: str = ""
    url: str = ""

    @property
    def state(self) -> State:
        return state_of(self.body)

    @property
    def text(self) -> Text:
        return text_of(self.body)


# ------------------------------------------------------------------------------------------------ text


def state_of(body: str) -> State:
    """The state in a comment of ours; an empty one where it cannot be read."""
    lines = body.split("\n", 2)
    line = lines[1].strip() if len(lines) > 1 else ""
    if not (line.startswith(STATE_BEGIN) and line.endswith(STATE_END)):
        return State()
    try:
        return State.model_validate_json(line[len(STATE_BEGIN) : -len(STATE_END)])
    except ValidationError:
        return State()


@dataclass(frozen=True)
class Text:
    """What a person reads in the comment."""

    now: str = ""  # what is the case
    report: str = ""  # of what was measured last, without its first line
    earlier: str = ""


def text_of(body: str) -> Text:
    """The text in a comment of ours."""
    parts = body.split("\n", 2)
    shown, _, earlier = (parts[2] if len(parts) == 3 else "").partition(EARLIER)
    now, _, report = shown.partition(MEASURED)
    return Text(now.strip("\n"), report.strip("\n"), earlier.strip("\n"))


def state_line(state: State) -> str:
    """One line that no text in it can end: what could close an HTML comment, or be a mention, is a \\u escape."""
    text = json.dumps(state.model_dump(mode="json", exclude_defaults=True), ensure_ascii=True, separators=(",", ":"))
    for char in "<>&-@#":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return f"{STATE_BEGIN}{text}{STATE_END}"


def room_for_report(state: State, text: Text) -> int:
    """Characters that are left for the report."""
    return COMMENT_LIMIT - length(assemble(state, replace(text, report=""))) - len(MEASURED) - 16


def assemble(state: State, text: Text) -> str:
    """The whole comment."""
    parts = [MARKER, state_line(state), _unmarked(text.now)]
    parts += [MEASURED, _unmarked(text.report)] if text.report else []
    parts += [EARLIER, text.earlier] if text.earlier else [EARLIER]
    return "\n".join(parts)


_NEXT_STEP = re.compile(r"^\*\*What next\.\*\*.*\n*", re.MULTILINE)


def without_next_step(report: str) -> str:
    """A report that stands below other news gives no advice."""
    return _NEXT_STEP.sub("", report)


def _unmarked(text: str) -> str:
    return text.replace(EARLIER, "").replace(MEASURED, "")


# ------------------------------------------------------------------------------------------------ the checks' memory

_OPENED = re.compile(r"(?P<run>\d{1,18})/(?P<attempt>\d{1,6})(?= |$)")
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


def order_of(check: CheckRun) -> tuple[int, int] | None:
    """Which request a check run is of; None for one of the same name that perfgate did not make."""
    match = _OPENED.match(check.external_id)
    return (int(match["run"]), int(match["attempt"])) if match else None


def tells_a_loss(check: CheckRun) -> bool:
    """Whether a failed check fails for a regression, found by itself or standing, and for nothing else."""
    match = _EXTERNAL.fullmatch(check.external_id)
    return match is not None and match["word"] not in (Verdict.BUILD_FAILED, Verdict.BENCH_FAILED)


def remembered(state: State, checks: Iterable[CheckRun], sha: str) -> State:
    """The state with the regressions that only check runs still remember."""
    for check in checks:
        match = _EXTERNAL.fullmatch(check.external_id)
        if match is None or match["word"] != Verdict.REGRESSION:
            continue
        found = Entry(
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
        if state.entry(found.order) is None:
            state = state.with_entry(found)
    return state
