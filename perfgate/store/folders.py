"""Perfgate's state on a box: where everything lies, how large it may grow, and what goes first.

    environments/<key>   virtual environments, addressed by what they were made of
    trees/<hash>         files of commits, addressed by git's tree hash
    homes/<tree>-<key>   private HOMEs: JIT caches of one side's code in one environment
    seeds/<name>         autotune results that every launch of both sides starts from
    repositories/<name>  the box's own copies of repositories, fetched for jobs of GitHub Actions
    caches/<tool>        uv, Python: only perfgate writes them
    runs/<id>            facts, logs, results
    resolutions/<key>    which versions an environment got; a few kB, never evicted

One size limit and one order of eviction, least recently used first, over all of it. What a running perfgate holds
stays; models are not in here.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from perfgate.config.model import Caches
from perfgate.errors import Exit, PerfgateError
from perfgate.store.entries import HALF_MADE, Hold, companion, discard, hold, last_used, touch, try_hold
from perfgate.store.manifest import size_of

KINDS = ("environments", "trees", "homes", "seeds", "repositories", "caches", "runs")
GB = 10**9
UNREMOVABLE = (OSError, RecursionError)  # the latter of folders a thousand deep


class NoSpace(PerfgateError):
    """The disk is too full to begin. The box's fault, never a side's."""

    exit_code = Exit.CANNOT


@dataclass(frozen=True)
class Removed:
    kind: str
    name: str
    size: int  # bytes
    idle_days: float


@dataclass(frozen=True)
class Eviction:
    removed: tuple[Removed, ...] = ()
    size: int = 0  # bytes, of what is left
    kept_in_use: int = 0
    stuck: tuple[str, ...] = ()  # what could not be removed, and why: strangers fill HOMEs

    @property
    def freed(self) -> int:
        return sum(item.size for item in self.removed)

    def __str__(self) -> str:
        if not self.removed:
            return "nothing was removed"
        names = ", ".join(f"{item.kind}/{item.name}" for item in self.removed)
        return f"{len(self.removed)} removed ({self.freed / GB:.1f} GB): {names}"


def require_free(path: Path, gb: float) -> None:
    """Refuses to begin what would fill the disk half-way."""
    there = path
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if free < gb * GB:
        raise NoSpace(
            f"{free / GB:.1f} GB free, {gb:.1f} GB needed",
            where=str(path),
            remedy="free some space, or lower caches.max_gb in perfgate.yml",
        )


def _size(path: Path) -> int:
    """Bytes on the disk: what was written down when an entry was finished, else counted."""
    try:
        return int(json.loads(companion(path, "json").read_bytes())["bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return size_of(path)


@dataclass
class Store:
    """The state directory. What is held through it stays until the store is closed."""

    root: Path
    limits: Caches = field(default_factory=Caches)
    _held: ExitStack = field(default_factory=ExitStack)

    def folder(self, kind: str) -> Path:
        path = self.root / kind
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PerfgateError(
                f"cannot be made: {error.strerror}", where=str(path), remedy="set state_dir in the box's file"
            ) from error
        return path

    def entry(self, kind: str, name: str) -> Path:
        return self.folder(kind) / name

    def keep(self, held: Hold) -> None:
        """Holds until the store is closed."""
        self._held.callback(held.release)

    def use(self, kind: str, name: str) -> Path:
        """A folder that grows while it is used (a HOME, a cache, a run), made if need be and held."""
        path = self.entry(kind, name)
        self.keep(hold(path, shared=True))
        touch(path)
        path.mkdir(exist_ok=True)
        return path

    def close(self) -> None:
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------ size

    def entries(self) -> Iterator[tuple[str, Path]]:
        for kind in KINDS:
            folder = self.root / kind
            if folder.is_dir():
                yield from ((kind, path) for path in sorted(folder.iterdir()) if not path.name.startswith("."))

    def evict(self, need_free_gb: float = 0.0) -> Eviction:
        """Removes what was used least recently until the size limit holds and `need_free_gb` are free on the disk.

        What cannot be removed stays, is told, and keeps nothing else from being removed.
        """
        self._sweep()
        sizes = {path: _size(path) for _, path in self.entries()}
        left = sum(sizes.values())
        removed: list[Removed] = []
        stuck: list[str] = []
        in_use = 0
        for kind, path in sorted(self.entries(), key=lambda item: last_used(item[1])):
            if left <= self.limits.max_gb * GB and self._free() >= need_free_gb * GB:
                break
            idle = (time.time() - last_used(path)) / 86400
            try:
                gone = self._remove(path)
            except UNREMOVABLE as error:
                stuck.append(f"{kind}/{path.name}: {error}")
                continue
            if not gone:
                in_use += 1
                continue
            left -= sizes[path]
            removed.append(Removed(kind, path.name, sizes[path], idle))
        return Eviction(tuple(removed), left, in_use, tuple(stuck))

    def make_room(self, gb: float) -> Eviction:
        """Before a build or a launch: evicts, and refuses where `gb` and the reserve are not free even so."""
        need = gb + self.limits.min_free_gb
        self.root.mkdir(parents=True, exist_ok=True)
        eviction = self.evict(need) if self._free() < need * GB else Eviction()
        require_free(self.root, need)
        return eviction

    def cap(self, kind: str, name: str, share: float) -> None:
        """Begins a cache anew once it has its share of the limit: always in use, it would outlive all the rest."""
        path = self.entry(kind, name)
        if path.is_dir() and _size(path) > share * self.limits.max_gb * GB:
            with suppress(*UNREMOVABLE):
                self._remove(path)

    def _free(self) -> int:
        return shutil.disk_usage(self.root).free

    def _remove(self, path: Path) -> bool:
        held = try_hold(path, shared=False)
        if held is None:
            return False
        with held:
            discard(path)
            companion(path, "lock").unlink(missing_ok=True)
        return True

    def _sweep(self) -> None:
        """Removes what an interrupted perfgate left half-made, and locks of what is gone."""
        for kind in KINDS:
            folder = self.root / kind
            for suffix in HALF_MADE:
                for path in folder.glob(f".*.{suffix}"):
                    with suppress(*UNREMOVABLE):
                        self._remove(folder / path.name[1:].removesuffix(f".{suffix}"))
            for path in folder.glob(".*.lock"):
                entry = folder / path.name[1:].removesuffix(".lock")
                if not entry.exists():
                    with suppress(*UNREMOVABLE):
                        self._remove(entry)
