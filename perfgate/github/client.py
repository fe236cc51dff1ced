"""The few calls to GitHub that perfgate makes, each with its retry rule and one clear sentence when it fails.

What may be repeated blindly (GET, PATCH, DELETE) PyGithub repeats. A POST is repeated only after looking whether the
first one came through, because it would make a second comment. A dropped connection says nothing about that.

Answers are read as plain JSON: what does not look as described (an empty object, a page of HTML from a proxy) is one
sentence, too.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import github
from github.GithubException import GithubException, RateLimitExceededException
from github.GithubRetry import GithubRetry
from requests import RequestException

from perfgate.errors import Exit, PerfgateError
from perfgate.github.events import GHOST, Person, is_fork
from perfgate.github.job import Job
from perfgate.text import visible

T = TypeVar("T")

TRANSIENT = (429, 500, 502, 503, 504)
REPEATABLE = frozenset({"GET", "HEAD", "PATCH", "DELETE"})
USER_AGENT = "perfgate"
CHECK_NAME = "perfgate"
PAGE = 100  # things in one answer, the most that GitHub gives
MOST_PAGES = 100
LEVELS = ("none", "read", "triage", "write", "maintain", "admin")


@dataclass(frozen=True)
class Patience:
    """How long to bear with GitHub. Tests take less."""

    tries: int = 5
    first_wait_s: float = 2.0
    longest_wait_s: float = 60.0
    timeout_s: int = 20
    between_requests_s: float = 0.25
    between_writes_s: float = 1.0

    def wait_s(self, attempt: int, asked_s: float | None) -> float:
        """Before another try; at least what GitHub asks for, within reason."""
        return min(max(self.first_wait_s * 2.0**attempt, asked_s or 0.0), self.longest_wait_s)


class GithubError(PerfgateError):
    """GitHub refused, or did not answer."""

    exit_code = Exit.CANNOT

    def __init__(
        self,
        what: str,
        *,
        remedy: str,
        status: int | None = None,
        retry_after_s: float | None = None,
        strange: bool = False,
    ) -> None:
        super().__init__(what, where="GitHub", remedy=remedy)
        self.status = status
        self.retry_after_s = retry_after_s
        self.strange = strange  # an answer, but none of GitHub's

    @property
    def passing(self) -> bool:
        """Whether it may be gone at the next try. Without a status: the connection was dropped."""
        return self.status is None or self.status in TRANSIENT


@dataclass(frozen=True, kw_only=True)
class Pull:
    """A pull request as it is now."""

    number: int
    open: bool
    draft: bool
    locked: bool  # nobody may comment
    head: str
    fork: bool
    base_ref: str  # name of the branch it goes to
    author: Person
    labels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A comment on a pull request."""

    id: int
    author: str
    body: str
    url: str


@dataclass(frozen=True, kw_only=True)
class CheckRun:
    """A check run of perfgate's name on a commit."""

    id: int
    external_id: str
    status: str
    conclusion: str | None
    completed_at: datetime | None


