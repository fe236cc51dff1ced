"""A process outside perfgate's tree that ends what perfgate started when perfgate itself no longer can.

It has a session of its own and no parent, ignores the terminal's and the runner's signals, and holds a copy of the
box's lock: the lock is let go only when all is ended and free. It learns over a pipe what runs; the end of the pipe, or
of perfgate, is its sign. What runs also stands in record files, so that `sweep` can end what is left even if the
watchdog was killed as well. Standard library only, and small: it lives as long as perfgate.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from perfgate.engine import tree
from perfgate.engine.tree import Process
from perfgate.errors import Exit, PerfgateError

RECORD_PREFIX = "launch-"
START_S = 20.0  # for a process that needs a twentieth of a second, on a busy box
LOOK_S = 1.0  # how often perfgate's life is checked where the kernel does not tell of its end (before Linux 5.3)
GPU_LIMIT_S = 900.0  # the lock is not kept for longer than this for GPUs that never become free
GPU_POLL_S = 2.0
KEPT_STOP_S = 10.0  # for killed processes to leave their GPUs
WHY_NOT_ENDED = "ps -o pid,stat,wchan,cmd shows what they wait for"
QUIET_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True, kw_only=True)
class Watched:
    """All that is needed to end a launch: known before its first process exists, completed afterwards."""

    token: str  # random; in the environment of each of its processes
    name: str
    port: int | None  # None: no launch of a server, it has none
    stop_s: float
    root: Process | None = None
    recorded: tuple[Process, ...] = ()
    memory: tuple[str, ...] = ()  # files in /dev/shm
    user: int | None = None  # whose every process ends with it

    def find(self) -> list[Process]:
        return tree.of_launch(self.root, self.token, self.recorded)

    def end(self) -> bool:
        """Ends its processes at once and removes its shared memory. Whether all are gone."""
        gone = not tree.end(self.find, last=self.root, limit_s=self.stop_s, user=self.user)
        tree.remove_shared_memory(map(Path, self.memory))
        return gone


def watched_from(body: Any) -> Watched:
    """From its JSON form. Raises KeyError, TypeError or ValueError for anything else."""
    root = body["root"]
    return Watched(
        token=str(body["token"]),
        name=str(body["name"]),
        port=None if body["port"] is None else int(body["port"]),
        stop_s=float(body["stop_s"]),
        root=None if root is None else _process_from(root),
        recorded=tuple(map(_process_from, body["recorded"])),
        memory=tuple(map(str, body["memory"])),
        user=None if body.get("user") is None else int(body["user"]),
    )


def _process_from(body: Any) -> Process:
    return Process(int(body["pid"]), int(body["started"]))


class WatchdogLost(PerfgateError):
    """The watchdog ended although it must not: nothing more may be started."""

    exit_code = Exit.CANNOT


class NotEnded(PerfgateError):
    """Something that was started is still there: nothing may be launched beside it."""

    exit_code = Exit.CANNOT


class Watchdog:
    """perfgate's end of the pipe."""

    def __init__(self, records: Path, pipe: int, answers: int, process: Process) -> None:
        self.records = records
        self.process = process
        self._pipe = pipe
        self._answers = answers
        self._watching: set[str] = set()

    @classmethod
    def start(cls, lock_fd: int | None, record_dir: Path, gpus_free: Sequence[str] = ()) -> Watchdog:
        """Starts the process. `gpus_free`: a command that exits 0 when the GPUs are free of what perfgate started.

        Raises WatchdogLost when it does not come up.
        """
        record_dir.mkdir(parents=True, exist_ok=True)
        commands, pipe = os.pipe()
        answers, answer_pipe = os.pipe()
        kept = (commands, answer_pipe, *(() if lock_fd is None else (lock_fd,)))
        root = Path(__file__).resolve().parents[2]
        code = f"import sys; sys.path.insert(0, {str(root)!r}); from perfgate.engine.watchdog import main; main()"
        owner = tree.look(os.getpid())
        order = {
            "commands": commands,
            "answers": answer_pipe,
            "records": str(record_dir.resolve()),
            "gpus_free": list(gpus_free),
            "owner": asdict(owner.process) if owner else None,
        }
        with (record_dir / "watchdog.log").open("ab") as output:
            subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", code, json.dumps(order)],
                env=QUIET_ENVIRONMENT,  # and not the runner's, which ends all processes that carry its marks
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=kept,
                start_new_session=True,
            ).wait(START_S)  # it leaves at once; its child stays
        os.close(commands)
        os.close(answer_pipe)
        said = _read_line(answers, START_S)
        if said is None:
            os.close(pipe)
            os.close(answers)
            raise WatchdogLost("the watchdog did not start", where=str(record_dir / "watchdog.log"))
        return cls(record_dir, pipe, answers, _process_from(said))

    def watch(self, watched: Watched) -> None:
        """Tells of a launch, or of more of it. On disk and on its way when this returns."""
        owner = tree.look(os.getpid())
        _write_record(self.records, watched, owner.process if owner else None, self.process)
        self._watching.add(watched.token)
        self._send({"watch": asdict(watched)})

    def unwatch(self, watched: Watched) -> None:
        """The launch has ended and all is free. A watchdog that is lost is noticed by the next `watch`."""
        self._watching.discard(watched.token)
        _record(self.records, watched.token).unlink(missing_ok=True)
        with suppress(WatchdogLost):
            self._send({"unwatch": watched.token})

    def keeping(self, name: str, stop_s: float = KEPT_STOP_S, user: int | None = None) -> Kept:
        """For something else than a launch, which ends when the block does, or perfgate."""
        return Kept(self, Watched(token=tree.new_token(), name=name, port=None, stop_s=stop_s, user=user))

    def close(self, limit_s: float = 60.0) -> bool:
        """Lets the watchdog end whatever is left and leave. Whether it said in time that all is gone."""
        if self._pipe < 0:
            return True
        with suppress(WatchdogLost):
            self._send({"close": True})
        os.close(self._pipe)
        self._pipe = -1
        said = _read_line(self._answers, limit_s)
        os.close(self._answers)
        return bool(said and said.get("clean")) or (said is None and not self._watching)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, message: dict[str, Any]) -> None:
        data = (json.dumps(message) + "\n").encode()
        try:
            while data:
                data = data[os.write(self._pipe, data) :]
        except OSError as error:
            raise WatchdogLost("the watchdog has ended") from error


