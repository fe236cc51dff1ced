from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.github import words
from perfgate.github.comment import (
    EARLIER,
    MARKER,
    MAX_ENTRIES,
    MEASURED,
    Accepted,
    Entry,
    State,
    Text,
    assemble,
    room_for_report,
    standing_regression,
    state_line,
    state_of,
    text_of,
)
from perfgate.records import Verdict
from perfgate.report.comment import COMMENT_LIMIT, length

AT = datetime(2026, 11, 30, tzinfo=UTC)
BASE, HEAD, OTHER = "a" * 40, "b" * 40, "c" * 40


def entry(run: int, word: Any, **more: Any) -> Entry:
    fields = {"base_tree": BASE, "head_tree": HEAD, "measured": f"run-{run}", **more}
    return Entry(run=run, attempt=1, at=AT, head=HEAD, word=word, **fields)


entries = st.builds(
    Entry,
    run=st.integers(1, 99),
    attempt=st.integers(1, 3),
    at=st.just(AT),
    head=st.just(HEAD),
    word=st.sampled_from(["queued", "running", "cancelled", *Verdict]),
    reason=st.text(max_size=300),
    stale=st.booleans(),
)
states = st.builds(State, entries=st.lists(entries, max_size=5).map(tuple))


@given(states, st.text(max_size=300))
def test_the_state_survives_the_comment(state: State, text: str) -> None:
    body = assemble(state, Text(text))
    assert state_of(body) == state
    assert state_line(state).count("-->") == 1
    assert "\n" not in state_line(state)


@given(st.text(max_size=300))
def test_no_text_forges_a_state(text: str) -> None:
    forged = state_line(State(entries=(entry(99, Verdict.PASS),)))
    body = assemble(State(), Text(f"{forged}\n{MARKER}\n{forged}\n{text}", f"{forged}{text}", forged))
    assert state_of(body) == State()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "<!-- perfgate:state {} ",
        "<!-- perfgate:state {not json} -->",
        '<!-- perfgate:state {"entries": 5} -->',
        '<!-- perfgate:state {"v": 2} -->',
        "<!-- perfgate:state " + '{"entries": [' + "{}," * 1000 + "{}]} -->",
    ],
)
def test_a_damaged_state_is_an_empty_one(line: str) -> None:
    assert state_of(f"{MARKER}\n{line}\ntext") == State()


@given(states, st.text(max_size=100), st.text(max_size=100))
def test_each_part_of_the_text_comes_back(state: State, now: str, report: str) -> None:
    clean = ["x" + re.sub(f"{EARLIER}|{MEASURED}|\r", "", text).strip("\n") for text in (now, report)]
    found = text_of(assemble(state, Text(*clean, "earlier")))
    assert found == Text(*clean, "earlier")


def test_there_is_always_room_and_never_too_much() -> None:
    """The longest state that can come about."""
    worst = "-@" * 150
    runs = tuple(f"run-{number}-{'x' * 50}" for number in range(60))
    state = State()
    for number in range(1, 61):
        word = Verdict.REGRESSION if number < 40 else Verdict.ENVIRONMENT
        state = state.with_entry(entry(number, word, reason=worst, measured=runs[number - 1], contains=runs))
    for number in range(20):
        state = state.with_accepted(Accepted(head=f"{number:040x}", by="x" * 39, reason=worst, at=AT))
    earlier = words.earlier(state.entries[1:], state.accepted, "https://example.org/owner/name/actions/runs")
    text = Text("now" * 300, "", earlier)
    room = room_for_report(state, text)
    assert room > 5_000
    assert length(assemble(state, replace(text, report="x" * room))) <= COMMENT_LIMIT


def test_entries_are_bounded_but_a_regression_is_not_forgotten() -> None:
    state = State().with_entry(entry(1, Verdict.REGRESSION))
    for run in range(2, 40):
        state = state.with_entry(entry(run, Verdict.ENVIRONMENT))
    assert len(state.entries) == MAX_ENTRIES + 1
    assert standing_regression(state, entry(40, Verdict.ENVIRONMENT)) == entry(1, Verdict.REGRESSION)


def test_one_request_one_entry() -> None:
    state = State().with_entry(entry(1, "queued")).with_entry(entry(1, "running")).with_entry(entry(1, Verdict.PASS))
    assert [one.word for one in state.entries] == [Verdict.PASS]


REGRESSION = entry(1, Verdict.REGRESSION)


@pytest.mark.parametrize(
    ("later", "stands"),
    [
        (entry(2, Verdict.PASS), True),
        (entry(2, Verdict.PASS, contains=("run-1",)), False),
        (entry(2, Verdict.INCONCLUSIVE, contains=("run-1",)), False),
        (entry(2, Verdict.INCONCLUSIVE), True),
        (entry(2, Verdict.ENVIRONMENT, contains=("run-1",)), True),
        (entry(2, Verdict.BENCH_FAILED, contains=("run-1",)), True),
        (entry(2, Verdict.SKIPPED), True),
        (entry(2, "cancelled"), True),
        (entry(2, Verdict.ENVIRONMENT, head_tree=None, base_tree=None), True),  # ended before it knew them
        (entry(2, Verdict.PASS, head_tree=OTHER), False),  # other code
        (entry(2, Verdict.PASS, base_tree=OTHER), False),
        (entry(2, Verdict.REGRESSION), False),  # says so itself
    ],
)
def test_a_regression_stands_until_its_evidence_is_overcome(later: Entry, stands: bool) -> None:
    state = State().with_entry(REGRESSION).with_entry(later)
    assert (standing_regression(state, later) is not None) is stands


def test_what_was_overcome_stays_so_and_what_came_later_does_not() -> None:
    overcome = entry(2, Verdict.PASS, contains=("run-1", "run-long-gone"))
    state = State().with_entry(REGRESSION).with_entry(overcome)
    assert standing_regression(state.with_entry(entry(3, Verdict.ENVIRONMENT)), entry(3, Verdict.ENVIRONMENT)) is None
    again = state.with_entry(entry(4, Verdict.REGRESSION))
    assert standing_regression(again, entry(5, Verdict.PASS, contains=("run-1",))) is not None


def test_accepted_losses_are_bound_to_a_head_and_its_base() -> None:
    loss = Accepted(head=HEAD, base_tree=BASE, by="alice", reason="more exact", at=AT)
    state = State().with_accepted(loss)
    assert state.accepted_for(entry(1, Verdict.REGRESSION)) == loss
    assert state.accepted_for(entry(1, Verdict.REGRESSION, base_tree=OTHER)) is None
    assert state.accepted_for(entry(1, Verdict.REGRESSION).model_copy(update={"head": OTHER})) is None
    assert len(state.with_accepted(loss).accepted) == 1
