"""What lies in the private HOMEs before a launch: compiled code, and FlashInfer's autotune results.

Compiled code belongs to a commit and is warmed once for each recipe, by a throw-away launch. Autotune results are a
lottery and belong to nobody: drawn anew at each launch, or handed to all launches of both sides as copies of one seed,
which base's throw-away launch of the recipe drew (see perfgate.build.autotune).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from perfgate.build import BuiltSide
from perfgate.build.autotune import Seed, capture_seed, find_seed, plant_seed, remove_results, results_hash
from perfgate.build.homes import Home, home_for, mark_warm, read_home
from perfgate.records import Side
from perfgate.records.files import short_hash
from perfgate.store.folders import Store

NOTHING_TUNED = "none"


@dataclass(frozen=True, kw_only=True)
class LaunchCaches:
    """`question`: a hash of all that is asked of the servers, and of the GPUs that they run on.

    Compiled code and seeds hold for one question: under other flags other kernels are compiled and tuned.
    """

    store: Store
    sides: Mapping[Side, BuiltSide]
    autotune: str  # "fresh" | "seed" | "off"
    question: str

    def home(self, side: Side) -> Home:
        return read_home(self._paths[side])

    def lacks(self, side: Side, recipe: str) -> bool:
        """Whether a throw-away launch has something to leave behind."""
        home = self.home(side)
        unseeded = self.autotune == "seed" and side is Side.BASE and self._seed(recipe) is None
        return home.cold_for(self._served(recipe)) or (unseeded and home.cold_for(self._untuned(recipe)))

    def prepare(self, side: Side, recipe: str) -> str:
        """Puts the autotune results of a HOME in order; what the launch starts from, for the facts."""
        if self.autotune == "off":
            return "off"
        home, seed = self.home(side), self._seed(recipe) if self.autotune == "seed" else None
        if seed is None:
            remove_results(home)
            return "fresh" if self.autotune == "fresh" else NOTHING_TUNED
        plant_seed(seed, home)
        return seed.label

    def served(self, side: Side, recipe: str, *, throw_away: bool) -> None:
        """After a launch that served. What base's throw-away launch drew becomes the seed, where one is wanted."""
        home = self.home(side)
        if throw_away and side is Side.BASE and self.autotune == "seed" and self._seed(recipe) is None:
            if results_hash(home.path) is None:
                mark_warm(home, self._untuned(recipe))  # this recipe tunes nothing: it is not tried again
            else:
                capture_seed(self.store, self._seed_name(recipe), home)
        mark_warm(home, self._served(recipe))

    def _seed(self, recipe: str) -> Seed | None:
        if recipe not in self._seeds and (found := find_seed(self.store, self._seed_name(recipe))) is not None:
            self._seeds[recipe] = found
        return self._seeds.get(recipe)

    def _seed_name(self, recipe: str) -> str:
        base = self.sides[Side.BASE]
        return short_hash(f"{base.key} {base.tree.name} {recipe} {self.question}", 24)

    def _served(self, recipe: str) -> str:
        return f"{recipe} {short_hash(self.question)}"

    def _untuned(self, recipe: str) -> str:
        return f"{self._served(recipe)}, and tuned nothing"

    @cached_property
    def _paths(self) -> Mapping[Side, Path]:
        """Held once for the whole run."""
        return {side: home_for(self.store, built).path for side, built in self.sides.items()}

    @cached_property
    def _seeds(self) -> dict[str, Seed]:
        return {}
