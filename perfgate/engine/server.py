"""One SGLang server: started, waited for, watched, and ended with all it started.

The server's processes run confined in a session of their own, their output goes to a log file, and everything needed to
find them again is on disk before the first of them exists (`watchdog.Watched`).
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from perfgate.engine import tree
from perfgate.engine.causes import FailureCause
from perfgate.engine.exchange import get, post, status_of
from perfgate.engine.faults import (
    CannotStart,
    ClientError,
    GpusNotFreed,
    LaunchError,
    PortTaken,
    ServerDied,
    ServerHung,
    ServerNotFreed,
)
from perfgate.engine.logs import LogFile, LogState
from perfgate.engine.tree import Process
from perfgate.engine.watchdog import WHY_NOT_ENDED, Watchdog, WatchdogLost, Watched
from perfgate.host.sandbox import OUTER_ENVIRONMENT, UNCONFINED, Confinement, Isolation, confine
from perfgate.host.supervisor import supervised
from perfgate.records import Blame

HOST = "127.0.0.1"
POLL_S = 0.1
TELL_S = 5.0  # between two lines about the same stage
SILENT_S = 2.0  # without a line in the log: then the server itself is asked
HEALTH_S = 5.0  # for its answer to that
PATIENCE_S = 10.0  # after a failure line: for the server to end or to go on
DEATH_S = 2.0  # for the log of a dying server to say why
MAX_LOG = 1 << 30  # bytes: a server that writes more is filling the disk
MAX_FILE = 64 << 30  # bytes of any file a server writes; shared memory counts, too
MAX_PROCESSES = 1 << 16  # and threads, of its user
FIRST_TOKENS = 8
ENDED_FIRST = 'echo 500 >/proc/self/oom_score_adj; exec "$@"'  # where memory runs out the server goes, not perfgate
PORTS = range(20_000, 32_000)

Progress = Callable[[str], None]


def _silent(_text: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """How to start one server. `environment` is complete, `argv` ends up confined by `confinement`."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    cwd: Path
    port: int
    log: Path
    stall_s: float  # without any new output, until it is ready
    stop_s: float  # to end it and have port and GPUs free
    confinement: Confinement = UNCONFINED
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    ready_s: float | None = None  # limit of the whole start, however much it says
    name: str = "launch"  # for people and records

    def on_port(self, port: int) -> LaunchSpec:
        """The same on another port."""
        at = self.argv.index("--port") + 1
        return replace(self, port=port, argv=(*self.argv[:at], str(port), *self.argv[at + 1 :]))


def free_port(chosen: random.Random | None = None) -> int:
    """A port that nobody listens on, outside the range from which the kernel gives ports to outgoing connections:
    a server may take minutes until it binds."""
    outgoing = _outgoing_ports()
    candidates = [port for port in PORTS if port not in outgoing] or list(PORTS)
    source = chosen or random.SystemRandom()
    for _ in range(200):
        port = source.choice(candidates)
        if tree.port_free(port, HOST):
            return port
    raise PortTaken("no_port", f"no free port on {HOST} between {PORTS.start} and {PORTS.stop}")


def _outgoing_ports() -> range:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return range(int(low), int(high) + 1)
    except (OSError, ValueError):
        return range(32_768, 61_000)


