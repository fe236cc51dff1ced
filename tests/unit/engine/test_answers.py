"""Reading streamed answers: recorded ones, and what no honest server sends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.engine import answers
from perfgate.engine.answers import AnswerReader, TimedAnswer, verify_count
from perfgate.engine.faults import ClientError

LOGS = Path(__file__).parents[2] / "fixtures" / "sglang-logs"


def read(*pieces: bytes, expected: int = 8) -> TimedAnswer:
    """Asked at 100, a piece each second."""
    reader = AnswerReader()
    reader.asked(100.0)
    for number, piece in enumerate(pieces, 1):
        reader.feed(piece)
        reader.mark(100.0 + number)
    return reader.finish(expected)


def chunk(tokens: int, **meta: Any) -> bytes:
    body = {
        "text": "x" * tokens,
        "output_ids": list(range(tokens)),
        "meta_info": {"finish_reason": None, "completion_tokens": tokens, **meta},
    }
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
FINISHED = {"finish_reason": {"type": "length", "length": 8}}


def pieces_of(name: str) -> list[bytes]:
    return [event + b"\n\n" for event in (LOGS / name).read_bytes().split(b"\n\n") if event.strip()]


def test_a_recorded_speculative_answer() -> None:
    answer = read(*pieces_of("eagle3-stream.txt"))
    assert (answer.tokens, answer.first_tokens, answer.decode_tokens) == (8, 1, 7)
    assert answer.ttft_s == 1.0
    assert answer.decode_s == 3.0  # four events; the end mark comes later and does not count
    assert verify_count(answer.meta, answer.tokens) == 3


def test_a_recorded_plain_answer() -> None:
    answer = read(*pieces_of("baseline-stream.txt"))
    assert answer.decode_s == 7.0
    assert [count for _, count in answer.counts] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert answer.tokens_at(answer.counts[2][0]) == 3
    assert answer.tokens_at(0.0) == 0
    assert verify_count(answer.meta, answer.tokens) is None


def test_equal_tokens_have_equal_hashes_whatever_else_differs() -> None:
    first = read(chunk(1), chunk(8, id="a", **FINISHED), DONE)
    second = read(chunk(1), chunk(8, id="b", **FINISHED), DONE)
    other = read(chunk(1), chunk(8, **FINISHED).replace(b"[0,1,2", b"[0,9,2"), DONE)
    assert first.output == second.output != other.output


def test_without_token_ids_the_text_is_compared() -> None:
    def without(data: bytes) -> bytes:
        return data.replace(b'"output_ids":[0,1,2,3,4,5,6,7],', b"")

    answer = read(chunk(1), without(chunk(8, **FINISHED)), DONE)
    assert answer.output.startswith("text-")


def test_coalesced_events_are_counted_by_tokens() -> None:
    answer = read(chunk(3), chunk(8, **FINISHED), DONE)
    assert (answer.first_tokens, answer.decode_tokens) == (3, 5)


def test_a_count_inside_the_text_does_not_count() -> None:
    body = {"text": 'say "completion_tokens": 99', "meta_info": {"completion_tokens": 4, "finish_reason": None}}
    data = b"data: " + json.dumps(body).encode() + b"\n\n"
    answer = read(chunk(1), data, chunk(8, **FINISHED), DONE)
    assert [count for _, count in answer.counts] == [1, 4, 8]


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ([], "answer_empty"),
        ([DONE], "answer_empty"),
        ([chunk(1), chunk(8, **FINISHED)], "answer_cut"),
        ([chunk(1), chunk(8), DONE], "answer_cut"),
        ([chunk(1), chunk(7, **FINISHED), DONE], "answer_length"),
        ([chunk(1), chunk(9, **FINISHED), DONE], "answer_length"),
        ([chunk(8, **FINISHED), DONE], "answer_in_one_piece"),
        ([chunk(1), chunk(5), chunk(4), chunk(8, **FINISHED), DONE], "answer_garbage"),
        ([chunk(1), chunk(1).replace(b":1}", b":900000000}"), chunk(8, **FINISHED), DONE], "answer_garbage"),
        ([b"<html>busy</html>\n\n"], "answer_garbage"),
        ([b"data: {oops\n\n"], "answer_garbage"),
        ([b"data: [1,2]\n\n"], "answer_garbage"),
        ([b"data: " + b"[" * 100_000 + b"\n\n"], "answer_garbage"),
        ([b'data: {"meta_info":[1]}\n\n'], "answer_garbage"),
        ([b'data: {"meta_info":{"completion_tokens":true}}\n\n'], "answer_garbage"),
        ([b'data: {"meta_info":{"completion_tokens":-1}}\n\n'], "answer_garbage"),
        ([b'data: {"meta_info":{"completion_tokens":1.0}}\n\n'], "answer_garbage"),
        ([b'data: {"error":{"message":"no"}}\n\n'], "answer_error"),
    ],
)
def test_what_cannot_be_measured_is_one_clear_error(pieces: list[bytes], code: str) -> None:
    with pytest.raises(ClientError) as caught:
        read(*pieces)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_EVENT", 1000)
    with pytest.raises(ClientError) as caught:
        read(*([b"x" * 300] * 5))
    assert caught.value.code == "answer_endless"


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"spec_verify_ct": 70, "spec_num_correct_drafts": 57}, 70),  # as recorded, 0.5.23
        ({"spec_verify_ct": 70, "spec_accept_token_num": 57}, 70),  # the older name
        ({"spec_verify_ct": 70}, 70),
        ({"spec_verify_ct": 0}, None),
        ({"spec_verify_ct": -7}, None),
        ({"spec_verify_ct": 129}, None),
        ({"spec_verify_ct": 70.0}, None),
        ({"spec_verify_ct": True}, None),
        ({"spec_verify_ct": "70"}, None),
        ({"spec_verify_ct": [70]}, None),
        ({"spec_verify_ct": 10**30}, None),
        ({"spec_verify_ct": 20, "spec_num_correct_drafts": 57}, None),  # does not add up to 128 tokens
        ({"spec_verify_ct": 70, "spec_num_correct_drafts": "many"}, 70),
        ({}, None),
    ],
)
def test_cycles_are_taken_only_where_they_can_be_true(meta: dict[str, Any], expected: int | None) -> None:
    assert verify_count(meta, 128) == expected


def cut_up(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(st.lists(st.integers(1, 90), max_size=20), st.lists(st.integers(1, 90), max_size=60))
def test_it_does_not_matter_how_the_stream_is_cut(first_cuts: list[int], cuts: list[int]) -> None:
    first, *others = whole = pieces_of("eagle3-stream.txt")
    answer = read(*cut_up(first, first_cuts), *cut_up(b"".join(others), cuts))
    expected = read(*whole)
    assert (answer.tokens, answer.output, answer.meta) == (expected.tokens, expected.output, expected.meta)


@given(st.lists(st.binary(max_size=80), max_size=20))
def test_any_bytes_end_in_an_answer_or_a_client_error(pieces: list[bytes]) -> None:
    with pytest.raises(ClientError):
        read(*pieces)
