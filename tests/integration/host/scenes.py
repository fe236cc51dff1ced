"""Gates on the server stand-in, on a box with eight GPUs that the NVML stand-in plays.

The scene follows the run: each launch's folder for the probe appears before the canary that stands before it, so "from
the moment that folder is there" is "for this launch". The order of launches is drawn by the gate; it is read from the
plan before the first launch, while sides are built.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfgate.errors import PerfgateError
from perfgate.records import Plan, Side
from perfgate.records.files import read_facts
from tests.integration.gate.harness import PLAIN, Done, World, acting, finished, merged
from tests.nvml import HEALTHY, Scene, environment, nvcc
from tests.standin import Behaviour

AT_WORK = HEALTHY.loaded().all(memory_used_mib=2)
"""As during a launch, all the time: the stand-in server takes no GPU memory, so none may be missing afterwards."""

SETTINGS: Mapping[str, Any] = {
    "recipes": {"baseline": {"flags": {"tp-size": 1}}},
    "environment": {"rules": {"neighbour": "off", "canary": "off"}},  # other processes of this machine are not meant
}


@dataclass(frozen=True)
class Scenery:
    """What the box plays: `rest` until the first launch; then by side. `again`: what a second try of head sees."""

    rest: Scene = AT_WORK
    base: Scene = AT_WORK
    head: Scene = AT_WORK
    again: Scene | None = None

    def text(self, run: Path, plan: Plan) -> str:
        return self.rest.beside(list(self._launches(run, plan)))

    def _launches(self, run: Path, plan: Plan) -> Iterator[tuple[Path, Scene]]:
        for recipe in plan.recipes:
            for pair, first in enumerate(recipe.first_orders, 1):
                for side in (first, first.other):
                    folder = run / "probe" / f"{recipe.name}-p{pair:02d}-{side.value}-a"
                    yield Path(f"{folder}1"), self.head if side is Side.HEAD else self.base
                    if side is Side.HEAD and self.again is not None:
                        yield Path(f"{folder}2"), self.again


def gate_in(world: World, library: Path, scenery: Scenery, *more: str, wrapper: tuple[str, ...] = ()) -> Done:
    """A gate of the baseline recipe while the scenery plays."""
    run, scene = world.root / "run", world.home / "tmp" / "scene"
    scene.parent.mkdir(parents=True, exist_ok=True)
    scenery.rest.write(scene)
    director = threading.Thread(target=_direct, args=(run, scene, scenery.text), daemon=True)
    director.start()
    with world.start(*PLAIN, *more, environment=environment(library, scene), wrapper=wrapper) as process:
        done = finished(process)
    scene.unlink()
    return Done(done.code, done.out, done.err, run)


def _direct(run: Path, scene: Path, text: Callable[[Path, Plan], str]) -> None:
    while True:
        try:
            plan = next(fact for fact in read_facts(run) if isinstance(fact, Plan))
            break
        except (PerfgateError, StopIteration):
            time.sleep(0.02)
    partial = scene.with_suffix(".partial")
    partial.write_text(text(run, plan))
    partial.replace(scene)


def world_of(
    root: Path, state: Path, *, head: Behaviour | None = None, config: Mapping[str, Any] | None = None
) -> World:
    return World(
        root,
        head=head or acting(),
        config=merged(SETTINGS, config or {}),
        box={"gpus": "required", "tools": {"nvcc": str(nvcc(root / "sglang-tools"))}},
        state=state,
    )
