"""Streamed answers over real sockets: times come from the kernel, and this process sleeps meanwhile."""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pytest

from perfgate.engine import exchange as exchange_module
from perfgate.engine import tree
from perfgate.engine.answers import AnswerReader, TimedAnswer
from perfgate.engine.exchange import Exchange, body_of, exchange, get, kernel_stamps, post, status_of, wait_and_take_in
from perfgate.engine.faults import ClientError, ServerHung
from perfgate.records import Blame

TOKENS = 16
STEP_S = 0.02
CLOCKS_S = 0.001  # between two clocks, one turned into the other
SO_TIMESTAMPNS = 35  # the tests' own: they take it from the module under test
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
PLAIN = HEAD + b"\r\n"

Until = float | Callable[[], bool]  # seconds, or what has to have happened: a busy box can be late for any second
Piece = tuple[Until, bytes]  # what is waited for, what is sent then


class Sent(NamedTuple):
    """Moments before and after a piece was handed to the kernel, which stamps it in between."""

    before: float
    after: float

    def holds(self, at: float | None, until: Sent | None = None) -> bool:
        """Whether it is the time of this piece, or of one of those up to `until`."""
        return at is not None and self.before - CLOCKS_S <= at <= (until or self).after + CLOCKS_S


class Asked(NamedTuple):
    exchange: Exchange
    reader: AnswerReader


class Read(NamedTuple):
    """What was read together: the time that it was given, and when that was."""

    reader: AnswerReader
    at: float
    noted: float


@dataclass
class Scripted:
    """Answers each connection with the same pieces, and notes when it sent them, and last when it closed it."""

    pieces: Sequence[Piece]
    closes: bool = True
    resets: bool = False
    sent: list[list[Sent]] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Scripted:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}/generate"

    def _accept(self) -> None:
        while not self.stop.is_set():
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._answer, args=(connection,))
            self.threads.append(thread)
            thread.start()

    def _answer(self, connection: socket.socket) -> None:
        times: list[Sent] = []
        self.sent.append(times)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as uvicorn does
        with closing(connection):
            asked = b""
            while not asked.endswith(b"\r\n\r\n" + b"{}" * (b"Content-Length: 2" in asked)):  # the whole request
                if not (piece := connection.recv(65536)):
                    return
                asked += piece
            for until, data in self.pieces:
                self._wait(until)
                before = time.monotonic()
                with suppress(OSError):
                    connection.sendall(data)
                times.append(Sent(before, time.monotonic()))
            if self.resets:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if not self.closes:
                self.stop.wait(30)
            before = time.monotonic()
            connection.close()
            times.append(Sent(before, time.monotonic()))

    def _wait(self, until: Until) -> None:
        if not callable(until):
            self.stop.wait(until)
            return
        while not until() and not self.stop.wait(0.002):
            pass

    def has_sent(self, pieces: int) -> Callable[[], bool]:
        """Whether so many have gone out on the first connection."""
        return lambda: bool(self.sent) and len(self.sent[0]) >= pieces


def event(tokens: int, of: int = TOKENS, text: str = "x") -> bytes:
    end = {"type": "length", "length": of} if tokens == of else None
    body = {"text": text * tokens, "meta_info": {"finish_reason": end, "completion_tokens": tokens}}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def plain(data: bytes) -> bytes:
    return data


DONE = b"data: [DONE]\n\n"


def answering(head: bytes = CHUNKED, framed: Callable[[bytes], bytes] = chunk, text: str = "x") -> list[Piece]:
    """An answer of TOKENS tokens, one each STEP_S; the end mark follows the last one after a while."""
    events = [(STEP_S, framed(event(number, text=text))) for number in range(1, TOKENS + 1)]
    end = framed(DONE) + (b"0\r\n\r\n" if framed is chunk else b"")
    return [(0.0, head), *events, (0.1, end)]


def in_lockstep(begin: Callable[[], bool], reads: Sequence[Read]) -> list[Piece]:
    """Each event, and the end mark, only when the one before has been read: nothing is ever read together."""

    def read(count: int) -> Callable[[], bool]:
        return lambda: len(reads) >= count

    events: list[Piece] = [(read(number - 1), chunk(event(number))) for number in range(2, TOKENS + 1)]
    return [(0.0, CHUNKED), (begin, chunk(event(1))), *events, (read(TOKENS), chunk(DONE) + b"0\r\n\r\n")]