@dataclass(frozen=True)
class Kept:
    """What is started meanwhile with the variables that entering it gives is watched like a launch, and then ended."""

    watchdog: Watchdog
    watched: Watched

    def __enter__(self) -> Mapping[str, str]:
        self.watchdog.watch(self.watched)
        return {tree.TOKEN_VARIABLE: self.watched.token}

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Raises NotEnded where something is left, and then leaves it with the watchdog; so does an interrupt."""
        if kind is not None and not issubclass(kind, Exception):
            return
        if not self.watched.end():
            pids = ", ".join(str(process.pid) for process in self.watched.find()[:8])
            raise NotEnded(f"processes of the {self.watched.name} cannot be ended: {pids}", remedy=WHY_NOT_ENDED)
        self.watchdog.unwatch(self.watched)


def _read_line(fd: int, limit_s: float) -> dict[str, Any] | None:
    deadline = time.monotonic() + limit_s
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(fd, 4096) if ready else b""
        if not piece:
            return None
        data += piece
    body = json.loads(data)
    return body if isinstance(body, dict) else None


# ------------------------------------------------------------------------------------------------ records


def _record(folder: Path, token: str) -> Path:
    return folder / f"{RECORD_PREFIX}{token}.json"


def _write_record(folder: Path, watched: Watched, owner: Process | None, watchdog: Process) -> None:
    body = {
        "watched": asdict(watched),
        "owner": None if owner is None else asdict(owner),
        "watchdog": asdict(watchdog),
        "world": _world(),
    }
    path = _record(folder, watched.token)
    unfinished = path.with_suffix(".partial")
    unfinished.write_text(json.dumps(body))
    unfinished.replace(path)


def _world() -> str:
    """Where a pid means what it says: this boot and this process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return "unknown"


