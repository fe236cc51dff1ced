"""What lies in the private HOMEs before a launch: compiled code, and FlashInfer's autotune results.

Compiled code belongs to a commit and is warmed once for each recipe, by a throw-away launch. Autotune results are a
lottery and belong to nobody: drawn anew at each launch, or handed to all launches of both sides as copies of one seed,
which base's throw-away launch of the recipe drew (see perfgate.build.autotune).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfgate.build import BuiltSide
from perfgate.build.autotune import Seed, capture_seed, find_seed, plant_seed, remove_results, results_hash
from perfgate.build.homes import Home, home_for, mark_warm
from perfgate.build.store import Store
from perfgate.facts import short_hash
from perfgate.records import Side

NOTHING_TUNED = "none"


@dataclass(frozen=True, kw_only=True)
class Warmth:
    """`question`: a hash of all that is asked of the servers, and of the GPUs that they run on: a seed holds for it."""

    store: Store
    sides: Mapping[Side, BuiltSide]
    autotune: str  # "fresh" | "seed" | "off"
    question: str

    def home(self, side: Side) -> Home:
        return home_for(self.store, self.sides[side])

    def lacks(self, side: Side, recipe: str) -> bool:
        """Whether a throw-away launch has something to leave behind."""
        unseeded = self.autotune == "seed" and side is Side.BASE and self._seed(recipe) is None
        return self.home(side).cold_for(recipe) or unseeded

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
        if throw_away and side is Side.BASE and self.autotune == "seed" and results_hash(home.path) is not None:
            capture_seed(self.store, self._seed_name(recipe), home)
        mark_warm(home, recipe)

    def _seed(self, recipe: str) -> Seed | None:
        return find_seed(self.store, self._seed_name(recipe))

    def _seed_name(self, recipe: str) -> str:
        base = self.sides[Side.BASE]
        return short_hash(f"{base.key} {base.tree.name} {recipe} {self.question}", 24)
