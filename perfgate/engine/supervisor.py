"""Runs one command and keeps hold of everything it leaves behind. Standard library only; run as a script.

    python -I -S supervisor.py COMMAND…

It declares itself a subreaper: a process whose parent ends becomes its child, also after setsid, a double fork or with
an emptied environment. So all that the command started can be found below this process as long as it lives. When the
command ends, whatever is left is killed, and this process ends as the command did. Needed where there is no process
namespace to do the same.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SETTLE_S = 0.02


def main(argv: list[str]) -> int:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the terminal's; the command does not get it, being in its own session
    command = os.fork()
    if command == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        os._exit(127)
    signal.signal(signal.SIGTERM, lambda *_: tell(command, signal.SIGTERM))
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
