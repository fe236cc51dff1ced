"""Makes real git repositories, laid out like SGLang's, whose commits differ in scripted behaviour."""

from __future__ import annotations

import hashlib
import json
import os
import pprint
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

TEMPLATE = Path(__file__).parent / "template"
BEHAVIOUR_FILE = Path("python/sglang/srt/behaviour.py")
PATH = os.environ["PATH"]
GIT_ENVIRONMENT = {
    "GIT_AUTHOR_NAME": "A Contributor",
    "GIT_AUTHOR_EMAIL": "contributor@example.org",
    "GIT_COMMITTER_NAME": "A Contributor",
    "GIT_COMMITTER_EMAIL": "contributor@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
}
FIRST_COMMIT_AT = 1_790_000_000


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """What a commit does. Times are milliseconds of simulated work; the defaults are an honest, quick server."""

    # speed
    token_ms: float = 1.5  # one step of plain decoding
    draft_ms: float = 0.3
    verify_ms: float = 2.0
    extend_ms: float = 0.2
    prefill_ms: float = 2.0
    batch_cost: float = 0.05  # a further request in the batch makes a step so much dearer
    accept_length: float = 2.0  # mean over cycles; from 1 to steps + 1
    kind_factor: Mapping[str, float] = field(
        default_factory=dict
    )  # {"code": 1 / 0.6}: code prompts at 60 % of the speed
    noise_sd: float = 0.0  # SD of the log of a launch's speed; repeats for the same seed, HOME and launch number
    seed: int = 0
    slow_without: Mapping[str, float] = field(default_factory=dict)  # {"NCCL_PROTO": 1.4}: slower where it is not set
    start_s: float = 0.05  # to "load" one model
    # what it says
    answers: int = 0  # another number: other output tokens
    generation: str = "new"  # "old": names in meta_info and endpoints as before 0.5.15
    max_total_num_tokens: int | None = None
    # processes and environment
    ranks: int = 1  # scheduler processes, at most; as many as --tp asks for
    setsid: bool = True  # children leave the server's session
    sets_env: Mapping[str, str] = field(default_factory=dict)  # the code sets these for its schedulers
    drops_env: Sequence[str] = ()
    on_start: str = ""  # Python run by the server before it loads anything: for hostile commits
    # faults
    refused_flags: Sequence[str] = ()  # "unrecognized arguments"
    crash: str = ""  # "import" | "load" | "ready": ends there
    hang: str = ""  # "load" | "ready": says nothing more there
    fail_after_requests: int | None = None  # in the middle of the request after so many
    fail: str = "die"  # what it does then: "die" | "hang" | "killed" | "out_of_memory"
    garbage: str = ""  # "not_json" | "truncated" | "unfinished" | "endless" | "short" | "absurd_meta" | "meta_types"
    #                    | "no_ids" | "error" | "http500" | "in_one_piece"
    flush_refusals: int = 0  # /flush_cache answers 400 so many times first
    ignore_sigterm: bool = False
    orphan: bool = False  # leaves a process outside tree, session and environment that holds the port
    leaves_memory: bool = False  # leaves a file in /dev/shm


@dataclass(frozen=True, kw_only=True)
class StandinRepository:
    path: Path
    base: str  # full SHA of the merge base; `main` is there or further
    head: str  # full SHA; branch `change`
    commits: tuple[str, ...]  # base … head


def make_repository(
    where: Path, *, base: Behaviour | None = None, head: Behaviour | None = None, main_moves: bool = False
) -> StandinRepository:
    """A repository whose branch `change` is one commit ahead of `main`. `main_moves`: main has gone on meanwhile."""
    base = base or Behaviour()
    repository = make_history(where, [base, head or base])
    if main_moves:
        git(where, "checkout", "-q", "main")
        (where / "docs" / "news.md").write_text("Main has moved on.\n")
        commit_all(where, "Tell the news", number=99)
        git(where, "checkout", "-q", "change")
    return repository


def make_history(where: Path, behaviours: Sequence[Behaviour]) -> StandinRepository:
    """One commit per behaviour; the first on `main`, the others on `change`. Equal ones differ in a comment."""
    where.mkdir(parents=True)
    shutil.copytree(TEMPLATE, where, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    git(where, "init", "-q", "-b", "main")
    commits = []
    for number, behaviour in enumerate(behaviours):
        if number == 1:
            git(where, "checkout", "-q", "-b", "change")
        write_behaviour(where, behaviour, number)
        commits.append(commit_all(where, f"Change number {number} of the stand-in" if number else "Base", number))
    if len(behaviours) == 1:
        git(where, "checkout", "-q", "-b", "change")
    return StandinRepository(path=where, base=commits[0], head=commits[-1], commits=tuple(commits))


def commit_change(where: Path, changes: Mapping[str, str | None], title: str = "A change") -> str:
    """Commits files (path → text, None removes) on the branch checked out; the new full SHA."""
    for name, text in changes.items():
        path = where / name
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return commit_all(where, title, number=100)


def write_behaviour(where: Path, behaviour: Behaviour, number: int = 0) -> None:
    values = {name: value for name, value in asdict(behaviour).items() if value is not None}
    text = (
        f'"""How this commit of the stand-in behaves: number {number}."""\n\n'
        f"BEHAVIOUR = {pprint.pformat(values, width=110, sort_dicts=False)}\n"
        f"PROMPT_KINDS = {pprint.pformat(prompt_kinds(), width=110, sort_dicts=False)}\n"
    )
    (where / BEHAVIOUR_FILE).write_text(text)


def prompt_kinds() -> dict[str, str]:
    """Hash of a built-in prompt's text → its kind, so that the stand-in can tell prompts apart as a model would."""
    kinds = {}
    for prompt in builtin_prompts():
        kinds[hashlib.sha256(prompt["text"].encode()).hexdigest()[:16]] = prompt["kind"]
    return kinds


def builtin_prompts() -> list[dict[str, Any]]:
    folder = resources.files("perfgate.engine") / "prompts"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".jsonl")), key=lambda file: file.name)
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]


def commit_all(where: Path, title: str, number: int) -> str:
    git(where, "add", "-A")
    date = f"{FIRST_COMMIT_AT + 3600 * number} +0000"
    git(where, "commit", "-q", "-m", title, GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date)
    return git(where, "rev-parse", "HEAD").strip()


def git(where: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(where), *arguments],
        env={"PATH": PATH, **GIT_ENVIRONMENT, **environment},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout
