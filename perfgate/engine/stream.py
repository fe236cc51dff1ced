"""Reading streamed answers seldom and timing them exactly: the kernel notes when bytes came, not this process.

A client that wakes up for every token takes a share of a core beside the server it measures, and notes the time late
where the box is busy. Here each socket carries SO_TIMESTAMPNS (socket(7), Linux): a read also tells when the last of
its bytes arrived. So only the first event of an answer is waited for; then SO_RCVLOWAT keeps the process asleep until
an answer ends, much has come or two seconds have passed, and each read gives one exact point of the answer's
tokens over time. Where the kernel gives no such times, every piece is read at once and has the time of its reading.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import requests

from perfgate.engine.answers import AnswerReader, Dechunker
from perfgate.engine.faults import ClientError

SO_TIMESTAMPNS = 35  # <asm-generic/socket.h>; Python's socket module does not name it
STAMP = struct.Struct("@qq")  # struct timespec: seconds, nanoseconds
ANCILLARY = 64  # bytes; room for one stamp and its header
BUFFER = 1 << 14  # bytes; from the heap, where larger ones are asked of the kernel, and given back, each time
ENOUGH = 1 << 18  # bytes that are waited for
MOST = 1 << 20  # bytes taken at once: a stranger may send for ever
LOOK_S = 2.0  # the longest sleep: a server that does not close the connection at an answer's end is noticed then
GAP_S = 0.001  # the wall clock was set where it moved by more than this against the monotonic one
SILENT_S = 5.0  # no byte for so long before the limit: it hangs, else it is slow


class Stream:
    """The body of one reply of /generate, from its first event on."""

    def __init__(self, reply: requests.Response, reader: AnswerReader, limit_s: float) -> None:
        """`limit_s`: for the whole answer, since it was asked for."""
        raw: Any = reply.raw
        self._file = raw._original_response.fp
        self._socket: socket.socket = self._file.raw._sock
        self.reader = reader
        self._limit_s = limit_s
        self._deadline = reader.answer.asked_at + limit_s
        self._unframed = Dechunker() if reply.headers.get("Transfer-Encoding") == "chunked" else None
        self._buffer = memoryview(bytearray(BUFFER))
        self._gap = _clock_gap()
        self._came_at = reader.answer.asked_at  # the last byte
        self._stamped = False  # whether the kernel tells when bytes came
        self._asleep = False
        self.ended = False
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    @property
    def begun(self) -> bool:
        return self.reader.answer.first_at is not None

    def read_first(self) -> None:
        """Waits for the first event. Raises ClientError, OSError."""
        if early := self._came_with_the_headers():
            self._take(early, time.monotonic())
        while not (self.begun or self.ended):
            read_when_due([self])

    def _came_with_the_headers(self) -> bytes:
        """What lies in the reader of the headers. What still lies in the kernel stays there, with its time."""
        sockets = self._file.raw
        sockets._sock = _NothingThere()
        try:
            early: bytes = self._file.peek()
        finally:
            sockets._sock = self._socket
        return early

    def read(self) -> None:
        """All that has come by now, without waiting. Raises ClientError, OSError."""
        came, told = bytearray(), []
        while len(came) < MOST and not self.ended:
            try:
                size, told_with_it, _, _ = self._socket.recvmsg_into([self._buffer], ANCILLARY, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                if not came:
                    raise
                break  # what came before it broke off may be the whole answer
            if size:
                came += self._buffer[:size]
                told = told_with_it
            else:
                self.ended = True
        if came:
            self._take(bytes(came), self._moment(told))
        if not self.ended:
            self._refuse_late()
            self._sleep_well()

    def _sleep_well(self) -> None:
        """From the first event on, where the kernel is seen to note times, no token wakes this process."""
        if self._stamped and self.begun and not self._asleep:
            self._asleep = True
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, ENOUGH)

    def _take(self, data: bytes, at: float) -> None:
        """Bytes the last of which came then. They are one piece: of the others' times nothing is known."""
        self._came_at = at
        self.reader.feed(data if self._unframed is None else self._unframed.feed(data), at)
        if self._unframed is not None and self._unframed.ended:
            self.ended = True

    def _refuse_late(self) -> None:
        now = time.monotonic()
        if now <= self._deadline:
            return
        if now - self._came_at > min(SILENT_S, self._limit_s / 2):
            raise ClientError("answer_hung", "the server stopped answering")
        raise ClientError("answer_slow", "the server took longer than the request's limit for one answer")

    def _moment(self, told: Sequence[tuple[int, int, bytes]]) -> float:
        """When the last of the bytes just read came: time.monotonic(), never outside of what can be."""
        now = time.monotonic()
        stamp = next((data for level, kind, data in told if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS)), None)
        if stamp is None or len(stamp) != STAMP.size:
            return now
        seconds, nanoseconds = STAMP.unpack(stamp)
        gap = _clock_gap()
        at: float = seconds + nanoseconds / 1e9 - gap
        if abs(gap - self._gap) > GAP_S or not self._came_at <= at <= now:
            return now
        self._stamped = True
        return at

    def fileno(self) -> int:
        return self._socket.fileno()


class _NothingThere:
    """In place of a socket: there is nothing to read just now."""

    def recv_into(self, _buffer: memoryview) -> int:
        raise BlockingIOError(errno.EAGAIN, "nothing there")


def read_when_due(streams: Sequence[Stream]) -> None:
    """Waits until one of them has something to tell, and then reads all: so all counts are of the same moment."""
    due = select.poll()
    for stream in streams:
        due.register(stream, select.POLLIN)
    due.poll(1000 * LOOK_S)
    for stream in streams:
        stream.read()


def read_to_the_end(streams: Sequence[Stream]) -> None:
    """Reads answers that have begun. Raises ClientError, OSError."""
    for stream in streams:
        stream.read()
    while left := [stream for stream in streams if not stream.ended]:
        read_when_due(left)


@contextmanager
def kernel_stamps() -> Iterator[None]:
    """Keeps the kernel noting times while no stream is open: to begin with it takes it a moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as keeper:
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
