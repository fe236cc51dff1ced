"""How strangers' code is confined on the box: in bubblewrap, as a second user, or not at all.

`confine` is pure: a command in, a command out that runs it confined, with exactly the environment given. The
environment travels in the command (`--setenv`, `env -i`) and not in the caller's, because the confining program itself
must not see it: an LD_PRELOAD meant for the confined command would otherwise be loaded before any confinement.

What bubblewrap gives: the whole file system read-only; `hidden` folders empty but for the paths named readable or
writable; private /tmp, /run, /dev/shm, process table and System V shared memory; no way to more privileges; and when
the outer process dies, however it dies, the kernel ends every process inside. The network is the box's: the client
has to reach the server.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from perfgate.errors import Exit, PerfgateError
from perfgate.host.temporary import prefix
from perfgate.records import Check

TRIAL_S = 20.0  # for a command that needs milliseconds
NOBODY = 65534
HOMES = tuple(map(Path, ("/root", "/home", "/tmp", "/var/tmp", "/run")))
DEVICE_PATTERNS = ("nvidia*", "gdrdrv", "infiniband", "dri")


class Isolation(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    USER = "user"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Confinement:
    """One way to run strangers' code on this box. `uid`, `gid`: whom to become, where perfgate runs as root."""

    kind: Isolation
    uid: int | None = None
    gid: int | None = None
    hidden: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()  # for every command, e.g. the resolver's configuration

    @property
    def private_tmp(self) -> bool:
        """Whether /tmp is the command's own and vanishes with it."""
        return self.kind is Isolation.BUBBLEWRAP

    def __str__(self) -> str:
        whom = f" as uid {self.uid}" if self.uid is not None else ""
        return f"{self.kind}{whom}"


UNCONFINED = Confinement(kind=Isolation.NONE)


class SandboxError(PerfgateError):
    """The isolation asked for does not work on this box."""

    exit_code = Exit.CANNOT


def confine(
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    confinement: Confinement,
    readable: Sequence[Path] = (),
    writable: Sequence[Path] = (),
    cwd: Path,
) -> tuple[str, ...]:
    """The command that runs `argv` confined, in `cwd`, with `environment` and nothing of the caller's.

    All paths absolute and resolved. Start it with `OUTER_ENVIRONMENT`.
    """
    if confinement.kind is Isolation.BUBBLEWRAP:
        return _bubblewrap(argv, environment, confinement, (*confinement.readable, *readable), writable, cwd)
    bare = ("/usr/bin/env", "-i", f"--chdir={cwd}", *(f"{name}={value}" for name, value in environment.items()), *argv)
    if confinement.kind is Isolation.USER:
        return (*_become(confinement), *bare)
    return bare


OUTER_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


