"""One HTTP exchange over one socket: asked, and its reply read seldom and timed exactly.

A client that wakes up for every token takes a share of a core beside the server it measures, and notes the time late
where the box is busy. So the kernel notes it: each socket carries SO_TIMESTAMPNS (socket(7), Linux), and a read also
tells when the last of its bytes arrived. Only the first event of an answer is waited for; then SO_RCVLOWAT keeps the
process asleep until an answer ends, much has come or five seconds have passed, and each read gives one exact point of
the answer's tokens over time. The last one is that of the answer's end: a server's end mark follows its last token at
once, and both are read together. Where the kernel gives no such times, every piece is read at once and has the time of
its reading.

The server is a stranger: `h11` takes its bytes apart, nothing waits for ever, no redirect is followed, every request
has a connection of its own.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import h11

from perfgate.engine.faults import ClientError
from perfgate.records import Blame

CONNECT_S = 10.0
SO_TIMESTAMPNS = 35  # <asm-generic/socket.h>; Python's socket module does not name it
STAMP = struct.Struct("@qq")  # struct timespec: seconds, nanoseconds
ANCILLARY = 64  # bytes; room for one stamp and its header
BUFFER = 1 << 14  # bytes; small, so that what is made of them uses the same memory again and again
ENOUGH = 1 << 20  # bytes that are waited for
MOST = 4 << 20  # bytes taken at once: a stranger may send for ever
MAX_HEADERS = 1 << 16  # bytes
LOOK_S = 5.0  # the longest sleep: a server that does not close the connection at an answer's end is noticed then
GRACE_S = 0.01  # so that the limit has passed when it is looked at
GAP_S = 0.001  # the wall clock was set where it moved by more than this against the monotonic one
SILENT_S = 5.0  # no byte for so long before the limit: it hangs, else it is slow
STARVED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


@dataclass(frozen=True)
class Call:
    """A request, made beforehand: while a server is measured, its client does as little as it can."""

    method: str
    url: str
    body: bytes | None = None

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80

    def wire(self, http: h11.Connection) -> bytes:
        parts = urlsplit(self.url)
        headers = [("Host", parts.netloc), ("Connection", "close")]
        if self.body is not None:
            headers.append(("Content-Type", "application/json"))
        if self.method == "POST":
            headers.append(("Content-Length", str(len(self.body or b""))))
        asked = http.send(h11.Request(method=self.method, target=parts.path or "/", headers=headers)) or b""
        data = http.send(h11.Data(data=self.body)) if self.body else b""
        return asked + (data or b"") + (http.send(h11.EndOfMessage()) or b"")


def post(url: str, body: Mapping[str, Any] | None = None) -> Call:
    return Call("POST", url, None if body is None else json.dumps(body).encode())


def get(url: str) -> Call:
    return Call("GET", url)


class ReplyReader(Protocol):
    """What a reply is read by. All but `asked` raise ClientError for what they cannot take."""

    @property
    def ended(self) -> bool:
        """Nothing more is wanted."""

    @property
    def begun(self) -> bool:
        """The first event is there, and its time known."""

    def asked(self, at: float) -> None: ...
    def replied(self, status: int) -> None: ...
    def feed(self, data: bytes) -> None: ...
    def mark(self, at: float) -> None:
        """All that was fed had come at this time, and its last byte just then."""


class Exchange:
    """A request and its reply. Raises ClientError."""

    def __init__(self, call: Call, reader: ReplyReader, limit_s: float) -> None:
        """Connects. `limit_s`: for the whole reply, from the question on."""
        self.reader = reader
        self.ended = False
        self._call = call
        self._limit_s = limit_s
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEADERS)
        self._replied = False
        self._buffer = memoryview(bytearray(BUFFER))
        self._stamped = False  # whether the kernel tells when bytes come
        self._wakes_at = 1  # bytes
        try:
            self._socket = socket.create_connection(call.address, min(CONNECT_S, limit_s))
        except OSError as error:
            raise _plain(error) from error
        self._socket.setblocking(False)
        with suppress(OSError):  # then every piece has the time of its reading
            self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def ask(self) -> None:
        self._unsent = self._call.wire(self._http)
        self._gap = _clock_gap()
        self._came_at = time.monotonic()  # the last byte
        self.deadline = self._came_at + self._limit_s
        self.reader.asked(self._came_at)
        self.send_on()

    def send_on(self) -> None:
        """As much of the request as the kernel takes now."""
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in STARVED:
                raise _plain(error) from error
            self._unsent = b""  # a server may answer and go without having read all

    @property
    def waits_for(self) -> int:
        """As poll(2) says it."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def take_in(self) -> None:
        """All that has come by now, without waiting.

        It is one piece with one time, that of its last byte: of the others' times nothing is known.
        """
        came, told, over = 0, [], False
        while came < MOST and not self.ended and not over:
            try:
                size, told_with_it, _, _ = self._socket.recvmsg_into([self._buffer], ANCILLARY, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError as error:
                if not came:
                    raise _plain(error) from error
                break  # what came before it broke off may be the whole answer
            if size:
                came, told = came + size, told_with_it
                self._feed(bytes(self._buffer[:size]))
            over = not size
        if came:
            self._came_at = self._moment(told)
            self.reader.mark(self._came_at)
        if over and not self.ended:
            self._broken_off()
        if not self.ended:
            self._refuse_late()
            self._set_alarm()

    def _feed(self, data: bytes) -> None:
        body: list[bytes] = []
        try:
            self._http.receive_data(data)
            while not self.ended and (event := self._http.next_event()) is not h11.NEED_DATA:
                if isinstance(event, h11.Data):
                    body.append(event.data)
                elif isinstance(event, h11.Response):
                    self._replied = True
                    self.reader.replied(event.status_code)
                    self.ended = self.reader.ended
                else:
                    self.ended = event is h11.PAUSED or isinstance(event, h11.EndOfMessage)
        except h11.RemoteProtocolError as error:
            what = "answer is not framed" if self._replied else "headers cannot be read: they are not"
            raise ClientError("answer_garbage", f"the server's {what} as HTTP says") from error
        if body:  # of all chunks at once: there is one for each token
            self.reader.feed(b"".join(body))
            self.ended |= self.reader.ended

    def _broken_off(self) -> None:
        """The connection is over: a reply has ended then, wholly or not, and who reads it knows."""
        if not self._replied:
            raise ClientError("connection_lost", "the connection to the server broke off")
        self.ended = True

    def _moment(self, told: list[tuple[int, int, bytes]]) -> float:
        """When the newest byte came, of what the kernel told with it; the time of reading where it tells nothing."""
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
        if not self._replied:
            raise ClientError("answer_hung", "the server did not begin to answer within the request's limit")
        if now - self._came_at > min(SILENT_S, self._limit_s / 2):
            raise ClientError("answer_hung", "the server stopped answering")
        raise ClientError("answer_slow", "the server took longer than the request's limit for one answer")

    def _set_alarm(self) -> None:
        """From the first event on no token wakes this process, as long as the kernel is seen to note its time."""
        wakes_at = ENOUGH if self._stamped and self.reader.begun else 1
        if wakes_at != self._wakes_at:
            self._wakes_at = wakes_at
            with suppress(OSError):  # then tokens wake it
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wakes_at)


