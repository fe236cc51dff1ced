"""What one log says of itself: when it began and ended, where it ran from, and what it ran with.

A log may hold several starts of a server; each is told apart. Everything in it is a stranger's text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from perfgate.engine.logs import DecodeBatch, clean, decode_batch
from perfgate.errors import PerfgateError

MAX_LINE = 256 * 1024
"""Of a line, bytes: `server_args=` of a new release has 12,000 characters."""

_DATE = r"(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d{1,9})?"
_ZONE = r"(?P<zone>Z|[+-]\d\d:?\d\d)"
_ZONED = re.compile(rf"^\[?{_DATE} ?{_ZONE}(?![\d])")
_PLAIN = re.compile(rf"^(?:[A-Z]+ )?\[?{_DATE}(?![\d])")
_RAN_FROM = re.compile(r"(?P<tree>/?[\w./+@-]{0,300}/)(?=sglang/(?:srt/|lang/|kernels/|jit_kernel/|\w{1,40}\.py))")
_IMAGE = re.compile(r"\b[\w./-]{0,80}sglang:(?P<tag>[A-Za-z0-9][\w.-]{1,80})")
_VERSION = re.compile(
    r"\b(?:sglang|SGLang)(?:\s+version|_version)?['\"]?\s*(?:==|[:= ])\s*['\"]?v?(?P<v>\d+\.\d+\.\d+[\w.+]{0,40})"
)
_NCCL = re.compile(r"sglang is using nccl==([\w.]{1,32})")
_NCCL_SET = re.compile(r"\b(NCCL_[A-Z0-9_]{1,60}) set by environment to ([^\s]{1,60})")
_MAX_TOKENS = re.compile(r"\bmax_total_num_tokens=(\d{1,12})\b")
_ARGUMENT = re.compile(r"['\"]?\b(\w{1,60})['\"]?(?:=|: )('[^']{0,200}'|\"[^\"]{0,200}\"|[\w./+-]{1,200})")
_BENCH = {
    "tok_s": re.compile(r"^Output token throughput \(tok/s\):\s+([\d.]{1,16})\s*$"),
    "accept_length": re.compile(r"^Accept length:\s+([\d.]{1,16})\s*$"),
}
_ARGUMENTS = (
    *("model_path", "tp_size", "dp_size", "quantization", "kv_cache_dtype", "attention_backend", "mem_fraction_static"),
    *("cuda_graph_max_bs", "cuda_graph_bs", "disable_cuda_graph", "disable_radix_cache", "chunked_prefill_size"),
    *("speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk"),
    *("speculative_num_draft_tokens", "enable_torch_compile", "disable_overlap_schedule", "disable_custom_all_reduce"),
)
_SPECULATION = ("spec v1 is used", "spec v2 is used", "spec v2 is enabled")


@dataclass(frozen=True)
class Stamp:
    """A time as it stands in a log. `zone`: seconds east of Greenwich; None where the log does not say."""

    time: datetime  # without a zone, whatever the log's was
    zone: int | None = None


@dataclass(frozen=True)
class LoggedRun:
    """What a log tells of what ran. None and empty: it does not say."""

    tok_s: float | None = None
    running: int | None = None  # requests at a time while tok_s was seen
    accept_length: float | None = None
    graph: bool | None = None
    nccl: str | None = None
    nccl_set: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    speculation: str | None = None
    max_tokens: int | None = None
    versions: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    ran_from: tuple[str, ...] = ()  # folders that held the package `sglang`

    def said(self) -> dict[str, str]:
        """Everything that tells one run from another, but not how fast it was."""
        whole = {
            "nccl": self.nccl,
            "cuda graph": None if self.graph is None else str(self.graph),
            "speculation": self.speculation,
            "max_total_num_tokens": None if self.max_tokens is None else str(self.max_tokens),
            "version": ", ".join(self.versions) or None,
            "image": ", ".join(self.images) or None,
            "ran from": ", ".join(self.ran_from) or None,
        }
        return {
            **{name: value for name, value in whole.items() if value is not None},
            **{f"{name} (set)": value for name, value in self.nccl_set.items()},
            **self.arguments,
        }


@dataclass(frozen=True, kw_only=True)
class Log:
    """One start of a server, or one client's log."""

    path: str
    part: int = 1  # of the file, counted from 1
    parts: int = 1
    first: Stamp | None = None
    last: Stamp | None = None
    back_s: float = 0.0  # the largest step back among its stamps
    whole: bool = True  # it holds the server's first lines; else the server had begun before
    mtime: float = 0.0  # of the file
    fingerprint: LoggedRun = field(default_factory=LoggedRun)

    @property
    def name(self) -> str:
        return f"{Path(self.path).name}, start {self.part} of {self.parts}" if self.parts > 1 else Path(self.path).name

    @property
    def ends_file(self) -> bool:
        return self.part == self.parts


