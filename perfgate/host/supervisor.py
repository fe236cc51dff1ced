"""Runs one command and keeps hold of everything it leaves behind. Standard library only; run as a script.

    python -I -S supervisor.py [--at-once] [--all-of=UID] COMMAND…
    python -I -S supervisor.py --end-all-of=UID

It declares itself a subreaper: a process whose parent ends becomes its child, also after setsid, a double fork or with
an emptied environment. So all that the command started can be found below this process as long as it lives. When the
command ends, whatever is left is killed and waited for, and this process ends as the command did. SIGTERM is passed on
to the command; with --at-once it ends everything, however the command takes it.

Processes that fork and end all the time can be ahead of whoever lists them and kills them one by one. With --all-of
those that are left after a few seconds are ended together with everything else that runs as that user. With
--end-all-of that is all that is done, until nothing of that user is left; what is left after all stands on stdout.

A server needs it where there is no process namespace to do the same. A step of a build needs it in any case: perfgate
reads what it left, and bubblewrap's outer process may end a moment before those inside.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
SETTLE_S = 0.02
PATIENCE_S = 5.0  # ending takes milliseconds where nobody runs away from it
REAPED_AT_ONCE = 1000  # they could come as fast as they are reaped
AT_ONCE = "--at-once"
ALL_OF = "--all-of="
END_ALL_OF = "--end-all-of="
LISTS = 2  # in a row that must hold nobody
BYSTANDER = 2_147_451_900  # a uid that nobody has
_POWERLESS = "CapEff:\t0000000000000000\n"


def supervised(argv: Sequence[str], *, at_once: bool = False, all_of: int | None = None) -> tuple[str, ...]:
    """The command that runs `argv` supervised. `all_of`: a user who may lose every process on the box, if need be."""
    options = (*((AT_ONCE,) if at_once else ()), *((f"{ALL_OF}{all_of}",) if all_of is not None else ()))
    return (sys.executable, "-I", "-S", str(Path(__file__).resolve()), *options, *argv)


def end_everyone(uid: int, limit_s: float) -> tuple[int, ...]:
    """Ends every process of a user on this box; pids of those that are left (stuck in the kernel)."""
    command = (sys.executable, "-I", "-S", str(Path(__file__).resolve()), f"{END_ALL_OF}{uid}", str(limit_s))
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return tuple(map(int, done.stdout.split()))


def main(argv: list[str]) -> int:
    if argv[0].startswith(END_ALL_OF):
        print(*end_until_none(int(argv[0].removeprefix(END_ALL_OF)), float(argv[1])))
        return 0
    at_once = argv[0] == AT_ONCE
    if at_once:
        argv = argv[1:]
    all_of = int(argv[0].removeprefix(ALL_OF)) if argv[0].startswith(ALL_OF) else None
    if all_of is not None:
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
    end_all(all_of)
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


def end_all(all_of: int | None = None) -> None:
    """Kills and reaps until nothing is left. Children of the killed come to us in their turn."""
    patient_until = time.monotonic() + PATIENCE_S
    while True:
        for pid in children():
            tell(pid, signal.SIGKILL)
        try:
            for _ in range(REAPED_AT_ONCE):
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    break
        except ChildProcessError:
            return
        if all_of is not None and time.monotonic() > patient_until:
            end_user(all_of)
        time.sleep(SETTLE_S)


def end_user(uid: int) -> None:
    """Kills every process of a user in one blow: none can fork while the kernel goes through them.

    Done by a process that has that user's power to signal and nothing else, so nothing else can be hit. Its real and
    saved uid are nobody's, where the kernel allows it, so the user cannot end or stop it first: see kill(2).
    """
    with contextlib.suppress(OSError):  # no room for another process: tried again
        if (child := os.fork()) == 0:
            try:
                become(uid)
                if uid != 0 and os.geteuid() == uid and os.getuid() != 0 and powerless():
                    os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        os.waitpid(child, os.WUNTRACED)


def become(uid: int) -> None:
    try:
        os.setresuid(BYSTANDER, uid, BYSTANDER)
    except OSError:  # a container without such a uid
        os.setresuid(uid, uid, uid)


def end_until_none(uid: int, limit_s: float) -> list[int]:
    """Blows until nobody of that user is seen any more; who is left at the limit."""
    deadline = time.monotonic() + limit_s
    unseen = 0
    while unseen < LISTS:
        end_user(uid)
        left = processes_of(uid)
        unseen = 0 if left else unseen + 1
        if left and time.monotonic() > deadline:
            return left
        if left:
            time.sleep(SETTLE_S)
    return []


def processes_of(uid: int) -> list[int]:
    """Living processes of a user. Not by the owner of /proc/PID: a process can make root look like it."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, KeyError, ValueError):
                lines = (folder / "status").read_text(encoding="utf-8", errors="replace").splitlines()
                fields = {name: value.split() for name, _, value in (line.partition(":") for line in reversed(lines))}
                if str(uid) in fields["Uid"][:3] and fields["State"][0] not in ("Z", "X"):
                    found.append(int(folder.name))
    return found


def powerless() -> bool:
    """Whether nothing is left of root's powers: with them a blow at all processes would be one at all of the box."""
    return _POWERLESS in Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")


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