class Client:
    """One repository, seen with the token of the job."""

    def __init__(self, job: Job, patience: Patience = Patience()) -> None:
        if not job.token:
            raise GithubError("no token", remedy="pass `token: ${{ github.token }}` to the action")
        self._patience = patience
        self._requester = github.Github(
            auth=github.Auth.Token(job.token),
            base_url=job.api_url,
            user_agent=USER_AGENT,
            timeout=patience.timeout_s,
            retry=_retry(patience),
            seconds_between_requests=patience.between_requests_s,
            seconds_between_writes=patience.between_writes_s,
            lazy=True,
        ).requester
        self._author = job.author
        self._base = f"/repos/{job.repository}"

    # ---------------------------------------------------------------------------------------- reading

    def pull(self, number: int) -> Pull:
        return self._read(f"pulls/{number}", "read the pull request", "pull-requests: read", _pull)

    def resolve(self, ref: str) -> str:
        """The full SHA that a ref of this repository names now: a branch, a tag, a SHA, "heads/main"."""
        return self._read(
            f"commits/{quote(ref, safe='')}", "find the commit", "contents: read", lambda data: str(data["sha"])
        )

    def names(self, ref: str, sha: str) -> bool:
        """Whether `ref` is a branch or a tag of this repository that names this commit."""
        for kind in ("heads", "tags"):
            try:
                if self.resolve(f"{kind}/{ref}") == sha:
                    return True
            except GithubError as error:
                if error.status not in (404, 422):
                    raise
        return False

    def level(self, person: Person) -> str:
        """What somebody may do here: one of LEVELS. A login that now belongs to another account has no say."""

        def parse(data: Any) -> str:
            ours = (data.get("user") or {}).get("id") == person.id
            return level_of(data["permission"], data.get("role_name")) if ours else "none"

        path = f"collaborators/{quote(person.login, safe='')}/permission"
        found = self._if_there(path, "read the permission of who asks", "metadata: read", parse)
        return found or "none"

    def file(self, path: str, sha: str) -> str | None:
        """A text file at a commit; None where there is none. One read call, at most 1 MB by GitHub's own limit."""

        def parse(data: Any) -> str | None:
            if isinstance(data, list) or data["type"] != "file":
                return None
            return base64.b64decode(data["content"]).decode("utf-8", errors="replace")

        return self._if_there(f"contents/{quote(path)}", "read a file", "contents: read", parse, ref=sha)

    def run_is_over(self, run: int) -> bool:
        """Whether a workflow run has ended, or is gone."""
        status = self._if_there(
            f"actions/runs/{run}", "read a workflow run", "actions: read", lambda data: str(data["status"])
        )
        return status in (None, "completed")

    def remarks(self, number: int) -> Iterator[Remark]:
        """All comments of a pull request, oldest first, page by page."""
        for page in range(1, MOST_PAGES + 1):
            found = self._read(
                f"issues/{number}/comments",
                "read the comments",
                "pull-requests: read",
                lambda data: [_remark(one) for one in _list(data)],
                per_page=str(PAGE),
                page=str(page),
            )
            yield from found
            if len(found) < PAGE:
                return

    def remark(self, comment: int) -> Remark | None:
        return self._if_there(f"issues/comments/{comment}", "read a comment", "pull-requests: read", _remark)

    def checks(self, sha: str) -> tuple[CheckRun, ...]:
        """perfgate's check runs on a commit, newest first; those of every suite, not only the latest."""
        found: list[CheckRun] = []
        for page in range(1, MOST_PAGES + 1):
            more = self._read(
                f"commits/{sha}/check-runs",
                "read the checks",
                "checks: read",
                lambda data: [_check(one) for one in _list(data["check_runs"])],
                check_name=CHECK_NAME,
                filter="all",
                per_page=str(PAGE),
                page=str(page),
            )
            found += more
            if len(more) < PAGE:
                break
        return tuple(sorted(found, key=lambda check: check.id, reverse=True))

    # ---------------------------------------------------------------------------------------- writing

    def react(self, comment: int, content: str) -> None:
        """Puts a reaction on a comment; twice is once."""
        path = f"issues/comments/{comment}/reactions"
        self._once(
            lambda: self._write("POST", path, {"content": content}, "react to the comment", _PULLS), lambda: None
        )

    def comment_once(self, number: int, body: str, marker: str) -> Remark:
        """A new comment. `marker` stands in `body`; a comment of ours that holds it already is not made again."""

        def create() -> Remark:
            return self._write("POST", f"issues/{number}/comments", {"body": body}, "comment", _PULLS, _remark)

        return self._once(create, lambda: self.ours(number, marker))

    def ours(self, number: int, marker: str) -> Remark | None:
        """Our first comment that begins with this marker."""
        found = (one for one in self.remarks(number) if one.author == self._author and one.body.startswith(marker))
        return next(found, None)

    def edit_comment(self, comment: int, body: str) -> None:
        path = f"issues/comments/{comment}"
        self._again(lambda: self._write("PATCH", path, {"body": body}, "edit the comment", _PULLS, _remark))

    def delete_comment(self, comment: int) -> None:
        self._write("DELETE", f"issues/comments/{comment}", None, "take the comment back", _PULLS)

    def create_check(self, sha: str, external_id: str, details: Mapping[str, Any]) -> CheckRun:
        """A new check run, made once for an external id (its first word)."""
        body = {"name": CHECK_NAME, "head_sha": sha, "external_id": external_id, **details}

        def find() -> CheckRun | None:
            name = external_id.split(" ")[0]
            return next((check for check in self.checks(sha) if check.external_id.split(" ")[0] == name), None)

        return self._once(lambda: self._write("POST", "check-runs", body, "create the check", _CHECKS, _check), find)

    def update_check(self, check: int, details: Mapping[str, Any]) -> None:
        """Changes a check run. `details` holds no annotations (a repeated PATCH would append them again)."""
        path = f"check-runs/{check}"
        self._again(lambda: self._write("PATCH", path, dict(details), "update the check", _CHECKS, _check))

    def drop_label(self, number: int, label: str) -> None:
        """Takes one label off and leaves all others alone, whoever put one on meanwhile."""
        path = f"issues/{number}/labels/{quote(label, safe='')}"
        try:
            self._write("DELETE", path, None, "take the label off", _PULLS)
        except GithubError as error:
            if error.status != 404:
                raise

    # ---------------------------------------------------------------------------------------- how

    def _read(self, path: str, what: str, permission: str, parse: Callable[[Any], T], **query: str) -> T:
        with _told(what, permission):
            _, data = self._requester.requestJsonAndCheck("GET", f"{self._base}/{path}", parameters=query)
            return parse(data)

    def _if_there(self, path: str, what: str, permission: str, parse: Callable[[Any], T], **query: str) -> T | None:
        try:
            return self._read(path, what, permission, parse, **query)
        except GithubError as error:
            if error.status == 404:
                return None
            raise

    def _write(
        self,
        verb: str,
        path: str,
        body: dict[str, Any] | None,
        what: str,
        permission: str,
        parse: Callable[[Any], T] = lambda _: None,  # type: ignore[assignment,return-value]
    ) -> T:
        with _told(what, permission):
            _, data = self._requester.requestJsonAndCheck(verb, f"{self._base}/{path}", input=body)
            return parse(data)

    def _again(self, change: Callable[[], T]) -> T:
        """A change that may be made twice, until its answer looks like one."""
        for attempt in range(self._patience.tries):
            try:
                return change()
            except GithubError as error:
                if not error.strange or attempt == self._patience.tries - 1:  # PyGithub has repeated the others
                    raise
                time.sleep(self._patience.wait_s(attempt, None))
        raise AssertionError("unreachable")

    def _once(self, create: Callable[[], T], find: Callable[[], T | None]) -> T:
        """A POST that is not made twice: after a failure that may pass, look first."""
        for attempt in range(self._patience.tries):
            try:
                return create()
            except GithubError as error:
                if not error.passing or attempt == self._patience.tries - 1:
                    raise
                time.sleep(self._patience.wait_s(attempt, error.retry_after_s))
                found = find()
                if found is not None:
                    return found
        raise AssertionError("unreachable")


