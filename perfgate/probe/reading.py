"""Reads what the probe has written, as untrusted input: the code under test could have written it.

Nothing read here is believed further than it can be checked. Lines are bounded in length and number, must fit the
schema below, and must be possible: times in order and not in the future, phases no longer than their cycle, cycles
that do not overlap. What fails is dropped and counted, never repaired. Symbolic links, pipes and devices are not
opened. Memory is bounded whatever the directory holds.
"""

from __future__ import annotations

import math
import os
import re
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pydantic import ValidationError

from perfgate.probe.lines import (
    LINES,
    PHASES,
    CycleLine,
    EffectiveLine,
    FullLine,
    HeadLine,
    NamedFile,
    NoteLine,
    ProbeLine,
    Span,
    StartLine,
    TargetsLine,
    TitleLine,
    VersionsLine,
    WorkerLine,
)
from perfgate.store.strangers import OddFiles, open_regular

FILE_NAME = re.compile(r"probe-(\d{1,10})-\d{1,20}\.jsonl")
MAX_FILES = 256
MAX_ENTRIES = 4096  # of the directory looked at
MAX_FILE_BYTES = 128 * 2**20
MAX_BYTES = 512 * 2**20  # of all files together
MAX_LINE_BYTES = 256 * 2**10
MAX_CYCLES = 1_000_000  # of all processes together: 88 MB here
MAX_MALFORMED = 10_000  # lines of one file, then the rest of it is not read
MAX_LINES_OF_A_KIND = 64  # beside cycles
INNER = ("draft", "verify", "draft_extend")
ROOM = 1.05  # phases may exceed their cycle by this, for rounding and for events of two streams
ROOM_MS = 0.2


class TimedCycle(NamedTuple):
    """One cycle as timed by the process's clock; ms, None where a phase did not run or was not timed. `at`: its begin,
    monotonic seconds. `mark`: "" where it counts."""

    number: int
    at: float
    batch: int
    mark: str
    cycle: float | None
    draft: float | None
    verify: float | None
    draft_extend: float | None
    decode: float | None
    target: float | None


_MARKS = ("", "warmup", "idle", "capture", "extend")


class Cycles:
    """Cycles of one process in order of time, eleven numbers each."""

    def __init__(self) -> None:
        self.at = array("d")
        self._number = array("q")
        self._batch = array("q")
        self._mark = array("b")
        self._ms = {phase: array("d") for phase in PHASES}

    def add(self, cycle: TimedCycle) -> None:
        self.at.append(cycle.at)
        self._number.append(cycle.number)
        self._batch.append(cycle.batch)
        self._mark.append(_MARKS.index(cycle.mark))
        for phase in PHASES:
            ms = getattr(cycle, phase)
            self._ms[phase].append(math.nan if ms is None else ms)

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, index: int) -> TimedCycle:
        ms = (self._ms[phase][index] for phase in PHASES)
        return TimedCycle(
            self._number[index],
            self.at[index],
            self._batch[index],
            _MARKS[self._mark[index]],
            *(None if math.isnan(value) else value for value in ms),
        )

    def __iter__(self) -> Iterator[TimedCycle]:
        return (self[index] for index in range(len(self)))


@dataclass(kw_only=True)
class ProbedProcess:
    """What one process has written. Absent readings are None."""

    pid: int
    ppid: int
    root: bool
    launch: str
    began: float
    argv: tuple[str, ...]
    title: str
    entry: Mapping[str, str] | None = None
    start: Mapping[str, str] | None = None
    sitecustomize: tuple[Mapping[str, str], ...] = ()
    effective: Mapping[str, str] | None = None
    moved: Mapping[str, str] = field(default_factory=dict)  # set to this after the effective reading
    nccl_files: tuple[Mapping[str, str], ...] = ()
    nccl: tuple[Mapping[str, str], ...] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    worker: str | None = None
    device: str | None = None
    gpu: str | None = None
    clock: str | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)
    targets: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    cycles: Cycles = field(default_factory=Cycles)
    dropped: Counter[str] = field(default_factory=Counter)
    full: bool = False

    @property
    def role(self) -> str:
        if self.root:
            return "main"
        if self.worker is not None or self.effective is not None:
            return "scheduler"
        name = self.title.removeprefix("sglang::")
        return name.split("_")[0] if name != self.title and name.isidentifier() else "other"

    @property
    def rank(self) -> int | None:
        """Of the world where there is one, else of tensor parallelism; None for a process that is no rank."""
        if self.worker is None and self.effective is None:
            return None
        if self.ranks.get("size", 1) > 1:
            return self.ranks.get("world")
        return self.ranks.get("tp", self.ranks.get("world", 0))


