"""Reading one streamed answer of /generate: when tokens came, how many, and what the server says of them.

Every event of a stream holds the whole answer so far, and events may be coalesced, so tokens are counted by
`completion_tokens` and never by events. To keep the client cheap only the first and the last event are parsed; of those
in between the token count alone, of the last one in each piece that came. Everything is a stranger's: sizes are
bounded, types are checked.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from perfgate.engine.faults import ClientError
from perfgate.engine.logs import clean

MAX_EVENT = 8 << 20  # bytes; the longest honest one is a few hundred KiB
END = b"[DONE]"
_COUNT = b'"completion_tokens":'
_DIGITS = re.compile(rb"\s*(\d{1,9})\b")


@dataclass
class TimedAnswer:
    """One answer as it comes in. Times are time.monotonic()."""

    asked_at: float = 0.0
    first_at: float | None = None
    last_at: float | None = None
    first_tokens: int = 0  # that came with the first event
    tokens: int = 0
    counts: list[tuple[float, int]] = field(default_factory=list)  # times and the tokens that had come by then
    output: str = ""
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def ttft_s(self) -> float:
        return (self.first_at or self.asked_at) - self.asked_at

    @property
    def decode_s(self) -> float:
        return (self.last_at or 0.0) - (self.first_at or 0.0)

    @property
    def decode_tokens(self) -> int:
        return self.tokens - self.first_tokens

    def tokens_at(self, when: float) -> float:
        """How many tokens had come by then; between two counts they are taken to come evenly."""
        before = [(at, count) for at, count in self.counts if at <= when]
        after = [(at, count) for at, count in self.counts if at > when]
        if not before or not after:
            return before[-1][1] if before else 0
        (left, low), (right, high) = before[-1], after[0]
        return low + (high - low) * (when - left) / (right - left)


class InOnePiece(ClientError):
    """First and last token were read at the same moment: the server withheld them, or this client got no core."""


class AnswerReader:
    """Takes the body of one stream, in pieces that may hold many events."""

    def __init__(self) -> None:
        self.answer = TimedAnswer()
        self._rest = b""
        self._last = b""  # the newest event
        self._marked = self._last  # the newest one whose time is known
        self.ended = False

    @property
    def begun(self) -> bool:
        return self.answer.first_at is not None

    def asked(self, at: float) -> None:
        self.answer.asked_at = at

    def replied(self, status: int) -> None:
        if status != 200:
            raise ClientError("answer_status", f"the server answered with status {status}")

    def feed(self, data: bytes) -> None:
        """Bytes of the stream. Raises ClientError for what is no stream of answers."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            self._last = self._body(event.strip()) or self._last
        if len(self._rest) > MAX_EVENT:
            raise ClientError("answer_endless", f"the server sent an event of more than {MAX_EVENT >> 20} MiB")

    def mark(self, at: float) -> None:
        """All that was fed had come at this time, and its last byte just then. Raises ClientError."""
        if self._last is self._marked:
            return
        self._marked = self._last
        answer = self.answer
        if answer.first_at is None:
            answer.first_at = at
            answer.first_tokens = _tokens(_meta(_parsed(self._last)))
        answer.last_at = at
        if count := _count(self._last):
            answer.counts.append((at, count))

    def _body(self, event: bytes) -> bytes:
        """What an event says of the answer: nothing after the end mark."""
        if self.ended or not event:
            return b""
        if not event.startswith(b"data:"):
            raise ClientError("answer_garbage", f"the server answered with something else than events: {_shown(event)}")
        body = event[5:].strip()
        self.ended = body == END
        return b"" if self.ended else body

    def finish(self, expected_tokens: int) -> TimedAnswer:
        """The whole answer, once the stream has ended. Raises ClientError where it is not what was asked for."""
        answer = self.answer
        if answer.first_at is None:
            raise ClientError("answer_empty", "the server sent no answer")
        if not self.ended:
            raise ClientError("answer_cut", "the answer ended in the middle")
        last = _parsed(self._last)
        answer.meta = _meta(last)
        answer.tokens = _tokens(answer.meta)
        if answer.tokens != expected_tokens:
            raise ClientError(
                "answer_length",
                f"the server gave {answer.tokens} tokens where exactly {expected_tokens} were asked for",
            )
        counts = [count for _, count in answer.counts]
        if counts != sorted(counts) or max(counts, default=0) > answer.tokens:
            raise ClientError("answer_garbage", "the server counted the tokens of one answer down, or too far up")
        if answer.meta.get("finish_reason") is None:
            raise ClientError("answer_cut", "the answer ended without saying that it is finished")
        if answer.decode_tokens < 1 or answer.decode_s <= 0:
            raise InOnePiece("answer_in_one_piece", "the whole answer came at once, so its speed cannot be measured")
        answer.output = _output_hash(last)
        return answer


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ClientError("answer_garbage", f"the server sent an event that is not JSON: {_shown(body)}") from error
    if not isinstance(value, dict):
        raise ClientError("answer_garbage", f"the server sent an event that is no answer: {_shown(body)}")
    if "error" in value:
        raise ClientError("answer_error", f"the server answered with an error: {_shown(body)}")
    return value


def _meta(value: dict[str, Any]) -> dict[str, Any]:
    meta = value.get("meta_info")
    if not isinstance(meta, dict):
        raise ClientError("answer_garbage", "the server's answer has no meta_info")
    return meta


def _tokens(meta: dict[str, Any]) -> int:
    tokens = as_count(meta.get("completion_tokens"))
    if tokens is None:
        raise ClientError("answer_garbage", "the server's answer does not say how many tokens it has")
    return tokens


def _count(body: bytes) -> int:
    """`completion_tokens` of an event without parsing it; meta_info comes after the text. 0 where it is not found."""
    at = body.rfind(_COUNT)
    found = _DIGITS.match(body, at + len(_COUNT)) if at >= 0 else None
    return int(found[1]) if found else 0


def _output_hash(value: dict[str, Any]) -> str:
    """Of the token ids; of the text where a release does not send them."""
    ids = value.get("output_ids")
    if isinstance(ids, list) and ids and all(type(one) is int for one in ids):
        return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16]
    return "text-" + hashlib.sha256(json.dumps(value.get("text")).encode()).hexdigest()[:16]


def _shown(data: bytes) -> str:
    return clean(data[:200].decode("utf-8", "replace"))


# ------------------------------------------------------------------------------------------------ meta_info


def as_count(value: object) -> int | None:
    """A plain, sane number of things; anything else is None."""
    return value if type(value) is int and 0 <= value < 10**9 else None


def verify_count(meta: dict[str, Any], tokens: int) -> int | None:
    """Speculative cycles of an answer of so many tokens. None without speculation, or for numbers that cannot be.

    The first token comes from the prompt's own forward, each cycle yields one token and the drafts it accepted; the
    last cycle may be cut off by the limit, and one more may have been under way.
    """
    cycles = as_count(meta.get("spec_verify_ct"))
    if cycles is None or not 1 <= cycles <= tokens:
        return None
    accepted = accepted_drafts(meta)
    if accepted is not None and abs(cycles + accepted - (tokens - 1)) > 2 + tokens // 8:
        return None
    return cycles


def accepted_drafts(meta: dict[str, Any]) -> int | None:
    """Drafts that were accepted, by either of its names: renamed between 0.5.9 and 0.5.15."""
    names = ("spec_num_correct_drafts", "spec_accept_token_num")
    return next((count for name in names if (count := as_count(meta.get(name))) is not None), None)
