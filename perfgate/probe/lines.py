"""The schema of the probe's lines, as the host checks them. Unknown fields are ignored, unknown kinds as well."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

PHASES = ("cycle", "draft", "verify", "draft_extend", "decode", "target")
MAX_MS = 600_000.0

Ms = Annotated[float, Field(ge=0, le=MAX_MS, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)]
Pid = Annotated[int, Field(ge=1, le=2**31)]
Word = Annotated[str, Field(max_length=512)]
Text = Annotated[str, Field(max_length=4200)]
Variables = Annotated[dict[Word, Text], Field(max_length=520)]
Ranks = Annotated[dict[Word, Annotated[int, Field(ge=0, le=65535)]], Field(max_length=8)]
Span = tuple[Ms | None, Ms]


class ProbeLine(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class CycleLine(ProbeLine):
    k: Literal["cycle"]
    i: Annotated[int, Field(ge=0, le=2**53)]
    t: Seconds
    b: Annotated[int, Field(ge=0, le=1_000_000)]
    m: Literal["", "warmup", "idle", "capture", "extend"]
    cycle: Span | None = None
    draft: Span | None = None
    verify: Span | None = None
    draft_extend: Span | None = None
    decode: Span | None = None
    target: Span | None = None


class HeadLine(ProbeLine):
    k: Literal["head"]
    v: Literal[1]
    launch: Word
    pid: Pid
    ppid: Annotated[int, Field(ge=0, le=2**31)]
    root: bool
    t: Seconds
    argv: Annotated[list[Text], Field(max_length=520)]
    title: Text


class NamedFile(ProbeLine):
    path: Text
    hash: Word | None = None
    error: Text | None = None
    version: Word | None = None


Files = Annotated[list[NamedFile], Field(max_length=16)]


class StartLine(ProbeLine):
    k: Literal["start"]
    entry: Variables
    env: Variables
    sitecustomize: Files


class EffectiveLine(ProbeLine):
    k: Literal["effective"]
    where: Word
    env: Variables
    rank: Ranks
    files: Files


class WorkerLine(ProbeLine):
    k: Literal["worker"]
    worker: Word
    rank: Ranks
    device: Word | None
    gpu: Word | None
    clock: Literal["cuda_events", "perf_counter"] | None
    moved: Variables


class VersionsLine(ProbeLine):
    k: Literal["versions"]
    versions: Annotated[dict[Word, Text], Field(max_length=64)]
    nccl: Files


class TargetsLine(ProbeLine):
    k: Literal["targets"]
    module: Word
    outcome: Annotated[dict[Word, Word], Field(max_length=16)]


class TitleLine(ProbeLine):
    k: Literal["title"]
    title: Text


class NoteLine(ProbeLine):
    k: Literal["note"]
    text: Text


class FullLine(ProbeLine):
    k: Literal["full"]
    t: Seconds


LINES: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        CycleLine
        | HeadLine
        | StartLine
        | EffectiveLine
        | WorkerLine
        | VersionsLine
        | TargetsLine
        | TitleLine
        | NoteLine
        | FullLine,
        Field(discriminator="k"),
    ]
)
