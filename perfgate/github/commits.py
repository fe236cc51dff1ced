"""Commits from GitHub by git, over HTTP, into a bare repository: no checkout, no hook, no submodule, no code runs.

And what a pull request changes, read from them: merge base, trees, kind of diff.
"""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from perfgate.config.files import load
from perfgate.config.places import CONFIG_PATH
from perfgate.errors import Exit, PerfgateError
from perfgate.records import Commit
from perfgate.source.diff import DiffClass, classify, deciding_files
from perfgate.source.repository import Repository
from perfgate.text import visible

TIMEOUT_S = 1800.0  # the first fetch of a repository of SGLang's size over a slow line
BLOBLESS = "blob:none"
MAX_PACKS = 20  # each fetch leaves one
MAX_NOTE = 300  # characters


class FetchError(PerfgateError):
    exit_code = Exit.CANNOT


@dataclass(frozen=True)
class Origin:
    """Where to fetch from. The token never shows in a repr, in a command line or in the repository's configuration."""

    url: str
    token: str = field(default="", repr=False)

    def environment(self) -> dict[str, str]:
        """git's whole environment."""
        settings = {
            "core.hooksPath": "/dev/null",
            "credential.helper": "",
            "fetch.recurseSubmodules": "false",
            "gc.auto": "0",
            "http.followRedirects": "false",
            "maintenance.auto": "false",
            "safe.directory": "*",
        }
        if self.token:
            parts = urlsplit(self.url)
            login = base64.b64encode(f"x-access-token:{self.token}".encode()).decode()
            settings[f"http.{parts.scheme}://{parts.netloc}/.extraHeader"] = f"AUTHORIZATION: basic {login}"
        return {
            **{name: value for name, value in os.environ.items() if name in _PASSED},
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "false",
            "GIT_ALLOW_PROTOCOL": "https:http",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "HOME": "/nonexistent",
            "LC_ALL": "C.UTF-8",
            **_numbered(settings),
        }


_PASSED = frozenset(
    (
        *("PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
        *("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY"),
    )
)


def _numbered(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings as GIT_CONFIG_KEY_n and GIT_CONFIG_VALUE_n: unlike arguments no other user can read them."""
    pairs = {
        name: text
        for number, (key, value) in enumerate(settings.items())
        for name, text in ((f"GIT_CONFIG_KEY_{number}", key), (f"GIT_CONFIG_VALUE_{number}", value))
    }
    return {"GIT_CONFIG_COUNT": str(len(settings)), **pairs}


def fetch_commits(folder: Path, origin: Origin, shas: Sequence[str], *, blobs: bool) -> None:
    """Brings full SHAs with their history into the bare repository `folder`, made if it is not there.

    blobs=False: without the contents of files, which is enough for merge bases and changed paths.
    """
    if not (folder / "HEAD").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _git(folder, origin, "init", "--quiet", "--bare", ".")
        _git(folder, origin, "config", "remote.origin.url", origin.url)
    missing = [sha for sha in dict.fromkeys(shas) if not _has(folder, origin, sha)]
    if not missing:
        return
    kind = () if blobs else (f"--filter={BLOBLESS}",)
    _git(
        folder,
        origin,
        *("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", *kind),
        "origin",
        *(f"+{sha}:refs/perfgate/{sha}" for sha in missing),
    )


def fetch_file(folder: Path, origin: Origin, sha: str, path: str) -> None:
    """Brings one file of a commit into a repository fetched without blobs. A file that is not there is fine."""
    try:
        _git(folder, origin, "cat-file", "-e", f"{sha}:{path}")
    except FetchError:
        return


def collect_garbage(folder: Path, origin: Origin) -> None:
    """Packs what many fetches left, where git finds it worth while. Without it all works, only larger and slower."""
    with suppress(FetchError):
        settings = (f"gc.autoPackLimit={MAX_PACKS}", "gc.auto=6700", "gc.autoDetach=false")
        _git(folder, origin, *(part for one in settings for part in ("-c", one)), "gc", "--auto", "--quiet")


def _has(folder: Path, origin: Origin, sha: str) -> bool:
    """Only commits fetched by us and in full: each has a ref of its own."""
    try:
        _git(folder, origin, "rev-parse", "--quiet", "--verify", f"refs/perfgate/{sha}^{{commit}}")
    except FetchError:
        return False
    return True


def _git(folder: Path, origin: Origin, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=origin.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise FetchError("git is not installed", remedy="install git 2.30 or newer") from error
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"git {arguments[0]} did not end within {TIMEOUT_S:.0f} s", where=origin.url) from error
    if done.returncode:
        said = visible(done.stderr.strip() or f"exit code {done.returncode}", 300)
        raise FetchError(f"git {arguments[0]}: {said}", where=origin.url, remedy="re-run the job")
    return done.stdout


# ------------------------------------------------------------------------------------------------ what they change


@dataclass(frozen=True)
class Comparison:
    base: Commit
    head: Commit
    diff: DiffClass
    note: str = ""  # what is wrong with head's own perfgate.yml; a stranger's words may be in it


def compare(folder: Path, origin: Origin, tip: str, head: str, *, exact: bool, ignore: Sequence[str]) -> Comparison:
    """Compares `head` with its merge base with `tip`, or with `tip` itself if `exact`. All are full SHAs."""
    fetch_commits(folder, origin, (tip, head), blobs=False)
    repository = Repository(folder)
    base = repository.resolve(tip) if exact else repository.merge_base(tip, head)
    paths = repository.changed_paths(base.sha, head)
    contents = {}
    for path in deciding_files(paths):
        for sha in (base.sha, head):
            fetch_file(folder, origin, sha, path)
        contents[path] = repository.read_both(base.sha, head, path)
    diff = classify(paths, ignore=ignore, contents=contents)
    note = ""
    if CONFIG_PATH in paths:
        fetch_file(folder, origin, head, CONFIG_PATH)
        note = _fault_of(repository.read_file(head, CONFIG_PATH))
    return Comparison(base, repository.resolve(head), diff, note)


def _fault_of(config: bytes | None) -> str:
    """A changed perfgate.yml is measured with the old one; that the new one will do is all that is looked at."""
    try:
        load(config or b"", CONFIG_PATH)
    except PerfgateError as error:
        return visible(str(error), MAX_NOTE)
    return ""
