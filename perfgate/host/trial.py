"""Which isolation this box offers: each is tried with a hostile little program before it is trusted."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from perfgate.host.handover import hand_over
from perfgate.host.sandbox import OUTER_ENVIRONMENT, UNCONFINED, Confinement, Isolation, SandboxError, confine, describe
from perfgate.host.temporary import prefix
from perfgate.records import Check

TRIAL_S = 20.0  # for a command that needs milliseconds


def choose(isolation: str, *, run_as: str | None = None, hidden: Sequence[Path] = ()) -> Confinement:
    """The confinement for this box: the one asked for, or with "auto" the strictest that works.

    `hidden`: what strangers' code must not see besides the homes, for example the runner's and perfgate's folders.
    Raises SandboxError where the one asked for does not work.
    """
    if isolation == Isolation.NONE:
        return UNCONFINED
    if isolation == "auto":
        for kind in (Isolation.BUBBLEWRAP, Isolation.USER):
            if available(kind, run_as=run_as).status == "ok":
                return describe(kind, run_as=run_as, hidden=hidden)
        return UNCONFINED
    kind = Isolation(isolation)
    check = available(kind, run_as=run_as)
    if check.status != "ok":
        raise SandboxError(check.text, where=f"isolation: {kind}", remedy=check.remedy)
    return describe(kind, run_as=run_as, hidden=hidden)


_TRIAL = """
cat "$1" >/dev/null 2>&1 && echo "it can read a private file"
(: >"$2/x") 2>/dev/null && echo "it can write into perfgate's folder"
(: >"$3/x") 2>/dev/null || echo "it cannot write into its own folder"
if [ "$4" = bubblewrap ]; then
  (: >/dev/shm/x) 2>/dev/null || echo "it cannot use /dev/shm"
  [ $$ -lt 100 ] || echo "it sees the box's processes"
fi
echo fine
"""


def available(kind: Isolation, *, run_as: str | None = None) -> Check:
    """Runs a hostile little program under this confinement and says whether it was held."""
    name = f"isolation: {kind}"
    if kind is Isolation.NONE:
        return Check(
            name=name,
            status="warn",
            text="PR code runs as the same user as perfgate",
            why="it can read the runner's files and write perfgate's results; pull requests from forks are refused",
            remedy="install bubblewrap: sudo apt-get install bubblewrap",
        )
    tool = "bwrap" if kind is Isolation.BUBBLEWRAP else "setpriv"
    remedy = f"sudo apt-get install {'bubblewrap' if kind is Isolation.BUBBLEWRAP else 'util-linux'}"
    if shutil.which(tool, path=OUTER_ENVIRONMENT["PATH"]) is None:
        return _failed(name, f"{tool} is not installed", remedy)
    if kind is Isolation.USER and os.geteuid() != 0:
        return _failed(name, "only root can run PR code as another user", "use isolation: bubblewrap")
    if kind is Isolation.USER and run_as is None:
        return _failed(name, "no second user is named", "set run_as in the box file")
    try:
        confinement = describe(kind, run_as=run_as)
        said = _try(confinement)
    except (SandboxError, OSError, subprocess.SubprocessError) as error:
        return _failed(name, str(error).splitlines()[0], _user_namespace_remedy(kind))
    if said != "fine":
        return _failed(name, said, _user_namespace_remedy(kind))
    return Check(name=name, status="ok", text=f"PR code is confined by {confinement}")


def _failed(name: str, text: str, remedy: str) -> Check:
    return Check(name=name, status="fail", text=text, why="PR code must not reach the runner's files", remedy=remedy)


def _user_namespace_remedy(kind: Isolation) -> str:
    if kind is Isolation.USER:
        return "let perfgate run as root, with run_as naming an unprivileged user"
    return "allow unprivileged user namespaces: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"


def _try(confinement: Confinement) -> str:
    """One line: "fine", what the program could do, or what kept it from starting."""
    with tempfile.TemporaryDirectory(prefix=prefix("trial"), dir="/tmp") as folder:
        place = Path(folder).resolve()
        place.chmod(0o755)
        theirs, mine, secret = place / "theirs", place / "mine", place / "secret"
        theirs.mkdir()
        mine.mkdir()
        secret.write_text("secret")
        secret.chmod(stat.S_IRUSR | stat.S_IWUSR)
        hand_over([mine], confinement)
        argv = confine(
            ["/bin/sh", "-c", _TRIAL, "trial", *map(str, (secret, theirs, mine)), confinement.kind],
            {"PATH": OUTER_ENVIRONMENT["PATH"]},
            confinement=confinement,
            writable=[mine],
            cwd=mine,
        )
        done = subprocess.run(
            argv, env=OUTER_ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TRIAL_S
        )
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return lines[0] if lines else f"it ended with {done.returncode} and said nothing"
