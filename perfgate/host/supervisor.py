"""Runs one command and keeps hold of everything it leaves behind. Standard library only; run as a script.

    python -I -S supervisor.py [--at-once] COMMAND…

It declares itself a subreaper: a process whose parent ends becomes its child, also after setsid, a double fork or with
an emptied environment. So all that the command started can be found below this process as long as it lives. When the
command ends, whatever is left is killed and waited for, and this process ends as the command did. SIGTERM is passed on
to the command; with --at-once it ends everything, however the command takes it.

A server needs it where there is no process namespace to do the same. A step of a build needs it in any case: perfgate
reads what it left, and bubblewrap's outer process may end a moment before those inside.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SETTLE_S = 0.02
AT_ONCE = "--at-once"


def supervised(argv: Sequence[str], *, at_once: bool = False) -> tuple[str, ...]:
    """The command that runs `argv` supervised."""
    options = (AT_ONCE,) if at_once else ()
    return (sys.executable, "-I", "-S", str(Path(__file__).resolve()), *options, *argv)


def main(argv: list[str]) -> int:
    at_once = argv[0] == AT_ONCE
    if at_once:
        argv = argv[1:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the terminal's; the command does not get it, being in its own session
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until there is somebody to pass it on to
    command = os.fork()
    if command == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        os.setsid()
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        os._exit(127)
    told = signal.SIGKILL if at_once else signal.SIGTERM
    signal.signal(signal.SIGTERM, lambda *_: tell(command, told))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    status = wait_for(command)
    end_all()
    return status


def wait_for(command: int) -> int:
    """Reaps whatever ends until the command does. Its exit code, or 128 + the signal that ended it."""
    while True:
        pid, status = os.wait()
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def tell(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def end_all() -> None:
    """Kills and reaps until nothing is left. Children of the killed come to us in their turn."""
    while True:
        for pid in children():
            tell(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(SETTLE_S)


def children() -> list[int]:
    """Our direct children, from /proc."""
    own = str(os.getpid())
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
                if stat[stat.rindex(")") + 2 :].split()[1] == own:
                    found.append(int(folder.name))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