_PULLS, _CHECKS = "pull-requests: write", "checks: write"


def level_of(permission: str, role: str | None) -> str:
    """The level in LEVELS. GitHub's `permission` folds maintain into write and triage into read; `role_name` does not.

    A role of an organisation's own making is worth the permission it is built on.
    """
    if role in LEVELS:
        return str(role)
    return permission if permission in LEVELS else "none"


def _retry(patience: Patience) -> GithubRetry:
    return GithubRetry(
        total=patience.tries - 1,
        backoff_factor=patience.first_wait_s,
        backoff_max=patience.longest_wait_s,
        secondary_rate_wait=patience.longest_wait_s,
        max_rate_limit_wait=patience.longest_wait_s * 2,
        status_forcelist=[403, *TRANSIENT],
        allowed_methods=REPEATABLE,
    )


@contextmanager
def _told(what: str, permission: str) -> Iterator[None]:
    """Turns what PyGithub and requests raise, and what an answer lacks, into one sentence with a next step."""
    try:
        yield
    except GithubException as error:
        raise _explained(error, what, permission) from error
    except RequestException as error:
        raise GithubError(
            f"did not answer: {what} ({type(error).__name__})", remedy="re-run the job when GitHub is well again"
        ) from error
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError, AssertionError) as error:
        raise GithubError(
            f"answered something else than expected: {what}",
            remedy="re-run the job; is there a proxy on the way?",
            strange=True,
        ) from error


def _explained(error: GithubException, what: str, permission: str) -> GithubError:
    status = error.status
    said = visible(error.message or "", 200)
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if isinstance(error, RateLimitExceededException) or status == 429 or "retry-after" in headers:
        wait = _seconds(headers.get("retry-after"))
        return GithubError(
            f"limits our rate: {what}", remedy="re-run the job in an hour", status=429, retry_after_s=wait
        )
    match status:
        case 401:
            return GithubError(f"does not know the token: {what}", remedy="re-run the job for a new one", status=401)
        case 403:
            return GithubError(f"forbids: {what}: {said}", remedy=f"give the job `{permission}`", status=403)
        case 404:
            return GithubError(f"finds nothing: {what}", remedy=f"see that the job has `{permission}`", status=404)
        case _ if status >= 500:
            return GithubError(f"fails: {what} ({status})", remedy="re-run the job later", status=status)
        case _:
            return GithubError(f"refuses: {what}: {said} ({status})", remedy="see the message", status=status)


def _seconds(text: object) -> float | None:
    """Of a Retry-After header; GitHub gives seconds, proxies may give a date."""
    return float(str(text)) if str(text).isascii() and str(text).isdigit() else None


# ------------------------------------------------------------------------------------------------ answers


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise TypeError("no list")
    return data


def _pull(data: Any) -> Pull:
    head, base = data["head"], data["base"]
    return Pull(
        number=data["number"],
        open=data["state"] == "open",
        draft=bool(data.get("draft")),
        locked=bool(data.get("locked")),
        head=head["sha"],
        fork=is_fork((head.get("repo") or {}).get("full_name"), (base.get("repo") or {}).get("full_name")),
        base_ref=base["ref"],
        author=_person(data["user"]),
        labels=tuple(label["name"] for label in data["labels"]),
    )


def _person(user: Mapping[str, Any] | None) -> Person:
    if user is None:
        return GHOST
    return Person(user["login"], user["id"], bot=user.get("type") == "Bot")


def _remark(data: Any) -> Remark:
    return Remark(
        id=int(data["id"]),
        author=(data.get("user") or {}).get("login", ""),
        body=data.get("body") or "",
        url=str(data["html_url"]),
    )


def _check(data: Any) -> CheckRun:
    ended = data.get("completed_at")
    return CheckRun(
        id=int(data["id"]),
        external_id=data.get("external_id") or "",
        status=str(data["status"]),
        conclusion=data.get("conclusion"),
        completed_at=datetime.fromisoformat(ended) if ended else None,
    )