def read_log(path: Path) -> tuple[Log, ...]:
    """The starts in one file, in its order. PerfgateError where there is no file to read."""
    try:
        mtime = path.stat().st_mtime
        with path.open("rb") as file:
            starts = [made.log() for made in _starts(_lines(file))]
    except OSError as error:
        raise PerfgateError(f"cannot be read: {error.strerror}", where=str(path)) from error
    return tuple(
        Log(
            path=str(path),
            part=number,
            parts=len(starts),
            first=start.first,
            last=start.last,
            back_s=start.back_s,
            whole=start.whole,
            mtime=mtime,
            fingerprint=start.fingerprint,
        )
        for number, start in enumerate(starts, 1)
    )


def _lines(file: Any) -> Iterator[str]:
    """Its lines, each cut at MAX_LINE."""
    whole = True
    while raw := file.readline(MAX_LINE):
        if whole:
            yield raw.decode("utf-8", "replace").rstrip("\r\n")
        whole = raw.endswith(b"\n")


def _starts(lines: Iterator[str]) -> list[_Start]:
    starts = [_Start()]
    for line in lines:
        if "server_args=" in line and starts[-1].served:
            starts.append(_Start())
        starts[-1].take(line)
    return starts


class _Start:
    """Gathers what the lines of one start say."""

    def __init__(self) -> None:
        self.served = False
        # by whether the stamps have a zone: a container's log may have both, and those with a zone count
        self._first: dict[bool, Stamp] = {}
        self._last: dict[bool, Stamp] = {}
        self._back: dict[bool, float] = {False: 0.0, True: 0.0}
        self._decode: list[DecodeBatch] = []
        self._idle = True
        self._found: dict[str, Any] = {}
        self._nccl_set: dict[str, str] = {}
        self._lists: dict[str, list[str]] = {"versions": [], "images": [], "ran_from": []}

    def take(self, line: str) -> None:
        self._stamp(line)
        if line.startswith("{"):
            self._json(line)
            return
        if "Decode batch" in line:
            batch = decode_batch(line)
            if batch is not None and not self._idle:
                self._decode.append(batch)
            self._idle = False
            return
        if "Prefill batch" in line:
            self._idle = self._idle or "#running-req: 0" in line
            return
        self._words(line)

    def log(self) -> Log:
        zoned = True in self._first
        return Log(
            path="",
            first=self._first.get(zoned),
            last=self._last.get(zoned),
            back_s=self._back[zoned],
            whole=self.served,
            fingerprint=self._fingerprint(),
        )

    # ------------------------------------------------------------------------------------------------ times

    def _stamp(self, line: str) -> None:
        head = line[:64]
        found = _ZONED.match(head)
        stamp = _read_stamp(found or _PLAIN.match(head))
        if stamp is None:
            return
        zoned = stamp.zone is not None
        if zoned in self._last:
            step_back = (_moment(self._last[zoned]) - _moment(stamp)).total_seconds()
            self._back[zoned] = max(self._back[zoned], step_back)
        self._first.setdefault(zoned, stamp)
        self._last[zoned] = stamp

    # ------------------------------------------------------------------------------------------------ words

    def _words(self, line: str) -> None:
        if "server_args=" in line:
            self.served = True
            self._found["arguments"] = _arguments(line.partition("server_args=")[2])
        if found := _NCCL.search(line):
            self._found.setdefault("nccl", found[1])
        if "set by environment" in line and (found := _NCCL_SET.search(line)):
            self._nccl_set.setdefault(found[1], found[2].rstrip("."))
        if "max_total_num_tokens=" in line and (found := _MAX_TOKENS.search(line)):
            self._found["max_tokens"] = int(found[1])
        if "spec v" in line.lower() and any(sign in line.lower() for sign in _SPECULATION):
            self._found.setdefault("speculation", "v1" if "v1" in line.lower() else "v2")
        for name, pattern in _BENCH.items():
            if found := pattern.match(line):
                self._found[f"bench_{name}"] = float(found[1])
        if "sglang" in line or "SGLang" in line:
            self._places(line[:4096])

    def _places(self, line: str) -> None:
        images = [found["tag"] for found in _IMAGE.finditer(line)]
        for tag in images:
            self._add("images", tag)
        if not images and (version := _VERSION.search(line)):
            self._add("versions", version["v"].rstrip("."))
        if place := _RAN_FROM.search(line):
            self._add("ran_from", place["tree"].rstrip("/"))

    def _add(self, kind: str, text: str) -> None:
        kept = self._lists[kind]
        if text not in kept and len(kept) < 8:
            kept.append(clean(text))

    def _json(self, line: str) -> None:
        """A line of bench_serving's result file."""
        try:
            result = json.loads(line)
        except (ValueError, RecursionError):
            return
        if not isinstance(result, dict) or "output_throughput" not in result:
            return
        for name, key in (("tok_s", "output_throughput"), ("accept_length", "accept_length")):
            value = result.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                self._found[f"bench_{name}"] = float(value)
        concurrency = result.get("max_concurrency")
        if isinstance(concurrency, int) and 0 < concurrency < 10**6:
            self._found["bench_running"] = concurrency
        info = result.get("server_info")
        if isinstance(info, dict):
            if isinstance(info.get("version"), str):
                self._add("versions", info["version"][:60])
            self._found["arguments"] = {
                name: clean(str(info[name])) for name in _ARGUMENTS if info.get(name) is not None
            }

    def _fingerprint(self) -> LoggedRun:
        tok_s, running, accept = _speed(self._decode)
        graphs = [batch.graph for batch in self._decode if batch.graph is not None]
        return LoggedRun(
            tok_s=self._found.get("bench_tok_s", tok_s),
            running=self._found.get("bench_running", running),
            accept_length=self._found.get("bench_accept_length", accept),
            graph=Counter(graphs).most_common(1)[0][0] if graphs else None,
            nccl=self._found.get("nccl"),
            nccl_set=self._nccl_set,
            arguments=self._found.get("arguments", {}),
            speculation=self._found.get("speculation"),
            max_tokens=self._found.get("max_tokens"),
            versions=tuple(self._lists["versions"]),
            images=tuple(self._lists["images"]),
            ran_from=tuple(self._lists["ran_from"]),
        )


