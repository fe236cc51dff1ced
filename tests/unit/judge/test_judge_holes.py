"""What an attack on the judge found, held shut: few runs of each here, many in the slow series (`-m slow -s`)."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest

from perfgate.judge import NoisePrior, Policy
from perfgate.judge.noise import learn_order
from perfgate.judge.sequential import decide
from perfgate.judge.values import PairSamples
from perfgate.records import Better, MetricVerdict, Side
from tests.unit.judge.judge_holes import HoleOutcome, broken, holes, line, simulate_hole

FEW, MANY = 60, 2000
SEEDS = (1, 2, 3)
HOLES = {hole.case: hole for hole in holes()}


@pytest.mark.parametrize("case", HOLES)
def test_few_runs(case: str) -> None:
    assert broken(HOLES[case], simulate_hole(HOLES[case], FEW, 1)) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", HOLES)
def test_many_runs(case: str) -> None:
    with ProcessPoolExecutor(max_workers=2) as pool:
        outcomes = list(pool.map(_many, [case] * len(SEEDS), SEEDS))
    together = HoleOutcome(
        sum(one.runs for one in outcomes),
        *(
            sum(getattr(one, name) for one in outcomes) / len(outcomes)
            for name in ("regression", "passed", "inconclusive", "launches", "covered")
        ),
        outcomes[0].launches_error / len(outcomes) ** 0.5,
    )
    print(line(HOLES[case], together))
    assert broken(HOLES[case], together) == []


def _many(case: str, seed: int) -> HoleOutcome:
    return simulate_hole(HOLES[case], MANY, seed)


def test_a_pair_whose_box_moved_does_not_pass_alone() -> None:
    prior = NoisePrior(0.005, 20)
    steady, shifted = (PairSamples.of([100.0], [100.0], Side.BASE, moved) for moved in (0.002, 0.05))
    assert decide(Policy(), prior, [steady], Better.LOWER).state is MetricVerdict.PASS
    assert decide(Policy(), prior, [shifted], Better.LOWER).state is MetricVerdict.CONTINUE


def test_what_being_second_costs_is_learned_only_where_it_is_sure() -> None:
    assert learn_order([0.031, 0.029, 0.030, 0.032, 0.028, 0.030]) == pytest.approx(0.03)
    assert learn_order([0.01, -0.02, 0.03, 0.0, -0.01, 0.02]) == 0.0


def test_a_ledger_without_noise_is_no_error() -> None:
    pairs = [PairSamples.of([100.0], [100.0], Side.BASE), PairSamples.of([100.0], [110.0], Side.HEAD)]
    assert decide(Policy(), NoisePrior(1e-200, 10), pairs, Better.LOWER).pairs == 2