def _nothing() -> None: ...


def exchange(asked: Sequence[tuple[Call, ReplyReader]], limit_s: float, look: Callable[[], None] = _nothing) -> None:
    """Asks all at the same moment, and reads until all have ended. Raises ClientError, and what `look` raises, which
    is called now and then."""
    with ExitStack() as opened:
        exchanges = [opened.enter_context(closing(Exchange(call, reader, limit_s))) for call, reader in asked]
        for one in exchanges:
            one.ask()
        while left := [one for one in exchanges if not one.ended]:
            wait_and_take_in(left)
            look()


def wait_and_take_in(exchanges: Sequence[Exchange]) -> None:
    """Waits until one of them has something to tell, and then takes in all.

    So the tokens of all are known at the moments that matter: when the last one begins, when the first one ends.
    """
    due = select.poll()
    for one in exchanges:
        due.register(one, one.waits_for)
    until = min(one.deadline for one in exchanges)
    due.poll(1000 * min(LOOK_S, max(GRACE_S, until - time.monotonic() + GRACE_S)))
    for one in exchanges:
        if one.waits_for & select.POLLOUT:
            one.send_on()
        one.take_in()


# ------------------------------------------------------------------------------------------------ other replies


class _Status:
    """Wants nothing but the status."""

    begun = ended = False
    status = 0

    def asked(self, at: float) -> None: ...
    def feed(self, data: bytes) -> None: ...
    def mark(self, at: float) -> None: ...

    def replied(self, status: int) -> None:
        self.status, self.ended = status, True


class _Body:
    """Wants so many bytes."""

    begun = ended = False

    def __init__(self, most: int) -> None:
        self.most = most
        self.data = b""

    def asked(self, at: float) -> None: ...
    def replied(self, status: int) -> None: ...
    def mark(self, at: float) -> None: ...

    def feed(self, data: bytes) -> None:
        self.data = (self.data + data)[: self.most]
        self.ended = len(self.data) == self.most


def status_of(call: Call, limit_s: float) -> int:
    """What a server answers, its body unread. Raises ClientError."""
    reader = _Status()
    exchange([(call, reader)], limit_s)
    return reader.status


def body_of(call: Call, limit_s: float, most: int) -> bytes:
    """So many bytes of what a server answers, as far as they come within the limit. Raises ClientError."""
    reader = _Body(most)
    try:
        exchange([(call, reader)], limit_s)
    except ClientError:
        if not reader.data:
            raise
    return reader.data


# ------------------------------------------------------------------------------------------------ the machine


@contextmanager
def kernel_stamps() -> Iterator[None]:
    """Keeps the kernel noting times while no exchange is open: to begin with it takes it a moment."""
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


def _plain(error: OSError) -> ClientError:
    """As one clear line, and whose doing it is."""
    if error.errno in STARVED:
        reason = os.strerror(error.errno)
        return ClientError("client_starved", f"this machine allows perfgate no connection: {reason}", blame=Blame.BOX)
    if isinstance(error, TimeoutError):
        return ClientError("answer_hung", "the server stopped answering")
    return ClientError("connection_lost", "the connection to the server broke off")
