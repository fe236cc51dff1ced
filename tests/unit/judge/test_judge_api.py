"""The API that the rest of perfgate stands on."""

from __future__ import annotations

import math

import pytest

from perfgate.judge import Judge, JudgeInputError, NoisePrior, PairSamples, Policy, replay
from perfgate.records import MetricVerdict

KNOWN = NoisePrior(sd=0.01, df=10)


def test_the_story_is_a_regression_after_two_pairs() -> None:
    judge = Judge(Policy(), KNOWN, better="higher")
    first = judge.add(base=[94.1, 93.8, 94.3], head=[60.1, 59.9, 60.4], first="base")
    second = judge.add(base=[93.9, 94.0, 94.2], head=[60.0, 60.2, 59.8], first="head")
    assert first.state is MetricVerdict.CONTINUE
    assert second.state is MetricVerdict.REGRESSION
    assert second.slowdown == pytest.approx(math.log(94 / 60), abs=0.01)
    assert second.low < second.slowdown < second.high


def test_lower_is_better_turns_the_sign() -> None:
    decision = Judge(Policy(), KNOWN, better="lower").add(base=[19.0], head=[29.0])
    assert decision.slowdown == pytest.approx(math.log(29 / 19))


def test_replay_gives_the_last_decision() -> None:
    pairs = [PairSamples.of([100, 101], [100, 99]), PairSamples.of([99], [100])]
    judge = Judge(Policy(), KNOWN)
    for pair in pairs:
        last = judge.add(base=pair.base, head=pair.head, first=pair.first)
    assert replay(Policy(), KNOWN, pairs) == last
    assert replay(Policy(), KNOWN, []) is None


@pytest.mark.parametrize("samples", [[], [0.0], [-1.0], [math.nan], [math.inf], ["x"], [None]])
def test_numbers_that_cannot_be_judged_are_refused(samples: list[float]) -> None:
    with pytest.raises(JudgeInputError, match="head"):
        Judge(Policy(), KNOWN).add(base=[1.0], head=samples)
