"""Runs the gates of these tests two at a time, each on a box of its own.

A gate of the stand-in mostly waits, for servers to start and for simulated time to pass. So a test does not run its
gate itself: it names a `Case` with `@on(…)` and is handed what came of it, while the cases of the tests that follow are
running already. Cases in the same lane share a state directory one after the other, so that builds and warm caches of
base are made once, as on a real box; what a case must leave behind is checked before the next one begins.
"""

from __future__ import annotations

import queue
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from perfgate.store.removal import remove_tree

from .harness import Case, World

LANES = 2
AHEAD = 6  # cases: a long one leaves the other lane enough to do


def carry_out(case: Case, root: Path, state: Path) -> Any:
    world = World(root, case.base, case.head, case.config, case.box, state, here=case.here)
    came = case.act(world)
    world.check_nothing_left(within_s=case.within_s)
    return came


class Lanes:
    """Cases in the order of their tests, each begun as soon as a lane is free, but only a few before they are asked
    for: another process may have the tests that follow."""

    def __init__(self, root: Path, cases: list[Case]) -> None:
        self._root = root
        self._states: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(LANES):
            self._states.put(root / f"state{number}")
        self._pool = ThreadPoolExecutor(LANES)
        self._cases = list({id(case): case for case in cases}.values())
        self._begun: dict[int, Future[Any]] = {}

    def outcome(self, case: Case) -> Any:
        number = next(number for number, known in enumerate(self._cases) if known is case)
        for ahead, later in list(enumerate(self._cases))[number : number + AHEAD]:
            if ahead not in self._begun:
                self._begun[ahead] = self._pool.submit(self._carry_out, later, self._root / f"world{ahead}")
        return self._begun[number].result()

    def _carry_out(self, case: Case, root: Path) -> Any:
        state = self._states.get()
        try:
            return carry_out(case, root, root / "state" if case.own_state else state)
        finally:
            self._states.put(state)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        for state in (*self._root.glob("state*"), *self._root.glob("world*/state")):
            remove_tree(state)  # read-only folders: pytest would stumble over them


@pytest.fixture(scope="session")
def lanes(request: pytest.FixtureRequest) -> Iterator[Lanes]:
    wanted = [item.callspec.params["done"] for item in request.session.items if _has_case(item)]  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory(prefix="gates") as folder:
        made = Lanes(Path(folder).resolve(), wanted)
        try:
            yield made
        finally:
            made.close()


def _has_case(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("done") if callspec else None
    return isinstance(case, Case) and not case.here


@pytest.fixture
def done(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """What came of the test's case."""
    if request.param.here:
        return carry_out(request.param, tmp_path / "world", tmp_path / "world" / "state")
    return request.getfixturevalue("lanes").outcome(request.param)