def wait_for_stamps() -> None:
    """Until the kernel notes times: to begin with it takes it a moment."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sender,
        listener.accept()[0] as receiver,
    ):
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

        def stamped() -> bool:
            sender.send(b"x")
            return bool(receiver.recvmsg(1, 64)[1])

        assert tree.wait_until(stamped, 30)


@pytest.fixture
def ask() -> Iterator[Callable[..., Asked]]:
    """`ask(scripted)` opens a stream; all are closed in the end."""
    opened: list[Asked] = []

    def asking(server: Scripted, limit_s: float = 30.0) -> Asked:
        reader = AnswerReader()
        opened.append(Asked(Exchange(post(server.url, {}), reader, limit_s), reader))
        opened[-1].exchange.ask()
        return opened[-1]

    with kernel_stamps():
        wait_for_stamps()
        yield asking
    for asked in opened:
        asked.exchange.close()


def whole(asked: Asked) -> TimedAnswer:
    while not asked.exchange.ended:
        wait_and_take_in([asked.exchange])
    return asked.reader.finish(TOKENS)


def together(*servers: Scripted, limit_s: float = 30.0) -> list[TimedAnswer]:
    """One wave, a request to each."""
    with kernel_stamps():
        wait_for_stamps()
        readers = [AnswerReader() for _ in servers]
        exchange([(post(server.url, {}), reader) for server, reader in zip(servers, readers, strict=True)], limit_s)
        return [reader.finish(TOKENS) for reader in readers]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """What was read together, each once its time is known to the reader."""
    seen: list[Read] = []
    mark = AnswerReader.mark

    def noting(self: AnswerReader, at: float) -> None:
        noted = time.monotonic()
        news = self._last is not self._marked  # and not the reply's headers alone
        mark(self, at)
        if news:
            seen.append(Read(self, at, noted))

    monkeypatch.setattr(AnswerReader, "mark", noting)
    return seen


def as_read(at: float | None, sent: Sent, reads: Sequence[Read]) -> bool:
    """Whether this time of a piece lies between its sending and its reading, however late that was."""
    return any(at == read.at and sent.before - CLOCKS_S <= at <= read.noted for read in reads)


@pytest.mark.parametrize(("head", "framed"), [(CHUNKED, chunk), (PLAIN, plain)])
def test_times_are_those_of_the_bytes_and_not_of_their_reading(
    ask: Callable[..., Asked], reads: list[Read], head: bytes, framed: Callable[[bytes], bytes]
) -> None:
    with Scripted(answering(head, framed)) as server:
        answer = whole(ask(server))
    *_, last, _end, closed = server.sent[0]
    assert server.sent[0][answer.first_tokens].holds(answer.first_at)
    assert last.holds(answer.last_at, until=closed)  # the end mark and the FIN are read with the last event
    assert len(reads) < TOKENS / 2  # most tokens woke nobody
    assert answer.tokens == TOKENS


def test_a_first_event_that_is_read_late_has_the_time_at_which_it_came(
    ask: Callable[..., Asked], reads: list[Read]
) -> None:
    asked = threading.Event()  # only then, else it may come with the headers
    end = chunk(event(TOKENS)) + chunk(DONE)
    with Scripted([(0.0, CHUNKED), (asked.is_set, chunk(event(1))), (lambda: bool(reads), end)]) as server:
        stream = ask(server)
        asked.set()
        assert tree.wait_until(server.has_sent(2), 30)
        time.sleep(0.1)  # a client that got no core
        answer = whole(stream)
    _, first, last, closed = server.sent[0]
    assert first.holds(answer.first_at)
    assert last.holds(answer.last_at, until=closed)  # the FIN may be read with it


@pytest.mark.parametrize("joined", [True, False])
def test_of_several_events_read_late_the_newest_counts_with_its_time(
    ask: Callable[..., Asked], reads: list[Read], joined: bool
) -> None:
    """Also where the first of them came with the headers, which another reader takes."""
    pieces = answering()
    if joined:
        pieces[:2] = [(0.0, CHUNKED + chunk(event(1)))]
    asked = threading.Event()  # so not all of them come with the headers
    pieces[4:6] = [(asked.is_set, pieces[4][1]), (lambda: bool(reads), pieces[5][1])]
    with Scripted(pieces) as server:
        stream = ask(server)
        asked.set()
        assert tree.wait_until(server.has_sent(5), 30)
        time.sleep(0.1)
        answer = whole(stream)
    assert answer.first_tokens == (5 if joined else 4)
    assert server.sent[0][4].holds(answer.first_at)
    assert answer.decode_tokens == TOKENS - answer.first_tokens


def test_a_kernel_without_times_makes_every_piece_count_as_it_is_read(
    ask: Callable[..., Asked], reads: list[Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "SO_TIMESTAMPNS", socket.SO_KEEPALIVE)  # an option that tells nothing
    asked = threading.Event()
    with Scripted(in_lockstep(asked.is_set, reads)) as server:
        stream = ask(server)
        asked.set()
        answer = whole(stream)
    assert len(reads) >= TOKENS
    assert answer.first_tokens == 1
    assert as_read(answer.first_at, server.sent[0][1], reads)
    assert as_read(answer.last_at, server.sent[0][TOKENS], reads)


def test_a_clock_that_is_set_meanwhile_moves_nothing(
    ask: Callable[..., Asked], reads: list[Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = threading.Event()
    with Scripted(in_lockstep(moved.is_set, reads)) as server:
        stream = ask(server)
        gap = exchange_module._clock_gap
        monkeypatch.setattr(exchange_module, "_clock_gap", lambda: gap() + 0.1)  # stamps seem to be 0.1 s older
        time.sleep(0.2)  # and yet as if they came after the question
        moved.set()
        answer = whole(stream)
    assert answer.first_tokens == 1
    assert as_read(answer.first_at, server.sent[0][1], reads)
    assert as_read(answer.last_at, server.sent[0][TOKENS], reads)
    assert len(reads) >= TOKENS  # what cannot be timed afterwards is timed at once


def test_all_are_read_when_one_ends(reads: list[Read], monkeypatch: pytest.MonkeyPatch) -> None:
    """So the tokens of each are known at the moment at which the first one ends."""
    monkeypatch.setattr(exchange_module, "LOOK_S", 60.0)  # nothing else wakes the reader in time

    def both_began() -> bool:
        return len({id(read.reader) for read in reads}) == 2

    def six_were_sent() -> bool:
        return other.has_sent(1 + 6)()

    def all_were_read() -> bool:
        """The end of the one, and then the six tokens of the other."""
        counts = {count for read in reads for _, count in read.reader.answer.counts[-1:]}
        return {6, TOKENS} <= counts

    begin = [(0.0, CHUNKED), (0.0, chunk(event(1)))]
    end = chunk(event(TOKENS)) + chunk(DONE) + b"0\r\n\r\n"
    until_six = [(both_began, chunk(event(2))), *[(0.0, chunk(event(number))) for number in range(3, 7)]]
    after_six = [(all_were_read, chunk(event(7))), *[(0.0, chunk(event(number))) for number in range(8, TOKENS + 1)]]
    with (
        Scripted([*begin, (six_were_sent, end)]) as one,
        Scripted([*begin, *until_six, *after_six, (0.0, chunk(DONE))]) as other,
    ):
        first, second = together(one, other)
    assert first.last_at is not None
    assert [count for at, count in second.counts if at <= first.last_at][-1] == 6


@pytest.mark.parametrize("stamps", [True, False])
def test_one_that_ends_before_another_begins_is_read_in_time(
    stamps: bool, reads: list[Read], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not stamps:
        monkeypatch.setattr(exchange_module, "SO_TIMESTAMPNS", socket.SO_KEEPALIVE)

    def one_was_read() -> bool:
        return any(read.reader.ended for read in reads)

    late = [(one_was_read, CHUNKED), *answering()[1:]]  # even its headers come late
    with Scripted(answering()) as one, Scripted(late) as other:
        first, second = together(one, other)
    assert first.last_at is not None
    assert first.last_at <= other.sent[0][0].before
    assert as_read(first.last_at, one.sent[0][TOKENS], reads)
    assert as_read(second.first_at, other.sent[0][second.first_tokens], reads)


def test_headers_that_never_end_are_a_hung_server() -> None:
    dripping = [(0.0, b"HTTP/1.1 200 OK\r\n"), *[(0.1, b"X: y\r\n")] * 200]
    began = time.monotonic()
    with Scripted(dripping) as server, pytest.raises(ClientError) as caught:
        together(server, limit_s=1.0)
    assert caught.value.code == "answer_hung"
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("location", [b"http://[", b"\xff", b"/elsewhere"])
def test_no_redirect_is_followed(location: bytes) -> None:
    redirect = [(0.0, b"HTTP/1.1 302 Found\r\nLocation: " + location + b"\r\nContent-Length: 9\r\n\r\nelsewhere")]
    with Scripted(redirect) as server:
        with pytest.raises(ClientError) as caught:
            together(server)
        assert status_of(post(server.url), 5.0) == 302
    assert caught.value.code == "answer_status"
    assert len(server.sent) == 2


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        (b"garbage\r\n\r\n", "answer_garbage"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: multipart/x; boundary*=a; boundary*0=b\r\n\r\n", "answer_empty"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: multipart/x; boundary*" + b"1" * 99_000 + b"*=x\r\n\r\n", "answer_garbage"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "answer_garbage"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + b"HTTP/1.1 404 No\r\n\r\n", "answer_status"),
    ],
)
def test_headers_of_a_stranger_end_in_one_clear_line(headers: bytes, code: str) -> None:
    with Scripted([(0.0, headers)]) as server, pytest.raises(ClientError) as caught:
        together(server)
    assert caught.value.code == code
    assert caught.value.blame is Blame.SIDE
    assert "\n" not in str(caught.value)


def test_every_connection_is_closed_when_one_of_them_fails() -> None:
    with Scripted([(0.0, CHUNKED)], closes=False) as late, Scripted([(0.0, b"no\r\n\r\n")]) as wrong:
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(ClientError):
            together(late, wrong)
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1  # the server's own end of the first one


@pytest.mark.parametrize("answers", [True, False])
def test_a_long_question_to_a_server_that_does_not_read_it_waits_for_nobody(answers: bool) -> None:
    """More than the kernel keeps for it: its sending must not block the reading of the answer."""
    reader = AnswerReader()
    with socket.create_server(("127.0.0.1", 0)) as listener, kernel_stamps():
        connections: list[socket.socket] = []

        def serve() -> None:
            connections.append(listener.accept()[0])
            if answers:
                connections[0].sendall(HEAD.replace(b"200 OK", b"503 Busy") + b"\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/generate"
        began = time.monotonic()
        with pytest.raises(ClientError) as caught:
            exchange([(post(url, {"text": "x" * (64 << 20)}), reader)], 1.0)
        thread.join(10)
        connections[0].close()
    assert caught.value.code == ("answer_status" if answers else "answer_hung")
    assert time.monotonic() - began < 10


def test_a_body_is_read_within_its_bounds() -> None:
    endless = [(0.0, PLAIN), *[(0.05, b"x" * 100)] * 1000]
    with Scripted(endless) as server:
        assert body_of(get(server.url), 30.0, 250) == b"x" * 250
        began = time.monotonic()
        assert 0 < len(body_of(get(server.url), 0.5, 1 << 20)) < 5000
        assert time.monotonic() - began < 5


def test_too_few_descriptors_are_the_boxs_fault() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    with Scripted(answering()) as server:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
            with suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            with pytest.raises(ClientError) as caught:
                status_of(post(server.url), 5.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in taken:
                os.close(descriptor)
    assert (caught.value.code, caught.value.blame) == ("client_starved", Blame.BOX)


def test_what_is_looked_at_meanwhile_can_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server that floods the disk with its log while it answers."""
    monkeypatch.setattr(exchange_module, "LOOK_S", 0.05)
    looked: list[float] = []

    def look() -> None:
        looked.append(time.monotonic())
        if len(looked) == 3:
            raise ServerHung("log_flood", "too much")

    with Scripted([(0.0, CHUNKED)], closes=False) as server, pytest.raises(ServerHung):
        exchange([(post(server.url, {}), AnswerReader())], 30.0, look)


