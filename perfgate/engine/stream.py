"""Reading streamed answers seldom and timing them exactly: the kernel notes when bytes came, not this process.

A client that wakes up for every token takes a share of a core beside the server it measures, and notes the time late
where the box is busy. Here each socket carries SO_TIMESTAMPNS (socket(7), Linux): a read also tells when the last of
its bytes arrived. So only the first event of an answer is waited for; then SO_RCVLOWAT keeps the process asleep until
an answer ends, much has come or five seconds have passed, and each read gives one exact point of the answer's
tokens over time. The last one is that of the answer's end: a server's end mark follows its last token at once, and
both are read together. Where the kernel gives no such times, every piece is read at once and has the time of its
reading.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import requests

from perfgate.engine.answers import AnswerReader, Dechunker
from perfgate.engine.asking import GRACE_S, Asking, Headers, plain
from perfgate.engine.faults import ClientError

SO_TIMESTAMPNS = 35  # <asm-generic/socket.h>; Python's socket module does not name it
STAMP = struct.Struct("@qq")  # struct timespec: seconds, nanoseconds
ANCILLARY = 64  # bytes; room for one stamp and its header
BUFFER = 1 << 14  # bytes; small, so that what is made of them uses the same memory again and again
ENOUGH = 1 << 20  # bytes that are waited for
MOST = 4 << 20  # bytes taken at once: a stranger may send for ever
LOOK_S = 5.0  # the longest sleep: a server that does not close the connection at an answer's end is noticed then
GAP_S = 0.001  # the wall clock was set where it moved by more than this against the monotonic one
SILENT_S = 5.0  # no byte for so long before the limit: it hangs, else it is slow


class Stream:
    """The body of one reply of /generate."""

    def __init__(self, reply: requests.Response, reader: AnswerReader, limit_s: float) -> None:
        """`limit_s`: for the whole answer, since it was asked for."""
        raw: Any = reply.raw
        self._file = raw._original_response.fp
        self._socket: socket.socket = self._file.raw._sock
        self.reader = reader
        self.deadline = reader.answer.asked_at + limit_s
        self.ended = False
        self._limit_s = limit_s
        framing = reply.headers.get("Transfer-Encoding", "")
        self._unframed = Dechunker() if framing.lower() == "chunked" else None
        self._buffer = memoryview(bytearray(BUFFER))
        self._gap = _clock_gap()
        self._came_at = reader.answer.asked_at  # the last byte
        self._stamped = False  # whether the kernel tells when bytes come
        self._wakes_at = 1  # bytes
        self._socket.setblocking(False)
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._early = self._came_with_the_headers()

    def _came_with_the_headers(self) -> bytes:
        """What lies in the reader of the headers. What still lies in the kernel stays there, with its time."""
        sockets = self._file.raw
        sockets._sock = _NothingThere()
        try:
            early: bytes = self._file.peek()
        finally:
            sockets._sock = self._socket
        return early

    def fileno(self) -> int:
        return self._socket.fileno()

    def take_in(self) -> None:
        """All that has come by now, without waiting. Raises ClientError.

        It is one piece with one time, that of its last byte: of the others' times nothing is known.
        """
        came, told = len(self._early), []
        self._feed(self._early)
        self._early = b""
        while came < MOST and not self.ended:
            try:
                size, told_with_it, _, _ = self._socket.recvmsg_into([self._buffer], ANCILLARY, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError as error:
                if not came:
                    raise plain(error) from error
                break  # what came before it broke off may be the whole answer
            if size:
                came += size
                told = told_with_it
                self._feed(bytes(self._buffer[:size]))
            else:
                self.ended = True
        if came:
            self._came_at = self._moment(told)
            self.reader.mark(self._came_at)
        if not self.ended:
            self._refuse_late()
            self._set_alarm()

    def _feed(self, data: bytes) -> None:
        self.reader.feed(data if self._unframed is None else self._unframed.feed(data))
        if self.reader.ended or (self._unframed is not None and self._unframed.ended):
            self.ended = True

    def _moment(self, told: Sequence[tuple[int, int, bytes]]) -> float:
        """When the last of the bytes just read came: time.monotonic(), never outside of what can be."""
        now = time.monotonic()
        stamp = next((data for level, kind, data in told if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS)), b"")
        at, gap = now, _clock_gap()
        if len(stamp) == STAMP.size:
            seconds, nanoseconds = STAMP.unpack(stamp)
            at = seconds + nanoseconds / 1e9 - gap
        in_order = self._came_at - GAP_S <= at <= now + GAP_S
        self._stamped = len(stamp) == STAMP.size and in_order and abs(gap - self._gap) <= GAP_S
        return min(max(at, self._came_at), now) if self._stamped else now

    def _refuse_late(self) -> None:
        now = time.monotonic()
        if now <= self.deadline:
            return
        if now - self._came_at > min(SILENT_S, self._limit_s / 2):
            raise ClientError("answer_hung", "the server stopped answering")
        raise ClientError("answer_slow", "the server took longer than the request's limit for one answer")

    def _set_alarm(self) -> None:
        """From the first event on no token wakes this process, as long as the kernel is seen to note its time."""
        wakes_at = ENOUGH if self._stamped and self.reader.answer.first_at is not None else 1
        if wakes_at != self._wakes_at:
            self._wakes_at = wakes_at
            with suppress(OSError):  # then tokens wake it
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wakes_at)


class _NothingThere:
    """In place of a socket: there is nothing to read just now."""

    def recv_into(self, _buffer: memoryview) -> int:
        raise BlockingIOError(errno.EAGAIN, "nothing there")


def read_answers(asking: Asking) -> list[AnswerReader]:
    """All answers, in the order of their requests. Raises ClientError."""
    streams: dict[int, Stream] = {}
    while True:
        for headers in asking.arrived()[len(streams) :]:
            streams[headers.place] = stream = _begun(headers, asking.limit_s)
            stream.take_in()  # something may have come with the headers
        left = [stream for stream in streams.values() if not stream.ended]
        if not left and len(streams) == asking.count:
            return [streams[place].reader for place in range(asking.count)]
        wait_and_take_in(left, asking.news, asking.deadline)


def _begun(headers: Headers, limit_s: float) -> Stream:
    status = headers.reply.status_code
    if status != 200:
        raise ClientError("answer_status", f"the server answered with status {status}")
    return Stream(headers.reply, AnswerReader(headers.asked_at), limit_s)


def wait_and_take_in(streams: Sequence[Stream], news: int, deadline: float) -> None:
    """Waits until a stream or the descriptor `news` has something to tell, and then takes in all streams.

    So the tokens of all are known at the moments that matter: when the last one begins, when the first one ends.
    """
    due = select.poll()
    due.register(news, select.POLLIN)
    for stream in streams:
        due.register(stream, select.POLLIN)
    until = min([deadline, *(stream.deadline for stream in streams)])
    due.poll(1000 * min(LOOK_S, max(GRACE_S, until - time.monotonic())))
    with suppress(BlockingIOError):
        os.eventfd_read(news)
    for stream in streams:
        stream.take_in()


@contextmanager
def kernel_stamps() -> Iterator[None]:
    """Keeps the kernel noting times while no stream is open: to begin with it takes it a moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as keeper:
        with suppress(OSError):  # then every piece has the time of its reading
            keeper.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        yield


def _clock_gap() -> float:
    """Seconds of the wall clock ahead of the monotonic one; it moves only when the wall clock is set."""
    gaps = []
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        gaps.append((after - before, wall - (before + after) // 2))
    return min(gaps)[1] / 1e9
