"""What SGLang's server log says: how far the launch is, that it is ready, why it failed.

`LogParser` takes bytes as they come, cut anywhere. Everything in a log is a stranger's text: it is bounded in length
and stripped of control characters before it is kept. Tracebacks are never kept, only the exception they end with.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from perfgate.text import visible

READY = "The server is fired up and ready to roll!"
MAX_LINE = 64 * 1024  # of a line, bytes; the rest of it is dropped
MAX_SHOWN = 300  # of a line that is shown to people, characters
MAX_READ = 4 * 1024 * 1024  # at once, so that a flood of output cannot fill the memory
KEEP_USEFUL = 10
KEEP_DECODE = 1000
KEEP_NOTES = 16


@dataclass(frozen=True)
class Cause:
    """Why a server failed: `code` for machines, `line` for people."""

    code: str
    line: str


@dataclass(frozen=True)
class DecodeBatch:
    """One of SGLang's own progress lines of decoding. Only a cross-check: measured numbers come from the client."""

    running: int
    tok_s: float | None
    accept_length: float | None
    graph: bool | None


@dataclass(frozen=True, kw_only=True)
class LogState:
    """All that is known from the log so far."""

    ready: bool = False
    stage: str = "starting"  # in words
    failure: Cause | None = None
    exception: str | None = None  # last one logged; a cause only if the server is dead
    max_total_num_tokens: int | None = None
    spec_worker: tuple[str, ...] = ()
    nccl: str | None = None
    decode: tuple[DecodeBatch, ...] = ()
    useful: tuple[str, ...] = ()  # last lines worth showing
    size: int = 0  # bytes read: any growth is a sign of life

    @property
    def facts(self) -> dict[str, Any]:
        """For `LaunchEnd.facts_from_log`."""
        said = {
            "max_total_num_tokens": self.max_total_num_tokens,
            "spec_worker": list(self.spec_worker) or None,
            "nccl": self.nccl,
            "decode_lines": len(self.decode) or None,
            "log_tok_s": _median([batch.tok_s for batch in self.decode]),
            "log_accept_length": _median([batch.accept_length for batch in self.decode]),
        }
        return {name: value for name, value in said.items() if value is not None}


# The cause: the first of these is the failure. Order matters where a line matches several.
_CAUSES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (code, re.compile(pattern))
    for code, pattern in (
        (
            "port_taken",
            r"(?:[Aa]ddress|Port)(?: \d+)? (?:is )?already in use(?!, trying)|\[Errno 98\]|at \d+ is not available in",
        ),
        ("out_of_memory", r"Not enough memory\. Please try to increase --mem-fraction-static"),
        ("out_of_memory", r"(?:torch\.(?:cuda\.)?)?OutOfMemoryError|CUDA out of memory"),
        ("memory_unbalanced", r"The memory capacity is unbalanced"),
        ("bad_flag", r"error: (?:unrecognized arguments|argument |the following arguments are required)"),
        ("model_missing", r"is not a local folder and is not a valid model identifier|LocalEntryNotFoundError"),
        ("model_missing", r"outgoing traffic has been disabled|We couldn't connect to 'https?://huggingface"),
        ("cuda_graph_failed", r"Capture cuda graph failed"),
        ("cuda_error", r"CUDA error: |NCCL error|ncclUnhandledCudaError|ncclSystemError"),
        ("watchdog_timeout", r"[Ww]atchdog timeout"),
        ("warmup_failed", r"Initialization failed\. warmup error"),
        ("crashed", r"Fatal Python error: "),
        ("scheduler_exception", r"Scheduler hit an exception"),
        ("detokenizer_exception", r"(?:Detokenizer|TokenizerManager|DataParallelController) hit an exception"),
    )
)
# The consequence: only told where no cause was logged.
_CONSEQUENCES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("scheduler_died", re.compile(r"Rank \d+ scheduler died during initialization")),
    ("scheduler_died", re.compile(r"Rank \d+ scheduler is dead|scheduler is dead")),
    ("child_failed", re.compile(r"Received sigquit from a child process")),
)
_BLOCK_CODES = frozenset({"scheduler_exception", "detokenizer_exception", "cuda_graph_failed", "warmup_failed"})

