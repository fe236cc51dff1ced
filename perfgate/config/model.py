"""What is configured: `.github/perfgate.yml` of the base branch, overlaid by the box's own file.

The pydantic models below are the only definition: validation, JSON Schema, example and documentation come from them.
Reading files and explaining errors is in `files`; what follows from the layers together is in `resolve`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    WithJsonSchema,
)

from perfgate.config.profile import Profile
from perfgate.records import METRICS

KeyPath = tuple[str | int, ...]
"""Where a value stands in a file: ("recipes", "eagle3", "flags", "tp-size")."""


@dataclass(frozen=True)
class Source:
    """Where a configuration was read: the file, and the line of each value. No part of what the configuration says."""

    name: str = field(default="", compare=False)
    lines: Mapping[KeyPath, int] = field(default_factory=dict, compare=False)

    def line(self, path: KeyPath) -> int | None:
        """The line of a value, or of the nearest one around it that is written down."""
        around = (path[:length] for length in range(len(path), -1, -1))
        return next((self.lines[part] for part in around if part in self.lines), None)


def _texts(value: object) -> object:
    """`cuda-graph-bs: [1, 2, 4]` means the texts "1", "2", "4"."""
    if isinstance(value, list):
        return [str(item) if type(item) in (int, float) else item for item in value]
    return value


FlagValue = bool | int | float | str | list[str] | None
"""A server flag: True → `--flag`, False or None → left out, list → several values."""

WrittenFlag = Annotated[
    FlagValue,
    BeforeValidator(_texts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": ["boolean", "number", "string", "null"]},
                {"type": "array", "items": {"type": ["string", "number"]}},
            ]
        }
    ),
]

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
FlagName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*([_-][a-z0-9]+)*$", max_length=80)]
ProcessName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:/ -]{1,15}$")]  # as the kernel cuts it
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
NcclName = Annotated[str, StringConstraints(pattern=r"^NCCL_[A-Z0-9_]{1,120}$")]
MetricName = Annotated[str, StringConstraints(pattern=f"^({'|'.join(METRICS)})$")]
Model = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$")
]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Folder = Annotated[str, StringConstraints(pattern=r"^/([^\x00-\x1f\x7f]*)$", max_length=1024)]
Variable = Annotated[
    str,
    StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=4096),
    WithJsonSchema({"type": ["string", "number", "boolean"], "description": "taken as it is written"}),
]
"""The value of an environment variable: the loader takes it as it is written, whatever YAML makes of it."""


def _share(value: object) -> object:
    """'3 %' and '3%' mean 0.03."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*([0-9.]+)\s*%\s*", value)):
        return float(match[1]) / 100
    return value


Share = Annotated[
    float,
    BeforeValidator(_share),
    Field(gt=0, lt=1),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
                {"type": "string", "pattern": r"^\s*[0-9.]+\s*%\s*$"},
            ]
        }
    ),
]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, allow_inf_nan=False)


SAMPLES = 4  # a launch, where neither the configuration nor the ledger says how many


class Workload(_Model):
    """What the client asks of a server."""

    prompts: str = Field(
        "builtin",
        pattern=r"^(builtin|/.+)$",
        description="`builtin`, or a JSONL file on the box: one {id, kind, text} a line",
    )
    prompts_per_kind: int = Field(4, ge=1, le=64, description="how many built-in prompts of each kind")
    concurrency: list[Annotated[int, Field(ge=1, le=512)]] = Field(
        [1], min_length=1, max_length=8, description="requests at a time, one level after the other; the first is gated"
    )
    output_tokens: int = Field(256, ge=8, le=8192, description="of each answer")
    samples: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = Field(
        "auto",
        description="passes over the prompt set at each concurrency; auto: as many as make a verdict cheapest by what"
        " the ledger knows of this box, 4 where it knows nothing",
    )
    warmup_min: int = Field(8, ge=1, le=256, description="requests before the first sample, at least")
    warmup_max: int = Field(32, ge=1, le=1024, description="and at most, if speed is not steady before")
    request_timeout_s: float = Field(300, gt=0, description="an answer that takes longer is a failure")

    @property
    def sample_count(self) -> int:
        """How many that is; of `auto`, where nothing is known."""
        return SAMPLES if self.samples == "auto" else self.samples