@dataclass(frozen=True, kw_only=True)
class ProbeReading:
    """All processes of a launch, in order of their begin. `dropped`: reason → how many lines or files."""

    processes: tuple[ProbedProcess, ...]
    dropped: Mapping[str, int]

    @property
    def timed(self) -> tuple[ProbedProcess, ...]:
        """Processes that ran cycles."""
        return tuple(process for process in self.processes if len(process.cycles))


def read_probe(directory: Path, *, launch: str | None = None, now: float | None = None) -> ProbeReading:
    """Everything of this `launch` in the probe directory; with None, of whatever launch.

    `now` is the monotonic time that no cycle may lie beyond; default: this moment. A directory that is not there or
    holds nothing gives an empty reading.
    """
    limit = time.monotonic() if now is None else now
    dropped: Counter[str] = Counter()
    processes = []
    room = _ReadingRoom(limit, MAX_BYTES, MAX_CYCLES)
    for path in _files(directory, dropped):
        process = _read_file(path, room, dropped)
        if process is None:
            continue
        if launch is not None and process.launch != launch:
            dropped["of another launch"] += 1
            continue
        room.cycles -= len(process.cycles)
        dropped.update(process.dropped)
        processes.append(process)
    processes.sort(key=lambda process: process.began)
    return ProbeReading(processes=tuple(processes), dropped=dict(dropped))


@dataclass
class _ReadingRoom:
    """What may still be read: cycles until a time, bytes and cycles in number."""

    until: float
    bytes: int
    cycles: int


def _files(directory: Path, dropped: Counter[str]) -> list[Path]:
    found: list[Path] = []
    try:
        with os.scandir(directory) as entries:
            for seen, entry in enumerate(entries):
                if seen >= MAX_ENTRIES:
                    dropped["directory too full"] += 1
                    break
                if FILE_NAME.fullmatch(entry.name):
                    found.append(Path(entry.path))
    except OSError:
        dropped["directory cannot be read"] += 1
    if len(found) > MAX_FILES:
        dropped["file over the limit"] += len(found) - MAX_FILES
    return sorted(found)[:MAX_FILES]


def _read_file(path: Path, room: _ReadingRoom, dropped: Counter[str]) -> ProbedProcess | None:
    try:
        opened = open_regular(path)
    except OddFiles:
        dropped["not a file"] += 1
        return None
    except OSError:
        dropped["file cannot be opened"] += 1
        return None
    with opened as file:
        allowed = min(MAX_FILE_BYTES, room.bytes)
        room.bytes -= min(os.fstat(file.fileno()).st_size, allowed)
        lines = _lines(file, allowed, dropped)
        head = next(lines, None)
        name = FILE_NAME.fullmatch(path.name)
        if not isinstance(head, HeadLine) or name is None or int(name[1]) != head.pid or head.t > room.until:
            dropped["file without a true head"] += 1
            return None
        return _gather(head, lines, room)


def _lines(file: BinaryIO, left: int, dropped: Counter[str]) -> Iterator[ProbeLine]:
    """The lines that fit the schema, of `left` bytes at most. A last line without its end was torn by a kill and is no
    fault."""
    malformed = 0
    while left > 0 and (line := file.readline(min(MAX_LINE_BYTES, left))):
        left -= len(line)
        if not line.endswith(b"\n"):
            rest = _skip_line(file, left) if len(line) >= MAX_LINE_BYTES else 0
            left -= rest
            if rest:
                dropped["line too long"] += 1
            continue
        try:
            yield LINES.validate_json(line)
        except ValidationError as error:
            if error.errors(include_url=False, include_input=False)[0]["type"] != "union_tag_invalid":
                dropped["line malformed"] += 1
                malformed += 1
                if malformed >= MAX_MALFORMED:
                    return
    if left <= 0 and file.read(1):
        dropped["file too long"] += 1


