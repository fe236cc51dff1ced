"""The few calls to GitHub that perfgate makes, each with its retry rule and one clear sentence when it fails.

What may be repeated blindly (GET, PATCH, PUT) PyGithub repeats. A POST is repeated only after looking whether the
first one came through, because it would make a second comment. A dropped connection says nothing about that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote

import github
from github.CheckRun import CheckRun
from github.GithubException import GithubException, RateLimitExceededException
from github.GithubRetry import GithubRetry
from github.IssueComment import IssueComment
from requests import RequestException

from perfgate.errors import Exit, PerfgateError
from perfgate.github.access import GHOST, Person, level_of
from perfgate.github.events import is_fork
from perfgate.github.job import Job
from perfgate.text import visible

T = TypeVar("T")

TRANSIENT = (429, 500, 502, 503, 504)
REPEATABLE = frozenset({"GET", "HEAD", "PUT", "PATCH", "DELETE"})
USER_AGENT = "perfgate"


@dataclass(frozen=True)
class Patience:
    """How long to bear with GitHub. Tests take less."""

    tries: int = 5
    first_wait_s: float = 2.0
    longest_wait_s: float = 60.0
    timeout_s: int = 20
    between_requests_s: float = 0.25
    between_writes_s: float = 1.0

    def wait_s(self, attempt: int) -> float:
        return min(self.first_wait_s * 2.0**attempt, self.longest_wait_s)


class GithubError(PerfgateError):
    """GitHub refused, or did not answer."""

    exit_code = Exit.CANNOT

    def __init__(self, what: str, *, remedy: str, status: int | None = None) -> None:
        super().__init__(what, where="GitHub", remedy=remedy)
        self.status = status


@dataclass(frozen=True, kw_only=True)
class Pull:
    """A pull request as it is now."""

    number: int
    open: bool
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
class Check:
    """A check run of perfgate's on a commit."""

    id: int
    external_id: str
    status: str
    conclusion: str | None
    completed_at: datetime | None
    url: str


CHECK_NAME = "perfgate"


