"""A neighbour busy during head's launches only is never blamed on head: on the stand-in, and on real SGLang."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfgate.records import Telemetry
from tests.integration.gate.harness import PLAIN, World, acting
from tests.integration.host.neighbours import Neighbour

WATCHED = {"environment": {"rules": {"neighbour": "environment", "canary": "environment"}}}
BUSY = 6


@pytest.mark.slow
@pytest.mark.parametrize("time", range(20))
def test_a_neighbour_beside_head_is_no_regression_on_the_stand_in(tmp_path: Path, time: int) -> None:
    world = World(tmp_path / "world", base=acting(), head=acting(), config=WATCHED)
    with Neighbour(world.root / "run", BUSY) as neighbour:
        done = world.gate(*PLAIN)
    assert neighbour.worked_s > 1
    assert done.verdict != "regression", done.err
    seen = [fact for fact in done.facts if isinstance(fact, Telemetry) and fact.sample is not None]
    cores = {
        side: sum(fact.system["others_cpu_s"] / fact.system["wall_s"] for fact in seen if fact.side.value == side)
        for side in ("base", "head")
    }
    print(f"{time}: {done.verdict}, others used {cores}: {done.result['reason']}")