def _read_stamp(found: re.Match[str] | None) -> Stamp | None:
    if found is None:
        return None
    try:
        time = datetime.fromisoformat(found["time"].replace("T", " "))
    except ValueError:
        return None
    zone = found.groupdict().get("zone")
    if zone is None:
        return Stamp(time)
    if zone == "Z":
        return Stamp(time, 0)
    seconds = 3600 * int(zone[1:3]) + 60 * int(zone[-2:])
    return Stamp(time, -seconds if zone[0] == "-" else seconds)


def _moment(stamp: Stamp) -> datetime:
    """Comparable within one log."""
    return stamp.time - timedelta(seconds=stamp.zone or 0)


def _arguments(text: str) -> dict[str, str]:
    found = {name: value.strip("'\"") for name, value in _ARGUMENT.findall(text[:65536])}
    return {name: clean(found[name]) for name in _ARGUMENTS if found.get(name) not in (None, "None")}


def _speed(batches: list[DecodeBatch]) -> tuple[float | None, int | None, float | None]:
    """tok/s, requests at a time and accept length: of one request where it was seen alone, else of the usual number."""
    timed = [batch for batch in batches if batch.tok_s is not None and batch.running > 0]
    if not timed:
        return None, None, None
    counts = Counter(batch.running for batch in timed)
    running = 1 if 1 in counts else counts.most_common(1)[0][0]
    chosen = [batch for batch in timed if batch.running == running]
    accept = [batch.accept_length for batch in chosen if batch.accept_length is not None]
    return median(b.tok_s for b in chosen if b.tok_s is not None), running, median(accept) if accept else None
