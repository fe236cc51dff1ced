"""The facts of a run (facts.jsonl): one JSON object a line, append-only.

Every record is a frozen dataclass; absent numbers are None, never 0. Readers ignore unknown kinds and fields; a line
with a newer major version `v` is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, Literal

FACTS_VERSION = 1


class Side(StrEnum):
    BASE = "base"
    HEAD = "head"

    @property
    def other(self) -> Side:
        return Side.HEAD if self is Side.BASE else Side.BASE


class Verdict(StrEnum):
    """Of the gate, in the order in which the first that applies wins, `pass` last."""

    SKIPPED = "skipped"
    BUILD_FAILED = "build_failed"
    ENVIRONMENT = "environment"
    REGRESSION = "regression"
    BENCH_FAILED = "bench_failed"
    INCONCLUSIVE = "inconclusive"
    PASS = "pass"


class MetricVerdict(StrEnum):
    """Of one metric. ABSENT: not measured on either side or not on both; never counted as a pass of a gated metric."""

    PASS = "pass"
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"
    CONTINUE = "continue"  # the run ended before the judge had decided
    ABSENT = "absent"


class Effect(StrEnum):
    FASTER = "faster"
    SAME = "same"
    SLOWER_WITHIN_BUDGET = "slower_within_budget"
    SLOWER = "slower"
    UNKNOWN = "unknown"


class Better(StrEnum):
    HIGHER = "higher"
    LOWER = "lower"


class Blame(StrEnum):
    """Whom a fault belongs to. Only SIDE can ever count against a commit."""

    SIDE = "side"  # the code under test
    BOX = "box"  # the machine
    PERFGATE = "perfgate"
    USER = "user"  # cancelled


@dataclass(frozen=True, kw_only=True)
class MetricKind:
    """What a metric's number means, whatever the run."""

    name: str
    label: str  # as people read it
    unit: str
    better: Better
    about: str


METRICS: Mapping[str, MetricKind] = {
    kind.name: kind
    for kind in (
        MetricKind(
            name="tok_s",
            label="tok/s",
            unit="tok/s",
            better=Better.HIGHER,
            about="decode tokens per second of decode time, by the client's clock; first-token wait excluded",
        ),
        MetricKind(
            name="ttft_ms",
            label="first token ms",
            unit="ms",
            better=Better.LOWER,
            about="wait for the first token, by the client's clock",
        ),
        MetricKind(
            name="cycle_ms",
            label="cycle ms",
            unit="ms",
            better=Better.LOWER,
            about="one decode step, by the client's clock: decode time per speculative cycle, else per token",
        ),
        MetricKind(
            name="decode_ms",
            label="decode ms",
            unit="ms",
            better=Better.LOWER,
            about="target forward of one plain decode step, by the probe",
        ),
        MetricKind(
            name="verify_ms",
            label="verify ms",
            unit="ms",
            better=Better.LOWER,
            about="verification of one speculative cycle, by the probe",
        ),
        MetricKind(
            name="draft_ms",
            label="draft ms",
            unit="ms",
            better=Better.LOWER,
            about="drafting of one speculative cycle, by the probe",
        ),
        MetricKind(
            name="draft_extend_ms",
            label="draft-extend ms",
            unit="ms",
            better=Better.LOWER,
            about="draft model's catch-up on accepted tokens in one cycle, by the probe",
        ),
        MetricKind(
            name="accept_length",
            label="accept length",
            unit="tokens",
            better=Better.HIGHER,
            about="tokens a speculative cycle yields, accepted drafts plus one",
        ),
    )
}


def metric_label(metric: str) -> str:
    return METRICS[metric].label if metric in METRICS else metric


