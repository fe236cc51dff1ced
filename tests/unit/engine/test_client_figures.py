"""The figures of a sample, from answers whose true speed is known."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.engine.answers import TimedAnswer
from perfgate.engine.client import AskedPrompt, summarise
from perfgate.engine.prompts import Prompt
from perfgate.records import LaunchId, Sample, Side

LAUNCH = LaunchId("recipe", 1, Side.HEAD, 2, 1)
CODE, CHAT = Prompt("code-01", "code", "a"), Prompt("chat-01", "chat", "b")


def answer(
    *,
    first_at: float = 1.0,
    step_s: float = 0.1,
    tokens: int = 11,
    cycles: int | None = None,
    asked_at: float = 0.5,
    first_tokens: int = 1,
) -> TimedAnswer:
    """Tokens at a steady pace, one by one after the first chunk."""
    counts = [(first_at + step_s * number, first_tokens + number) for number in range(tokens - first_tokens + 1)]
    meta: dict[str, Any] = {} if cycles is None else {"spec_verify_ct": cycles}
    return TimedAnswer(
        asked_at=asked_at,
        first_at=first_at,
        last_at=counts[-1][0],
        first_tokens=first_tokens,
        tokens=tokens,
        counts=counts,
        output="hash",
        meta=meta,
    )


def summed(waves: Sequence[Sequence[AskedPrompt]], *, speculative: bool) -> Sample:
    return summarise(LAUNCH, 3, (0.0, 9.0), waves, speculative=speculative)


def alone(*asked: AskedPrompt) -> list[list[AskedPrompt]]:
    return [[one] for one in asked]


def test_one_at_a_time_the_first_token_and_its_wait_do_not_count() -> None:
    data = summed(
        alone(AskedPrompt(CODE, answer(step_s=0.1)), AskedPrompt(CHAT, answer(step_s=0.3))),
        speculative=False,
    )
    assert data.tok_s == pytest.approx(20 / 4.0)
    assert data.tok_s_by_kind == pytest.approx({"code": 10.0, "chat": 1 / 0.3})
    assert data.ttft_ms == pytest.approx(500)
    assert data.cycle_ms == pytest.approx(200)
    assert data.accept_length is None
    assert [request.cycle_ms for request in data.requests] == pytest.approx([100, 300])


def test_speculative_cycles_are_counted_by_the_server() -> None:
    data = summed(alone(AskedPrompt(CODE, answer(cycles=5))), speculative=True)
    assert data.accept_length == pytest.approx(2.0)
    assert data.cycle_ms == pytest.approx(200)
    assert data.requests[0].verify_ct == 5


def test_one_answer_without_cycles_makes_the_cycle_absent_not_wrong() -> None:
    asked = alone(AskedPrompt(CODE, answer(cycles=5)), AskedPrompt(CHAT, answer(cycles=None)))
    data = summed(asked, speculative=True)
    assert data.cycle_ms is None
    assert data.accept_length is None
    assert data.tok_s == pytest.approx(10.0)


def test_plain_decoding_ignores_cycles_that_a_server_claims() -> None:
    data = summed(alone(AskedPrompt(CODE, answer(cycles=1))), speculative=False)
    assert data.cycle_ms == pytest.approx(100)
    assert data.accept_length is None
    assert data.requests[0].verify_ct is None


def test_a_wave_counts_only_while_all_requests_decode() -> None:
    # one decodes from 1.0 to 2.0 at 10 tok/s, one from 1.45 to 2.95 at 10 tok/s: together from 1.45 to 2.0
    first = answer(first_at=1.0, tokens=11)
    second = answer(first_at=1.45, tokens=16)
    data = summed([[AskedPrompt(CODE, first), AskedPrompt(CHAT, second)]], speculative=False)
    assert first.tokens_at(2.0) - first.tokens_at(1.45) == pytest.approx(5.5)
    assert second.tokens_at(2.0) - second.tokens_at(1.45) == pytest.approx(5.5)
    assert data.tok_s == pytest.approx(20)


@given(
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 0.5)), min_size=2, max_size=5),
    st.floats(1.0, 4.0),
    st.integers(0, 1 << 30),
)
def test_a_wave_read_seldom_is_as_fast_as_one_read_at_each_token(
    rows: list[tuple[float, float]], faster: float, seed: int
) -> None:
    """As `stream` reads: the first tokens, the last, and all when the last request begins and when the first one ends.

    Tokens come in bursts, and faster before the last request has begun and after the first one has ended.
    """
    draw = random.Random(seed)
    start = 2.0 + max(late for late, _ in rows)
    stop = start + 1.0 + min(longer for _, longer in rows)
    dense = [_bursts((2.0 + late, start + 1.0 + longer), (start, stop), faster, draw) for late, longer in rows]
    stop = min(one.counts[-1][0] for one in dense)
    sparse = []
    for one in dense:
        read = [max(index for index, (at, _) in enumerate(one.counts) if at <= when) for when in (start, stop)]
        counts = [point for index, point in enumerate(one.counts) if index in {0, len(one.counts) - 1, *read}]
        sparse.append(dataclasses.replace(one, counts=counts))

    def tokens(answers: list[TimedAnswer]) -> float:
        speed = summed([[AskedPrompt(CODE, one) for one in answers]], speculative=False).tok_s
        assert speed is not None
        return speed * (stop - start)

    # at each end of the window the tokens of one step, and a step may be four times as fast as the one before
    assert tokens(sparse) == pytest.approx(tokens(dense), abs=2 * 3 * 4 * len(rows))
    if faster == 1.0:
        assert tokens(sparse) == pytest.approx(tokens(dense), abs=2 * 3 * len(rows))


def _bursts(ends: tuple[float, float], window: tuple[float, float], faster: float, draw: random.Random) -> TimedAnswer:
    """From the first token to the end, one to three tokens each 20 to 40 ms; `faster` outside of the window."""
    at, count = ends[0], 1
    counts = [(at, count)]
    while at < ends[1]:
        step_s = draw.uniform(0.02, 0.04)
        at += step_s if window[0] <= at < window[1] else step_s / faster
        count += draw.randint(1, 3)
        counts.append((at, count))
    return dataclasses.replace(answer(first_at=ends[0]), last_at=at, tokens=count, counts=counts)


def test_waves_that_never_decode_together_have_no_speed() -> None:
    wave = [AskedPrompt(CODE, answer(first_at=1.0)), AskedPrompt(CHAT, answer(first_at=5.0))]
    assert summed([wave], speculative=False).tok_s is None


@given(
    st.lists(
        st.tuples(st.floats(0.001, 0.5), st.integers(2, 300), st.floats(0.3, 1.0), st.integers(1, 4)),
        min_size=1,
        max_size=12,
    )
)
def test_speed_is_accept_length_divided_by_cycle(rows: list[tuple[float, int, float, int]]) -> None:
    """What the decomposition of a loss stands on; also where the first chunk held several tokens."""
    asked = []
    for step_s, tokens, share, first_tokens in rows:
        cycles = max(1, round(share * (tokens - 1)))
        first_tokens = min(first_tokens, tokens - 1)
        asked.append(AskedPrompt(CODE, answer(step_s=step_s, tokens=tokens, cycles=cycles, first_tokens=first_tokens)))
    for one in asked:
        data = summed([[one]], speculative=True)
        assert data.tok_s is not None
        assert data.cycle_ms is not None
        assert data.accept_length is not None
        assert data.tok_s == pytest.approx(1000 * data.accept_length / data.cycle_ms, rel=1e-9)


def test_with_whole_first_tokens_the_identity_holds_for_a_pass() -> None:
    asked = alone(AskedPrompt(CODE, answer(cycles=5)), AskedPrompt(CHAT, answer(cycles=9, step_s=0.2)))
    data = summed(asked, speculative=True)
    assert data.tok_s is not None
    assert data.cycle_ms is not None
    assert data.accept_length is not None
    assert data.tok_s == pytest.approx(1000 * data.accept_length / data.cycle_ms)
