"""One command of a build after the other: confined where it runs PR code, bounded in time and in what it may say.

Nothing of a build outlives perfgate: its commands and their children die with it (`setpriv --pdeathsig`, bubblewrap),
and those that perfgate itself answers for inherit the entry's lock, so that nobody begins anew beside a survivor.
Nothing that PR code starts outlives its own step: a supervisor ends it and waits for it, so whoever reads afterwards
what the step left reads what stays so, and no later server has company. Where it cannot be ended the build ends.
"""

from __future__ import annotations

import os
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from perfgate.errors import Exit, PerfgateError
from perfgate.host.handover import hand_over
from perfgate.host.sandbox import OUTER_ENVIRONMENT, UNCONFINED, Confinement, Isolation, confine
from perfgate.host.supervisor import supervised

LOG_LIMIT = 64 * 2**20
_KEPT = 512 * 2**10  # of the output's beginning, and of its end
_GROUP = 'trap "kill -KILL 0" TERM; "$@" & wait $!'
_GRACE_S = 1.0  # for what is still in the pipe of a command that has ended
_ENDING_S = 30.0  # for a supervisor to end all that PR code started; it takes milliseconds


@dataclass(frozen=True, kw_only=True)
class BuildStep:
    what: str  # in words, for the log
    argv: Sequence[str]
    environment: Mapping[str, str]
    cwd: Path
    theirs: bool = False  # runs PR code, or code that a PR may choose
    handles_theirs: bool = False  # runs none of it, but on files that it made or chose
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()


class StepFailed(Exception):
    def __init__(self, step: BuildStep, code: int | None, output: str) -> None:
        self.step = step
        self.code = code  # None: it took too long
        self.output = output
        super().__init__(step.what)


class StepNotEnded(PerfgateError):
    """Something that PR code started still runs: what it left cannot be trusted to stay as it is. The box's fault."""

    exit_code = Exit.CANNOT


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs steps, appending to a log. `deadline` as time.monotonic()."""

    log: Path
    deadline: float
    confinement: Confinement = UNCONFINED
    lock: int | None = None  # open file that steps other than PR code inherit

    def run(self, step: BuildStep) -> str:
        """What the command said; StepFailed where it did not end well."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            log.write(f"\n# {step.what}\n$ {_shown(step.argv)}\n".encode("utf-8", "replace"))
            hand_over(step.writable if step.theirs else (), self.confinement)
            try:
                code, output = self._run(step, log)
            finally:
                _take_back(step.writable if step.theirs else (), self.confinement)
        if code != 0:
            raise StepFailed(step, code, output)
        return output

    def _run(self, step: BuildStep, log: IO[bytes]) -> tuple[int | None, str]:
        inherited = (self.lock,) if self.lock is not None and not step.theirs else ()
        with subprocess.Popen(
            self._command(step),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=OUTER_ENVIRONMENT if step.theirs else dict(step.environment),
            cwd=step.cwd,
            start_new_session=True,
            pass_fds=inherited,
        ) as process:
            try:
                output = _follow(process, log, self.deadline)
                return process.poll(), output
            finally:
                ended = not step.theirs or _end_supervised(process)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if process.stdout is not None:
                    process.stdout.close()
                if not ended:
                    raise StepNotEnded(
                        f"processes that PR code started did not end within {_ENDING_S:.0f} s",
                        where=step.what,
                        remedy="end them by hand, or isolate by bubblewrap",
                    )

    def _command(self, step: BuildStep) -> Sequence[str]:
        if step.theirs:
            argv = supervised(self._confined(step), at_once=True, all_of=_second_user(self.confinement))
            return (*_told_when_we_die(), *argv)
        return (*_dying_with_us(), *step.argv)

    def _confined(self, step: BuildStep) -> Sequence[str]:
        writable = tuple(path.absolute() for path in step.writable)
        readable = (path.absolute() for path in step.readable)
        return confine(
            step.argv,
            step.environment,
            confinement=self.confinement,
            # what lies in a writable folder would be laid over it, read-only
            readable=tuple(path for path in readable if not any(path.is_relative_to(mine) for mine in writable)),
            writable=writable,
            cwd=step.cwd,
        )


def _shown(argv: Sequence[str]) -> str:
    return shlex.join(part if len(part) < 300 else "…" for part in argv)


def _told_when_we_die() -> Sequence[str]:
    """A prefix: SIGTERM for the command when perfgate dies."""
    setpriv = shutil.which("setpriv", path=OUTER_ENVIRONMENT["PATH"])
    return (setpriv, "--pdeathsig", "TERM", "--") if setpriv else ()


def _dying_with_us() -> Sequence[str]:
    """A prefix that ends the whole process group of a command when perfgate dies."""
    told = _told_when_we_die()
    return (*told, "/bin/sh", "-c", _GROUP, "sh") if told else ()


def _second_user(confinement: Confinement) -> int | None:
    """The user all of whose processes may be ended with a step: the one that is there for PR code alone.

    No server of this run is among them, as both sides are built before the first is launched; and none of another run,
    as the box's lock is held from before the builds to the end. In a sandbox the kernel ends what is inside by itself.
    """
    if confinement.kind is not Isolation.USER or os.geteuid() != 0:
        return None
    return confinement.uid or None


def _end_supervised(supervisor: subprocess.Popen[bytes]) -> bool:
    """Has the supervisor end whatever still runs, and waits for it. Whether it has."""
    supervisor.terminate()
    try:
        supervisor.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _take_back(paths: Sequence[Path], confinement: Confinement) -> None:
    """What a confined user made becomes perfgate's again."""
    if confinement.uid is not None:
        hand_over(paths, Confinement(kind=Isolation.NONE, uid=os.geteuid(), gid=os.getegid()))


def _follow(process: subprocess.Popen[bytes], log: IO[bytes], deadline: float) -> str:
    """Copies what a command says into the log until it ends or its time is up; beginning and end of what it said.

    A pipe kept open by a process that outlives the command is not waited for.
    """
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    kept = _Kept()
    ended: float | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            block = process.stdout.read(65536) if selector.select(0.1) else None
            if block:
                kept.add(block, log)
            elif block == b"" or (ended is not None and time.monotonic() - ended > _GRACE_S):
                break
            if ended is None and process.poll() is not None:
                ended = time.monotonic()
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    return kept.text()


class _Kept:
    """Beginning and end of an output of any length."""

    def __init__(self) -> None:
        self.start = bytearray()
        self.end = bytearray()
        self.written = 0

    def add(self, block: bytes, log: IO[bytes]) -> None:
        if self.written < LOG_LIMIT:
            log.write(block)
            self.written += len(block)
        room = _KEPT - len(self.start)
        self.start += block[:room] if room > 0 else b""
        self.end += block[max(0, room) :]
        del self.end[: max(0, len(self.end) - _KEPT)]

    def text(self) -> str:
        return bytes(self.start + self.end).decode("utf-8", "replace")
