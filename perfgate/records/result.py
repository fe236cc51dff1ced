"""The result of a run (result.json): one object, schema "perfgate.result/1". Other tools read it, so names stay.

`judge` makes it of facts, `report` and `publish` read it. Absent numbers are None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from perfgate.records.facts import Better, Effect, MetricVerdict, PullRequest, RunLimits, Side, Verdict

RESULT_SCHEMA: Literal["perfgate.result/1"] = "perfgate.result/1"


@dataclass(frozen=True)
class Notice:
    """A warning as data: `code` for machines, `text` for people, `data` for both."""

    code: str
    text: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SideResult:
    sha: str
    tree: str
    build: str | None
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Cost:
    launches: int
    gpu_minutes: float | None  # None where there is no GPU
    wall_s: float


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One line of the comparison. `slowdown` … `budget` are log differences, + = head is slower."""

    recipe: str
    metric: str
    concurrency: int
    unit: str
    better: Better
    base: float | None  # geometric mean of base's launch values
    head: float | None  # base·exp(∓slowdown)
    change: float | None  # head/base − 1
    slowdown: float | None
    low: float | None
    high: float | None
    interval_level: float
    detectable: float | None
    budget: float
    alpha: float
    gated: bool
    verdict: MetricVerdict
    effect: Effect
    pairs: int


@dataclass(frozen=True, kw_only=True)
class LaunchResult:
    id: str
    position: int
    valid: bool
    values: Mapping[str, float | None]  # "tok_s@1" → median of the launch's samples
    paired: bool = True


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that the two sides ran with: equal, or not. `sentence` is what a person reads."""

    what: str
    sentence: str
    base: str | None = None
    head: str | None = None


@dataclass(frozen=True, kw_only=True)
class Environment:
    same: tuple[Difference, ...] = ()
    explained: tuple[Difference, ...] = ()
    unexplained: tuple[Difference, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CanaryResult:
    name: str
    unit: str
    before: float | None
    after: float | None
    shift: float | None  # log difference
    steady: bool | None
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Part:
    """One additive part of a log ratio, + = makes head slower."""

    phase: str
    slowdown: float
    low: float | None
    high: float | None
    base_ms: float | None = None
    head_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    recipe: str
    concurrency: int
    total: float  # slowdown of tok_s
    parts: tuple[Part, ...]
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Suspect:
    sha: str
    title: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """The whole result of a run. The comment is rendered from this alone."""

    run_id: str
    box: str
    started: str
    finished: str
    verdict: Verdict
    reason: str  # one sentence
    exit_code: int
    base: SideResult
    head: SideResult
    limits: RunLimits
    cost: Cost
    metrics: tuple[Metric, ...] = ()
    launches: tuple[LaunchResult, ...] = ()
    environment: Environment = field(default_factory=Environment)
    canary: tuple[CanaryResult, ...] = ()
    decomposition: tuple[Decomposition, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    warnings: tuple[Notice, ...] = ()
    outputs_differ: bool | None = None  # None: not comparable
    failed_side: Side | None = None
    pr: PullRequest | None = None
    continues: tuple[str, ...] = ()
    calibration: bool = False  # one commit against itself: no verdict on any change
    profile: str = "gpu"
    perfgate: str = ""
    schema: Literal["perfgate.result/1"] = RESULT_SCHEMA
