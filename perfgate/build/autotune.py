"""FlashInfer's autotune results: a lottery that must not be drawn once for one side.

`fresh`: removed before each launch, so that every launch draws anew and the spread between launches shows it.
`seed`: drawn once, by base's code; every launch of both sides starts from a byte-identical copy. Only for diffs that
touch neither pins nor tuned code. What a launch started from, and its hash, stands in the facts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfgate.build.homes import Home
from perfgate.config.model import Caches
from perfgate.errors import PerfgateError
from perfgate.records.files import short_hash
from perfgate.source.diff import DiffClass
from perfgate.store.entries import Hold, Made, find_made, made_once
from perfgate.store.folders import Store
from perfgate.store.removal import remove_tree
from perfgate.store.strangers import content_of, copy_files, walk


@dataclass(frozen=True)
class Seed:
    path: Path
    hash: str  # of names and bytes of the results

    @property
    def label(self) -> str:
        """For the plan's `autotune`."""
        return f"seed {self.hash[:12]}"


def mode_for(caches: Caches, diff: DiffClass) -> str:
    """ "fresh", "seed" or "off": never a seed that would hand choices tuned for base's code to head's other code."""
    return "fresh" if caches.autotune == "seed" and diff.tuned else caches.autotune


def results_hash(root: Path) -> str | None:
    """One hash over the autotune results below a folder; None where there are none."""
    found = {str(folder.relative_to(root)): content_of(folder) for folder in _results(root)}
    if not any(content.files for content in found.values()):
        return None
    return short_hash(repr([(name, content.hash) for name, content in sorted(found.items())]), 64)


def remove_results(home: Home) -> int:
    """Removes all autotune results in a HOME; how many folders that were."""
    folders = list(_results(home.path))
    for folder in folders:
        remove_tree(folder)
    return len(folders)


def _results(home: Path) -> Iterator[Path]:
    """Folders `autotune` below a folder of FlashInfer's, wherever a version of SGLang or FlashInfer puts them."""
    for path, about in walk(home):
        folder = Path(os.fsdecode(path))
        if folder.name == "autotune" and stat.S_ISDIR(about.st_mode):
            parts = folder.relative_to(home).parts
            if _holds_results(parts) and not any(_holds_results(parts[:depth]) for depth in range(1, len(parts))):
                yield folder


def _holds_results(parts: tuple[str, ...]) -> bool:
    return parts[-1] == "autotune" and any("flashinfer" in part for part in parts[:-1])


def capture_seed(store: Store, name: str, home: Home) -> Seed:
    """Keeps the autotune results of a HOME (base's, after a throw-away launch) as the seed called `name`.

    `name` says what the results hold for: base's build key, recipe and GPUs. An existing seed of that name stays.
    """

    def make(place: Path, _: Hold) -> dict[str, str]:
        place.mkdir()
        for folder in _results(home.path):
            copy_files(folder, place / folder.relative_to(home.path))
        found = results_hash(place)
        if found is None:
            remedy = "set caches.autotune to fresh"
            raise PerfgateError("the launch left no autotune results to seed others with", where=name, remedy=remedy)
        return {"hash": found}

    try:
        return _seed(store, made_once(store.entry("seeds", name), make))
    except (OSError, RecursionError) as error:  # PR code names and nests what is copied
        remedy = "set caches.autotune to fresh"
        raise PerfgateError(f"the autotune results cannot be kept: {error}", where=name, remedy=remedy) from error


def find_seed(store: Store, name: str) -> Seed | None:
    made = find_made(store.entry("seeds", name))
    return _seed(store, made) if made else None


def _seed(store: Store, made: Made) -> Seed:
    store.keep(made.hold)
    return Seed(made.path, str(made.about["hash"]))


def plant_seed(seed: Seed, home: Home) -> str:
    """Gives a HOME the seed's results and no others; the hash of what it now has, for the facts."""
    remove_results(home)
    copy_files(seed.path, home.path)
    planted = results_hash(home.path)
    if planted != seed.hash:
        raise PerfgateError("the seed was changed", where=str(seed.path), remedy="remove it; it is made anew")
    return planted
