"""The HTTP side of the stand-in: the API below /api/v3, repositories by git's own smart HTTP, and faults to order."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from tests.e2e.hub.answers import HANDLERS, Answer, Call, Refused
from tests.e2e.hub.openapi import Operation, description
from tests.e2e.hub.world import World

API = "/api/v3"


@dataclass
class Fault:
    """What goes wrong with the next calls that match: an error answer, or a connection that drops.

    `when`: "before" the call has any effect, or "after" it had, so that only the answer is lost.
    """

    method: str
    path: str  # a regular expression
    status: int | None = None  # None: the connection drops
    when: Literal["before", "after"] = "before"
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = "Something went wrong"
    times: int = 1
    raw: str | None = None  # the whole answer, of another kind than GitHub's
    hangs_s: float = 0.0  # before the answer

    def matches(self, method: str, path: str) -> bool:
        return self.times > 0 and method == self.method and re.search(self.path, path) is not None


@dataclass(frozen=True)
class Logged:
    method: str
    path: str
    status: int | None  # None: dropped
    body: Any = None


class Hub:
    """A running stand-in. `violations` must stay empty: calls or answers that GitHub's description does not allow."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults: list[Fault] = []
        self.log: list[Logged] = []
        self.violations: list[str] = []
        self.lock = threading.Lock()
        self.late_s = 0.0  # how late the answer at hand is
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.api = self.url + API

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def calls(self, method: str | None = None) -> list[Logged]:
        """API calls so far."""
        return [call for call in self.log if method in (None, call.method)]

    def handle(self, method: str, target: str, authorization: str, raw: bytes) -> Answer | None:
        """One API call; None: the connection drops."""
        split = urlsplit(target)
        path, query = split.path.removeprefix(API), dict(parse_qsl(split.query, keep_blank_values=True))
        with self.lock:
            fault = next((one for one in self.faults if one.matches(method, path)), None)
            if fault:
                fault.times -= 1
            body = json.loads(raw) if raw else None
            early = fault is not None and fault.when == "before"
            answer = Answer(0, None) if early else self._answer(method, path, query, authorization, body)
            if fault:
                failed = {"message": fault.message, "documentation_url": "https://example.org"}
                answer = Answer(fault.status, failed, dict(fault.headers)) if fault.status else None  # type: ignore[assignment]
                if answer and fault.raw is not None:
                    answer.body = fault.raw.encode()
                self.late_s = fault.hangs_s
            self.log.append(Logged(method, path, answer.status if answer else None, body))
            return answer

    def _answer(self, method: str, path: str, query: dict[str, str], authorization: str, body: Any) -> Answer:
        operation = description().find(method, path)
        if operation is None:
            self.violations.append(f"{method} {path}: GitHub has no such call")
            return Answer(404, {"message": "Not Found"})
        faults = description().request_faults(operation, query, body)
        if faults:
            self.violations.append(f"{method} {path}: {faults}")
        answer = self._carry_out(operation, query, authorization, body or {})
        wrong = description().answer_faults(operation, answer.status, answer.body)
        if wrong:
            self.violations.append(f"answer {answer.status} to {method} {path}: {wrong}")
        return answer

    def _carry_out(
        self, operation: Operation, query: dict[str, str], authorization: str, body: dict[str, Any]
    ) -> Answer:
        token = self.world.tokens.get(authorization.split(" ")[-1])
        if token is None:
            return Answer(401, {"message": "Bad credentials", "documentation_url": "https://example.org"})
        handler = HANDLERS.get((operation.method, operation.path))
        if handler is None:
            self.violations.append(f"{operation.method} {operation.path}: not built into the stand-in")
            return Answer(501, {"message": "not built"})
        try:
            return handler(Call(self.world, token, operation, query, body, self.api))
        except Refused as refused:
            error = {"message": refused.message, "documentation_url": "https://example.org"}
            return Answer(refused.status, error, refused.headers)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        raw = self._body()
        if not self.path.startswith(API):
            self._git(raw)
            return
        answer = self.hub.handle(self.command, self.path, self.headers.get("Authorization", ""), raw)
        if answer is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        late_s, self.hub.late_s = self.hub.late_s, 0.0
        if late_s:
            time.sleep(late_s)
        if isinstance(answer.body, bytes):
            data = answer.body
        else:
            data = b"" if answer.body is None else json.dumps(answer.body).encode()
        self._send(answer.status, {"Content-Type": "application/json; charset=utf-8", **answer.headers}, data)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline().strip(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _git(self, raw: bytes) -> None:
        """/owner/name.git/… by `git http-backend`. Private repositories ask for a token that may read contents."""
        path, _, query = self.path.partition("?")
        match = re.match(r"/([^/]+/[^/]+?)(\.git)?/(info/refs|git-upload-pack)$", path)
        repository = match and self.hub.world.repositories.get(match[1].lower())
        if not match or not repository:
            self._send(404, {}, b"not found")
            return
        if repository.private and not self._reads(self.headers.get("Authorization", "")):
            self._send(401, {"WWW-Authenticate": 'Basic realm="GitHub"'}, b"")
            return
        environment = {
            **{name: value for name, value in os.environ.items() if name == "PATH"},
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_CONFIG_COUNT": "3",
            "GIT_CONFIG_KEY_0": "uploadpack.allowFilter",
            "GIT_CONFIG_VALUE_0": "true",
            "GIT_CONFIG_KEY_1": "uploadpack.allowAnySHA1InWant",
            "GIT_CONFIG_VALUE_1": "true",
            "GIT_CONFIG_KEY_2": "safe.directory",
            "GIT_CONFIG_VALUE_2": "*",
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROJECT_ROOT": str(repository.git),
            "PATH_INFO": "/" + match[3],
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(raw)),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=raw, env=environment, capture_output=True, check=False)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self._send(int(headers.pop("Status", "200").split()[0]), headers, body)

    def _reads(self, authorization: str) -> bool:
        """Whether git's login holds a token that may read contents."""
        login = base64.b64decode(authorization.removeprefix("basic ").removeprefix("Basic ")).decode()
        token = self.hub.world.tokens.get(login.partition(":")[2])
        return token is not None and token.may("contents", "read")

    def _send(self, status: int, headers: Mapping[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        pass
