"""Requests on their way to a server under test: a thread for each waits for its headers, and nobody waits for ever.

The server is a stranger. Its headers may come byte by byte or never end, so their wait has one limit for all of them;
no redirect is followed and no cookie kept, because requests' adapter is used without a session.
"""

from __future__ import annotations

import errno
import json
import os
import select
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError

from perfgate.engine.faults import ClientError
from perfgate.records import Blame

CONNECT_S = 10.0
PIECE = 1 << 16  # bytes
GRACE_S = 0.01  # so that the limit has passed when it is looked at
STARVED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


@dataclass(frozen=True)
class Headers:
    """A reply whose headers have come."""

    place: int  # of its request
    asked_at: float  # time.monotonic()
    reply: requests.Response


def post(url: str, body: Mapping[str, Any] | None = None) -> requests.PreparedRequest:
    """A request with a connection of its own: no stale one is ever met, and every request pays the same."""
    kind = {} if body is None else {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    return requests.Request("POST", url, {"Connection": "close", **kind}, data=data).prepare()


def get(url: str) -> requests.PreparedRequest:
    return requests.Request("GET", url, {"Connection": "close"}).prepare()


class Asking:
    """Asks all at the same moment. At its end replies are closed, also those that come later.

    with Asking(http, [request], limit_s) as asking:
        …
        asking.arrived()
    """

    def __init__(self, http: HTTPAdapter, asked: Sequence[requests.PreparedRequest], limit_s: float) -> None:
        self.limit_s = limit_s
        self.count = len(asked)
        self._http = http
        self._asked = asked
        self._together = threading.Barrier(self.count)
        self._arrived: list[Headers] = []
        self._faults: list[Exception] = []
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> Self:
        try:
            self.news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # readable when a thread has something to say
        except OSError as error:
            raise plain(error) from error
        self.deadline = time.monotonic() + self.limit_s
        try:
            for place in range(self.count):
                threading.Thread(target=self._ask, args=(place,), daemon=True).start()
        except BaseException as error:
            self._together.abort()
            self.__exit__()
            if isinstance(error, RuntimeError):
                raise starved(f"no {self.count} threads at once") from error
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
            os.close(self.news)
            for headers in self._arrived:
                headers.reply.close()

    def arrived(self) -> list[Headers]:
        """In the order in which they came. Raises ClientError for what a thread met, and when some are late."""
        with self._lock:
            if self._faults:
                raise plain(self._faults[0]) from self._faults[0]
            if len(self._arrived) < self.count and time.monotonic() > self.deadline:
                raise ClientError("answer_hung", "the server did not begin to answer within the request's limit")
            return list(self._arrived)

    def first(self) -> requests.Response:
        """Waits for the first reply. Raises ClientError."""
        while not (arrived := self.arrived()):
            select.select([self.news], [], [], max(0.0, self.deadline - time.monotonic()) + GRACE_S)
        return arrived[0].reply

    def _ask(self, place: int) -> None:
        try:
            self._together.wait()
            asked_at = time.monotonic()
            reply = self._http.send(self._asked[place], stream=True, timeout=(CONNECT_S, self.limit_s))
        except Exception as error:  # noqa: BLE001 - whoever asked hears of it
            self._failed(error)
        else:
            self._answered(Headers(place, asked_at, reply))

    def _failed(self, error: Exception) -> None:
        with self._lock:
            if not self._over:
                self._faults.append(error)
                os.eventfd_write(self.news, 1)

    def _answered(self, headers: Headers) -> None:
        with self._lock:
            if self._over:
                headers.reply.close()
            else:
                self._arrived.append(headers)
                os.eventfd_write(self.news, 1)


def status_of(http: HTTPAdapter, request: requests.PreparedRequest, limit_s: float) -> int:
    """What a server answers, its body unread. Raises ClientError."""
    with Asking(http, [request], limit_s) as asking:
        return asking.first().status_code


def body_of(http: HTTPAdapter, request: requests.PreparedRequest, limit_s: float, most: int) -> bytes:
    """So many bytes of what a server answers, as far as they come within the limit. Raises ClientError."""
    body = b""
    with Asking(http, [request], limit_s) as asking:
        raw = asking.first().raw
        try:
            while len(body) < most and time.monotonic() < asking.deadline and (piece := raw.read1(PIECE)):
                body += piece
        except Exception as error:
            raise plain(error) from error
    return body[:most]


def plain(error: Exception) -> ClientError:
    """What requests, urllib3 or http.client raised as one clear line: a stranger's headers make them raise anything."""
    if reason := _starvation(error):
        return starved(f"no connection: {reason}")
    if isinstance(error, requests.Timeout | TimeoutError) or "timed out" in str(error):
        return ClientError("answer_hung", "the server stopped answering")
    if isinstance(error, requests.RequestException | HTTPError | OSError):
        return ClientError("connection_lost", "the connection to the server broke off")
    return ClientError("answer_garbage", f"the server's headers cannot be read ({type(error).__name__})")


def starved(of_what: str) -> ClientError:
    return ClientError("client_starved", f"this machine allows perfgate {of_what}", blame=Blame.BOX)


def _starvation(error: BaseException) -> str:
    """Why this machine, and not the server, is at fault; empty where it is not."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in STARVED:
            return os.strerror(cause.errno)
        cause = cause.__cause__ or cause.__context__
    return ""