class Prior(_Model):
    """The spread to assume where the ledger knows nothing: SD of a pair's log difference."""

    sd: float = Field(gt=0, lt=1, description="e.g. 0.01: a pair's difference is within 1 % two times in three")
    df: float = Field(10, gt=0, le=1000, description="degrees of freedom: how much is known of it")


class MetricRule(_Model):
    """How one metric is judged."""

    gated: bool = Field(True, description="naming a metric gates it, unless this is false")
    budget: Share = Field(0.05, description="the slowdown that is let pass, as a log difference, e.g. 3 %")
    prior: Prior | None = Field(None, description="spread to assume where the box's ledger knows nothing")


class Recipe(_Model):
    """A named way to serve and load."""

    extends: Name | None = Field(None, description="the recipe whose values hold where this one says nothing")
    enabled: bool = Field(True, description="false: never measured, only there for others to extend")
    model: Model | None = Field(None, description="hub id, or a name in the box file's `models`")
    revision: Commit | None = Field(None, description="full commit of the model on the hub")
    draft: Model | None = Field(None, description="the speculative draft model, named like `model`")
    draft_revision: Commit | None = Field(None, description="full commit of the draft model on the hub")
    flags: dict[FlagName, WrittenFlag] = Field({}, description="flags of sglang.launch_server without the dashes")
    env: dict[VariableName, Variable] = Field({}, description="variables of the server on both sides, without NCCL's")
    workload: Workload = Field(Workload(), description="what the client asks of the server")
    metrics: dict[MetricName, MetricRule] = Field({}, description="rules for this recipe alone, by metric")


class Limits(_Model):
    """When measuring stops."""

    max_pairs: int = Field(12, ge=1, le=24, description="of base and head launches, for each recipe")
    min_pairs_to_fail: int = Field(2, ge=1, le=6, description="a regression needs so many pairs that say so")
    minutes: float = Field(90, gt=0, description="of measuring, for the whole run")
    launch_stall_s: float = Field(600, gt=0, description="a launch without any sign of progress for so long has failed")
    stop_s: float = Field(60, gt=0, description="from the end of a server until its port and GPUs must be free")


class Errors(_Model):
    """How often the gate may be wrong."""

    alpha: Share = Field(0.01, description="of a regression that is none, for the whole gate")
    beta: Share = Field(0.05, description="of a pass that is a loss of the budget or more, for a metric")


class BuildRules(_Model):
    """How environments are made."""

    python: str = Field("3.12", pattern=r"^3\.\d+$", description="version of Python, in quotes")
    kernel: Literal["auto", "wheel", "local"] = Field("auto", description="auto: local where the diff touches it")
    rust: Literal["auto", "none"] = Field("auto", description="auto: the TreeCore, where its tools are there")
    nccl: str | None = Field(None, description="pin laid over both sides last, e.g. nvidia-nccl-cu13==2.30.7")
    extra: list[str] = Field([], description="more requirements for both sides")
    cuda_arch: str | None = Field(None, description="of this box, e.g. 12.0a; default: asked of the GPUs")
    jobs: int | None = Field(None, ge=1, description="compilers at a time; default: what cores and memory allow")
    minutes: float = Field(180, gt=0, description="for the build of one side")


class Caches(_Model):
    """What is kept between launches and between runs."""

    autotune: Literal["fresh", "seed", "off"] = Field("fresh", description="FlashInfer's autotune results")
    max_gb: float = Field(200, gt=0, description="of all of perfgate's state")
    min_free_gb: float = Field(20, ge=0, description="to leave free on the disk")