class Client:
    """One repository, seen with the token of the job."""

    def __init__(self, job: Job, patience: Patience = Patience()) -> None:
        if not job.token:
            raise GithubError("no token", remedy="pass `token: ${{ github.token }}` to the action")
        self._patience = patience
        self._github = github.Github(
            auth=github.Auth.Token(job.token),
            base_url=job.api_url,
            user_agent=USER_AGENT,
            per_page=100,
            timeout=patience.timeout_s,
            retry=_retry(patience),
            seconds_between_requests=patience.between_requests_s,
            seconds_between_writes=patience.between_writes_s,
            lazy=True,
        )
        self._author = job.author
        self._repository = self._github.get_repo(job.repository)
        self._base = f"/repos/{job.repository}"

    # ---------------------------------------------------------------------------------------- reading

    def pull(self, number: int) -> Pull:
        data = self._get(f"{self._base}/pulls/{number}", "read the pull request", "pull-requests: read")
        head, base = data["head"], data["base"]
        return Pull(
            number=data["number"],
            open=data["state"] == "open",
            head=head["sha"],
            fork=is_fork((head.get("repo") or {}).get("full_name"), (base.get("repo") or {}).get("full_name")),
            base_ref=base["ref"],
            author=_person(data["user"]),
            labels=tuple(label["name"] for label in data["labels"]),
        )

    def resolve(self, ref: str) -> str:
        """The full SHA that a ref of this repository names now: a branch, a tag, a SHA, "heads/main"."""
        path = f"{self._base}/commits/{quote(ref, safe='')}"
        return str(self._get(path, "find the commit", "contents: read")["sha"])

    def level(self, person: Person) -> str:
        """What somebody may do here: one of access.LEVELS. A login that now belongs to another account has no say."""
        path = f"{self._base}/collaborators/{person.login}/permission"
        try:
            data = self._get(path, "read the permission of who asks", "metadata: read")
        except GithubError as error:
            if error.status == 404:
                return "none"
            raise
        user = data.get("user") or {}
        return level_of(data["permission"], data.get("role_name")) if user.get("id") == person.id else "none"

    def file(self, path: str, sha: str) -> str | None:
        """A text file at a commit; None where there is none. One read call, at most 1 MB by GitHub's own limit."""
        try:
            with _told("read a file", "contents: read"):
                found = self._repository.get_contents(path, ref=sha)
                if isinstance(found, list) or found.type != "file":
                    return None
                return found.decoded_content.decode("utf-8", errors="replace")
        except GithubError as error:
            if error.status == 404:
                return None
            raise

    def run_is_over(self, run: int) -> bool:
        """Whether a workflow run has ended, or is gone."""
        try:
            data = self._get(f"{self._base}/actions/runs/{run}", "read a workflow run", "actions: read")
        except GithubError as error:
            if error.status == 404:
                return True
            raise
        return bool(data["status"] == "completed")

    def remarks(self, number: int) -> Iterator[Remark]:
        """All comments of a pull request, oldest first, page by page."""
        with _told("read the comments", "pull-requests: read"):
            for comment in self._repository.get_issue(number).get_comments():
                yield _remark(comment)

    def remark(self, comment: int) -> Remark | None:
        try:
            data = self._get(f"{self._base}/issues/comments/{comment}", "read a comment", "pull-requests: read")
        except GithubError as error:
            if error.status == 404:
                return None
            raise
        return Remark(
            id=data["id"],
            author=(data.get("user") or {}).get("login", ""),
            body=data.get("body") or "",
            url=data["html_url"],
        )

    def checks(self, sha: str) -> list[Check]:
        """perfgate's check runs on a commit, newest first."""
        with _told("read the checks", "checks: read"):
            runs = self._repository.get_commit(sha).get_check_runs(check_name=CHECK_NAME, filter="all")
            return sorted((_check(run) for run in runs), key=lambda check: check.id, reverse=True)

    # ---------------------------------------------------------------------------------------- writing

    def claim(self, comment: int) -> bool:
        """Puts 👀 on a comment; False if it was there already, put by an earlier delivery of the same event.

        GitHub answers 201 for a new reaction and 200 for one that exists. After a dropped connection a 200 may be
        our own, so it then counts as new.
        """
        return self._react(comment, "eyes")

    def react(self, comment: int, content: str) -> None:
        self._react(comment, content)

    def comment_once(self, number: int, body: str, marker: str) -> Remark:
        """A new comment. `marker` stands in `body`; a comment of ours that holds it already is not made again."""

        def create() -> Remark:
            with _told("comment", "pull-requests: write"):
                return _remark(self._repository.get_issue(number).create_comment(body))

        def find() -> Remark | None:
            ours = (one for one in self.remarks(number) if one.author == self._author and one.body.startswith(marker))
            return next(ours, None)

        return self._once(create, find)

    def edit_comment(self, comment: int, body: str) -> None:
        with _told("edit the comment", "pull-requests: write"):
            path = f"{self._base}/issues/comments/{comment}"
            self._github.requester.requestJsonAndCheck("PATCH", path, input={"body": body})

    def delete_comment(self, comment: int) -> None:
        with _told("take the comment back", "pull-requests: write"):
            self._github.requester.requestJsonAndCheck("DELETE", f"{self._base}/issues/comments/{comment}")

    def create_check(self, sha: str, external_id: str, details: dict[str, Any]) -> Check:
        """A new check run, made once for an external id (its first word)."""

        def create() -> Check:
            with _told("create the check", "checks: write"):
                made = self._repository.create_check_run(CHECK_NAME, sha, external_id=external_id, **details)
                return _check(made)

        def find() -> Check | None:
            name = external_id.split(" ")[0]
            return next((check for check in self.checks(sha) if check.external_id.split(" ")[0] == name), None)

        return self._once(create, find)

    def update_check(self, check: int, details: dict[str, Any]) -> Check:
        """Changes a check run. `details` holds no annotations (a repeated PATCH would append them again)."""
        with _told("update the check", "checks: write"):
            run = self._repository.get_check_run(check)
            run.edit(**details)
            return _check(run)

    def set_labels(self, number: int, labels: tuple[str, ...]) -> None:
        path = f"{self._base}/issues/{number}/labels"
        with _told("change the labels", "pull-requests: write"):
            if labels:
                self._github.requester.requestJsonAndCheck("PUT", path, input={"labels": list(labels)})
            else:
                self._github.requester.requestJsonAndCheck("DELETE", path)

    # ---------------------------------------------------------------------------------------- how

    def _get(self, path: str, what: str, permission: str) -> dict[str, Any]:
        with _told(what, permission):
            _, data = self._github.requester.requestJsonAndCheck("GET", path)
            if not isinstance(data, dict):
                raise GithubError(f"did not answer with an object: {what}", remedy="re-run the job")
            return data

    def _react(self, comment: int, content: str) -> bool:
        path = f"{self._base}/issues/comments/{comment}/reactions"
        repeated = False
        for attempt in range(self._patience.tries):
            try:
                with _told("react to the comment", "pull-requests: write"):
                    requester = self._github.requester
                    status, headers, text = requester.requestJson("POST", path, input={"content": content})
                    if status >= 400:
                        raise requester.createException(status, headers, _message(text))
                    return status == 201 or repeated
            except GithubError as error:
                if not _passing(error) or attempt == self._patience.tries - 1:
                    raise
                repeated = True
                time.sleep(self._patience.wait_s(attempt))
        raise AssertionError("unreachable")

    def _once(self, create: Callable[[], T], find: Callable[[], T | None]) -> T:
        """A POST that is not made twice: after a failure that may pass, look first."""
        for attempt in range(self._patience.tries):
            try:
                return create()
            except GithubError as error:
                if not _passing(error) or attempt == self._patience.tries - 1:
                    raise
                time.sleep(self._patience.wait_s(attempt))
                found = find()
                if found is not None:
                    return found
        raise AssertionError("unreachable")


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
    """Turns what PyGithub and requests raise into one sentence with a next step."""
    try:
        yield
    except GithubException as error:
        raise _explained(error, what, permission) from error
    except RequestException as error:
        raise GithubError(
            f"did not answer: {what} ({type(error).__name__})", remedy="re-run the job when GitHub is well again"
        ) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise GithubError(f"answered something else than expected: {what}", remedy="re-run the job") from error


