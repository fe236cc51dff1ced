"""What lies in the private HOMEs before a launch."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from perfgate.build import BuiltSide
from perfgate.build.autotune import results_hash
from perfgate.config.model import Caches
from perfgate.records import Side
from perfgate.run.caches import NOTHING_TUNED, LaunchCaches
from perfgate.store.folders import Store

RESULTS = ".cache/sglang/flashinfer/autotune/0.7.2/sm120/key"


@pytest.fixture
def caches(tmp_path: Path) -> LaunchCaches:
    sides = {
        side: BuiltSide(
            side=side, key="c" * 40, python=Path("/python"), tree=tmp_path / (side.value * 10), path_entries=()
        )
        for side in Side
    }
    return LaunchCaches(store=Store(tmp_path / "state", Caches()), sides=sides, autotune="fresh", question="q")


def tune(caches: LaunchCaches, side: Side, text: str) -> None:
    """As a launch does that draws autotune results."""
    folder = caches.home(side).path / RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rank_0.json").write_text(text)


def drawn(caches: LaunchCaches, side: Side) -> str | None:
    return results_hash(caches.home(side).path)


def test_each_recipe_is_warmed_by_itself(caches: LaunchCaches) -> None:
    assert caches.lacks(Side.HEAD, "eagle3")
    caches.served(Side.HEAD, "eagle3", throw_away=True)
    assert not caches.lacks(Side.HEAD, "eagle3")
    assert caches.lacks(Side.HEAD, "baseline")
    assert caches.lacks(Side.BASE, "eagle3")


def test_fresh_draws_anew_at_each_launch(caches: LaunchCaches) -> None:
    tune(caches, Side.BASE, "drawn before")
    assert caches.prepare(Side.BASE, "eagle3") == "fresh"
    assert drawn(caches, Side.BASE) is None


def test_off_leaves_everything_alone(caches: LaunchCaches) -> None:
    off = dataclasses.replace(caches, autotune="off")
    tune(off, Side.BASE, "drawn before")
    assert off.prepare(Side.BASE, "eagle3") == "off"
    assert drawn(off, Side.BASE) is not None


def test_a_seed_is_drawn_by_bases_throw_away_launch_of_the_recipe(caches: LaunchCaches) -> None:
    seeded = dataclasses.replace(caches, autotune="seed")
    tune(seeded, Side.BASE, "left by something else")
    assert seeded.prepare(Side.BASE, "eagle3") == NOTHING_TUNED
    tune(seeded, Side.BASE, "base's draw")
    seeded.served(Side.BASE, "eagle3", throw_away=True)
    tune(seeded, Side.HEAD, "head's own")
    labels = {seeded.prepare(side, "eagle3") for side in Side}
    assert len(labels) == 1
    assert labels.pop().startswith("seed ")
    assert drawn(seeded, Side.BASE) == drawn(seeded, Side.HEAD) is not None
    assert seeded.lacks(Side.BASE, "baseline")  # another recipe tunes other kernels
    assert seeded.prepare(Side.HEAD, "baseline") == NOTHING_TUNED
    assert drawn(seeded, Side.HEAD) is None


def test_a_seed_that_is_gone_is_drawn_again_though_the_code_is_warm(caches: LaunchCaches) -> None:
    seeded = dataclasses.replace(caches, autotune="seed")
    seeded.served(Side.BASE, "eagle3", throw_away=False)
    assert seeded.lacks(Side.BASE, "eagle3")
    tune(seeded, Side.BASE, "base's draw")
    seeded.served(Side.BASE, "eagle3", throw_away=True)
    assert not seeded.lacks(Side.BASE, "eagle3")
    seeded.served(Side.HEAD, "eagle3", throw_away=True)
    assert not seeded.lacks(Side.HEAD, "eagle3")  # it is never head that draws


def test_a_recipe_that_tunes_nothing_is_thrown_away_for_once(caches: LaunchCaches) -> None:
    seeded = dataclasses.replace(caches, autotune="seed")
    seeded.served(Side.BASE, "eagle3", throw_away=True)
    assert not seeded.lacks(Side.BASE, "eagle3")
    assert seeded.prepare(Side.BASE, "eagle3") == NOTHING_TUNED
    assert seeded.lacks(Side.BASE, "baseline")


def test_under_other_flags_both_sides_are_cold(caches: LaunchCaches) -> None:
    """Else base would be measured cold where head, whose tree is new, is warmed."""
    caches.served(Side.BASE, "eagle3", throw_away=True)
    asked_otherwise = dataclasses.replace(caches, question="other flags")
    assert asked_otherwise.lacks(Side.BASE, "eagle3")


def test_heads_draw_never_becomes_the_seed(caches: LaunchCaches) -> None:
    seeded = dataclasses.replace(caches, autotune="seed")
    tune(seeded, Side.HEAD, "head's own")
    seeded.served(Side.HEAD, "eagle3", throw_away=True)
    assert seeded.prepare(Side.BASE, "eagle3") == NOTHING_TUNED


def test_seeds_hold_for_one_question(caches: LaunchCaches) -> None:
    seeded = dataclasses.replace(caches, autotune="seed")
    tune(seeded, Side.BASE, "base's draw")
    seeded.served(Side.BASE, "eagle3", throw_away=True)
    assert dataclasses.replace(seeded, question="other GPUs").prepare(Side.BASE, "eagle3") == NOTHING_TUNED
