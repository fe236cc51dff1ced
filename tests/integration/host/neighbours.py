"""A neighbour that is busy while head is measured and rests while base is: processes that are nobody's children.

with Neighbour(run, busy=4):
    … a gate into `run` …
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

from perfgate.records import Side

START = """
import subprocess, sys
loop = "while True: sum(range(10000))"
quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
for _ in range(int(sys.argv[1])):
    print(subprocess.Popen([sys.executable, "-c", loop], start_new_session=True, **quiet).pid)
"""
POLL_S = 0.02


class Neighbour:
    """Works beside launches of one side only; told by the newest folder that a launch made for its probe."""

    def __init__(self, run: Path, busy: int, beside: Side = Side.HEAD) -> None:
        self._probes = run / "probe"
        self._beside = f"-{beside.value}-a"
        self._busy = busy
        self._pids: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.worked_s = 0.0

    def __enter__(self) -> Self:
        started = subprocess.run(
            [sys.executable, "-c", START, str(self._busy)], capture_output=True, text=True, check=True
        )
        self._pids = [int(line) for line in started.stdout.split()]
        self._all(signal.SIGSTOP)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._all(signal.SIGKILL)

    def _follow(self) -> None:
        working = False
        while not self._ended.wait(POLL_S):
            wanted = self._beside in self._newest()
            if wanted != working:
                self._all(signal.SIGCONT if wanted else signal.SIGSTOP)
                working = wanted
            self.worked_s += POLL_S if working else 0.0

    def _newest(self) -> str:
        try:
            folders = [entry for entry in os.scandir(self._probes) if "-p00-" not in entry.name and entry.is_dir()]
        except FileNotFoundError:
            return ""
        newest = max(folders, key=lambda entry: entry.stat().st_ctime if entry.is_dir() else 0.0, default=None)
        return newest.name if newest and "-p" in newest.name else ""

    def _all(self, number: signal.Signals) -> None:
        for pid in self._pids:
            os.kill(pid, number)