BoxRule = Literal[
    "given",  # variables that perfgate gave
    "at_start",  # variables that the code under test found
    "reboot",  # within a pair
    "gpu_lost",
    "gpu_count",
    "throttle",  # by heat, hardware or power brake
    "link",  # PCIe generation or width under load
    "power_limit",
    "gpu_guest",  # a stranger's process on a GPU
    "neighbour",  # others used the cores that the server waited for
    "canary",
    "clock",  # of GPUs under the canary's fixed load
]
"""What can make a measurement say nothing about a commit."""


Consequence = Literal["environment", "warn", "off"]


class EnvironmentRules(_Model):
    """Which differences between the sides are the box's doing, and from which size on they count."""

    rules: dict[BoxRule, Consequence] = Field(
        {}, description="rule → what it leads to: the verdict `environment` (as by itself), a warning, or nothing"
    )
    canary: Share = Field(0.03, description="of the canary's times, as a log difference, e.g. 3 %")
    clock: Share = Field(0.02, description="of a GPU's clock under the canary's fixed load")
    load_clock: Share = Field(0.01, description="of a GPU's clock under the sides' own load; more is a warning")
    power_w: float = Field(5, ge=0, description="watts of a GPU's power limit")
    neighbour_cores: float = Field(0.25, gt=0, description="cores that others used more beside one side")
    waiting: Share = Field(0.02, description="of the time that a server waited for a core because of others")

    def of(self, rule: BoxRule) -> Literal["environment", "warn", "off"]:
        return self.rules.get(rule, "environment")


Level = Literal["read", "triage", "write", "maintain", "admin"]
"""What somebody may do in a repository, as GitHub orders it."""


class Who(_Model):
    """The least permission that each command asks for. The author may always `rerun` a pull request that is no fork."""

    run: Level = "write"
    rerun: Level = "write"
    cancel: Level = "write"
    accept: Level = "write"


class GithubRules(_Model):
    """What happens on GitHub by itself, and who may ask for more."""

    auto: Literal["paths", "label", "off"] = Field(
        "paths", description="measure pull requests by themselves: whose diff can move serving; with the label; never"
    )
    label: str = Field("perfgate", min_length=1, max_length=50, description="for `auto: label`; dropped on push")
    who: Who = Field(Who(), description="the least permission for each command")
    ci_permissions: str = Field(
        "",
        max_length=200,
        description="path of SGLang's file of CI permissions on the base branch; who may start its CI may `run` then,"
        " who may rerun its CI may `rerun`",
    )
    fail_on: list[Literal["inconclusive", "environment", "bench_failed", "build_failed"]] = Field(
        [], description="verdicts that fail the check too; by themselves they are neutral, and neutral lets a PR merge"
    )


class BoxFile(_Model):
    """`/etc/perfgate/box.yml`: what only the box knows. It wins over perfgate.yml."""

    name: str = Field("box", pattern=r"^[A-Za-z0-9._-]{1,40}$", description="public name")
    state_dir: Folder = Field("/var/lib/perfgate", description="runs, builds, caches and the ledger")
    hf_home: Folder | None = Field(None, description="HF_HOME with the models; servers read it, nothing else does")
    models: dict[str, Folder] = Field({}, description="name of a model → its folder")
    nccl: dict[NcclName, Variable] = Field({}, description="NCCL variables of every rank; they win over perfgate.yml")
    env: dict[VariableName, Variable] = Field(
        {}, description="more variables of the box for every server, e.g. CUDA_HOME"
    )
    tools: dict[str, Folder] = Field({}, description="tool → folder to put on PATH for builds")
    run_as: str | None = Field(
        None, pattern=r"^[a-z_][a-z0-9_-]{0,31}$", description="the second unprivileged user that runs PR code"
    )
    gpus: Literal["required", "none"] = Field("required", description="none: a box without GPUs, e.g. for tests")
    isolation: Literal["auto", "bubblewrap", "user", "none"] = Field(
        "auto", description="how PR code is confined; none: pull requests from forks are refused"
    )
    lock: Folder | None = Field(None, description="lock file shared by all gates of the box")
    wheels: list[Folder] = Field([], description="folders with wheels, before the index")
    residents: dict[ProcessName, Annotated[int, Field(ge=1, le=4096)]] = Field(
        {}, description="process that may stay on the GPUs → MiB that it may hold on each, e.g. `Xorg: 64`"
    )

    _source: Source = PrivateAttr(default_factory=Source)

    @property
    def is_written(self) -> bool:
        """Whether it came from a file; else it holds defaults."""
        return bool(self._source.name)


