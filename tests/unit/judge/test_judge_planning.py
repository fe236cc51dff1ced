"""Power, samples a launch, and which earlier pairs are evidence."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from perfgate.judge import JudgeInputError, NoisePrior, Policy
from perfgate.judge.evidence import Launch, MeasuredPair, Question, answering
from perfgate.judge.power import (
    FEWEST,
    MOST,
    Spread,
    detected_from,
    expected_pairs,
    power,
    sample_variance,
    samples_per_launch,
    spread_of,
)
from perfgate.records import LaunchBegin, Pair, Side

KNOWN = NoisePrior(0.01, 10)


def test_power_grows_with_the_slowdown_and_is_reproducible() -> None:
    rows = power(Policy(), KNOWN, (0.0, 0.02, 0.05, 0.10), launch_minutes=5, gpus=8, runs=60, seed=4)
    assert rows == power(Policy(), KNOWN, (0.0, 0.02, 0.05, 0.10), launch_minutes=5, gpus=8, runs=60, seed=4)
    shares = [row.regression for row in rows]
    assert shares == sorted(shares)
    assert rows[0].passed >= 0.95
    assert rows[-1].regression == 1.0
    assert rows[-1].gpu_minutes == pytest.approx(rows[-1].launches * 40)
    assert all(row.regression + row.passed + row.inconclusive == pytest.approx(1) for row in rows)


def test_minutes_are_absent_where_a_launch_was_never_timed() -> None:
    assert power(Policy(), KNOWN, (0.0,), runs=5)[0].gpu_minutes is None


def test_the_smallest_slowdown_that_is_detected() -> None:
    rows = power(Policy(), KNOWN, (0.0, 0.02, 0.05, 0.10), runs=60)
    assert detected_from(rows) == 0.05
    assert detected_from(rows[:2]) is None


def test_a_noisier_box_needs_more_pairs() -> None:
    quiet, loud = (expected_pairs(Policy(), NoisePrior(sd, 10), runs=60) for sd in (0.003, 0.02))
    assert 1.0 <= quiet < 1.3
    assert loud > 2.5


def test_power_knows_bad_launches() -> None:
    (row,) = power(Policy(), NoisePrior(0.005, 10, bad=0.16, far=0.06), (0.0,), runs=60)
    assert row.pairs >= 2


@pytest.mark.parametrize(
    ("launch", "sample", "spread", "count"),
    [
        (300, 20, Spread(launch=0.01, sample=0.01), 4),
        (300, 20, Spread(launch=0.003, sample=0.02), 26),
        (300, 20, Spread(launch=0.02, sample=0.001), FEWEST),
        (300, 20, Spread(launch=0.0, sample=0.01), MOST),
        (300, 20, Spread(launch=0.0, sample=0.0), FEWEST),
    ],
)
def test_samples_a_launch(launch: float, sample: float, spread: Spread, count: int) -> None:
    assert samples_per_launch(launch, sample, spread) == count


def test_costs_must_be_costs() -> None:
    with pytest.raises(JudgeInputError):
        samples_per_launch(0, 1, Spread(0.01, 0.01))


def test_spreads_are_told_apart() -> None:
    draw = random.Random(1)
    launches = []
    for _ in range(400):
        level = draw.gauss(0, 0.01)
        launches.append([2.718281828 ** (level + draw.gauss(0, 0.02)) for _ in range(4)])
    variance = sample_variance(launches)
    assert variance is not None
    assert variance == pytest.approx(0.0004, rel=0.1)
    pair_sd = (2 * (0.01**2 + 0.02**2 / 4)) ** 0.5
    assert spread_of(pair_sd, variance, 4).launch == pytest.approx(0.01, rel=0.15)
    assert sample_variance([[1.0], [2.0]]) is None


# ------------------------------------------------------------------------------------------------ reruns

QUESTION = Question("base tree", "head tree", "base build", "head build", "eagle3", "workload", "flags", "box", "today")


def filed(number: int, hour: int, *, run: str = "run 1", boot: str = "boot 1", **changes: str) -> MeasuredPair:
    fact = Pair(
        id=f"eagle3/p{number:02d}",
        t=f"2026-11-30T{hour:02d}:00:00Z",
        boot=boot,
        recipe="eagle3",
        pair=number,
        base="",
        head="",
        first=Side.BASE,
    )
    launches = [
        Launch(
            LaunchBegin(id="", recipe="eagle3", pair=number, side=side, position=1, attempt=1, **LAUNCHED), (), (), None
        )  # type: ignore[arg-type]
        for side in Side
    ]
    return MeasuredPair(run, fact, *launches, replace(QUESTION, **changes))


LAUNCHED = {"sha": "", "build": "", "argv": (), "given": {}, "port": 0, "log": ""}


def kept(*pairs: MeasuredPair) -> list[tuple[str, int]]:
    return [(one.run, one.fact.pair) for one in answering(QUESTION, pairs)[0]]


def test_pairs_are_replayed_in_time_order() -> None:
    pairs = [filed(2, 9), filed(1, 8), filed(1, 10, run="run 2")]
    assert kept(*pairs) == [("run 1", 1), ("run 1", 2), ("run 2", 1)]
    assert answering(QUESTION, pairs)[1] == ()


@pytest.mark.parametrize(
    "field",
    ["base_tree", "head_tree", "base_build", "head_build", "recipe", "workload", "served", "box", "fingerprint"],
)
def test_pairs_of_another_question_do_not_count(field: str) -> None:
    (counted, (dropped,)) = answering(QUESTION, [filed(1, 8), filed(2, 9, **{field: "other"})])
    assert len(counted) == 1
    assert dropped.pair.fact.pair == 2
    assert dropped.why.startswith("measured ")


def test_another_commit_of_the_same_trees_is_the_same_question() -> None:
    assert kept(filed(1, 8, run="an amended message")) == [("an amended message", 1)]


def test_a_pair_filed_twice_counts_once() -> None:
    (counted, (dropped,)) = answering(QUESTION, [filed(1, 8), filed(1, 8)])
    assert len(counted) == 1
    assert dropped.why == "filed twice"