_STAGES: tuple[tuple[str, str], ...] = (
    ("server_args=", "starting processes"),
    ("Init torch distributed begin", "connecting the ranks"),
    ("Init parallel begin", "connecting the ranks"),
    ("Load weight begin", "loading weights"),
    ("Loading safetensors", "loading weights"),
    ("Multi-thread loading shards", "loading weights"),
    ("Load weight end", "weights loaded"),
    ("KV Cache is allocated", "memory allocated"),
    ("Capture cuda graph begin", "capturing CUDA graphs"),
    ("Capture draft cuda graph begin", "capturing CUDA graphs"),
    ("Capturing batches", "capturing CUDA graphs"),
    ("Capture cuda graph end", "CUDA graphs captured"),
    ("max_total_num_tokens=", "opening the port"),
    ("Uvicorn running", "SGLang's own warm-up"),
    (READY, "ready"),
)
_SPEC_WORKER = ("spec v1 is used", "spec v2 is used", "Spec v2 is enabled", "Spec v1 is used", "overlap spec")

_STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?:[^\]]{0,60})?\] ")
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]?")
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Iteration)|AssertionError)\b")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_MAX_TOKENS = re.compile(r"\bmax_total_num_tokens=(\d{1,12})\b")
_NCCL = re.compile(r"sglang is using nccl==([\w.]{1,32})")
_PAIR = re.compile(r"(#?[a-z][a-z #-]*(?: \(token/s\))?): ([\w.+-]+)", re.IGNORECASE)
_DULL = (
    "Receive: obj=",
    "Finish: obj=",
    "server_args=",
    "INFO:  ",
    "Prefill batch",
    "Decode batch",
    "Ignore import error",
    "Cache flushed",
    "kill_process_tree called",
)
_DULL_PARTS = ("Warning: ", "warnings.warn(", "% Completed |", "it/s]", "s/it]")


def clean(line: str) -> str:
    """One line without terminal control and invisible direction marks, bounded in length."""
    return visible(line, MAX_SHOWN)