# ------------------------------------------------------------------------------------------------ facts


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One line of facts.jsonl. `t`, `mono`, `boot` are stamped when it is appended."""

    kind: ClassVar[str]

    id: str
    t: str = ""  # UTC, RFC 3339 with microseconds
    mono: float = 0.0  # time.monotonic(), seconds; comparable within one boot only
    boot: str = ""  # short hash of the kernel's boot id


@dataclass(frozen=True)
class LaunchId:
    """Which launch of a run. Whatever is said of a launch is said under this."""

    recipe: str
    pair: int  # from 1; 0 is thrown away: it only warms caches
    side: Side
    position: int  # 1 or 2: first or second within the pair
    attempt: int  # from 1

    @property
    def launch_id(self) -> str:
        """In one word: "eagle3/p03/head/a1"."""
        return f"{self.recipe}/p{self.pair:02d}/{self.side.value}/a{self.attempt}"

    @property
    def identity(self) -> dict[str, Any]:
        """For the facts of this launch: `LaunchBegin(id=…, **launch.identity, …)`."""
        return {one.name: getattr(self, one.name) for one in fields(LaunchId)}


@dataclass(frozen=True, kw_only=True)
class LaunchFact(LaunchId, Fact):
    """A launch or a part of it. `id` is the launch's, e.g. "eagle3/p03/head/a1", or begins with it."""


@dataclass(frozen=True, kw_only=True)
class Commit:
    sha: str  # full
    tree: str  # full hash of the whole tree
    title: str = ""  # a stranger's text: escape before showing
    date: str = ""


@dataclass(frozen=True, kw_only=True)
class Touched:
    """A commit between base and head, and what it changed. Both texts are a stranger's."""

    sha: str  # full
    title: str = ""
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PullRequest:
    repository: str  # owner/name
    number: int


@dataclass(frozen=True, kw_only=True)
class MetricPlan:
    """How one metric of one recipe will be judged. The judge reads nothing else about configuration."""

    recipe: str
    metric: str
    concurrency: int
    gated: bool
    budget: float  # log difference, e.g. 0.03
    alpha: float  # this metric's share of the gate's error of a false regression
    prior_sd: float | None = (
        None  # SD of a pair's log difference, from the ledger or the configuration; None: nothing known
    )
    prior_df: float | None = None
    prior_bad: float = 0.0  # share of pairs with a launch far off
    prior_far: float | None = None  # how far off those were
    prior_order: float = 0.0  # what being the second launch of a pair costs, + = slower
    prior_order_variance: float = 0.0  # of that, in units of prior_sd²
    prior_from: str = ""  # in words: "ledger, 24 pairs", "configuration"
    fallback: str | None = None  # metric gated in its place where it is absent on both sides


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    max_pairs: int
    min_pairs_to_fail: int
    minutes: float
    alpha: float  # of the whole gate
    beta: float


@dataclass(frozen=True, kw_only=True)
class RecipePlan:
    name: str
    flags: Mapping[str, Any]  # of sglang.launch_server
    environment: Mapping[str, str]
    workload: str  # hash of prompts, order and client settings: evidence is only joined where it is equal
    concurrencies: tuple[int, ...]
    samples: int
    speculative: bool
    first_orders: tuple[Side, ...]  # which side goes first in pair 1, 2, …
    expected_launch_s: float | None = None
    model: str = ""  # its name, as configured


@dataclass(frozen=True, kw_only=True)
class Plan(Fact):
    kind: ClassVar[str] = "plan"
    run_id: str
    perfgate: str  # version
    box: str  # the box's public name
    profile: str  # "gpu" | "cpu"
    base: Commit
    head: Commit
    diff_class: str  # see source.diff
    seed: int
    recipes: tuple[RecipePlan, ...]
    metrics: tuple[MetricPlan, ...]
    limits: RunLimits
    config: str  # where the configuration came from: a full SHA of the base branch, or a file
    config_hash: str
    pr: PullRequest | None = None
    continues: tuple[str, ...] = ()  # run ids whose evidence this run adds to
    autotune: str = ""  # "fresh" | "seed" | "off"; which seed a launch started from stands in its launch_begin
    isolation: str = ""  # how PR code is confined
    environment: Mapping[str, Any] = field(default_factory=dict)  # rules for what is the box's doing; empty: defaults
    notes: tuple[
        str, ...
    ] = ()  # what the result has to say about the conditions, e.g. the cpu profile's fixed environment
    calibration: bool = False  # one commit against itself, every pair measured: to learn the box's noise
    touched: tuple[Touched, ...] = ()  # the commits between base and head, newest first, as far as they are few
    diff_reason: str = ""  # one sentence with paths in it, which strangers choose
    exact: bool = False  # a step of a search: all its pairs are measured, and they stand alone
    measured: tuple[str, ...] = ()  # recipes that get pairs, where not all do; the others stand on earlier runs' pairs

    @property
    def to_measure(self) -> tuple[RecipePlan, ...]:
        return tuple(one for one in self.recipes if not self.measured or one.name in self.measured)