@dataclass
class Server:
    """A started server. Not for two threads at once.

    Start it in a thread that lives as long as the server: bubblewrap ends it with the thread that started it.
    """

    spec: LaunchSpec
    watched: Watched
    popen: subprocess.Popen[bytes]
    root: Process
    started: float  # mono
    log: LogFile
    watchdog: Watchdog | None = None
    gpus_free: Callable[[], bool] | None = None
    pids: tuple[int, ...] = ()
    memory: set[Path] = field(default_factory=set)

    @classmethod
    def start(
        cls,
        spec: LaunchSpec,
        *,
        watchdog: Watchdog | None = None,
        gpus_free: Callable[[], bool] | None = None,
    ) -> Server:
        """Starts the server's process. Raises PortTaken or CannotStart."""
        if not tree.port_free(spec.port, HOST):
            raise PortTaken("port_taken", f"port {spec.port} is in use by another process")
        user = spec.confinement.sole_user
        watched = Watched(token=tree.new_token(), name=spec.name, port=spec.port, stop_s=spec.stop_s, user=user)
        if watchdog is not None:
            watchdog.watch(watched)
        try:
            popen = _popen(spec, watched.token)
        except OSError as error:
            if watchdog is not None:
                watchdog.unwatch(watched)
            raise CannotStart("cannot_start", f"the server cannot be started: {error}") from error
        entry = tree.look(popen.pid)  # ours until we reap it, so it is there
        root = entry.process if entry else Process(popen.pid, 0)
        server = cls(
            spec=spec,
            watched=replace(watched, root=root),
            popen=popen,
            root=root,
            started=time.monotonic(),
            log=LogFile(spec.log),
            watchdog=watchdog,
            gpus_free=gpus_free,
        )
        try:
            server._tell_watchdog()
        except BaseException:  # nobody else knows of it yet
            server._end()
            raise
        return server

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.spec.port}"

    def alive(self) -> bool:
        """Whether the server's main process is there."""
        return self.popen.poll() is None

    def wait_ready(self, progress: Progress = _silent) -> float:
        """Waits for one real answer; seconds since the start. Raises ServerDied or ServerHung.

        The log is only progress: with `log-level: warning` it says nothing at all.
        """
        self._wait_for_sign(progress)
        self._first_answer()
        ready_s = time.monotonic() - self.started
        self.look_around()
        return ready_s

    def check_output(self) -> None:
        """Raises ServerHung for a server that fills the disk with its log."""
        try:
            size = self.spec.log.stat().st_size
        except OSError:
            return
        if size > MAX_LOG:
            lines = self.log.read().useful
            raise ServerHung("log_flood", f"the server has written more than {MAX_LOG >> 20} MiB of log", lines)

    def look_around(self) -> tuple[int, ...]:
        """Notes all processes and shared memory of the launch now, so that they can be ended later."""
        self._collect()
        self._tell_watchdog()
        return self.pids

    def processes(self) -> list[Process]:
        """The launch's living processes, as the box numbers them."""
        return self._find()

    def died(self) -> ServerDied:
        """The fault of a server that is gone or going, with the reason its log gives."""
        tree.wait_until(lambda: not self.alive(), DEATH_S)
        code = self.popen.poll()
        state = self.log.read() if code is None else self.log.read_all()
        cause = _of_a_death(state, code)
        return ServerDied(cause.code, f"the server died: {cause.line}", state.useful)

    def stop(self) -> None:
        """Kills the whole process tree and waits until port and GPUs are free; safe to call twice.

        Nothing of a server that was measured is wanted any more, and asked to end SGLang takes five seconds to. Raises
        ServerNotFreed after `stop_s`, and then leaves the launch with the watchdog. That one is told of it afterwards:
        where it is lost, or its record cannot be written, there is all the more reason to end the server.
        """
        begin = time.monotonic()
        self._collect()
        if left := self._end():
            with suppress(WatchdogLost, OSError):
                self._tell_watchdog()
            pids = ", ".join(str(process.pid) for process in left[:8])
            raise ServerNotFreed(
                "not_ended",
                f"processes of the server cannot be ended: {pids}",
                self.log.read().useful,
                remedy=WHY_NOT_ENDED,
            )
        tree.remove_shared_memory(self.memory)
        self._wait_free(max(1.0, self.spec.stop_s - (time.monotonic() - begin)))
        if self.watchdog is not None:
            self.watchdog.unwatch(self.watched)

    def kill_now(self) -> None:
        """One blow and no waiting, for an interrupted run: the watchdog does the rest."""
        for process in self._find():
            tree.tell(process, 9)

    def _collect(self) -> None:
        found = self._find()
        self.pids = tuple(process.pid for process in found)
        self.memory |= tree.shared_memory(found)
        self.watched = replace(
            self.watched,
            recorded=tuple(dict.fromkeys((*self.watched.recorded, *found))),
            memory=tuple(sorted(str(path) for path in self.memory)),
        )

    def _tell_watchdog(self) -> None:
        if self.watchdog is not None:
            self.watchdog.watch(self.watched)

    def _end(self) -> list[Process]:
        """Kills all of it; what is still there after `stop_s`."""
        left = tree.end(self._find, last=self.root, limit_s=self.spec.stop_s, user=self.watched.user)
        if not left:
            self.popen.wait()
        return left

    def _find(self) -> list[Process]:
        self.popen.poll()  # reaps
        return tree.of_launch(self.root, self.watched.token, self.watched.recorded)

    def _wait_free(self, limit_s: float) -> None:
        begin = time.monotonic()
        if not tree.wait_until(lambda: tree.port_free(self.spec.port, HOST), limit_s):
            raise ServerNotFreed(
                "port_not_freed", f"port {self.spec.port} is still in use {self.spec.stop_s:.0f} s after the end"
            )
        left_s = max(0.0, limit_s - (time.monotonic() - begin))
        if self.gpus_free is not None and not tree.wait_until(self.gpus_free, left_s):
            raise GpusNotFreed(
                "gpus_not_freed",
                f"the GPUs are still in use {self.spec.stop_s:.0f} s after the server ended",
                remedy="nvidia-smi shows by whom",
            )

    def _wait_for_sign(self, progress: Progress) -> None:
        """Until the log says that it is ready, or is silent while the server says that it is healthy."""
        state = self.log.read()
        seen_at, told_at, told = time.monotonic(), 0.0, ""
        asked_at = seen_at
        while not state.ready:
            if state.stage != told or time.monotonic() - told_at >= TELL_S:
                told, told_at = state.stage, time.monotonic()
                progress(f"{told} · {told_at - self.started:.0f} s")
            time.sleep(POLL_S)
            if not self.alive():
                raise self._failed_start()
            before = state.size
            state = self.log.read()
            now = time.monotonic()
            if state.size != before:
                seen_at = now
            self.check_output()
            if now - max(seen_at, asked_at) >= SILENT_S:
                asked_at = now
                if self._healthy():
                    return
            self._check_patience(state, now - seen_at, now - self.started)

    def _healthy(self) -> bool:
        """Whether it answers that it is. SGLang answers 503 before its own warm-up is over."""
        try:
            return status_of(get(f"{self.url}/health"), HEALTH_S) == 200
        except ClientError:
            return False

    def _check_patience(self, state: LogState, silent_s: float, waited_s: float) -> None:
        if state.fatal and silent_s > min(PATIENCE_S, self.spec.stall_s):
            raise self._failed_start()
        if silent_s > self.spec.stall_s:
            raise ServerHung(
                "server_hung",
                f"the server showed no progress for {self.spec.stall_s:.0f} s (last: {state.stage})",
                state.useful,
                remedy="limits.launch_stall_s allows more",
            )
        if self.spec.ready_s is not None and waited_s > self.spec.ready_s:
            raise ServerHung(
                "server_slow",
                f"the server was not ready after {self.spec.ready_s:.0f} s (last: {state.stage})",
                state.useful,
            )

    def _failed_start(self) -> LaunchError:
        """The server's fault; the box's only where its port cannot be bound by us either, all of it being gone."""
        fault = self.died()
        if fault.code != "port_taken":
            return fault
        self._collect()
        if not self._end() and not tree.port_free(self.spec.port, HOST):
            return PortTaken("port_taken", f"port {self.spec.port} was taken by another process", fault.lines)
        return ServerDied("port_refused", f"{fault.text}, and yet port {self.spec.port} is free", fault.lines)

    def _first_answer(self) -> None:
        body = {"text": "Hello", "sampling_params": {"max_new_tokens": FIRST_TOKENS, "temperature": 0.0}}
        request = post(f"{self.url}/generate", body)
        try:
            status = status_of(request, self.spec.stall_s)
        except ClientError as error:
            raise self._no_first_answer(error) from error
        if status != 200:
            raise ClientError("first_answer_bad", f"the first answer has status {status}", self.log.read().useful)

    def _no_first_answer(self, error: ClientError) -> LaunchError:
        if error.blame is Blame.BOX:
            return error
        if error.code == "answer_hung":
            return ServerHung(
                "first_answer_hung",
                f"the server says it is ready, and gave no answer for {self.spec.stall_s:.0f} s",
                self.log.read().useful,
            )
        if not tree.wait_until(lambda: not self.alive(), DEATH_S):
            return ClientError("no_answer", "the server says it is ready and refuses connections")
        return self.died()