def _explained(error: GithubException, what: str, permission: str) -> GithubError:
    status = error.status
    said = visible(error.message or "", 200)
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if isinstance(error, RateLimitExceededException) or status == 429 or "retry-after" in headers:
        return GithubError(f"limits our rate: {what}", remedy="re-run the job in an hour", status=429)
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


def _passing(error: GithubError) -> bool:
    """Whether a failure may be gone at the next try. Without a status: the connection was dropped."""
    return error.status is None or error.status in TRANSIENT


def _message(text: object) -> dict[str, Any]:
    """The body of an error, as PyGithub takes it."""
    try:
        body = json.loads(str(text))
    except ValueError:
        body = None
    return body if isinstance(body, dict) else {"message": str(text)[:200]}


def _person(user: dict[str, Any] | None) -> Person:
    if user is None:
        return GHOST
    return Person(user["login"], user["id"], bot=user.get("type") == "Bot")


def _remark(comment: IssueComment) -> Remark:
    """Attributes only: `raw_data` would fetch each comment of a list again."""
    user = comment.user
    return Remark(id=comment.id, author=user.login if user else "", body=comment.body or "", url=comment.html_url)


def _check(run: CheckRun) -> Check:
    return Check(
        id=run.id,
        external_id=run.external_id or "",
        status=run.status,
        conclusion=run.conclusion,
        completed_at=run.completed_at,
        url=run.html_url or "",
    )
