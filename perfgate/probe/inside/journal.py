"""The probe's file: JSON lines, written in batches of whole lines, bounded in size.

Each process has its own file, so nothing is shared. A batch is one `write`, so SIGKILL loses at most the lines not yet
handed over and tears at most the last one. When the disk is full or the bound is reached the file ends for good: a
file with a hole would say that nothing ran there.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

VERSION = 1
BATCH_LINES = 64
BATCH_SECONDS = 0.5
IDLE_SECONDS = 0.1  # without a new line: what is left is written
RESERVE = 4096  # bytes kept for the line that says the bound was reached


class ProbeJournal:
    """Appends lines. Never raises after it is open: `open` turns False instead, with the reason in `why`."""

    def __init__(self, directory: str, max_bytes: int) -> None:
        path = f"{directory}/probe-{os.getpid()}-{time.monotonic_ns()}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o644)
        os.fchmod(self._file, 0o644)  # whatever the umask: another user reads it
        self._lines: list[str] = []
        self._since = self._last = time.monotonic()
        self._left = max_bytes - RESERVE
        self._lock = threading.Lock()
        self.open = True
        self.why = ""

    def write(self, kind: str, **fields: Any) -> None:
        """One line of any kind, on its way to the disk when this returns."""
        if self.open:
            self.add(json.dumps({"k": kind, **fields}, default=str))
            self.flush()

    def add(self, line: str) -> None:
        """A finished line, written with its batch."""
        with self._lock:
            self._lines.append(line)
            self._last = time.monotonic()
            full = len(self._lines) >= BATCH_LINES or self._last - self._since >= BATCH_SECONDS
        if full:
            self.flush()

    def flush(self) -> None:
        with self._lock:
            lines, self._lines = self._lines, []
            self._since = time.monotonic()
            if lines and self.open:
                self._append(("\n".join(lines) + "\n").encode("utf-8", "backslashreplace"))

    def flush_if_idle(self) -> None:
        """For the keeper: while cycles run, they flush themselves."""
        if self._lines and time.monotonic() - self._last >= IDLE_SECONDS:
            self.flush()

    def _append(self, batch: bytes) -> None:
        self._left -= len(batch)
        if self._left < 0:
            batch = (json.dumps({"k": "full", "t": time.monotonic()}) + "\n").encode()
        try:
            while batch:
                batch = batch[os.write(self._file, batch) :]
        except OSError as error:
            self._end(f"cannot be written: {error.strerror}")
        if self._left < 0:
            self._end("the file has reached its bound")

    def _end(self, why: str) -> None:
        self.open = False
        self.why = why
        sys.stderr.write(f"perfgate probe: {why}; nothing more is recorded\n")
        with contextlib.suppress(OSError):
            os.close(self._file)

    def abandon(self) -> None:
        """In a forked child: the file and its lock belong to the parent."""
        self._lock = threading.Lock()
        self._lines = []
        self.open = False
