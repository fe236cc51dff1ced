"""The stand-in without a socket: calls of urllib3 end in the hub's own function, retries and all stay urllib3's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import RemoteDisconnected
from io import BytesIO
from typing import Any

import pytest
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ReadTimeoutError
from urllib3.response import HTTPResponse

from tests.e2e.hub.server import API, Hub


@contextmanager
def in_process(hub: Hub) -> Iterator[None]:
    """An order of magnitude less waiting, for series of hundreds of cases."""

    def make_request(pool: HTTPConnectionPool, conn: Any, method: str, url: str, **how: Any) -> HTTPResponse:
        assert url.startswith(API), f"nothing but the API is served without a socket: {url}"
        body, headers = how.get("body"), how.get("headers") or {}
        raw = body.encode() if isinstance(body, str) else body or b""
        answer = hub.handle(method, url, headers.get("Authorization", ""), raw)
        if answer is None:
            raise RemoteDisconnected("Remote end closed connection without response")
        late_s, hub.late_s = hub.late_s, 0.0
        if late_s:
            raise ReadTimeoutError(pool, url, "Read timed out.")
        return _response(answer.status, answer.headers, answer.body, method, url)

    patch = pytest.MonkeyPatch()
    patch.setattr(HTTPConnectionPool, "_make_request", make_request)
    try:
        yield
    finally:
        patch.undo()


def _response(status: int, headers: Mapping[str, str], body: Any, method: str, url: str) -> HTTPResponse:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return HTTPResponse(
        body=BytesIO(data),
        status=status,
        headers={"Content-Type": "application/json; charset=utf-8", "Content-Length": str(len(data)), **headers},
        preload_content=False,
        request_method=method,
        request_url=url,
    )
