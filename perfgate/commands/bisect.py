"""`perfgate bisect`: which commit made it slower, found by measuring."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from perfgate.blame.bisect import told
from perfgate.blame.bisect.line import positions
from perfgate.blame.bisect.loop import Bisected, Loop, begin
from perfgate.blame.bisect.page import comment, page
from perfgate.blame.bisect.search import Rules
from perfgate.blame.bisect.steps import Asked
from perfgate.cpu.profile import layers
from perfgate.errors import PerfgateError
from perfgate.records.files import write_whole
from perfgate.run.plan import GateRequest, find_box, find_configuration
from perfgate.run.progress import Progress
from perfgate.source.repository import Repository

ANSWER_FILE = "answer.json"
PAGE_FILE = "index.html"
COMMENT_FILE = "comment.md"
REPLAY_FILE = "git-bisect.log"


@dataclass(frozen=True)
class BisectRequest:
    good: str
    bad: str
    recipe: str | None = None
    metric: str = "tok_s"
    minutes: float = 240.0
    first_parent: bool = True
    alpha: float = 0.01


def bisect(question: BisectRequest, request: GateRequest, progress: Progress) -> tuple[Path, Bisected]:
    """The whole bisect, new or resumed. Its folder holds every step's run."""
    repository = Repository(request.repo)
    good, bad = repository.resolve(question.good), repository.resolve(question.bad)
    configuration = find_configuration(repository, GateRequest(**{**vars(request), "base": good.sha}), layers)
    resolved = configuration.resolved
    names = [recipe.name for recipe in resolved.recipes]
    recipe = question.recipe or next((one.name for one in resolved.recipes if one.speculative), names[0])
    if recipe not in names:
        raise PerfgateError(f"no recipe {recipe!r}", where="--recipe", remedy=f"one of {', '.join(names)}")
    asked = Asked(recipe, question.metric)
    line = positions(
        repository,
        good.sha,
        bad.sha,
        first_parent=question.first_parent,
        ignore=tuple(resolved.ignore_paths),
        cpu_serves=not resolved.profile.has_gpus,
    )
    about = {
        "good": good.sha,
        "bad": bad.sha,
        "recipe": recipe,
        "metric": question.metric,
        "first_parent": question.first_parent,
        "alpha": question.alpha,
        "config_hash": resolved.hash,
    }
    folder = request.out or _folder(request, good.sha, bad.sha, resume=request.resume)
    begin(folder, about, resume=request.resume)
    progress.say(
        f"{len(line) - 1} commits that can change how SGLang serves, between {good.sha[:12]} and {bad.sha[:12]}"
    )
    seed = request.seed if request.seed is not None else int(bad.sha[:7], 16)  # the same again when it is resumed
    loop = Loop(
        folder=folder,
        request=GateRequest(**{**vars(request), "base_branch": good.sha, "resume": False, "out": None, "seed": seed}),
        line=line,
        asked=asked,
        rules=Rules(alpha=question.alpha),
        minutes=question.minutes,
        progress=progress,
    )
    found = loop.go()
    write_whole(folder / ANSWER_FILE, json.dumps(told.as_data(found), indent=1) + "\n")
    write_whole(folder / PAGE_FILE, page(found))
    write_whole(folder / COMMENT_FILE, comment(found))
    write_whole(folder / REPLAY_FILE, told.git_bisect_log(found))
    return folder, found


def _folder(request: GateRequest, good: str, bad: str, *, resume: bool) -> Path:
    """In the state directory; one that is resumed is the newest of these ends."""
    root = Path(find_box(request).state_dir).absolute() / "bisects"
    mark = f"{good[:12]}-{bad[:12]}"
    known = sorted(root.glob(f"*-{mark}")) if root.is_dir() else []
    if resume and known:
        return known[-1]
    return root / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{mark}"


def show(found: Bisected, say: Callable[[str], None]) -> None:
    for line in told.sentences(found):
        say(line)
