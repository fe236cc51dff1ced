"""One probed process: opens its file, takes the readings at their moments, and keeps the file up to date while idle."""

from __future__ import annotations

import atexit
import datetime
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from . import hooks, proof, readings
from .journal import VERSION, ProbeJournal
from .targets import BY_MODULE
from .timers import Clock, Timers, clock_for

KEEPER_SECONDS = 0.1  # with journal.IDLE_SECONDS: a quarter of a second after its last cycle, all of it is on disk
TITLE_SECONDS = 120.0  # how long a process may take to give itself a title
DEFAULT_MAX_BYTES = 64 * 1024 * 1024


def start(
    directory: str,
    sitecustomize: str,
    entry: dict[str, str],
    ran: tuple[str, str | None] | None,
    root: bool,
) -> None:
    """Called at the first `import sglang`. `entry`: the environment this process came with; `ran`: the user's
    sitecustomize that has run since; `root`: this is the launch's first process. Raises OSError where the directory
    cannot be written."""
    journal = ProbeJournal(directory, int(os.environ.get("PERFGATE_PROBE_MAX_BYTES") or DEFAULT_MAX_BYTES))
    process = ThisProcess(journal, toggle_in(directory))
    process.say_what_it_is(root)
    process.say_how_it_started(sitecustomize, entry, ran)
    process.keep()
    sys.meta_path.insert(0, hooks.TargetFinder(process.loaded))


class ThisProcess:
    def __init__(self, journal: ProbeJournal, enabled: Callable[[], bool] | None) -> None:
        self.journal = journal
        self.timers = Timers(self.first_mark, journal.add, self.note, enabled)
        self.timers.on = os.environ.get("PERFGATE_PROBE_TIMERS") != "0"
        self.effective: dict[str, str] | None = None
        self._owes_libraries = threading.Event()

    def note(self, text: str) -> None:
        self.journal.write("note", text=readings.clean(text))

    # ------------------------------------------------------------------------------------------- readings

    def say_what_it_is(self, root: bool) -> None:
        self.journal.write(
            "head",
            v=VERSION,
            launch=os.environ.get("PERFGATE_PROBE_LAUNCH", "")[:200],
            pid=os.getpid(),
            ppid=os.getppid(),
            root=root,
            t=time.monotonic(),
            utc=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),  # noqa: UP017 (3.10)
            argv=readings.command_line(),
            title=readings.title(),
        )

    def say_how_it_started(self, sitecustomize: str, entry: dict[str, str], ran: tuple[str, str | None] | None) -> None:
        chain = [{"path": readings.clean(sitecustomize), "hash": readings.file_hash(sitecustomize)}]
        if ran is not None:
            path, error = ran
            why = {"error": readings.clean(error)} if error else {}
            chain.append({"path": readings.clean(path), "hash": readings.file_hash(path), **why})
        came = readings.variables(entry)
        now = readings.variables(os.environ)
        self.journal.write("start", entry=came, env=now, sitecustomize=chain)

    def after_collective(self) -> None:
        """Never raises: SGLang's own start-up is underneath."""
        try:
            if self.effective is None:
                self._say_effective("initialize_model_parallel")
        except Exception as error:  # noqa: BLE001 (a failing probe steps aside)
            self.note(f"no reading after the first collective: {type(error).__name__}: {error}")

    def _say_effective(self, where: str) -> None:
        self.effective = readings.effective()
        self.journal.write(
            "effective",
            where=where,
            env=self.effective,
            rank=proof.rank(),
            files=[{"path": path, "hash": readings.file_hash(path)} for path in readings.nccl_files(os.environ)],
        )
        self._owes_libraries.set()

    def first_mark(self, worker: Any) -> Clock | None:
        """The worker is at work for the first time: what it is, which clock fits, and whether variables moved. None
        and asked again where this one does not say on which device it works."""
        device = proof.device_of(worker)
        clock = clock_for(device)
        if clock is None and device is None:
            return None
        if self.effective is None:
            self._say_effective("first cycle")
        moved = {k: v for k, v in readings.effective().items() if (self.effective or {}).get(k) != v}
        kind = type(worker)
        self.journal.write(
            "worker",
            worker=f"{kind.__module__}.{kind.__qualname__}",
            rank=proof.rank(),
            device=device,
            gpu=proof.device_name(),
            clock=clock.name if clock else None,
            moved=moved,
        )
        if clock is None:
            self.timers.on = False
            self.note(f"timers off: no clock for device {device}")
        return clock

    # ------------------------------------------------------------------------------------------- targets

    def loaded(self, module: ModuleType) -> None:
        """Never raises: the module is SGLang's."""
        try:
            outcome = hooks.patch(module, self.timers, self.after_collective)
            self.journal.write("targets", module=module.__name__, outcome=outcome)
        except Exception as error:  # noqa: BLE001 (a failing probe steps aside)
            self.note(f"{module.__name__} was not patched: {type(error).__name__}: {error}")

    # ------------------------------------------------------------------------------------------- keeper

    def keep(self) -> None:
        """Starts the thread that flushes while the process is idle and answers the slow questions."""
        for name in BY_MODULE:
            if name in sys.modules:
                self.note(f"{name} was loaded before the probe")
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self.journal.flush)
        threading.Thread(target=self._keeper, name="perfgate-probe", daemon=True).start()

    def _forked(self) -> None:
        self.timers.on = False
        self.journal.abandon()

    def _keeper(self) -> None:
        """Asks the device nothing: a query from another thread would spoil a graph that is being captured."""
        try:
            titled_until = time.monotonic() + TITLE_SECONDS
            title = readings.title()
            while self.journal.open:
                time.sleep(KEEPER_SECONDS)
                self.journal.flush_if_idle()
                if time.monotonic() < titled_until and readings.title() != title:
                    title = readings.title()
                    self.journal.write("title", title=title)
                if self._owes_libraries.is_set():
                    self._owes_libraries.clear()
                    self.journal.write("versions", versions=proof.versions(), nccl=proof.nccl_libraries())
            self.timers.on = False
        except Exception as error:  # noqa: BLE001 (a failing probe steps aside)
            self.note(f"the keeper ended: {type(error).__name__}: {error}")


def toggle_in(directory: str) -> Callable[[], bool] | None:
    """Reads the first byte of `<directory>/toggle` at the cost of a memory access; None where it is not asked for."""
    if os.environ.get("PERFGATE_PROBE_TOGGLE") != "1":
        return None
    path = Path(directory) / "toggle"
    with path.open("rb") as file:
        byte = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
    return lambda: byte[0] != ord("0")