def _popen(spec: LaunchSpec, token: str) -> subprocess.Popen[bytes]:
    environment = {**spec.environment, tree.TOKEN_VARIABLE: token}
    argv = confine(
        spec.argv,
        environment,
        confinement=spec.confinement,
        readable=spec.readable,
        writable=spec.writable,
        cwd=spec.cwd,
    )
    if spec.confinement.kind is not Isolation.BUBBLEWRAP:
        argv = supervised(argv)
    argv = ("/bin/sh", "-c", ENDED_FIRST, "sh", *limited(argv))
    spec.log.parent.mkdir(parents=True, exist_ok=True)
    output = os.open(spec.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        return subprocess.Popen(
            argv,
            env={**OUTER_ENVIRONMENT, tree.TOKEN_VARIABLE: token},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    finally:
        os.close(output)


def limited(argv: Sequence[str]) -> tuple[str, ...]:
    """The command within bounds that no honest server comes near: of one file, and of processes and threads.

    The kernel counts those of the whole user, so the bound is far above what eight ranks start. Where util-linux is
    not installed there are no bounds. Raises OSError where the command is not there: once it is started, an end is the
    server's own.
    """
    if shutil.which(argv[0], path=OUTER_ENVIRONMENT["PATH"]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    prlimit = shutil.which("prlimit", path=OUTER_ENVIRONMENT["PATH"])
    if prlimit is None:
        return tuple(argv)
    bounds = (("fsize", resource.RLIMIT_FSIZE, MAX_FILE), ("nproc", resource.RLIMIT_NPROC, MAX_PROCESSES))
    options = [f"--{name}={_at_most(kind, wanted)}" for name, kind, wanted in bounds]
    return (prlimit, *options, "--", *argv)


def _at_most(kind: int, wanted: int) -> int:
    """What is wanted, or the hard limit that holds already."""
    _, hard = resource.getrlimit(kind)
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def _of_a_death(state: LogState, code: int | None) -> FailureCause:
    """What a log and an exit code say. Python ends with code 1 where nobody caught an exception."""
    uncaught = FailureCause("server_died", state.exception) if state.exception else None
    if uncaught is not None and code == 1 and not state.ended_a_process:
        return uncaught
    return state.cause or _by_signal(code) or uncaught or _by_exit_code(code)


def _by_signal(code: int | None) -> FailureCause | None:
    if code is None or 0 <= code <= 128:
        return None
    return FailureCause("server_killed", f"it was ended by signal {-code if code < 0 else code - 128}")


def _by_exit_code(code: int | None) -> FailureCause:
    if code is None:
        return FailureCause("server_died", "it answers no more")
    return FailureCause("server_died", "it ended by itself with exit code 0" if code == 0 else f"exit code {code}")