@dataclass(frozen=True, kw_only=True)
class Build(Fact):
    """One side's environment. `ok` False: `reason` and `lines` say why, and `blame` whose it is."""

    kind: ClassVar[str] = "build"
    side: Side
    key: str  # address by content
    ok: bool
    cached: bool = False
    seconds: float = 0.0
    origin: str | None = None  # where `sglang` is imported from, relative to the run
    versions: Mapping[str, str] = field(default_factory=dict)
    log: str | None = None
    reason: str = ""
    lines: tuple[str, ...] = ()  # last useful lines; strangers' text
    blame: Blame | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchBegin(LaunchFact):
    kind: ClassVar[str] = "launch_begin"
    sha: str
    build: str
    argv: tuple[str, ...]
    given: Mapping[str, str]  # the server's whole environment as perfgate gave it
    port: int
    log: str
    autotune: str = ""  # what it started from: "fresh", "seed <hash>", "none" (nothing was tuned), "off"
    at_start: Mapping[str, str] | None = None  # variables that a process without the commit's code found there


@dataclass(frozen=True, kw_only=True)
class LaunchEnd(LaunchFact):
    kind: ClassVar[str] = "launch_end"
    valid: bool
    reasons: tuple[str, ...]  # why not valid
    log: str
    ready_s: float | None  # start to first answered request
    wall_s: float
    code: str = ""  # of the fault, where not valid
    blame: Blame | None = None
    lines: tuple[str, ...] = ()  # last useful lines of its log; strangers' text
    pids: tuple[int, ...] = ()
    facts_from_log: Mapping[str, Any] = field(default_factory=dict)  # e.g. max_total_num_tokens, spec worker lines
    outputs: Mapping[str, str] = field(default_factory=dict)  # prompt → hash of its answer before anything was measured


@dataclass(frozen=True, kw_only=True)
class Request:
    """One answered prompt. Times by the client's clock; counts from the answer, hence untrusted."""

    prompt: str
    prompt_kind: str  # code | chat | maths | summary | json
    tokens: int  # completion tokens
    ttft_s: float
    decode_s: float  # from the first token to the end of the answer
    output: str  # hash of the output token ids
    verify_ct: int | None = None  # speculative cycles
    accept_length: float | None = None
    cycle_ms: float | None = None
    asked: str = ""  # hash of what was asked: the prompt and the words that mark this asking


@dataclass(frozen=True, kw_only=True)
class Sample(LaunchFact):
    """One pass over the whole prompt set at one concurrency."""

    kind: ClassVar[str] = "sample"
    sample: int  # from 0, within the launch
    concurrency: int
    begin: float  # mono
    end: float
    requests: tuple[Request, ...]
    tok_s: float | None
    ttft_ms: float | None
    cycle_ms: float | None
    accept_length: float | None
    tok_s_by_kind: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RankPhases:
    """Medians over the cycles of one rank inside one sample, ms."""

    rank: int
    cycles: int
    cycle_ms: float | None = None
    verify_ms: float | None = None
    draft_ms: float | None = None
    draft_extend_ms: float | None = None
    decode_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Phases(LaunchFact):
    """The probe's numbers of one sample: the slowest rank's means. Untrusted: they come from the code under test."""

    kind: ClassVar[str] = "phases"
    sample: int
    concurrency: int
    clock: str  # "cuda_events" | "perf_counter"
    cycles: int
    cycle_ms: float | None = None
    verify_ms: float | None = None
    draft_ms: float | None = None
    draft_extend_ms: float | None = None
    decode_ms: float | None = None
    straggler_ms: float | None = None  # slowest rank's cycle minus the fastest's
    slow_share: float | None = None  # of the cycles, that took more than 1.5 times the median
    ranks: tuple[RankPhases, ...] = ()
    warnings: tuple[Mapping[str, Any], ...] = ()  # code, text, data


