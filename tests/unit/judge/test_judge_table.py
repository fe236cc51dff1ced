"""The judge's contract, simulated: few runs a cell here, the full table in the slow suite (`pytest -m slow -s`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache

import pytest

from tests.unit.judge.judge_gates import ever_passed, simulate_gate
from tests.unit.judge.judge_worlds import HEAD, ROOM, Cell, Outcome, broken_limits, line, pooled, simulate, table

SEEDS = (1, 2, 3)
FEW, MANY = 50, 2000
CELLS = {cell.case: cell for cell in table()}
GATES = ((0.01, 0.0), (0.02, 0.0), (0.01, 0.05), (0.02, 0.05))


@pytest.mark.parametrize("case", CELLS)
def test_few_runs(case: str) -> None:
    cell = CELLS[case]
    outcome = pooled([simulate(cell, FEW, seed) for seed in SEEDS])
    assert broken_limits(cell, outcome) == []


@pytest.mark.slow
@pytest.mark.parametrize("case", CELLS)
def test_many_runs(case: str, shown: list[str]) -> None:
    cell = CELLS[case]
    with ProcessPoolExecutor(max_workers=2) as pool:
        outcomes = list(pool.map(_many, [case] * len(SEEDS), SEEDS))
    together = pooled(outcomes)
    shown.append(line(cell, together))
    for outcome in (*outcomes, together):
        assert broken_limits(cell, outcome) == []


def _many(case: str, seed: int) -> Outcome:
    return simulate(CELLS[case], MANY, seed)


def test_few_gates() -> None:
    _gates_hold(FEW // 2)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_gates(shown: list[str]) -> None:
    shown.extend(_gates_hold(MANY))


def _gates_hold(runs: int) -> list[str]:
    lines = []
    for sd, slowdown in GATES:
        outcomes = [simulate_gate(sd, slowdown, runs, seed) for seed in SEEDS]
        mean = {
            name: sum(getattr(outcome, name) for outcome in outcomes) / len(outcomes)
            for name in ("regression", "passed", "inconclusive", "pairs_per_recipe")
        }
        lines.append(
            f"| gate of 2 recipes × 2 metrics, slowdown {100 * slowdown:g} %, pair SD {100 * sd:g} %"
            f" | {100 * mean['regression']:.2f} | {100 * mean['passed']:.2f} | {100 * mean['inconclusive']:.2f}"
            f" | {mean['pairs_per_recipe']:.2f} | – |  |"
        )
        total = runs * len(SEEDS)
        if slowdown == 0.0:
            assert mean["regression"] <= 0.005 + _error(0.005, total)
        if (sd, slowdown) == (0.01, 0.0):
            assert mean["passed"] >= 0.97 - _error(0.97, total)
            assert mean["pairs_per_recipe"] <= 2
    return lines


@pytest.mark.parametrize("sd", [0.005, 0.01])
def test_few_reruns(sd: float) -> None:
    _reruns_hold(sd, FEW // 3)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sd", [0.003, 0.005, 0.01, 0.02])
def test_many_reruns(sd: float, shown: list[str]) -> None:
    passed = _reruns_hold(sd, MANY)
    case = f"slowdown 4 %, rerun ten times, pair SD {100 * sd:g} %"
    shown.append(f"| {case} | – | ever {100 * passed:.2f} | – | – | – | ever pass ≤ 1 % |")


def _reruns_hold(sd: float, runs: int) -> float:
    shares = [ever_passed(sd, 0.04, 10, runs, seed) for seed in SEEDS]
    mean = sum(shares) / len(shares)
    assert mean <= 0.01 + _error(0.01, runs * len(SEEDS))
    return mean


def _error(limit: float, runs: int) -> float:
    return ROOM * math.sqrt(limit * (1 - limit) / runs)


@cache
def _lines() -> list[str]:
    return []


@pytest.fixture(scope="module")
def shown(pytestconfig: pytest.Config) -> Iterator[list[str]]:
    """Lines of the table; printed when the module is done, whether or not output is captured."""
    lines = _lines()
    yield lines
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print("", HEAD, *lines, sep="\n")


def test_every_limit_can_be_broken() -> None:
    """A judge that answers at random would be caught: no limit of the table is empty."""
    cell = CELLS["A/A, pair SD 1 %"]
    outcome = simulate(CELLS["slowdown 10 %, pair SD 1 %"], FEW, 1)
    assert len(broken_limits(Cell(cell.case, 0.0, cell.world, cell.limits), outcome)) >= 3
