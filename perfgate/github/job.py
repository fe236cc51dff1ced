"""The job that perfgate runs in: everything read from GITHUB_* variables, and the files it hands back."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfgate.errors import PerfgateError

MAX_SUMMARY = 1024 * 1024  # bytes; GitHub drops a longer one whole
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}/(?!\.{1,2}$)[A-Za-z0-9_.-]{1,100}")
_CUT = "\n\n*Shortened: the rest is in the run's artifact.*\n"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job of a workflow run. `token` never shows in a repr."""

    event_name: str
    event_path: Path
    repository: str  # owner/name, where the pull request is
    api_url: str
    server_url: str
    run: int
    attempt: int
    sha: str
    workflow_ref: str = ""  # owner/name/.github/workflows/file.yml@ref of the caller
    workflow_sha: str = ""
    auto: str = ""  # the caller's word over perfgate.yml's `auto`; empty: none
    author: str = "github-actions[bot]"  # login of the token: whose comments are perfgate's own
    output: Path | None = None
    summary: Path | None = None
    token: str = field(default="", repr=False)

    @property
    def runs_url(self) -> str:
        return f"{self.server_url}/{self.repository}/actions/runs"

    @property
    def run_url(self) -> str:
        """The live log, later the log."""
        return f"{self.runs_url}/{self.run}"

    @property
    def clone_url(self) -> str:
        return f"{self.server_url}/{self.repository}.git"

    def write_output(self, name: str, value: str) -> None:
        """One output of the step. The delimiter is drawn anew, so no value can end it early."""
        if self.output is None:
            return
        delimiter = f"perfgate_{secrets.token_hex(16)}"
        with self.output.open("a", encoding="utf-8") as file:
            file.write(f"{name}<<{delimiter}\n{value}\n{delimiter}\n")

    def write_summary(self, markdown: str) -> None:
        if self.summary is None:
            return
        with self.summary.open("a", encoding="utf-8") as file:
            file.write(shorten(markdown, MAX_SUMMARY - 1024, _CUT) + "\n")


def shorten(text: str, limit: int, note: str) -> str:
    """At most `limit` bytes of UTF-8, cut at the end of a line, `note` in place of the rest."""
    data = text.encode()
    if len(data) <= limit:
        return text
    kept = data[: limit - len(note.encode())].decode(errors="ignore")
    return kept[: kept.rfind("\n") + 1 or len(kept)] + note


def job_of(environment: Mapping[str, str]) -> Job:
    """The job that these variables describe."""
    repository = _required(environment, "GITHUB_REPOSITORY")
    if not _REPOSITORY.fullmatch(repository):
        raise PerfgateError("not owner/name", where="GITHUB_REPOSITORY")
    return Job(
        event_name=_required(environment, "GITHUB_EVENT_NAME"),
        event_path=Path(_required(environment, "GITHUB_EVENT_PATH")),
        repository=repository,
        api_url=environment.get("GITHUB_API_URL", "https://api.github.com").rstrip("/"),
        server_url=environment.get("GITHUB_SERVER_URL", "https://github.com").rstrip("/"),
        run=_number(environment, "GITHUB_RUN_ID"),
        attempt=_number(environment, "GITHUB_RUN_ATTEMPT"),
        sha=environment.get("GITHUB_SHA", ""),
        workflow_ref=environment.get("GITHUB_WORKFLOW_REF", ""),
        workflow_sha=environment.get("GITHUB_WORKFLOW_SHA", ""),
        auto=_word(environment, "PERFGATE_AUTO", ("paths", "label", "off")),
        author=environment.get("PERFGATE_AUTHOR") or "github-actions[bot]",
        output=_path(environment, "GITHUB_OUTPUT"),
        summary=_path(environment, "GITHUB_STEP_SUMMARY"),
        token=environment.get("GITHUB_TOKEN", ""),
    )


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    if not value:
        raise PerfgateError("not set", where=name, remedy="this command runs inside a workflow of GitHub's")
    return value


def _number(environment: Mapping[str, str], name: str) -> int:
    value = _required(environment, name)
    if not value.isascii() or not value.isdigit():
        raise PerfgateError("not a number", where=name)
    return int(value)


def _word(environment: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    value = environment.get(name, "")
    if value and value not in known:
        raise PerfgateError(f"not one of {', '.join(known)}", where=name)
    return value


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    value = environment.get(name, "")
    return Path(value) if value else None