@dataclass(frozen=True, kw_only=True)
class Proof(LaunchFact):
    """What one process of a launch ran with. The three readings hold NCCL_*, SGLANG_*, CUDA_* variables."""

    kind: ClassVar[str] = "proof"
    pid: int
    role: str  # "scheduler" | "detokenizer" | "main" | …
    rank: int | None
    given: Mapping[str, str]
    at_start: Mapping[str, str] | None  # before sglang is imported
    effective: Mapping[str, str] | None  # at the first collective
    argv: tuple[str, ...] = ()
    sitecustomize: tuple[Mapping[str, str], ...] = ()  # path, hash
    nccl: tuple[Mapping[str, Any], ...] = ()  # path, version, hash
    versions: Mapping[str, str] = field(default_factory=dict)
    worker: str | None = None  # class of the speculative worker
    device: str | None = None
    notes: tuple[str, ...] = ()  # what the probe could not do, and why


@dataclass(frozen=True, kw_only=True)
class Telemetry(LaunchFact):
    """Summaries over one sample (or the launch where `sample` is None)."""

    kind: ClassVar[str] = "telemetry"
    sample: int | None
    gpus: tuple[Mapping[str, Any], ...] = ()
    system: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Canary(Fact):
    kind: ClassVar[str] = "canary"
    launch: str  # id of the launch it stands next to
    when: Literal["before", "after"]
    readings: Mapping[str, tuple[float, ...]]  # e.g. "allreduce_32k_us": repeats


@dataclass(frozen=True, kw_only=True)
class Check:
    name: str
    status: Literal["ok", "warn", "fail"]
    text: str
    why: str = ""
    remedy: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Doctor(Fact):
    kind: ClassVar[str] = "doctor"
    ok: bool
    checks: tuple[Check, ...]
    fingerprint: Mapping[str, Any] = field(default_factory=dict)


DOCTOR_FAULT = "doctor"  # the box was not fit to begin: environment
STOPPED_FAULT = "stopped"  # cancelled or out of time: nothing failed, but measuring ended early


@dataclass(frozen=True, kw_only=True)
class Fault(Fact):
    """Something that ended the measuring, and whose it is. `side` only where a side is concerned.

    A launch that failed once and served when repeated leaves no fault. Faults before the last plan line were met by
    an earlier try of this run, which was resumed since: they no longer count.
    """

    kind: ClassVar[str] = "fault"
    code: str  # e.g. server_died, server_hung, model_missing, disk_full; doctor, stopped
    text: str  # one line
    blame: Blame
    side: Side | None = None
    launch: str | None = None
    lines: tuple[str, ...] = ()  # strangers' text


@dataclass(frozen=True, kw_only=True)
class Pair(Fact):
    """A base and a head launch next to each other; only these lines reach the judge."""

    kind: ClassVar[str] = "pair"
    recipe: str
    pair: int
    base: str  # launch id
    head: str
    first: Side


@dataclass(frozen=True, kw_only=True)
class DecisionFact(Fact):
    """The judge's look at one metric after a pair, kept to show how the verdict came about."""

    kind: ClassVar[str] = "decision"
    recipe: str
    metric: str
    concurrency: int
    pairs: int
    state: str
    slowdown: float | None
    low: float | None
    high: float | None
    detectable: float | None


FACT_KINDS: Mapping[str, type[Fact]] = {
    kind.kind: kind
    for kind in (
        Plan,
        Build,
        LaunchBegin,
        LaunchEnd,
        Sample,
        Phases,
        Proof,
        Telemetry,
        Canary,
        Doctor,
        Fault,
        Pair,
        DecisionFact,
    )
}