class Config(_Model):
    """`.github/perfgate.yml`."""

    version: Literal[1] = Field(1, description="of this format")
    recipes: dict[Name, Recipe] = Field({}, description="by name; the built-in ones are `baseline` and `eagle3`")
    metrics: dict[MetricName, MetricRule] = Field({}, description="rules by metric, for every recipe")
    nccl: dict[NcclName, Variable] = Field({}, description="NCCL variables of every rank; the box file wins")
    limits: Limits = Field(Limits(), description="when measuring stops")
    errors: Errors = Field(Errors(), description="how often the gate may be wrong")
    build: BuildRules = Field(BuildRules(), description="how environments are made")
    caches: Caches = Field(Caches(), description="what is kept between launches and between runs")
    environment: EnvironmentRules = Field(EnvironmentRules(), description="what is the box's doing, not the code's")
    ignore_paths: list[str] = Field([], description="more path patterns with nothing to measure")
    github: GithubRules = Field(GithubRules(), description="what happens on GitHub by itself, and who may ask for more")

    _source: Source = PrivateAttr(default_factory=Source)


# ------------------------------------------------------------------------------------------------ effective


@dataclass(frozen=True, kw_only=True)
class ResolvedRecipe:
    """A recipe with everything that holds for it: what it extends, the defaults and the box."""

    name: str
    model: str  # as configured
    model_path: str  # what the server is given: the box's folder, else the hub id
    revision: str | None
    draft: str | None
    draft_path: str | None
    draft_revision: str | None
    flags: Mapping[str, FlagValue]  # with dashes; without those that are left out
    env: Mapping[str, str]  # of the recipe and of the box, without NCCL's
    workload: Workload
    rules: Mapping[str, MetricRule]  # of every metric that this kind of recipe has
    speculative: bool


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """What really holds for a run."""

    recipes: tuple[ResolvedRecipe, ...]
    nccl: Mapping[str, str]
    limits: Limits
    errors: Errors
    build: BuildRules
    caches: Caches
    ignore_paths: tuple[str, ...]
    box: BoxFile
    profile: Profile
    hash: str  # of all that is measured and judged by, whatever the box's folders are called
    environment: EnvironmentRules = field(default_factory=EnvironmentRules)
    notes: tuple[str, ...] = ()  # what is allowed but looks like a slip

    def recipe(self, name: str) -> ResolvedRecipe:
        return next(recipe for recipe in self.recipes if recipe.name == name)

    @property
    def needs_gpus(self) -> bool:
        return self.profile.has_gpus and self.box.gpus == "required"

    def as_data(self) -> dict[str, Any]:
        """Plain data, without the box's folders."""
        return {
            "recipes": [
                {
                    "name": one.name,
                    "model": one.model,
                    "revision": one.revision,
                    "draft": one.draft,
                    "draft_revision": one.draft_revision,
                    "flags": dict(one.flags),
                    "env": dict(one.env),
                    "workload": one.workload.model_dump(),
                    "metrics": {name: rule.model_dump() for name, rule in one.rules.items()},
                }
                for one in self.recipes
            ],
            "nccl": dict(self.nccl),
            "limits": self.limits.model_dump(),
            "errors": self.errors.model_dump(),
            "build": self.build.model_dump(),
            "caches": self.caches.model_dump(),
            "environment": self.environment.model_dump(),
            "ignore_paths": list(self.ignore_paths),
            "profile": self.profile.value,
        }
