"""Folders that change hands: to the user whom strangers' code runs as before it runs, and back when it has ended.

That user could have filled them with links, and swap one while we go through: everything is done by descriptors, on the
very file or folder that was looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfgate.host.sandbox import Confinement, SandboxError
from perfgate.store.descent import go_through

OURS_ALONE = 0o700


def hand_over(paths: Iterable[Path], confinement: Confinement) -> None:
    """Makes folders and all that is in them the confined user's.

    Refuses a link in the place of a folder, whoever is to become the owner: where it leads would be handed over, or
    bound into the sandbox, in its stead. Links in a folder stay as they are, and so does a file that has other names,
    too: one of them could be anywhere.
    """
    handed = tuple(paths)
    for path in handed:
        if path.is_symlink():
            raise SandboxError("a link lies where PR code should get a folder to write", where=str(path))
    if confinement.uid is None or confinement.gid is None or os.geteuid() != 0:
        return
    giving = _Giving(confinement.uid, confinement.gid)
    for path in handed:
        go_through(str(path), giving.all_in)
        giving.one(str(path), None)


def take_back(paths: Iterable[Path], confinement: Confinement) -> None:
    """Closes folders to the confined user until they are handed over again, with all that is in them.

    Only where perfgate is root: else it is the same user as the one confined, whom the sandbox shows nothing of them.
    """
    if confinement.uid is None or os.geteuid() != 0:
        return
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            place = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.chown(_by_descriptor(place), 0, 0)
                os.chmod(_by_descriptor(place), OURS_ALONE)  # noqa: PTH101
            finally:
                os.close(place)


@dataclass(frozen=True)
class _Giving:
    uid: int
    gid: int

    def all_in(self, folder: int) -> list[str]:
        """Gives away what lies in an open folder; names of the folders in it."""
        folders = []
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if self.one(entry.name, folder):
                        folders.append(entry.name)
        return folders

    def one(self, name: str, parent: int | None) -> bool:
        """Gives one file or folder away; whether it is a folder."""
        place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            about = os.fstat(place)
            folder = stat.S_ISDIR(about.st_mode)
            linked = stat.S_ISLNK(about.st_mode) or (not folder and about.st_nlink > 1)
            if (about.st_uid, about.st_gid) != (self.uid, self.gid) and not linked:
                os.chown(_by_descriptor(place), self.uid, self.gid)
            return folder
        finally:
            os.close(place)


def _by_descriptor(place: int) -> str:
    """No path leads there for sure."""
    return f"/proc/self/fd/{place}"


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
