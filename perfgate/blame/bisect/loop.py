"""The loop of a bisect: ask the search for a step, measure it, ask again. Everything it knows is in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfgate import records as r
from perfgate.blame.bisect.evidence import Seen
from perfgate.blame.bisect.line import Position
from perfgate.blame.bisect.search import Line, Rules, SearchFinding, Step, Why, next_step
from perfgate.blame.bisect.steps import Asked, Run, Told, measure
from perfgate.errors import PerfgateError
from perfgate.judge.suspects import OF_METRIC, Loss, rank, setting_of
from perfgate.records.files import write_whole
from perfgate.run.gate import run_gate
from perfgate.run.plan import GateRequest
from perfgate.run.progress import Progress

BISECT_FILE = "bisect.json"
STEPS_FOLDER = "steps"
UNBUILT = 1.3
"""A launch at a position that was never served here, against one that is built and warm."""
MOVED = 0.5
"""Of the asked metric's loss: a phase that lost so much of it moved."""


@dataclass(frozen=True)
class MeasuredStep:
    """One step as it came out, for the report."""

    step: Step
    slowdown: float | None
    broken: int | None


@dataclass(frozen=True)
class Bisected:
    """The whole of a bisect. `stopped`: by what, where it had no answer yet."""

    line: tuple[Position, ...]
    asked: Asked
    measured: tuple[MeasuredStep, ...]
    findings: tuple[SearchFinding, ...]
    broken: frozenset[int]
    minutes: float
    launches: int
    rules: Rules
    weight: Mapping[int, float] = field(default_factory=dict)
    stopped: str = ""


@dataclass
class Loop:
    """What was seen so far. Replayed from the folder's steps, it makes the same steps again."""

    folder: Path
    request: GateRequest
    line: tuple[Position, ...]
    asked: Asked
    rules: Rules
    minutes: float
    progress: Progress
    run: Run = run_gate

    def __post_init__(self) -> None:
        self._seen: list[Seen] = []
        self._measured: list[MeasuredStep] = []
        self._broken: set[int] = set()
        self._served: set[int] = set()
        self._spent = 0.0
        self._launches = 0
        self._ends: list[Told] = []

    def go(self) -> Bisected:
        number = 0
        while isinstance(step := self._next(self.rules), Step):
            number += 1
            folder = self.folder / STEPS_FOLDER / f"{number:03}"
            if self._would_exceed(step) and not folder.exists():
                findings = self._next(replace(self.rules, most_pairs=len(self._seen)))
                assert not isinstance(findings, Step)
                return self._result(findings, f"the limit of {self.minutes:g} minutes")
            self._say(number, step)
            self._take(step, self._measure(folder, step))
        return self._result(step)

    def _next(self, rules: Rules) -> Step | tuple[SearchFinding, ...]:
        cost = {at: 1.0 if at in self._served else UNBUILT for at in range(len(self.line))}
        line = Line(len(self.line) - 1, frozenset(self._broken), self._weight(), cost)
        return next_step(line, self._seen, rules)

    def _measure(self, folder: Path, step: Step) -> Told:
        shas = self.line[step.older].commit.sha, self.line[step.newer].commit.sha
        return measure(folder, self.request, step, shas, self.asked, self.progress, self.run)

    def _take(self, step: Step, told: Told) -> None:
        self._spent += told.minutes
        self._launches += told.launches
        if told.noise is not None:
            self.rules = replace(self.rules, noise=told.noise)
        if told.budget is not None:
            self.rules = replace(self.rules, budget=told.budget)
        broken = None
        if told.broken is not None:
            broken = step.older if told.broken is r.Side.BASE else step.newer
            if broken in (0, len(self.line) - 1):
                end = "good" if broken == 0 else "bad"
                raise PerfgateError(
                    f"the {end} commit cannot be measured: {told.result.reason if told.result else ''}",
                    where=self.line[broken].commit.sha[:12],
                    remedy="choose another end",
                )
            self._broken.add(broken)
        else:
            assert told.slowdown is not None
            self._served |= {step.older, step.newer}
            self._seen.append(Seen(step.older, step.newer, told.slowdown, step.within))
            if step.why is Why.ENDS and step.within == (0, len(self.line) - 1):
                self._ends.append(told)
        self._measured.append(MeasuredStep(step, told.slowdown, broken))

    def _weight(self) -> dict[int, float]:
        """Suspicion of each position, by what it touches against what moved between the ends."""
        loss = loss_between(self._ends, self.asked)
        if loss is None:
            return {}
        result = self._ends[0].result
        assert result is not None
        touched = [r.Touched(sha=one.commit.sha, title=one.commit.title, paths=one.paths) for one in self.line[1:]]
        plans = self._ends[0].recipes
        place = {one.commit.sha: at for at, one in enumerate(self.line)}
        return {place[one.touched.sha]: one.score for one in rank(touched, loss, setting_of(plans, result.profile))}

    def _would_exceed(self, step: Step) -> bool:
        each = self._spent / len(self._measured) if self._measured else 0.0
        return self._spent + each > self.minutes

    def _say(self, number: int, step: Step) -> None:
        older, newer = (self.line[at].commit for at in (step.older, step.newer))
        self.progress.say(
            f"step {number}, {step.why.value}: {older.sha[:12]} against {newer.sha[:12]} {newer.title[:60]}"
        )

    def _result(self, findings: tuple[SearchFinding, ...], stopped: str = "") -> Bisected:
        return Bisected(
            line=self.line,
            asked=self.asked,
            measured=tuple(self._measured),
            findings=findings,
            broken=frozenset(self._broken),
            minutes=self._spent,
            launches=self._launches,
            rules=self.rules,
            weight=self._weight(),
            stopped=stopped,
        )


def loss_between(ends: list[Told], asked: Asked) -> Loss | None:
    """What moved between good and bad, by the phases that their runs have timed."""
    if not ends:
        return None
    mean = {
        name: sum((told.slowdowns or {}).get(name, 0.0) for told in ends) / len(ends)
        for name in {name for told in ends for name in told.slowdowns or {}}
    }
    whole = mean.get(asked.metric, 0.0)
    if whole <= 0:
        return None
    moved = {OF_METRIC[name]: value for name, value in mean.items() if name in OF_METRIC and value >= MOVED * whole}
    still = {OF_METRIC[name] for name, value in mean.items() if name in OF_METRIC and abs(value) < MOVED * whole / 4}
    if not moved:
        moved = {"rest": 1.0} if still else {"decode": 1.0, "verify": 1.0, "rest": 1.0}
    total = sum(moved.values())
    return Loss({phase: value / total for phase, value in moved.items()}, frozenset(still))


def begin(folder: Path, about: Mapping[str, Any], *, resume: bool) -> None:
    """A new folder for a new bisect; the same question where one is resumed."""
    file = folder / BISECT_FILE
    if file.exists():
        if not resume:
            raise PerfgateError("holds a bisect already", where=str(folder), remedy="--resume goes on with it")
        if json.loads(file.read_text()) != dict(about):
            raise PerfgateError("holds a bisect of something else", where=str(folder), remedy="give another --out")
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(dict(about), indent=1) + "\n")