class LogParser:
    """Reads a log piece by piece. `state()` may be asked at any time."""

    def __init__(self) -> None:
        self._rest = b""
        self._dropping = False  # inside a line that is too long
        self._size = 0
        self._ready = False
        self._stage = "starting"
        self._cause: Cause | None = None
        self._consequence: Cause | None = None
        self._in_traceback = False
        self._in_block = False  # the lines that belong to the cause's own log entry
        self._exception: str | None = None
        self._max_tokens: int | None = None
        self._nccl: str | None = None
        self._spec_worker: list[str] = []
        self._decode: deque[DecodeBatch] = deque(maxlen=KEEP_DECODE)
        self._idle = True  # the next decode line also covers the wait before it
        self._useful: deque[str] = deque(maxlen=KEEP_USEFUL)

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if self._dropping:
                self._dropping = False  # the end of the long line
            else:
                self._line(line[:MAX_LINE].decode("utf-8", "replace"))
        if len(self._rest) > MAX_LINE:
            if not self._dropping:
                self._line(self._rest[:MAX_LINE].decode("utf-8", "replace"))
            self._rest, self._dropping = b"", True

    def finish(self) -> None:
        """The server is dead: a last line without an end counts as well."""
        if self._rest:
            self.feed(b"\n")

    def state(self) -> LogState:
        return LogState(
            ready=self._ready,
            stage=self._stage,
            failure=self._cause or self._told_consequence(),
            exception=self._exception,
            max_total_num_tokens=self._max_tokens,
            spec_worker=tuple(self._spec_worker),
            nccl=self._nccl,
            decode=tuple(self._decode),
            useful=tuple(self._useful),
            size=self._size,
        )

    def _told_consequence(self) -> Cause | None:
        """That a child failed says little; the exception logged before says why."""
        found = self._consequence
        if found is not None and found.code == "child_failed" and self._exception is not None:
            return Cause(found.code, self._exception)
        return found

    def _line(self, raw: str) -> None:
        text = _ESCAPES.sub("", raw)
        stamped = _STAMP.match(text)
        if stamped:
            text = text[stamped.end() :]
            self._in_traceback = self._in_block = False
        if not text.strip():
            return
        if self._traceback(text):
            return
        self._progress(text)
        if text.startswith(_DULL) or text[0].isspace() or any(part in text for part in _DULL_PARTS):
            return
        if not self._failure(text):
            self._say(text)

    def _traceback(self, text: str) -> bool:
        """Whether the line is part of a traceback. The exception it ends with is kept."""
        if _TRACEBACK in text:
            before = text.partition(_TRACEBACK)[0].strip()
            if before:
                self._failure(before)
            self._in_traceback = True
            return True
        if not self._in_traceback:
            return text.startswith(_CHAINED)
        if text[0].isspace() or text.startswith(("|", "+-")):
            return True
        self._in_traceback = False
        if text.startswith(_CHAINED):
            return True
        self._raised(text)
        return True

    def _raised(self, text: str) -> None:
        """An exception at the end of a traceback; inside the cause's own entry it is what to tell."""
        self._exception = line = clean(text)
        code = next((code for code, pattern in _CAUSES if pattern.search(text)), None)
        if self._in_block and self._cause is not None:
            generic = self._cause.code in _BLOCK_CODES
            self._cause = Cause(code if code and generic else self._cause.code, line)
        elif code is not None and self._cause is None:
            self._cause = Cause(code, line)
        self._keep(line)

    def _failure(self, text: str) -> bool:
        for code, pattern in _CAUSES:
            if pattern.search(text):
                if self._cause is None:
                    self._cause = Cause(code, clean(text))
                    self._in_block = code in _BLOCK_CODES
                self._keep(clean(text))
                return True
        for code, pattern in _CONSEQUENCES:
            if pattern.search(text):
                self._consequence = self._consequence or Cause(code, clean(text))
                self._keep(clean(text))
                return True
        return False

    def _progress(self, text: str) -> None:
        if text.startswith("Decode batch"):
            self._decode_line(text)
            return
        if text.startswith("Prefill batch"):
            self._idle = self._idle or "#running-req: 0" in text
            return
        for sign, stage in _STAGES:
            if text.startswith(sign):
                self._stage = stage
                self._ready = self._ready or sign == READY
        if found := _MAX_TOKENS.search(text):
            self._max_tokens = int(found[1])
        if found := _NCCL.search(text):
            self._nccl = found[1]
        if any(sign in text for sign in _SPEC_WORKER) and len(self._spec_worker) < KEEP_NOTES:
            line = clean(text)
            if line not in self._spec_worker:
                self._spec_worker.append(line)

    def _decode_line(self, text: str) -> None:
        batch = decode_batch(text)
        if batch is not None and not self._idle:
            self._decode.append(batch)
        self._idle = False

    def _say(self, text: str) -> None:
        line = clean(text)
        if _EXCEPTION.match(line):
            self._exception = line
        self._keep(line)

    def _keep(self, line: str) -> None:
        if line and (not self._useful or self._useful[-1] != line):
            self._useful.append(line)


def decode_batch(text: str) -> DecodeBatch | None:
    """A `Decode batch` line of any release since 0.4.9; None where its numbers are not numbers."""
    pairs = {
        name.strip().lower(): value for name, value in _PAIR.findall(text.partition("#")[1] + text.partition("#")[2])
    }
    running = _number(pairs, "#running-req")
    if running is None:
        return None
    graph = pairs.get("cuda graph", pairs.get("cpu graph"))
    return DecodeBatch(
        running=int(running),
        tok_s=_number(pairs, "gen throughput (token/s)"),
        accept_length=_number(pairs, "accept len"),
        graph=None if graph is None else graph == "True",
    )


def _number(pairs: Mapping[str, str], name: str) -> float | None:
    value = pairs.get(name, "")
    return float(value) if re.fullmatch(r"\d{1,12}(?:\.\d{1,12})?", value) else None


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


class LogFile:
    """A growing log file, read from where the last reading ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parser = LogParser()
        self._offset = 0

    def read(self) -> LogState:
        """Takes in what is new. A file that has become shorter (the server can do that) is read from its start."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                data = file.read(MAX_READ)
        except OSError:
            return self._parser.state()
        self._offset += len(data)
        self._parser.feed(data)
        return self._parser.state()

    def read_all(self) -> LogState:
        """To the end, of a server that writes no more."""
        before = -1
        while before != self._offset:
            before = self._offset
            self.read()
        self._parser.finish()
        return self._parser.state()
