"""What the stand-in for GitHub knows: people, tokens, repositories, pull requests, comments, reactions, checks, runs.

Commits, branches and files are not made up: they come from a real bare git repository.
"""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

APP = "github-actions"


@dataclass(frozen=True)
class User:
    login: str
    id: int
    type: str = "User"


BOT = User(f"{APP}[bot]", 41898282, "Bot")


@dataclass(frozen=True)
class Token:
    """A workflow's token. `scopes`: permission → "read" or "write"; what is not named is none."""

    text: str
    scopes: Mapping[str, str]
    acts_as: User = BOT

    def may(self, scope: str, level: str) -> bool:
        have = self.scopes.get(scope, "none")
        return have == "write" or have == level


@dataclass
class Reaction:
    id: int
    user: User
    content: str


@dataclass
class Comment:
    id: int
    number: int
    user: User
    body: str
    edits: int = 0
    reactions: list[Reaction] = field(default_factory=list)


@dataclass
class CheckRun:
    id: int
    head_sha: str
    app: str
    values: dict[str, Any]
    suite: int = 1


@dataclass
class PullRequest:
    number: int
    user: User
    head: str
    head_ref: str
    head_repository: str | None
    base_ref: str
    title: str = "A change"
    state: str = "open"
    labels: list[str] = field(default_factory=list)
    draft: bool = False
    locked: bool = False  # nobody may comment, a workflow's token neither


@dataclass
class Repository:
    """`git`: the bare repository with its branches and refs/pull/N/head. `levels`: login → role."""

    name: str
    git: Path
    private: bool = False
    levels: dict[str, str] = field(default_factory=dict)
    pulls: dict[int, PullRequest] = field(default_factory=dict)
    comments: dict[int, Comment] = field(default_factory=dict)
    checks: dict[int, CheckRun] = field(default_factory=dict)
    runs: dict[int, str] = field(default_factory=dict)  # id → status

    def sha(self, ref: str) -> str | None:
        """The commit that a ref of GitHub's names: a SHA, a branch, heads/…, tags/…"""
        for name in (f"refs/{ref}", f"refs/heads/{ref}", f"refs/tags/{ref}", ref):
            done = self._git("rev-parse", "--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}")
            if done.returncode == 0:
                return done.stdout.decode().strip()
        return None

    def file(self, sha: str, path: str) -> bytes | None:
        done = self._git("cat-file", "blob", f"{sha}:{path}")
        return done.stdout if done.returncode == 0 else None

    def _git(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["git", "--git-dir", str(self.git), *arguments], capture_output=True, check=False)

    def comments_of(self, number: int) -> list[Comment]:
        return [comment for comment in self.comments.values() if comment.number == number]

    def checks_of(self, sha: str) -> list[CheckRun]:
        return [check for check in self.checks.values() if check.head_sha == sha]


@dataclass
class World:
    users: dict[str, User] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    repositories: dict[str, Repository] = field(default_factory=dict)
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1001))

    def __post_init__(self) -> None:
        self.users[BOT.login] = BOT

    def user(self, login: str) -> User:
        if login not in self.users:
            self.users[login] = User(login, next(self.ids))
        return self.users[login]

    def token(self, text: str, **scopes: str) -> Token:
        """A token; scope names with underscores for dashes."""
        token = Token(text, {name.replace("_", "-"): level for name, level in scopes.items()})
        self.tokens[text] = token
        return token

    def repository(self, name: str, git: Path, **levels: str) -> Repository:
        self.repositories[name.lower()] = Repository(name, git, levels=dict(levels))
        return self.repositories[name.lower()]

    def comment(self, repository: Repository, number: int, user: User, body: str) -> Comment:
        comment = Comment(next(self.ids), number, user, body)
        repository.comments[comment.id] = comment
        return comment
