"""A model hub on this machine: answers what the hub's library asks while it fetches a snapshot, and what goes wrong.

Modelled after the requests that huggingface_hub sends: the tree of a commit, a HEAD for each file, a GET for each file,
and for large files a redirect to another origin (`storage`), which must never see a token.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

LARGE = 1000  # bytes: from here on a file is kept by its SHA-256, behind a redirect
SIGNATURE = "SignatureOfTheStorage"


@dataclass(frozen=True)
class Asked:
    """One request: `server` is "hub" or "storage"."""

    server: str
    method: str
    path: str
    token: str | None
    range: str | None


@dataclass
class Repository:
    """One model at one commit."""

    revision: str
    files: dict[str, bytes]
    token: str | None = None  # the only one that may read it
    gated: bool = False
    lost: set[str] = field(default_factory=set)  # listed, but not there


@dataclass
class Faults:
    """What goes wrong, for files by name: how often still."""

    damaged: Counter[str] = field(default_factory=Counter)  # right size, wrong bytes
    dropped: Counter[str] = field(default_factory=Counter)  # the connection ends half-way
    refused: Counter[str] = field(default_factory=Counter)  # the connection ends before the first byte
    status: int | None = None  # of every answer of the hub


def git_blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Hub:
    """Both servers and what they were asked."""

    repositories: dict[str, Repository]
    faults: Faults = field(default_factory=Faults)
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    storage: str = ""

    def of(self, server: str) -> list[Asked]:
        return [one for one in self.asked if one.server == server]

    def downloads(self, file: str) -> int:
        """How often the content of a file was asked for."""
        wanted = [one for one in self.asked if one.method == "GET" and urlsplit(one.path).path.endswith(f"/{file}")]
        return len([one for one in wanted if one.server == "storage" or "/resolve/" in one.path])


@contextmanager
def running(repositories: Mapping[str, Repository]) -> Iterator[Hub]:
    hub = Hub(dict(repositories))
    servers = [_serve(hub, name) for name in ("hub", "storage")]
    hub.url, hub.storage = (f"http://127.0.0.1:{server.server_port}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _serve(hub: Hub, name: str) -> ThreadingHTTPServer:
    handler = type("Handler", (_Handler,), {"hub": hub, "name": name})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return server


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[Hub]
    name: ClassVar[str]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        kind, _, token = self.headers.get("authorization", "").partition(" ")
        given = token if kind == "Bearer" else None
        self.hub.asked.append(Asked(self.name, self.command, self.path, given, self.headers.get("range")))
        if self.name == "storage":
            self._store()
        elif self.hub.faults.status is not None:
            self._say(self.hub.faults.status, {}, b"{}")
        else:
            self._find(given)

    def _find(self, token: str | None) -> None:
        path = urlsplit(self.path).path
        listing = path.startswith("/api/models/")
        parts = path.removeprefix("/api/models").split("/")
        if len(parts) < 5 or parts[3] not in ("tree", "resolve"):
            self._say(404, {}, b"not found")
            return
        repository = self.hub.repositories.get(f"{parts[1]}/{parts[2]}")
        if repository is None or (repository.token is not None and token is None):
            self._refuse(401 if token is None else 404, "RepoNotFound", "Repository not found")
        elif repository.token is not None and token != repository.token:
            self._refuse(401, None, "Invalid credentials in Authorization header")
        elif parts[4] != repository.revision:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {parts[4]}")
        elif repository.gated:
            self._refuse(403, "GatedRepo", "Access to this model is restricted.")
        elif listing:
            self._say(200, {"Content-Type": "application/json"}, json.dumps(_tree(repository)).encode())
        else:
            self._resolve(repository, "/".join(parts[5:]), "/".join(parts[1:3]))

    def _resolve(self, repository: Repository, file: str, model: str) -> None:
        content = repository.files.get(file)
        commit = {"X-Repo-Commit": repository.revision}
        if content is None or file in repository.lost:
            self._say(404, {**commit, "X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}, b"")
        elif len(content) < LARGE:
            self._send_file({**commit, "ETag": f'"{git_blob(content)}"'}, file, content)
        else:
            where = f"{self.hub.storage}/{model}/{file}?Signature={SIGNATURE}"
            linked = {"X-Linked-ETag": f'"{sha256(content)}"', "X-Linked-Size": str(len(content))}
            self._say(302, {**commit, **linked, "Location": where}, b"")

    def _store(self) -> None:
        address = urlsplit(self.path)
        owner, name, file = address.path.lstrip("/").split("/", 2)
        content = self.hub.repositories[f"{owner}/{name}"].files[file]
        if parse_qs(address.query).get("Signature") != [SIGNATURE]:
            self._say(403, {}, b"")
        else:
            self._send_file({}, file, content)

    def _send_file(self, headers: Mapping[str, str], file: str, content: bytes) -> None:
        if self.command == "HEAD":
            self._say(200, headers, content)
            return
        faults = self.hub.faults
        if _happens(faults.refused, file):
            self.close_connection = True
            return
        if _happens(faults.damaged, file):
            content = content[:-1] + bytes([content[-1] ^ 1])
        begin = int((self.headers.get("range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        rest = content[begin:]
        self.send_response(206 if begin else 200)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
        for key, value in {**headers, "Content-Length": str(len(rest))}.items():
            self.send_header(key, value)
        self.end_headers()
        if _happens(faults.dropped, file):
            self.wfile.write(rest[: len(rest) // 2])
            self.close_connection = True
        else:
            self.wfile.write(rest)

    def _refuse(self, status: int, code: str | None, message: str) -> None:
        headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
        self._say(status, headers, json.dumps({"error": message}).encode())

    def _say(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _happens(left: Counter[str], file: str) -> bool:
    if left[file] <= 0:
        return False
    left[file] -= 1
    return True


def _tree(repository: Repository) -> list[dict[str, object]]:
    return [
        {
            "type": "file",
            "path": path,
            "oid": git_blob(content),
            "size": len(content),
            **(
                {"lfs": {"oid": sha256(content), "size": len(content), "pointerSize": 134}}
                if len(content) >= LARGE
                else {}
            ),
        }
        for path, content in repository.files.items()
    ]
