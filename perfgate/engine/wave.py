"""Requests asked at the same moment: a thread waits for the headers of each reply, one loop reads all the answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Self

import requests
from requests.adapters import HTTPAdapter

from perfgate.engine.answers import AnswerReader
from perfgate.engine.faults import ClientError
from perfgate.engine.stream import Stream, read_when_due
from perfgate.records import Blame

CONNECT_S = 10.0


class Wave:
    """Closes at its end whatever it opened, also what a thread gets too late.

    with Wave(http, prepared, limit_s) as wave:
        readers = wave.read()
    """

    def __init__(self, http: HTTPAdapter, asked: Sequence[requests.PreparedRequest], limit_s: float) -> None:
        """`http` alone, without a session: no redirect is followed and no cookie kept. `limit_s`: for each answer."""
        self._http = http
        self._asked = asked
        self._limit_s = limit_s
        self._streams: dict[int, Stream] = {}
        self._replies: list[requests.Response] = []
        self._faults: list[Exception] = []
        self._lock = threading.Lock()
        self._over = False

    def __enter__(self) -> Self:
        self._news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # readable when a thread has something to say
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._over = True
            os.close(self._news)
            for reply in self._replies:
                reply.close()

    def read(self) -> list[AnswerReader]:
        """All answers, in the order of the requests. Raises ClientError, OSError and what requests raises."""
        self._ask()
        deadline = time.monotonic() + self._limit_s
        known = 0
        while True:
            streams = self._handed_over()
            for stream in streams[known:]:
                stream.read()  # something may have come with the headers
            known = len(streams)
            left = [stream for stream in streams if not stream.ended]
            if not left and known == len(self._asked):
                return [self._streams[place].reader for place in range(known)]
            if known < len(self._asked) and time.monotonic() > deadline:
                raise ClientError("answer_hung", "the server did not begin to answer within the request's limit")
            read_when_due(left, self._news, deadline)

    def _handed_over(self) -> list[Stream]:
        """In the order in which their headers came. Raises what a thread met."""
        with self._lock:
            if self._faults:
                raise self._faults[0]
            return list(self._streams.values())

    def _ask(self) -> None:
        together = threading.Barrier(len(self._asked))
        try:
            for place in range(len(self._asked)):
                threading.Thread(target=self._await_headers, args=(place, together), daemon=True).start()
        except RuntimeError as error:
            together.abort()
            raise ClientError(
                "no_threads", f"this machine allows no {len(self._asked)} threads at once", blame=Blame.BOX
            ) from error

    def _await_headers(self, place: int, together: threading.Barrier) -> None:
        try:
            together.wait()
            asked_at = time.monotonic()
            reply = self._http.send(self._asked[place], stream=True, timeout=(CONNECT_S, self._limit_s))
        except Exception as error:  # noqa: BLE001 - the loop raises it
            self._hand_over(error)
        else:
            self._hand_over(reply, place, asked_at)

    def _hand_over(self, found: requests.Response | Exception, place: int = 0, asked_at: float = 0.0) -> None:
        with self._lock:
            if isinstance(found, Exception):
                self._faults.append(found)
            elif self._over:
                found.close()
            else:
                self._replies.append(found)
                self._begin(found, place, asked_at)
            if not self._over:
                os.eventfd_write(self._news, 1)

    def _begin(self, reply: requests.Response, place: int, asked_at: float) -> None:
        if reply.status_code == 200:
            self._streams[place] = Stream(reply, AnswerReader(asked_at), self._limit_s)
        else:
            self._faults.append(ClientError("answer_status", f"the server answered with status {reply.status_code}"))