def _bubblewrap(
    argv: Sequence[str],
    environment: Mapping[str, str],
    confinement: Confinement,
    readable: Sequence[Path],
    writable: Sequence[Path],
    cwd: Path,
) -> tuple[str, ...]:
    become: Sequence[str] = ()
    user: Sequence[str] = ("--unshare-user",)
    if confinement.uid is not None:  # root: real mounts, then a real other user, who owns nothing of root's
        become, user = _become(confinement), ()
    return (
        "bwrap",
        *user,
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--new-session"),
        "--die-with-parent",
        *("--ro-bind", "/", "/", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/dev/shm", "--proc", "/proc"),
        *_flat(("--dev-bind", str(device), str(device)) for device in confinement.devices),
        *_flat(("--perms", _mode(path), "--tmpfs", str(path)) for path in _outermost(confinement.hidden)),
        *_binds(confinement.hidden, readable, writable),
        *("--chdir", str(cwd), "--clearenv"),
        *_flat(("--setenv", name, value) for name, value in environment.items()),
        "--",
        *become,
        *argv,
    )


def _become(confinement: Confinement) -> tuple[str, ...]:
    """setpriv: another user for good, with none of root's powers and no way back (set-user-ID programs, sudo)."""
    return (
        "setpriv",
        f"--reuid={confinement.uid}",
        f"--regid={confinement.gid}",
        *("--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--"),
    )


def _mode(path: Path) -> str:
    return "1777" if path.name == "tmp" else "0755"


def _binds(hidden: Sequence[Path], readable: Sequence[Path], writable: Sequence[Path]) -> Iterator[str]:
    """Outer paths before inner ones. What is readable and not hidden is there already."""
    shown = {path: "--ro-bind" for path in readable if _below(path, hidden)} | dict.fromkeys(writable, "--bind")
    made: set[Path] = set()
    for path in sorted(shown):
        for parent in _parents_below(path, hidden):
            if parent not in made and not _below_or_is(parent, shown):
                made.add(parent)
                yield from ("--dir", str(parent))  # by itself bubblewrap makes parents that only root may pass
        yield from (shown[path], str(path), str(path))


def _parents_below(path: Path, hidden: Sequence[Path]) -> list[Path]:
    """The folders between a hidden folder and a path inside, outer first."""
    return [parent for parent in reversed(path.parents) if _below(parent, hidden)]


def _below(path: Path, folders: Iterable[Path]) -> bool:
    return any(folder in path.parents for folder in folders)


def _below_or_is(path: Path, folders: Iterable[Path]) -> bool:
    return any(folder == path or folder in path.parents for folder in folders)


def _outermost(paths: Sequence[Path]) -> list[Path]:
    return sorted({path for path in paths if not _below(path, paths)})


def _flat(groups: Iterable[tuple[str, ...]]) -> list[str]:
    return [part for group in groups for part in group]


# ------------------------------------------------------------------------------------------- what this box offers


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


def describe(kind: Isolation, *, run_as: str | None = None, hidden: Sequence[Path] = ()) -> Confinement:
    """The confinement of a kind on this box, without trying it. Raises SandboxError for an unknown user."""
    uid, gid = _whom(run_as)
    if kind is Isolation.NONE:
        return UNCONFINED
    if kind is Isolation.USER:
        return Confinement(kind=kind, uid=uid, gid=gid)
    hidden_folders = sorted({path.resolve() for path in (*HOMES, Path.home(), *hidden) if path.is_dir()})
    return Confinement(
        kind=kind,
        uid=uid,
        gid=gid,
        hidden=tuple(path for path in hidden_folders if path != Path("/")),
        devices=device_nodes(),
        readable=_resolver(hidden_folders),
    )


def _whom(run_as: str | None) -> tuple[int | None, int | None]:
    """Only root can become somebody else; without a name given, nobody."""
    if os.geteuid() != 0:
        return None, None
    if run_as is None:
        return NOBODY, NOBODY
    try:
        user = pwd.getpwnam(run_as)
    except KeyError as error:
        raise SandboxError(
            f"no user {run_as!r} on this box", where="run_as", remedy=f"sudo useradd --system --create-home {run_as}"
        ) from error
    return user.pw_uid, user.pw_gid


def device_nodes(folder: Path = Path("/dev")) -> tuple[Path, ...]:
    """What a GPU server needs of /dev, where there is any."""
    return tuple(sorted(path for pattern in DEVICE_PATTERNS for path in folder.glob(pattern)))


def _resolver(hidden: Sequence[Path]) -> tuple[Path, ...]:
    """/etc/resolv.conf is often a link into /run, which is hidden."""
    target = Path("/etc/resolv.conf").resolve()
    return (target.parent,) if target.exists() and _below(target, hidden) else ()


def interpreter_folders(python: Path) -> tuple[Path, ...]:
    """What an interpreter needs to be readable: its environment and the installation that it was made from."""
    real = python.resolve()
    return tuple({python.parent.parent.absolute(): None, real.parent.parent: None, **_links(python)})


def _links(path: Path) -> dict[Path, None]:
    """Folders of the links on the way: …/python → python3 → /somewhere/python3.12."""
    found: dict[Path, None] = {}
    for _ in range(16):
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
        found[path.parent.parent.resolve()] = None
    return found


def hand_over(paths: Iterable[Path], confinement: Confinement) -> None:
    """Makes folders and all that is in them the confined user's. Links are changed, never followed.

    Refuses a link in the place of a folder, whoever is to become the owner: where it leads would be handed over, or
    bound into the sandbox, in its stead. What strangers' code left below under a path too long for the kernel stays
    as it is: they must not end a gate by a name.
    """
    handed = tuple(paths)
    for path in handed:
        if path.is_symlink():
            raise SandboxError("a link lies where PR code should get a folder to write", where=str(path))
    if confinement.uid is None or confinement.gid is None or os.geteuid() != 0:
        return
    for path in handed:
        os.chown(path, confinement.uid, confinement.gid, follow_symlinks=False)
        for found in _all_in(path):
            with suppress(OSError):
                os.chown(found, confinement.uid, confinement.gid, follow_symlinks=False)


def _all_in(folder: Path) -> Iterator[str]:
    """Everything below a folder, links not followed. Not `os.walk`: code that nests folders could exhaust its stack."""
    waiting = [str(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield entry.path
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def check_readable(paths: Iterable[Path], confinement: Confinement) -> None:
    """That the confined user can read all of these files and folders. Raises SandboxError naming the first it cannot.

    A model that only its owner may read would otherwise show as a server that does not find its weights.
    """
    if confinement.uid is None:
        return
    for path in paths:
        for place in (path, *(Path(folder) / name for folder, _, names in os.walk(path) for name in names)):
            if not _others_may_read(place, confinement):
                raise SandboxError(f"{confinement} cannot read it", where=str(place), remedy=f"chmod -R a+rX {path}")


def _others_may_read(place: Path, confinement: Confinement) -> bool:
    try:
        about = place.stat()
    except OSError:
        return not place.exists()  # a dangling link is nobody's to read
    shift = 6 if about.st_uid == confinement.uid else 3 if about.st_gid == confinement.gid else 0
    needed = 0o5 if stat.S_ISDIR(about.st_mode) else 0o4
    return (about.st_mode >> shift) & needed == needed


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