@dataclass(frozen=True)
class Swept:
    """What `sweep` found of one launch of an earlier perfgate."""

    name: str
    processes: int  # that were still there
    clean: bool


def sweep(record_dir: Path) -> list[Swept]:
    """Ends exactly what earlier perfgates left running. Leaves launches of a living perfgate or watchdog alone.

    Only for who holds the box: nobody else writes a record meanwhile.
    """
    found = []
    for unfinished in record_dir.glob(f"{RECORD_PREFIX}*.partial"):
        unfinished.unlink(missing_ok=True)  # of a perfgate that was killed while it wrote: its launch had not begun
    for path in sorted(record_dir.glob(f"{RECORD_PREFIX}*.json")):
        try:
            body = json.loads(path.read_text())
            watched = watched_from(body["watched"])
            keepers = [_process_from(body[name]) for name in ("owner", "watchdog") if body[name] is not None]
            world = body["world"]
        except (OSError, ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)  # torn by a crash: then its launch had not begun
            continue
        if world.partition("/")[0] != _world().partition("/")[0]:
            path.unlink(missing_ok=True)  # of another boot: its processes are gone
        elif world == _world() and not any(keeper.alive for keeper in keepers):
            left = len(watched.find())
            clean = watched.end()
            if clean:
                path.unlink(missing_ok=True)
            found.append(Swept(watched.name, left, clean))
    return found


# ------------------------------------------------------------------------------------------------ the process


def main() -> None:
    """The watchdog process: detaches, says who it is, listens, and cleans up."""
    order = json.loads(sys.argv[1])
    if os.fork():
        os._exit(0)  # our parent reaps this one at once, so that the watchdog is nobody's child
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    entry = tree.look(os.getpid())
    os.write(order["answers"], (json.dumps(asdict(entry.process) if entry else None) + "\n").encode())
    watching = listen(order["commands"], None if order["owner"] is None else _process_from(order["owner"]))
    clean = clean_up(watching, Path(order["records"]), order["gpus_free"])
    with suppress(OSError):
        os.write(order["answers"], (json.dumps({"clean": clean}) + "\n").encode())


def listen(commands: int, owner: Process | None) -> dict[str, Watched]:
    """What is to be ended once perfgate closes the pipe, ends, or says so."""
    watching: dict[str, Watched] = {}
    rest = b""
    ended = None if owner is None else _end_of(owner)
    signs = [commands] if ended is None else [commands, ended]
    while True:
        ready, _, _ = select.select(signs, [], [], LOOK_S if ended is None else None)
        if commands not in ready:
            if owner is not None and not owner.alive:
                return watching
            continue
        data = os.read(commands, 1 << 16)
        if not data:
            return watching
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "close" in message:
                return watching
            if "unwatch" in message:
                watching.pop(message["unwatch"], None)
            else:
                watched = watched_from(message["watch"])
                watching[watched.token] = watched


def _end_of(process: Process) -> int | None:
    """A descriptor that becomes readable when this very process ends; None where there is no such thing.

    With it the watchdog sleeps as long as nothing happens: it costs the box nothing while a server is measured.
    """
    with suppress(OSError, AttributeError):
        descriptor = os.pidfd_open(process.pid)
        if process.alive:  # looked at after: the pid was not given to another one meanwhile
            return descriptor
        os.close(descriptor)
    return None


def clean_up(watching: dict[str, Watched], records: Path, gpus_free: Sequence[str]) -> bool:
    """Ends all launches, waits for the GPUs, and forgets the records of what is gone."""
    clean = True
    for watched in watching.values():
        if watched.end() and _port_freed(watched):
            _record(records, watched.token).unlink(missing_ok=True)
        else:
            clean = False
    return (not watching or wait_for_gpus(gpus_free)) and clean


def _port_freed(watched: Watched) -> bool:
    return watched.port is None or tree.wait_until(partial(tree.port_free, watched.port), watched.stop_s)


def wait_for_gpus(command: Sequence[str], limit_s: float = GPU_LIMIT_S) -> bool:
    deadline = time.monotonic() + limit_s
    while command:
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                command, env=QUIET_ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False
            )
            if done.returncode == 0:
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(GPU_POLL_S)
    return True
