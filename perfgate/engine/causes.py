"""Lines of a log that look like the cause of a failure, and which of them comes nearest to the root.

A line that looks like a cause is not one yet: servers warn of what they then live with. It counts once the server has
ended or said that it ends (`fatal`), and of all such lines, of all ranks, the one that comes nearest to the root is
told (`Weight`): eight ranks that lost their connection say less than the one that ran out of memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

KEEP_CAUSES = 100

Signs = tuple[tuple[str, tuple[str, ...]], ...]  # a code, and the plain words of which one is in the line


class Weight(IntEnum):
    """How near a line comes to the root."""

    ROOT = 0  # a known cause, as the exception that ended a process
    RAISED = 1  # another exception that did
    SEEN = 2  # a known cause in a line by itself
    AFTERMATH = 3  # what a rank says when another one is gone
    TOLD = 4  # that a child failed


@dataclass(frozen=True)
class FailureCause:
    """Why a server failed: `code` for machines, `line` for people."""

    code: str
    line: str


# Signs of a cause, the root before its consequence. Plain words: strangers' lines are looked at in one pass each.
CAUSES: Signs = (
    (
        "bad_flag",
        (
            "error: unrecognized arguments",
            "error: ambiguous option",
            "error: argument ",
            "error: the following arguments are required",
        ),
    ),
    (
        "model_missing",
        (
            "is not a local folder and is not a valid model identifier",
            "LocalEntryNotFoundError",
            "outgoing traffic has been disabled",
            "We couldn't connect to 'http",
        ),
    ),
    ("out_of_memory", ("Not enough memory. Please try to increase --mem-fraction-static", "OutOfMemoryError")),
    ("out_of_memory", ("CUDA out of memory", "CUDA error: out of memory")),
    ("memory_unbalanced", ("The memory capacity is unbalanced",)),
    ("cuda_graph_failed", ("Capture cuda graph failed",)),
    ("cuda_error", ("CUDA error: ", "NCCL error", "ncclUnhandledCudaError", "ncclSystemError")),
    ("crashed", ("Fatal Python error: ",)),
    ("scheduler_exception", ("Scheduler hit an exception",)),
    ("detokenizer_exception", (" hit an exception",)),
    ("warmup_failed", ("Initialization failed. warmup error",)),
    ("watchdog_timeout", ("atchdog timeout (", "atchdog timeout.")),
    ("port_taken", ("ddress already in use", "ort is already in use", "[Errno 98]")),
)
# What ranks say when another one is gone or hangs, and what a process says after that.
AFTERMATH: Signs = (
    ("nccl_timeout", ("Watchdog caught collective operation timeout",)),
    ("connection_lost", ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "ncclRemoteError")),
    ("connection_lost", ("NCCL communicator was aborted", "failed to recv, got 0 bytes", "BrokenPipeError")),
    ("crashed", ("Fatal Python error: Aborted", "terminate called after throwing")),
)
# That a child failed: only told where nothing else was logged.
TOLD: Signs = (
    ("scheduler_died", ("scheduler died during initialization", "scheduler is dead")),
    ("child_failed", ("Received sigquit from a child process",)),
)
_ORDER = {code: place for place, (code, _) in enumerate((*CAUSES, *AFTERMATH, *TOLD))}
BLOCK_CODES = frozenset({"scheduler_exception", "detokenizer_exception", "cuda_graph_failed", "warmup_failed"})
ENDS_IT = frozenset({*BLOCK_CODES, "bad_flag", "crashed", "watchdog_timeout", "scheduler_died", "child_failed"})


_ALL = [(sign, table, code) for table in (AFTERMATH, CAUSES, TOLD) for code, signs in table for sign in signs]


def sign_of(text: str) -> tuple[Signs | None, str]:
    """The table that knows a line, and its code there."""
    for sign, table, code in _ALL:
        if sign in text:
            return table, code
    return None, ""


@dataclass
class Causes:
    """All lines that look like a cause, and which of them to tell."""

    found: list[tuple[Weight, int, int, FailureCause]] = field(default_factory=list)  # weight, code's place, when, what
    open_blocks: deque[str] = field(default_factory=deque)  # entries whose exception has not come yet
    closed: str | None = None  # the one whose exception came last
    fatal: bool = False
    count: int = 0

    def add(self, weight: Weight, code: str, line: str) -> None:
        self.count += 1
        self.found.append((weight, _ORDER.get(code, len(_ORDER)), self.count, FailureCause(code, line)))
        if len(self.found) > KEEP_CAUSES:
            self.found.remove(max(self.found, key=lambda one: one[:3]))

    def open(self, code: str) -> None:
        if len(self.open_blocks) < KEEP_CAUSES:
            self.open_blocks.append(code)

    def raised(self, line: str) -> None:
        """An exception; it ended a process where it belongs to an entry that says so."""
        self.closed = self.open_blocks.popleft() if self.open_blocks else None
        sign, code = sign_of(line)
        if sign is CAUSES:
            self.add(Weight.ROOT, code, line)
        elif sign is not None:
            self.add(Weight.AFTERMATH if sign is AFTERMATH else Weight.TOLD, code, line)
        elif self.closed is not None:
            self.add(Weight.RAISED, self.closed, line)

    def chained(self) -> None:
        """The next exception belongs to the same entry, and is what it ended with."""
        if self.closed is None:
            return
        self.open_blocks.appendleft(self.closed)
        if self.found and self.found[-1][0] is Weight.RAISED:
            self.found.pop()

    def nearest(self, exception: str | None) -> tuple[Weight, FailureCause] | None:
        """An entry whose exception never came is told by its own line."""
        if not self.found:
            return None
        weight, _, _, cause = min(self.found, key=lambda one: one[:3])
        if cause.code == "child_failed" and exception is not None:
            return weight, FailureCause(cause.code, exception)
        return weight, cause