def _skip_line(file: BinaryIO, left: int) -> int:
    skipped = 0
    while skipped < left and (part := file.readline(MAX_LINE_BYTES)):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _gather(head: HeadLine, lines: Iterator[ProbeLine], room: _ReadingRoom) -> ProbedProcess:
    process = ProbedProcess(
        pid=head.pid,
        ppid=head.ppid,
        root=head.root,
        launch=head.launch,
        began=head.t,
        argv=tuple(head.argv),
        title=head.title,
    )
    possible = Possible(head.t, room.until)
    others: Counter[str] = Counter()
    for line in lines:
        if isinstance(line, CycleLine):
            cycle = possible.cycle(line, process.clock)
            if cycle is None:
                process.dropped["cycle impossible"] += 1
            elif len(process.cycles) >= room.cycles:
                process.dropped["cycle over the limit"] += 1
            else:
                process.cycles.add(cycle)
            continue
        kind = type(line).__name__
        others[kind] += 1
        if others[kind] > MAX_LINES_OF_A_KIND or isinstance(line, HeadLine):
            process.dropped["line too many"] += 1
        else:
            _take(process, line)
    return process


def _take(process: ProbedProcess, line: ProbeLine) -> None:
    """Enters a line beside cycles. The first reading of a kind stands."""
    match line:
        case StartLine() if process.start is None:
            process.entry, process.start = line.entry, line.env
            process.sitecustomize = _plain(line.sitecustomize)
        case EffectiveLine() if process.effective is None:
            process.effective = line.env
            process.nccl_files = _plain(line.files)
            process.ranks = line.rank
        case WorkerLine() if process.worker is None:
            process.worker, process.device, process.gpu = line.worker, line.device, line.gpu
            process.clock, process.moved = line.clock, line.moved
            process.ranks = {**process.ranks, **line.rank}
        case VersionsLine() if process.nccl is None:
            process.versions, process.nccl = line.versions, _plain(line.nccl)
        case TargetsLine():
            process.targets.update(line.outcome)
        case TitleLine():
            process.title = line.title
        case NoteLine():
            process.notes.append(line.text)
        case FullLine():
            process.full = True
        case _:
            process.dropped["line too many"] += 1


def _plain(files: list[NamedFile]) -> tuple[Mapping[str, str], ...]:
    return tuple(file.model_dump(exclude_none=True) for file in files)


class Possible:
    """Turns lines into cycles as long as they can be true together."""

    def __init__(self, began: float, limit: float) -> None:
        self._free_from = began  # when the cycle before was over on the host
        self._limit = limit
        self._number = -1

    def cycle(self, line: CycleLine, clock: str | None) -> TimedCycle | None:
        """None where the line cannot be true after the ones before."""
        spans: dict[str, Span | None] = {phase: getattr(line, phase) for phase in PHASES}
        host = {phase: span[1] for phase, span in spans.items() if span is not None}
        took = max(host.values(), default=None)
        if took is None or line.i <= self._number:
            return None
        over = line.t + took / 1000
        if line.t < self._free_from - ROOM_MS / 1000 or over > self._limit + ROOM_MS / 1000:
            return None
        device = {phase: span[0] for phase, span in spans.items() if span is not None}
        ms = device if clock == "cuda_events" else dict(host)
        if not (_fits(host) and _fits(ms)):
            return None
        self._number = line.i
        self._free_from = over
        return TimedCycle(line.i, line.t, line.b, line.m, *(ms.get(phase) for phase in PHASES))


def _fits(ms: Mapping[str, float | None]) -> bool:
    """Phases are parts of their cycle, the target's forward of verify."""
    whole, verify, target = ms.get("cycle"), ms.get("verify"), ms.get("target")
    inner = sum(ms.get(phase) or 0.0 for phase in INNER)
    if whole is not None and inner > whole * ROOM + ROOM_MS:
        return False
    return verify is None or target is None or target <= verify * ROOM + ROOM_MS
