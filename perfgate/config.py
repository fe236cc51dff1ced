"""What is configured: `.github/perfgate.yml` of the base branch, overlaid by the box's own file.

The pydantic models below are the only definition: validation, JSON Schema, example and documentation come from them.
Reading files and explaining errors is in `config_file`.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

FlagValue = bool | int | float | str | list[str] | None
"""A server flag: True → `--flag`, False or None → left out, list → several values."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


def _share(value: object) -> object:
    """'3 %' and '3%' mean 0.03."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*([0-9.]+)\s*%\s*", value)):
        return float(match[1]) / 100
    return value


Share = Annotated[float, BeforeValidator(_share), Field(gt=0, lt=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Workload(_Model):
    """What the client asks of a server."""

    prompts: str = Field("builtin", description="`builtin`, or a JSONL file on the box: one {id, kind, text} a line")
    prompts_per_kind: int = Field(4, ge=1, le=64, description="how many built-in prompts of each kind")
    concurrency: list[Annotated[int, Field(ge=1, le=512)]] = Field([1], min_length=1, max_length=8)
    output_tokens: int = Field(256, ge=8, le=8192)
    samples: int = Field(4, ge=1, le=64, description="passes over the prompt set at each concurrency")
    warmup_min: int = Field(8, ge=1, le=256, description="requests before the first sample, at least")
    warmup_max: int = Field(32, ge=1, le=1024, description="and at most, if speed is not steady before")
    request_timeout_s: float = Field(300, gt=0)


class Prior(_Model):
    """The spread to assume where the ledger knows nothing: SD of a pair's log difference."""

    sd: float = Field(gt=0, lt=1)
    df: float = Field(10, gt=0, le=1000)


class MetricRule(_Model):
    """How one metric is judged."""

    gated: bool = True
    budget: Share = 0.05
    prior: Prior | None = None


class Recipe(_Model):
    """A named way to serve and load."""

    extends: Name | None = None
    model: str | None = Field(None, description="hub id, or a name in the box file's `models`")
    revision: str | None = Field(None, description="full commit of the model on the hub")
    draft: str | None = Field(None, description="the speculative draft model")
    draft_revision: str | None = None
    flags: dict[str, FlagValue] = Field({}, description="flags of sglang.launch_server without the dashes")
    env: dict[VariableName, str] = Field({}, description="variables of the server on both sides")
    workload: Workload = Workload()
    metrics: dict[Name, MetricRule] = Field({}, description="rules for this recipe alone")


class Limits(_Model):
    max_pairs: int = Field(6, ge=1, le=24)
    min_pairs_to_fail: int = Field(2, ge=1, le=6)
    minutes: float = Field(90, gt=0, description="of measuring, for the whole run")
    launch_stall_s: float = Field(600, gt=0, description="a launch without any sign of progress for so long has failed")
    stop_s: float = Field(60, gt=0, description="from the end of a server until its port and GPUs must be free")


class Errors(_Model):
    alpha: Share = Field(0.01, description="of a regression that is none, for the whole gate")
    beta: Share = Field(0.05, description="of a pass that is a loss of the budget or more, for a metric")


class BuildRules(_Model):
    """How environments are made."""

    python: str = Field("3.12", pattern=r"^3\.\d+$")
    kernel: Literal["auto", "wheel", "local"] = Field("auto", description="auto: local where the diff touches it")
    rust: Literal["auto", "none"] = "auto"
    nccl: str | None = Field(None, description="pin laid over both sides last, e.g. nvidia-nccl-cu13==2.30.7")
    extra: list[str] = Field([], description="more requirements for both sides")
    cuda_arch: str | None = Field(None, description="of this box, e.g. 12.0a; default: asked of the GPUs")
    jobs: int | None = Field(None, ge=1)
    minutes: float = Field(180, gt=0)


class Caches(_Model):
    autotune: Literal["fresh", "seed", "off"] = Field("fresh", description="FlashInfer's autotune results")
    max_gb: float = Field(200, gt=0, description="of all of perfgate's state")
    min_free_gb: float = Field(20, ge=0, description="to leave free on the disk")


class BoxFile(_Model):
    """`/etc/perfgate/box.yml`: what only the box knows. It wins over perfgate.yml."""

    name: str = Field("box", pattern=r"^[A-Za-z0-9._-]{1,40}$", description="public name")
    state_dir: str = "/var/lib/perfgate"
    hf_home: str | None = None
    models: dict[str, str] = Field({}, description="model id → folder")
    nccl: dict[VariableName, str] = {}
    env: dict[VariableName, str] = Field({}, description="more variables of the box for every server, e.g. CUDA_HOME")
    tools: dict[str, str] = Field({}, description="tool → folder to put on PATH for builds")
    run_as: str | None = Field(None, description="the second unprivileged user that runs PR code")
    gpus: Literal["required", "none"] = Field("required", description="none: a box without GPUs, e.g. for tests")
    isolation: Literal["auto", "bubblewrap", "user", "none"] = "auto"
    lock: str | None = Field(None, description="lock file shared by all gates of the box")
    wheels: list[str] = Field([], description="folders with wheels, before the index")


class Config(_Model):
    """`.github/perfgate.yml`."""

    version: Literal[1] = 1
    recipes: dict[Name, Recipe] = {}
    metrics: dict[Name, MetricRule] = Field({}, description="rules by metric, for every recipe")
    nccl: dict[VariableName, str] = Field({}, description="NCCL variables of every rank")
    limits: Limits = Limits()
    errors: Errors = Errors()
    build: BuildRules = BuildRules()
    caches: Caches = Caches()
    ignore_paths: list[str] = Field([], description="more path patterns with nothing to measure")
