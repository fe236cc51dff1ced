"""How often a box that did not move is said to have moved, and how often one that did is caught.

Worlds: noise of single canary readings, and of the box from launch to launch, whatever the sides; neighbours that come
and go at random. At most 0.5 % of A/A gates may end as `environment`.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from perfgate import records as r
from tests.unit.conditions.box import SYSTEM, LaunchBox, assessed

READINGS = {"allreduce_32k_us": 26.1, "allreduce_64k_us": 31.4, "allreduce_256k_us": 58.0, "compute_ms": 9.7}
WORLDS = {
    "a quiet GPU box": (0.005, 0.002, 0.0),
    "a GPU box that wanders": (0.01, 0.01, 0.1),
    "a GPU box that wanders a lot": (0.02, 0.03, 0.3),
    "a busy laptop": (0.3, 0.15, 0.6),
}
"""SD of a reading, SD of the box from launch to launch (logs), cores that others use on average."""


def gates_moved(world: str, gates: int, *, pairs: int, seed: int, shift: float = 0.0, alone: bool = True) -> float:
    """Share of gates with a disturbance; `shift` slows the canary beside head."""
    within, between, others = WORLDS[world]
    draw = random.Random(seed)

    def change(box: LaunchBox) -> LaunchBox:
        before: dict[str, tuple[float, ...]] = {}
        after: dict[str, tuple[float, ...]] = {}
        for name, median in READINGS.items():
            level = median * math.exp(draw.gauss(0, between) + (shift if box.side is r.Side.HEAD else 0.0))
            before[name], after[name] = (
                tuple(level * math.exp(draw.gauss(0, within)) for _ in range(5)) for _ in range(2)
            )
        cores = draw.expovariate(1 / others) if others else 0.0
        waited = min(cores, 2.0) / 2 * draw.uniform(0.0, 0.2)
        system = {**SYSTEM, "others_cpu_s": 30 * cores, "main_wait_s": 30 * waited}
        return replace(box, before=before, after=after, system=system, ranks=1, gpus=())

    moved = 0
    for _ in range(gates):
        moved += any(one.alone == alone for one in assessed(change, pairs=pairs).disturbances)
    return moved / gates


@pytest.mark.parametrize("world", WORLDS)
def test_a_box_that_did_not_move_is_seldom_accused(world: str) -> None:
    assert gates_moved(world, 150, pairs=2, seed=1) <= 2 / 150


@pytest.mark.parametrize("world", ["a quiet GPU box", "a GPU box that wanders"])
def test_a_canary_twice_as_slow_beside_head_is_caught(world: str) -> None:
    """The tuning lost for half of the run: 26 → 48 µs."""
    assert gates_moved(world, 40, pairs=2, seed=2, shift=math.log(48 / 26)) == 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("pairs", "seed"), [(1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (6, 1)])
@pytest.mark.parametrize("world", WORLDS)
def test_false_environment_in_two_thousand_gates(world: str, pairs: int, seed: int) -> None:
    share = gates_moved(world, 2000, pairs=pairs, seed=seed)
    print(f"{world}, {pairs} pairs, seed {seed}: {100 * share:.2f} % of A/A gates end as environment")
    assert share <= 0.005 + 2.5 * math.sqrt(0.005 * 0.995 / 2000)


@pytest.mark.slow
@pytest.mark.parametrize("world", ["a quiet GPU box", "a GPU box that wanders"])
def test_a_shift_of_ten_percent_is_caught(world: str) -> None:
    for pairs, least in ((2, 0.85), (3, 0.97), (6, 0.99)):
        share = gates_moved(world, 500, pairs=pairs, seed=4, shift=0.1)
        print(f"{world}, {pairs} pairs: a canary 10 % slower beside head is caught in {100 * share:.1f} %")
        assert share >= least
