"""The loss, split by phase: parts add up, the sentence says it, absent phases are in the rest."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.judge import Decision, JudgeInputError, NoisePrior
from perfgate.judge.decompose import Where, decompose, logarithmic_mean, read_recipes
from perfgate.records import Effect, MetricVerdict

TIGHT = NoisePrior(0.004, 20)


def eagle(verify: float, draft: float, extend: float, rest: float, accept: float) -> dict[str, float | None]:
    cycle = verify + draft + extend + rest
    return {
        "tok_s": 1000 * accept / cycle,
        "accept_length": accept,
        "cycle_ms": cycle,
        "verify_ms": verify,
        "draft_ms": draft,
        "draft_extend_ms": extend,
    }


BASE = eagle(19.0, 2.0, 1.4, 1.0, 2.2)
HEAD = eagle(29.0, 2.1, 1.5, 1.0, 2.18)


def test_the_story_in_one_sentence() -> None:
    split = decompose([(BASE, HEAD)] * 2, prior=TIGHT)
    assert split is not None
    assert split.shares[0].name == "verify_ms"
    assert (
        split.sentence
        == "−31.0 %: verify +53 % explains −29.6 points, accept length −0.8, draft −0.3, draft-extend −0.3"
    )


def test_a_loss_of_acceptance_is_no_loss_of_time() -> None:
    worse = eagle(19.0, 2.0, 1.4, 1.0, 1.5)
    split = decompose([(BASE, worse)] * 2, prior=TIGHT)
    assert split is not None
    assert split.sentence == "−31.8 %: accept length −32 % explains −31.8 points"
    assert [share.name for share in split.shares if share.sure] == ["accept_length"]


def test_parts_that_work_against_each_other_are_both_told() -> None:
    split = decompose([(BASE, eagle(29.0, 2.0, 1.4, 1.0, 2.9))] * 2, prior=TIGHT)
    assert split is not None
    assert "verify +53 % explains" in split.sentence
    assert "accept length +" in split.sentence


def test_nothing_moved() -> None:
    split = decompose([(BASE, BASE)] * 2, prior=TIGHT)
    assert split is not None
    assert split.slowdown == 0.0
    assert split.sentence == "±0.0 %: no phase moved for sure"


def test_phases_that_are_absent_are_in_the_rest() -> None:
    without = {**HEAD, "draft_ms": None, "verify_ms": None}
    split = decompose([(BASE, without)], prior=TIGHT)
    assert split is not None
    assert {share.name for share in split.shares} == {"accept_length", "draft_extend_ms", "rest"}
    rest = next(share for share in split.shares if share.name == "rest")
    assert rest.base is None
    assert rest.slowdown > 0.2


def test_plain_decoding_has_no_accept_length() -> None:
    base = {"tok_s": 88.5, "cycle_ms": 11.3, "decode_ms": 11.05}
    head = {"tok_s": 82.5, "cycle_ms": 12.12, "decode_ms": 11.85}
    split = decompose([(base, head)] * 2, prior=TIGHT)
    assert split is not None
    assert {share.name for share in split.shares} == {"decode_ms", "rest"}
    assert split.sentence.startswith("−6.8 %: decode +7 % explains −6.6 points")


def test_without_tok_s_there_is_nothing_to_split() -> None:
    assert decompose([]) is None
    assert decompose([(BASE, {**HEAD, "tok_s": None})]) is None


def test_the_parts_add_up_to_the_estimate_of_the_judge() -> None:
    split = decompose([(BASE, HEAD), (BASE, HEAD)], slowdown=0.40, prior=TIGHT)
    assert split is not None
    assert math.fsum(share.slowdown for share in split.shares) == pytest.approx(0.40)


milliseconds = st.floats(0.01, 100)
launches = st.builds(eagle, milliseconds, milliseconds, milliseconds, milliseconds, st.floats(1, 5))
phases = st.sets(st.sampled_from(["verify_ms", "draft_ms", "draft_extend_ms", "accept_length", "cycle_ms"]))


@given(st.lists(st.tuples(launches, launches), min_size=1, max_size=5), phases)
def test_parts_always_add_up(
    pairs: list[tuple[dict[str, float | None], dict[str, float | None]]], absent: set[str]
) -> None:
    for base, _ in pairs:
        base.update(dict.fromkeys(absent))
    split = decompose(pairs)
    assert split is not None
    assert math.fsum(share.slowdown for share in split.shares) == pytest.approx(split.slowdown, abs=1e-9)
    assert all(share.low <= share.slowdown <= share.high for share in split.shares)
    told = [float(one.replace("−", "-")) for one in re.findall(r"[+−]\d+\.\d(?! %)", split.sentence)]
    whole = re.match(r"([+−±]\d+\.\d) %: ", split.sentence)
    assert whole
    if told:
        assert math.fsum(told) == pytest.approx(float(whole[1].replace("−", "-").lstrip("±")))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_numbers_that_are_none_are_refused(wrong: float) -> None:
    with pytest.raises(JudgeInputError, match="verify_ms"):
        decompose([(BASE, {**HEAD, "verify_ms": wrong})])


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_the_logarithmic_mean_lies_between(a: float, b: float) -> None:
    mean = logarithmic_mean(a, b)
    assert min(a, b) * (1 - 1e-9) <= mean <= max(a, b) * (1 + 1e-9)
    assert mean == pytest.approx(logarithmic_mean(b, a))


def decided(slowdown: float, state: MetricVerdict, wide: float = 0.01) -> Decision:
    return Decision(state, slowdown, slowdown - wide, slowdown + wide, 2, 0.03, Effect.UNKNOWN)


LOST, FINE, OPEN = MetricVerdict.REGRESSION, MetricVerdict.PASS, MetricVerdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("plain", "speculative", "where"),
    [
        (decided(0.07, LOST), decided(0.08, LOST), Where.ENGINE),
        (decided(0.07, LOST), decided(0.446, LOST), Where.BOTH),
        (decided(0.0, FINE), decided(0.446, LOST), Where.SPECULATIVE),
        (decided(0.0, OPEN), decided(0.446, LOST), Where.UNKNOWN),
        (decided(0.07, LOST), decided(0.0, FINE), Where.PLAIN),
        (decided(0.0, FINE), decided(0.0, FINE), Where.NOWHERE),
        (decided(0.0, OPEN), decided(0.0, FINE), Where.UNKNOWN),
        (None, decided(0.446, LOST), Where.UNKNOWN),
    ],
)
def test_two_recipes_tell_where(plain: Decision | None, speculative: Decision | None, where: Where) -> None:
    reading = read_recipes(plain, speculative)
    assert reading.where is where
    assert reading.sentence.endswith(".")


def test_parts_that_moved_against_each_other_are_told_although_the_sum_did_not_move() -> None:
    """Accept length −18 and verify +18 points: before, "no phase moved for sure"."""
    base = {"tok_s": 100.0, "accept_length": 2.5, "cycle_ms": 25.0, "verify_ms": 20.0}
    head = {"tok_s": 100.0, "accept_length": 2.0, "cycle_ms": 20.0, "verify_ms": 15.0}
    split = decompose([(base, head)] * 4, 0.0, NoisePrior(0.005, 20))
    assert split is not None
    assert "no phase moved" not in split.sentence
    assert "accept length −" in split.sentence
    assert "verify +" in split.sentence
