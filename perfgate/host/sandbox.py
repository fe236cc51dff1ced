"""How strangers' code is confined on the box: in bubblewrap, as a second user, or not at all.

`confine` changes nothing: a command in, a command out that runs it confined, with exactly the environment given. The
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from perfgate.errors import Exit, PerfgateError

NOBODY = 65534
HOMES = tuple(map(Path, ("/root", "/home", "/tmp", "/var/tmp", "/run")))
SYSTEM_INPUTS = (Path("/run/nvidia-topologyd/virtualTopology.xml"),)  # what NCCL knows a cloud machine by
DEVICES = Path("/dev")
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
    device_folder: Path | None = None
    readable: tuple[Path, ...] = ()  # for every command, e.g. the resolver's configuration

    @property
    def devices(self) -> tuple[Path, ...]:
        """What a GPU server needs of /dev, as it is now: some nodes appear with the first CUDA program."""
        return () if self.device_folder is None else device_nodes(self.device_folder)

    @property
    def private_tmp(self) -> bool:
        """Whether /tmp is the command's own and vanishes with it."""
        return self.kind is Isolation.BUBBLEWRAP

    @property
    def sole_user(self) -> int | None:
        """The user as whom nothing runs but confined commands: all of its processes may be ended with one of them."""
        return self.uid if self.kind is Isolation.USER else None

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
        *_flat(("--perms", _mode(path), "--tmpfs", str(path)) for path in _outermost(confinement.hidden)),
        *_binds(confinement.hidden, readable, writable, confinement.devices),
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


def _binds(
    hidden: Sequence[Path], readable: Sequence[Path], writable: Sequence[Path], devices: Sequence[Path]
) -> Iterator[str]:
    """Outer paths before inner ones. What is readable and not hidden is there already."""
    shown = {path: "--ro-bind" for path in readable if _below(path, hidden)}
    shown |= dict.fromkeys(writable, "--bind") | dict.fromkeys(devices, "--dev-bind")
    made: set[Path] = set()
    for path in sorted(shown):
        for parent in _parents_below(path, hidden):
            if parent not in made and not _below_or_is(parent, shown):
                made.add(parent)
                yield from ("--dir", str(parent))  # by itself bubblewrap makes parents that only root may pass
        if not path.is_symlink() or path in writable:
            yield from (shown[path], str(path), str(path))
        elif not _below(path, shown):  # a link stays one: what is bound in its place would break relative links inside
            yield from ("--symlink", str(path.readlink()), str(path))


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
        device_folder=DEVICES,
        readable=(*_resolver(hidden_folders), *(path for path in SYSTEM_INPUTS if path.exists())),
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


def device_nodes(folder: Path) -> tuple[Path, ...]:
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
