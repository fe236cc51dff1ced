"""What each call does to the world and answers. One function an operation, found by method and path."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.hub.openapi import TIME, Operation, description
from tests.e2e.hub.world import APP, CheckRun, Comment, PullRequest, Reaction, Repository, Token, User, World

MAX_COMMENT = 65_536
LEGACY = {"admin": "admin", "maintain": "write", "write": "write", "triage": "read", "read": "read"}


@dataclass
class Call:
    """One request, already found to be well formed."""

    world: World
    token: Token
    operation: Operation
    query: Mapping[str, str]
    body: dict[str, Any]
    api: str  # address of the API, for links

    @property
    def repository(self) -> Repository:
        name = f"{self.operation.parameters['owner']}/{self.operation.parameters['repo']}".lower()
        if name not in self.world.repositories:
            raise Refused(404, "Not Found")
        return self.world.repositories[name]

    def number(self, name: str) -> int:
        text = self.operation.parameters[name]
        if not text.isdigit():
            raise Refused(404, "Not Found")
        return int(text)

    def need(self, *scopes: str, level: str) -> None:
        """That the token has one of these. Anybody may read a public repository."""
        readable = level == "read" and not self.repository.private
        if not readable and not any(self.token.may(scope, level) for scope in scopes):
            raise Refused(403, "Resource not accessible by integration")


class Refused(Exception):
    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, dict(headers or {})


@dataclass
class Answer:
    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


Handler = Callable[[Call], Answer]
HANDLERS: dict[tuple[str, str], Handler] = {}
REPO = "/repos/{owner}/{repo}"


def on(method: str, path: str) -> Callable[[Handler], Handler]:
    def keep(handler: Handler) -> Handler:
        HANDLERS[method, path] = handler
        return handler

    return keep


# ------------------------------------------------------------------------------------------------ people


def _user(user: User) -> dict[str, Any]:
    return description().make("simple-user", {"login": user.login, "id": user.id, "type": user.type})


@on("GET", "/user")
def get_user(call: Call) -> Answer:
    raise Refused(403, "Resource not accessible by integration")  # as for every workflow's token


@on("GET", REPO + "/collaborators/{username}/permission")
def permission(call: Call) -> Answer:
    call.need("metadata", level="read")
    login = call.operation.parameters["username"]
    user = call.world.users.get(login)
    if user is None:
        raise Refused(404, "Not Found")
    role = call.repository.levels.get(login, "none" if call.repository.private else "read")
    body = {"permission": LEGACY.get(role, "none"), "role_name": role, "user": {**_user(user), "role_name": role}}
    return Answer(200, description().make("repository-collaborator-permission", body))


# ------------------------------------------------------------------------------------------------ pull requests


@on("GET", REPO + "/pulls/{pull_number}")
def get_pull(call: Call) -> Answer:
    call.need("pull-requests", level="read")
    pull = call.repository.pulls.get(call.number("pull_number"))
    if pull is None:
        raise Refused(404, "Not Found")
    return Answer(200, pull_data(call.repository, pull))


def pull_data(repository: Repository, pull: PullRequest) -> dict[str, Any]:
    def end(sha: str, ref: str, name: str | None) -> dict[str, Any]:
        owner = (name or "ghost/gone").split("/")[0]
        repo = (
            None if name is None else description().make("repository", {"full_name": name, "name": name.split("/")[1]})
        )
        return {"label": f"{owner}:{ref}", "ref": ref, "sha": sha, "repo": repo, "user": _user(User(owner, 7))}

    base = repository.sha(f"heads/{pull.base_ref}")
    assert base is not None
    body = {
        "number": pull.number,
        "title": pull.title,
        "state": pull.state,
        "user": _user(pull.user),
        "draft": pull.draft,
        "locked": pull.locked,
        "labels": [_label(name) for name in pull.labels],
        "head": end(pull.head, pull.head_ref, pull.head_repository),
        "base": end(base, pull.base_ref, repository.name),
    }
    return description().make("pull-request", body)


def _label(name: str) -> dict[str, Any]:
    return {
        "id": 5,
        "node_id": "L",
        "url": "https://example.org/label",
        "name": name,
        "description": None,
        "color": "ededed",
        "default": False,
    }


@on("DELETE", REPO + "/issues/{issue_number}/labels/{name}")
def delete_label(call: Call) -> Answer:
    call.need("issues", "pull-requests", level="write")
    pull, name = call.repository.pulls[call.number("issue_number")], call.operation.parameters["name"]
    if name not in pull.labels:
        raise Refused(404, "Label does not exist")
    pull.labels.remove(name)
    return Answer(200, [_label(one) for one in pull.labels])


# ------------------------------------------------------------------------------------------------ comments


def _comment(call: Call, comment: Comment) -> dict[str, Any]:
    body = {
        "id": comment.id,
        "body": comment.body,
        "user": _user(comment.user),
        "html_url": f"https://example.org/{call.repository.name}/pull/{comment.number}#issuecomment-{comment.id}",
        "url": f"{call.api}/repos/{call.repository.name}/issues/comments/{comment.id}",
        "created_at": TIME,
        "updated_at": TIME,
    }
    return description().make("issue-comment", body)


@on("GET", REPO + "/issues/{issue_number}/comments")
def list_comments(call: Call) -> Answer:
    call.need("issues", "pull-requests", level="read")
    number = call.number("issue_number")
    if number not in call.repository.pulls:
        raise Refused(404, "Not Found")
    return _page(call, [_comment(call, comment) for comment in call.repository.comments_of(number)])


@on("POST", REPO + "/issues/{issue_number}/comments")
def post_comment(call: Call) -> Answer:
    call.need("issues", "pull-requests", level="write")
    number = call.number("issue_number")
    if number not in call.repository.pulls:
        raise Refused(404, "Not Found")
    _check_open(call, number)
    _check_length(call.body["body"])
    return Answer(
        201, _comment(call, call.world.comment(call.repository, number, call.token.acts_as, call.body["body"]))
    )


def _check_open(call: Call, number: int) -> None:
    if call.repository.pulls[number].locked:
        raise Refused(403, "Unable to create comment because issue is locked.")


def _check_length(body: str) -> None:
    if len(body) > MAX_COMMENT:
        raise Refused(422, "Validation Failed: body is too long (maximum is 65536 characters)")


def _comment_of(call: Call) -> Comment:
    comment = call.repository.comments.get(call.number("comment_id"))
    if comment is None:
        raise Refused(404, "Not Found")
    return comment


@on("GET", REPO + "/issues/comments/{comment_id}")
def get_comment(call: Call) -> Answer:
    call.need("issues", "pull-requests", level="read")
    return Answer(200, _comment(call, _comment_of(call)))


@on("PATCH", REPO + "/issues/comments/{comment_id}")
def patch_comment(call: Call) -> Answer:
    call.need("issues", "pull-requests", level="write")
    comment = _comment_of(call)
    _check_open(call, comment.number)
    _check_length(call.body["body"])
    comment.body = call.body["body"]
    comment.edits += 1
    return Answer(200, _comment(call, comment))


@on("DELETE", REPO + "/issues/comments/{comment_id}")
def delete_comment(call: Call) -> Answer:
    call.need("issues", "pull-requests", level="write")
    del call.repository.comments[_comment_of(call).id]
    return Answer(204, None)


@on("POST", REPO + "/issues/comments/{comment_id}/reactions")
def post_reaction(call: Call) -> Answer:
    call.need("issues", "pull-requests", level="write")
    comment, user, content = _comment_of(call), call.token.acts_as, call.body["content"]
    mine = [one for one in comment.reactions if (one.user, one.content) == (user, content)]
    if not mine:
        comment.reactions.append(Reaction(next(call.world.ids), user, content))
    reaction = mine[0] if mine else comment.reactions[-1]
    body = {"id": reaction.id, "user": _user(user), "content": content, "created_at": TIME}
    return Answer(200 if mine else 201, description().make("reaction", body))


# ------------------------------------------------------------------------------------------------ checks


def _check(call: Call, check: CheckRun) -> dict[str, Any]:
    values = check.values
    output = values.get("output", {})
    body = {
        "id": check.id,
        "head_sha": check.head_sha,
        "name": values["name"],
        "external_id": values.get("external_id"),
        "url": f"{call.api}/repos/{call.repository.name}/check-runs/{check.id}",
        "html_url": f"https://example.org/{call.repository.name}/runs/{check.id}",
        "details_url": values.get("details_url"),
        "status": values["status"],
        "conclusion": values.get("conclusion"),
        "started_at": TIME,
        "completed_at": TIME if values["status"] == "completed" else None,
        "output": {
            "title": output.get("title"),
            "summary": output.get("summary"),
            "text": None,
            "annotations_count": len(values.get("annotations", [])),
            "annotations_url": "https://example.org/annotations",
        },
        "check_suite": {"id": check.suite},
        "pull_requests": [],  # as for every commit of a fork
    }
    return description().make("check-run", body)


def _set(check: CheckRun, body: Mapping[str, Any]) -> None:
    output = dict(body.get("output", {}))
    annotations = output.pop("annotations", [])
    if len(annotations) > 50:
        raise Refused(422, "No more than 50 annotations at a time")
    check.values.update({key: value for key, value in body.items() if key != "output"})
    if output:
        check.values["output"] = output
    check.values.setdefault("annotations", []).extend(annotations)
    if "conclusion" in body:
        check.values["status"] = "completed"
    elif body.get("status") in ("queued", "in_progress"):
        check.values["conclusion"] = None


@on("POST", REPO + "/check-runs")
def post_check(call: Call) -> Answer:
    call.need("checks", level="write")
    if call.repository.sha(call.body["head_sha"]) is None:
        raise Refused(422, f"No commit found for SHA: {call.body['head_sha']}")
    check = CheckRun(next(call.world.ids), call.body["head_sha"], APP, {"status": "queued"})
    _set(check, call.body)
    call.repository.checks[check.id] = check
    return Answer(201, _check(call, check))


@on("PATCH", REPO + "/check-runs/{check_run_id}")
def patch_check(call: Call) -> Answer:
    call.need("checks", level="write")
    check = call.repository.checks.get(call.number("check_run_id"))
    if check is None:
        raise Refused(404, "Not Found")
    if check.app != APP:
        raise Refused(403, "Invalid app_id - check run can only be modified by the GitHub App that created it.")
    _set(check, call.body)
    return Answer(200, _check(call, check))


@on("GET", REPO + "/commits/{ref}/check-runs")
def list_checks(call: Call) -> Answer:
    call.need("checks", level="read")
    sha = call.repository.sha(call.operation.parameters["ref"])
    if sha is None:
        raise Refused(422, "No commit found")
    named = [
        check
        for check in reversed(call.repository.checks_of(sha))
        if check.values["name"] == call.query.get("check_name", check.values["name"])
    ]
    if call.query.get("filter", "latest") == "latest":  # of each name in each suite
        newest: dict[tuple[int, str], CheckRun] = {}
        for check in named:
            newest.setdefault((check.suite, check.values["name"]), check)
        named = list(newest.values())
    page = _page(call, [_check(call, check) for check in named])
    return Answer(200, {"total_count": len(named), "check_runs": page.body}, page.headers)


# ------------------------------------------------------------------------------------------------ git, runs


@on("GET", REPO + "/commits/{ref}")
def get_commit(call: Call) -> Answer:
    call.need("contents", level="read")
    sha = call.repository.sha(call.operation.parameters["ref"])
    if sha is None:
        raise Refused(422, f"No commit found for SHA: {call.operation.parameters['ref']}")
    author = _user(User("alice", 7))
    return Answer(200, description().make("commit", {"sha": sha, "author": author, "committer": author}))


@on("GET", REPO + "/contents/{path}")
def get_contents(call: Call) -> Answer:
    call.need("contents", level="read")
    path, sha = call.operation.parameters["path"], call.repository.sha(call.query.get("ref", "heads/main"))
    data = call.repository.file(sha, path) if sha else None
    if data is None:
        raise Refused(404, "Not Found")
    body = {
        "type": "file",
        "encoding": "base64",
        "size": len(data),
        "name": path.split("/")[-1],
        "path": path,
        "content": base64.encodebytes(data).decode(),
        "sha": "0" * 40,
    }
    return Answer(200, description().make("content-file", body))


@on("GET", REPO + "/actions/runs/{run_id}")
def get_run(call: Call) -> Answer:
    if not call.token.may("actions", "read"):
        raise Refused(403, "Resource not accessible by integration")
    run = call.number("run_id")
    if run not in call.repository.runs:
        raise Refused(404, "Not Found")
    return Answer(200, description().make("workflow-run", {"id": run, "status": call.repository.runs[run]}))


# ------------------------------------------------------------------------------------------------ pages


def _page(call: Call, items: list[Any]) -> Answer:
    size, page = min(int(call.query.get("per_page", 30)), 100), int(call.query.get("page", 1))
    last = max(1, -(-len(items) // size))
    address = call.api + call.operation.path.format(**call.operation.parameters)
    kept = "".join(f"&{name}={value}" for name, value in call.query.items() if name not in ("page", "per_page"))
    links = [
        f'<{address}?page={number}&per_page={size}{kept}>; rel="{name}"'
        for name, number, there in (("next", page + 1, page < last), ("last", last, page < last))
        if there
    ]
    return Answer(200, items[(page - 1) * size : page * size], {"Link": ", ".join(links)} if links else {})