@pytest.mark.parametrize("framed", [b"zz\r\nab", b"-1\r\nab", b"1_0\r\nab", b"data: {}\r\n", b"1" * 70_000])
def test_a_body_that_is_not_framed_is_refused(framed: bytes) -> None:
    with Scripted([(0.0, CHUNKED), (0.0, framed)]) as server, pytest.raises(ClientError) as caught:
        together(server)
    assert caught.value.code == "answer_garbage"


def test_a_server_that_keeps_the_connection_is_done_all_the_same(
    ask: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "LOOK_S", 0.2)
    with Scripted(answering(), closes=False) as server:
        answer = whole(ask(server))
    assert answer.tokens == TOKENS


def test_long_answers_are_read_before_they_fill_the_kernels_room(
    ask: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_module, "LOOK_S", 30.0)
    with Scripted(answering(text="x" * 20_000)) as server:
        answer = whole(ask(server))
    _, first, *_, last, _end, closed = server.sent[0]
    assert last.after - first.after < 10  # nobody made the server wait until the next look
    assert last.holds(answer.last_at, until=closed)


def test_silence_and_slowness_are_told_apart(ask: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "LOOK_S", 0.1)
    monkeypatch.setattr(exchange_module, "SILENT_S", 0.5)
    silent = [(0.0, CHUNKED), (0.0, chunk(event(1)))]
    slow = [(0.0, CHUNKED), *[(0.02, chunk(event(1)))] * 1000]  # far from silent, also where some come late
    for pieces, code in ((silent, "answer_hung"), (slow, "answer_slow")):
        with Scripted(pieces, closes=False) as server, pytest.raises(ClientError) as caught:
            whole(ask(server, limit_s=1.0))
        assert caught.value.code == code


def test_a_connection_that_is_reset_after_the_answer_does_no_harm(ask: Callable[..., Asked]) -> None:
    with Scripted(answering(), resets=True) as server:
        answer = whole(ask(server))
    assert answer.tokens == TOKENS


def test_an_answer_that_breaks_off_is_cut(ask: Callable[..., Asked]) -> None:
    with Scripted(answering()[:5]) as server, pytest.raises(ClientError) as caught:
        whole(ask(server))
    assert caught.value.code == "answer_cut"
