"""What SGLang's server log says: how far the launch is, and, once it has ended, why.

`LogParser` takes bytes as they come, cut anywhere. Everything in a log is a stranger's text: lines are cut before they
are looked at, signs are plain words, and control characters are stripped before a line is kept. Tracebacks are never
kept, only the exception they end with.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from perfgate.engine.causes import (
    AFTERMATH,
    BLOCK_CODES,
    CAUSES,
    ENDS_IT,
    KEEP_CAUSES,
    TOLD,
    Causes,
    FailureCause,
    Weight,
    sign_of,
)
from perfgate.text import visible

READY = "The server is fired up and ready to roll!"
MAX_LINE = 4096  # of a line, bytes; the rest of it is dropped
MAX_SHOWN = 300  # of a line that is shown to people, characters
MAX_READ = 4 << 20  # at once, so that a flood of output cannot fill the memory
MAX_BEHIND = 16 << 20  # of more that is new, both ends are read
KEEP_USEFUL = 10
KEEP_DECODE = 1000
KEEP_NOTES = 16


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
    fatal: bool = False  # it said that it ends
    cause: FailureCause | None = None  # nearest to the root; holds only where the server is dead or `fatal`
    ended_a_process: bool = False  # whether the cause did
    exception: str | None = None  # last one logged; a cause only if the server is dead
    max_total_num_tokens: int | None = None
    spec_worker: tuple[str, ...] = ()
    tree_core: str | None = None  # why not the default one in Rust serves, in SGLang's words
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
            "python_tree_core": self.tree_core,
            "nccl": self.nccl,
            "decode_lines": len(self.decode) or None,
            "log_tok_s": _median([batch.tok_s for batch in self.decode]),
            "log_accept_length": _median([batch.accept_length for batch in self.decode]),
        }
        return {name: value for name, value in said.items() if value is not None}


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

_PYTHON_CORE = "Using the Python TreeCore: "

_STAMP = re.compile(r"\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?([^\]]{0,60})\] ")
_RANK = re.compile(r"\[rank(\d{1,4})\]: ?")  # as torch marks the lines of a rank
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]?")
_TRACEBACK = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,200}(?:Error|Exception|Exit|Interrupt|Iteration)\b")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_MAX_TOKENS = re.compile(r"\bmax_total_num_tokens=(\d{1,12})\b")
_NCCL = re.compile(r"sglang is using nccl==([\w.]{1,32})")
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,12})?")
_BAR = "%|"  # of a progress bar that has no end of line yet
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
_DULL_PARTS = (
    "Warning: ",
    "warnings.warn(",
    "% Completed |",
    "it/s]",
    "s/it]",
    " - WARNING - ",
    "Skipping tactic",
    "already in use, trying",
)


def clean(line: str) -> str:
    """One line without terminal control and invisible direction marks, bounded in length."""
    return visible(line[: 4 * MAX_SHOWN], MAX_SHOWN)


class LogParser:
    """Reads a log piece by piece. `state()` may be asked at any time."""

    def __init__(self) -> None:
        self._rest = b""
        self._dropping = False  # inside a line that is too long
        self._size = 0
        self._ready = False
        self._stage = "starting"
        self._causes = Causes()
        self._tracebacks: set[str] = set()  # by whom they are being written
        self._exception: str | None = None
        self._max_tokens: int | None = None
        self._nccl: str | None = None
        self._spec_worker: list[str] = []
        self._tree_core: str | None = None
        self._decode: deque[DecodeBatch] = deque(maxlen=KEEP_DECODE)
        self._idle = True  # the next decode line also covers the wait before it
        self._useful: deque[str] = deque(maxlen=KEEP_USEFUL)

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        if b"\r" in data:
            data = data.replace(b"\r", b"\n")
        lines = data.split(b"\n")
        if len(lines) > 1 and not self._dropping:
            lines[0] = self._rest + lines[0]
        elif len(lines) == 1:
            self._keep_rest(data)
            return
        if self._dropping:
            lines[0] = b""  # the end of the long line
            self._dropping = False
        self._rest = b""
        for line in lines[:-1]:
            if line:
                self._line(line[:MAX_LINE].decode("utf-8", "replace"))
        self._keep_rest(lines[-1])

    def _keep_rest(self, data: bytes) -> None:
        if self._dropping:
            return
        self._rest += data[: MAX_LINE + 1]
        if len(self._rest) > MAX_LINE:
            self._line(self._rest[:MAX_LINE].decode("utf-8", "replace"))
            self._rest, self._dropping = b"", True

    def skipped(self, count: int) -> None:
        """So many bytes are not read: what follows begins in the middle of a line."""
        self._size += count
        self._rest, self._dropping = b"", True

    def finish(self) -> None:
        """The server is dead: a last line without an end counts as well."""
        if self._rest:
            self.feed(b"\n")
            self._size -= 1

    def state(self) -> LogState:
        nearest = self._causes.nearest(self._exception)
        return LogState(
            ready=self._ready,
            stage=self._stage,
            fatal=self._causes.fatal,
            cause=None if nearest is None else nearest[1],
            ended_a_process=nearest is not None and nearest[0] <= Weight.RAISED,
            exception=self._exception,
            max_total_num_tokens=self._max_tokens,
            spec_worker=tuple(self._spec_worker),
            tree_core=self._tree_core,
            nccl=self._nccl,
            decode=tuple(self._decode),
            useful=tuple(self._useful),
            size=self._size,
        )

    def _line(self, text: str) -> None:
        if "\x1b" in text:
            text = _ESCAPES.sub("", text)
        stamped = _STAMP.match(text)
        if stamped is None and _BAR in text and (stamped := _STAMP.search(text)):
            self._entry(text[: stamped.start()], "")
        if stamped:
            text = text[stamped.end() :]
            self._tracebacks.discard("")
        elif marked := _RANK.match(text):
            self._entry(text[marked.end() :], marked[1])
            return
        self._entry(text, "")

    def _entry(self, text: str, writer: str) -> None:
        """One line without its stamp; `writer` where torch marks it as a rank's."""
        if not text or text.isspace() or self._traceback(text, writer):
            return
        self._progress(text)
        if text.startswith("  what():"):
            self._raised(text.removeprefix("  what():").strip())
            return
        if text.startswith(_DULL) or text[0].isspace() or any(part in text for part in _DULL_PARTS):
            return
        if not self._failure(text):
            self._say(text)

    def _traceback(self, text: str, writer: str) -> bool:
        """Whether the line is part of a traceback. The exception it ends with is kept."""
        if _TRACEBACK in text:
            before = text.partition(_TRACEBACK)[0].strip()
            if before and not before.startswith(_DULL):
                self._failure(before)
            if len(self._tracebacks) < KEEP_CAUSES:
                self._tracebacks.add(writer)
            return True
        if text.startswith(_CHAINED):
            self._causes.chained()
            return True
        if writer not in self._tracebacks:
            return False
        if text[0].isspace() or text.startswith(("|", "+-")):
            return True
        self._tracebacks.discard(writer)
        self._raised(text)
        return True

    def _raised(self, text: str) -> None:
        line = clean(text)
        if sign_of(line)[0] is not TOLD:
            self._exception = line
        self._causes.raised(line)
        self._keep(line)

    def _failure(self, text: str) -> bool:
        sign, code = sign_of(text)
        if sign is None:
            return False
        line = clean(text)
        fatal = code in ENDS_IT and "soft=True" not in text
        self._causes.fatal = self._causes.fatal or fatal
        self._keep(line)
        if code == "watchdog_timeout" and not fatal:
            return True
        if code in BLOCK_CODES:
            self._causes.open(code)
        if sign is CAUSES:
            self._causes.add(Weight.ROOT if code == "bad_flag" else Weight.SEEN, code, line)
        else:
            self._causes.add(Weight.AFTERMATH if sign is AFTERMATH else Weight.TOLD, code, line)
        return True

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
        if "max_total_num_tokens=" in text and (found := _MAX_TOKENS.search(text)):
            self._max_tokens = int(found[1])
        if "nccl==" in text and (found := _NCCL.search(text)):
            self._nccl = found[1]
        if _PYTHON_CORE in text:
            self._tree_core = clean(text.partition(_PYTHON_CORE)[2])
        if len(self._spec_worker) < KEEP_NOTES and any(sign in text for sign in _SPEC_WORKER):
            line = clean(text)
            if line not in self._spec_worker:
                self._spec_worker.append(line)

    def _decode_line(self, text: str) -> None:
        batch = decode_batch(text)
        if batch is not None and not self._idle:
            self._decode.append(batch)
        self._idle = False

    def _say(self, text: str) -> None:
        if _EXCEPTION.match(text):
            self._raised(text)
        else:
            self._keep(clean(text))

    def _keep(self, line: str) -> None:
        if line and (not self._useful or self._useful[-1] != line):
            self._useful.append(line)


def decode_batch(text: str) -> DecodeBatch | None:
    """A `Decode batch` line of any release since 0.4.9; None where its numbers are not numbers."""
    parts = (part.partition(": ") for part in text[text.find("#") :].split(","))
    pairs = {name.strip().lower(): value.strip() for name, _, value in parts}
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


def _number(pairs: dict[str, str], name: str) -> float | None:
    value = pairs.get(name, "")
    return float(value) if _NUMBER.fullmatch(value) else None


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
        """Takes in what is new: of very much, both ends. A file that has become shorter (the server can do that) is
        read from its start."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self._offset:
                    self._offset = 0
                ends = [self._offset]
                if size - self._offset > MAX_BEHIND:
                    ends.append(size - MAX_READ)
                for begin in ends:
                    if begin > self._offset:
                        self._parser.skipped(begin - self._offset)
                    file.seek(begin)
                    data = file.read(MAX_READ)
                    self._offset = begin + len(data)
                    self._parser.feed(data)
        except OSError:
            pass
        return self._parser.state()

    def read_all(self) -> LogState:
        """To the end, of a server that writes no more."""
        before = -1
        while before != self._offset:
            before = self._offset
            self.read()
        self._parser.finish()
        return self._parser.state()
