"""A repository on the stand-in with its people and pull requests, and perfgate's two hosted jobs run on its events."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfgate.github.artifact import read_artifact
from perfgate.github.client import Patience
from perfgate.github.publish import publish_step
from perfgate.github.request import Authorised
from perfgate.github.respond import respond_step
from perfgate.records import PullRequest as PullRecord
from perfgate.records import Result
from perfgate.records.files import read_result
from tests.e2e.hub import payloads
from tests.e2e.hub.repositories import MODELS, Upstream
from tests.e2e.hub.server import Hub
from tests.e2e.hub.world import CheckRun, Comment, PullRequest, Repository, User, World

NAME = "sgl-project/sglang"
FORK = "stranger/sglang"
STORY = Path(__file__).parents[2] / "fixtures" / "run-story"
IMPATIENT = Patience(
    tries=3, first_wait_s=0.0, longest_wait_s=0.0, timeout_s=20, between_requests_s=0.0, between_writes_s=0.0
)
CHANGE = {"python/sglang/srt/speculative/eagle_worker.py": "steps = 2\n"}


@dataclass
class Done:
    """What a job left behind."""

    outputs: dict[str, str]
    summary: str
    exit: int = 0

    @property
    def request(self) -> Authorised:
        return Authorised.model_validate_json(self.outputs["request"])


@dataclass
class Stage:
    hub: Hub
    repository: Repository
    upstream: Upstream
    folder: Path
    runs: Iterator[int] = field(default_factory=lambda: itertools.count(5001))
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(7))

    # ---- people and pull requests

    def person(self, login: str, role: str | None = None) -> User:
        if role:
            self.repository.levels[login] = role
        return self.hub.world.user(login)

    def pull(
        self,
        files: dict[str, str | None] | None = None,
        *,
        author: str = "alice",
        fork: bool = False,
        title: str = "A change",
    ) -> PullRequest:
        number = next(self.numbers)
        sha = self.upstream.branch(f"change-{number}", files or {**CHANGE, "number.txt": str(number)}, title)
        pull = PullRequest(
            number=number,
            user=self.person(author, None if fork else "write"),
            head=sha,
            head_ref=f"change-{number}",
            head_repository=FORK if fork else NAME,
            base_ref="main",
            title=title,
        )
        self.repository.pulls[number] = pull
        self.upstream.push_pull(number, sha)
        return pull

    def push(self, pull: PullRequest, files: dict[str, str | None]) -> str:
        """A new push to a pull request."""
        pull.head = self.upstream.branch(pull.head_ref, files, "Another change", start=pull.head)
        self.upstream.push_pull(pull.number, pull.head)
        return pull.head

    def configure(self, text: str) -> None:
        """perfgate.yml of the base branch."""
        self.upstream.commit({".github/perfgate.yml": MODELS + text}, "Config")
        self.upstream.push("main")

    # ---- events

    def comment(self, pull: PullRequest, login: str, body: str) -> Comment:
        return self.hub.world.comment(self.repository, pull.number, self.person(login), body)

    def say(self, pull: PullRequest, login: str, body: str, **how: Any) -> Done:
        """Somebody comments, and the workflow's first job runs."""
        return self.deliver_comment(pull, self.comment(pull, login, body), **how)

    def deliver_comment(self, pull: PullRequest, comment: Comment, action: str = "created", **how: Any) -> Done:
        payload = payloads.issue_comment(self.repository, pull, comment, action)
        return self.respond("issue_comment", payload, **how)

    def event(self, pull: PullRequest, action: str = "opened", sender: User | None = None, **how: Any) -> Done:
        label = how.pop("label", None)
        payload = payloads.pull_request(self.repository, pull, action, sender, label)
        return self.respond("pull_request", payload, **how)

    # ---- jobs

    def environment(self, event: str, payload: object, run: int, attempt: int, token: str) -> dict[str, str]:
        folder = self.folder / f"job-{run}-{attempt}-{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        (folder / "event.json").write_text(json.dumps(payload))
        self.repository.runs.setdefault(run, "in_progress")
        return {
            "GITHUB_EVENT_NAME": event,
            "GITHUB_EVENT_PATH": str(folder / "event.json"),
            "GITHUB_REPOSITORY": NAME,
            "GITHUB_API_URL": self.hub.api,
            "GITHUB_SERVER_URL": self.hub.url,
            "GITHUB_RUN_ID": str(run),
            "GITHUB_RUN_ATTEMPT": str(attempt),
            "GITHUB_SHA": self.repository.sha("heads/main") or "",
            "GITHUB_TOKEN": token,
            "GITHUB_OUTPUT": str(folder / "output"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
        }

    def respond(
        self, event: str, payload: object, run: int | None = None, attempt: int = 1, token: str = "full", **more: str
    ) -> Done:
        environment = {**self.environment(event, payload, run or next(self.runs), attempt, token), **more}
        respond_step(environment, IMPATIENT)
        return _done(environment)

    def publish(
        self,
        request: Authorised,
        result: Result | None,
        measured: str = "success",
        artifact: Path | None = None,
        **more: str,
    ) -> Done:
        """The last job. Where a result is given it is what the artifact's facts are judged to."""
        environment = self.environment("pull_request", {}, request.run, request.attempt, "full")
        environment |= {"PERFGATE_REQUEST": request.to_line(), "PERFGATE_MEASURED": measured, **more}
        place = artifact or self.folder / "nothing-came"
        read = read_artifact if result is None else lambda *_: result
        code = publish_step(environment, place, IMPATIENT, read)
        self.repository.runs[request.run] = "completed"
        return dataclasses.replace(_done(environment), exit=int(code))

    def result(self, request: Authorised, like: Path = STORY, **changes: Any) -> Result:
        """A recorded result, made to speak of this request: what its facts would be judged to."""
        recorded = read_result(like)
        pr = PullRecord(repository=NAME, number=request.pr) if request.pr else None
        return dataclasses.replace(
            recorded,
            base=dataclasses.replace(recorded.base, sha=request.base, tree=request.base_tree),
            head=dataclasses.replace(recorded.head, sha=request.head, tree=request.head_tree),
            pr=pr,
            **{"run_id": f"run-{request.run}", **changes},
        )

    def facts(self, request: Authorised, folder: Path, run: int | None = None) -> Path:
        """A recorded run's facts, made to speak of this request, as the box would send them."""
        folder.mkdir()
        (folder / "facts.jsonl").write_text(story_facts(request, run))
        return folder

    # ---- what people see

    def said(self, pull: PullRequest) -> list[Comment]:
        """perfgate's comments."""
        return [comment for comment in self.repository.comments_of(pull.number) if comment.user.type == "Bot"]

    def sticky(self, pull: PullRequest) -> Comment:
        (found,) = [one for one in self.said(pull) if one.body.startswith("<!-- perfgate -->")]
        return found

    def replies(self, pull: PullRequest) -> list[str]:
        return [one.body for one in self.said(pull) if one.body.startswith("<!-- perfgate:reply")]

    def checks(self, sha: str) -> list[CheckRun]:
        return self.repository.checks_of(sha)

    def check(self, sha: str) -> dict[str, Any]:
        """The newest check on a commit, as a required check sees it."""
        return self.checks(sha)[-1].values


def _done(environment: dict[str, str]) -> Done:
    output, summary = Path(environment["GITHUB_OUTPUT"]), Path(environment["GITHUB_STEP_SUMMARY"])
    return Done(
        outputs=read_outputs(output.read_text() if output.exists() else ""),
        summary=summary.read_text() if summary.exists() else "",
    )


def story_facts(request: Authorised, run: int | None = None) -> str:
    """The recorded regression, as if it had been measured for this request."""
    lines = (STORY / "facts.jsonl").read_text().splitlines(keepends=True)
    plan = json.loads(lines[0])
    plan |= {"config": request.config, "run_id": f"story-w{run or request.run}"}
    plan["pr"] = {"repository": request.repository, "number": request.pr} if request.pr else None
    plan["base"] |= {"sha": request.base, "tree": request.base_tree}
    plan["head"] |= {"sha": request.head, "tree": request.head_tree}
    return "".join([json.dumps(plan) + "\n", *lines[1:]])


def read_outputs(text: str) -> dict[str, str]:
    """The heredoc form of GITHUB_OUTPUT, as the runner reads it."""
    outputs: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        name, delimiter = line.split("<<", 1)
        outputs[name] = "\n".join(itertools.takewhile(lambda one: one != delimiter, lines))  # noqa: B023
    return outputs


@contextmanager
def raised(folder: Path, upstream: Upstream) -> Iterator[Stage]:
    """A stage whose calls and answers are held to GitHub's description to the end."""
    world = World()
    world.token("full", contents="read", checks="write", pull_requests="write", actions="read")
    world.token("fork", contents="read", checks="read", pull_requests="read", actions="read")
    repository = world.repository(NAME, upstream.bare)
    with Hub(world) as hub:
        yield Stage(hub, repository, upstream, folder)
    assert not hub.violations, "\n".join(hub.violations)
