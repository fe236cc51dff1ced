"""What the judge does with odd pairs: contradictions, bad launches, drift, changed noise, degenerate numbers."""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfgate.judge
from perfgate.judge import Decision, Judge, JudgeInputError, NoisePrior, PairSamples, Policy, decide, replay
from perfgate.judge.noise import learn
from perfgate.records import Effect, MetricVerdict

KNOWN = NoisePrior(sd=0.01, df=10)
TIGHT = NoisePrior(sd=0.003, df=20)


def pairs_of(differences: Sequence[float], alternate: bool = True) -> list[PairSamples]:
    """One sample a launch; + = head slower for a metric where lower is better."""
    firsts = ("base", "head") if alternate else ("base", "base")
    return [
        PairSamples.of([100.0], [100.0 * math.exp(difference)], firsts[number % 2])  # type: ignore[arg-type]
        for number, difference in enumerate(differences)
    ]


def judged(differences: Sequence[float], prior: NoisePrior | None = KNOWN, policy: Policy | None = None) -> Decision:
    return decide(policy or Policy(), prior, pairs_of(differences), "lower")


def codes(decision: Decision) -> set[str]:
    return {warning.code for warning in decision.warnings}


# ------------------------------------------------------------------------------------------- odd pairs


def test_a_pair_that_contradicts_leads_to_more_pairs() -> None:
    assert judged([0.05, 0.05]).state is MetricVerdict.REGRESSION
    assert judged([0.05, -0.05], TIGHT).state is MetricVerdict.CONTINUE
    assert judged([0.0, 0.0], TIGHT).state is MetricVerdict.PASS
    assert judged([0.0, 0.06], TIGHT).state is MetricVerdict.CONTINUE


bad = st.one_of(st.floats(-1.0, -0.05), st.floats(0.05, 1.0))
noise = st.floats(-0.004, 0.004)


@given(st.lists(noise, min_size=4, max_size=6), bad, st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_one_bad_launch_in_eight_turns_no_pass_into_a_regression(quiet: list[float], off: float, where: int) -> None:
    quiet[where] += off
    assert judged(quiet, NoisePrior(0.005, 10)).state is MetricVerdict.PASS


@given(st.lists(noise, min_size=4, max_size=6), bad, st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_one_bad_launch_in_eight_hides_no_regression(quiet: list[float], off: float, where: int) -> None:
    lost = [0.06 + value for value in quiet]
    lost[where] += off
    decision = judged(lost, NoisePrior(0.005, 10))
    assert decision.state is MetricVerdict.REGRESSION
    assert decision.slowdown == pytest.approx(0.06, abs=0.02)


def test_the_bad_pair_is_named() -> None:
    decision = judged([0.001, -0.002, 0.4, 0.001], TIGHT)
    told = [warning for warning in decision.warnings if warning.code == "bad_pair"]
    assert [warning.data["pair"] for warning in told] == [3]
    assert "Pair 3" in told[0].text


def test_a_large_order_effect_is_no_change_of_the_code() -> None:
    decision = judged([0.03, -0.03, 0.031, -0.029, 0.03, -0.03], TIGHT)
    assert decision.state is MetricVerdict.PASS
    assert decision.drift is not None
    assert decision.drift.effect == pytest.approx(0.03, abs=0.002)
    assert "order_effect" in codes(decision)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_stop_at_an_odd_count_survives_an_order_effect(count: int) -> None:
    alternating = [0.03 if number % 2 == 0 else -0.03 for number in range(count)]
    assert judged(alternating, TIGHT).state is not MetricVerdict.REGRESSION


def test_a_regression_is_seen_through_an_order_effect() -> None:
    assert judged([0.09, 0.03, 0.091, 0.029], TIGHT).state is MetricVerdict.REGRESSION


def test_drift_is_absent_where_it_cannot_be_told() -> None:
    assert judged([0.0]).drift is None
    same_side_first = decide(Policy(), KNOWN, pairs_of([0.0, 0.0], alternate=False), "lower")
    assert same_side_first.drift is None
    assert "one_order" in codes(same_side_first)


def test_noise_far_above_the_prior_takes_its_weight() -> None:
    scattered = judged([0.05, -0.03, 0.11, 0.04, 0.10, -0.01], NoisePrior(0.003, 10))
    assert scattered.state is not MetricVerdict.REGRESSION
    assert "spread_above_prior" in codes(scattered)


def test_two_pairs_must_say_so() -> None:
    assert judged([0.446], TIGHT).state is MetricVerdict.CONTINUE
    assert judged([0.446], TIGHT, replace(Policy(), min_pairs_to_fail=1)).state is MetricVerdict.REGRESSION


def test_one_pair_passes_alone_only_where_that_is_safe() -> None:
    assert judged([0.0], TIGHT).state is MetricVerdict.PASS
    assert judged([0.0], replace(TIGHT, bad=0.16, far=0.06)).state is MetricVerdict.CONTINUE
    assert judged([-0.10], TIGHT).state is MetricVerdict.CONTINUE  # faster, or a bad launch of base
    assert judged([0.0], None).state is MetricVerdict.CONTINUE


def test_a_decision_may_change_with_more_pairs() -> None:
    judge = Judge(Policy(), TIGHT, better="lower")
    states = [judge.add(base=[1.0], head=[math.exp(d)]).state for d in (0.0, 0.08, 0.08, 0.08, 0.08)]
    assert states[0] is MetricVerdict.PASS
    assert MetricVerdict.CONTINUE in states
    assert states[-1] is not MetricVerdict.PASS


def test_max_pairs_ends_in_inconclusive_with_what_could_have_been_seen() -> None:
    decision = judged([0.02, 0.025, 0.018, 0.03, 0.022, 0.026], NoisePrior(0.02, 10), Policy(max_pairs=6))
    assert decision.state is MetricVerdict.INCONCLUSIVE
    assert decision.effect in (Effect.UNKNOWN, Effect.SLOWER)
    assert 0.03 <= decision.detectable < 0.06


@pytest.mark.parametrize(
    ("differences", "effect"),
    [
        ([0.0, 0.001], Effect.SAME),
        ([-0.05, -0.05], Effect.FASTER),
        ([0.02, 0.02], Effect.SLOWER_WITHIN_BUDGET),
        ([0.06, 0.06], Effect.SLOWER),
        ([0.02, 0.05], Effect.UNKNOWN),
    ],
)
def test_effects(differences: list[float], effect: Effect) -> None:
    assert (
        judged(differences, NoisePrior(0.003, 20) if effect is not Effect.UNKNOWN else NoisePrior(0.03, 10)).effect
        is effect
    )


# ------------------------------------------------------------------------------------- degenerate numbers

positive = st.floats(1e-6, 1e9)
samples = st.lists(positive, min_size=1, max_size=12)
priors = st.one_of(
    st.none(),
    st.builds(NoisePrior, sd=st.floats(1e-5, 0.3), df=st.floats(0.5, 200)),
    st.builds(
        NoisePrior, sd=st.floats(1e-5, 0.1), df=st.floats(0.5, 50), bad=st.floats(0, 0.59), far=st.floats(0.01, 1)
    ),
)
orders = st.sampled_from(["base", "head", None])
anything = st.lists(st.builds(PairSamples.of, samples, samples, orders), min_size=1, max_size=9)


def assert_sane(decision: Decision, pairs: int) -> None:
    numbers = (decision.slowdown, decision.low, decision.high, decision.detectable)
    assert all(math.isfinite(number) for number in numbers)
    assert decision.low <= decision.slowdown <= decision.high
    assert decision.pairs == pairs
    assert decision.detectable >= Policy().budget
    if decision.state is MetricVerdict.PASS:
        assert decision.high <= Policy().budget + 1e-12 or decision.slowdown > Policy().budget
    if decision.state is MetricVerdict.REGRESSION:
        assert decision.low >= 0
        assert decision.slowdown >= Policy().budget
        assert pairs >= 2


@given(anything, priors)
@settings(max_examples=200, deadline=None)
def test_any_positive_numbers_give_a_sane_decision(pairs: list[PairSamples], prior: NoisePrior | None) -> None:
    decision = replay(Policy(), prior, pairs)
    assert decision is not None
    assert_sane(decision, len(pairs))


@given(st.lists(st.one_of(positive, st.sampled_from([0.0, -1.0, math.nan, math.inf, -math.inf])), max_size=5))
def test_numbers_that_are_none_are_refused_in_one_line(numbers: list[float]) -> None:
    broken = not numbers or any(not math.isfinite(number) or number <= 0 for number in numbers)
    if broken:
        with pytest.raises(JudgeInputError, match="base") as refused:
            PairSamples.of(numbers, [1.0])
        assert "\n" not in str(refused.value)
    else:
        PairSamples.of(numbers, [1.0])


@given(anything, priors, st.floats(1e-3, 1e3))
@settings(max_examples=60, deadline=None)
def test_units_do_not_matter(pairs: list[PairSamples], prior: NoisePrior | None, unit: float) -> None:
    scaled = [PairSamples.of([unit * v for v in p.base], [unit * v for v in p.head], p.first) for p in pairs]
    one, other = replay(Policy(), prior, pairs), replay(Policy(), prior, scaled)
    assert one is not None
    assert other is not None
    assert other.slowdown == pytest.approx(one.slowdown, abs=1e-6, rel=1e-6)


@given(anything, priors)
@settings(max_examples=60, deadline=None)
def test_time_and_speed_are_judged_alike(pairs: list[PairSamples], prior: NoisePrior | None) -> None:
    inverse = [PairSamples.of([1 / v for v in p.base], [1 / v for v in p.head], p.first) for p in pairs]
    speed, time = replay(Policy(), prior, pairs, "higher"), replay(Policy(), prior, inverse, "lower")
    assert speed is not None
    assert time is not None
    assert time.slowdown == pytest.approx(speed.slowdown, abs=1e-6, rel=1e-6)


@given(st.lists(st.floats(-0.2, 0.2), min_size=2, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_order_in_which_pairs_come_does_not_matter(differences: list[float], random: object) -> None:
    pairs = pairs_of(differences)
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = replay(Policy(), KNOWN, pairs), replay(Policy(), KNOWN, shuffled)
    assert one is not None
    assert other is not None
    assert other.state is one.state
    assert other.slowdown == pytest.approx(one.slowdown, abs=1e-9)


def test_equal_values_and_ten_thousand_samples() -> None:
    judge = Judge(Policy(), None)
    for _ in range(4):
        decision = judge.add(base=[100.0] * 10_000, head=[100.0])
    assert decision.state is MetricVerdict.PASS
    assert decision.slowdown == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Policy(budget=0.0),
        lambda: Policy(budget=math.nan),
        lambda: Policy(alpha=0.0),
        lambda: Policy(beta=0.7),
        lambda: Policy(max_pairs=0),
        lambda: NoisePrior(sd=0.0, df=3),
        lambda: NoisePrior(sd=0.1, df=math.inf),
        lambda: NoisePrior(sd=0.1, df=3, bad=0.9),
        lambda: Judge(Policy(), None, better="taller"),  # type: ignore[arg-type]
        lambda: PairSamples.of([1.0], [1.0], "left"),  # type: ignore[arg-type]
        lambda: learn([math.nan]),
    ],
)
def test_wrong_settings_are_refused(wrong: object) -> None:
    with pytest.raises(JudgeInputError):
        wrong()  # type: ignore[operator]


def test_decisions_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        judged([0.0]).state = MetricVerdict.REGRESSION  # type: ignore[misc]


# ----------------------------------------------------------------------------------------------- learning


def test_a_clean_ledger_gives_its_rms() -> None:
    prior = learn([0.01, -0.01, 0.012, -0.008, 0.009, -0.011])
    assert prior is not None
    assert prior.sd == pytest.approx(0.0101, abs=0.0005)
    assert (prior.df, prior.bad, prior.far) == (6, 0.0, None)


def test_bad_pairs_are_told_from_noise() -> None:
    prior = learn([0.004, -0.005, 0.06, 0.005, -0.004, 0.003, -0.061, 0.006, -0.005, 0.004])
    assert prior is not None
    assert prior.sd == pytest.approx(0.0047, abs=0.0005)
    assert prior.df == 8
    assert 0.1 < prior.bad < 0.25
    assert prior.far == pytest.approx(0.06, abs=0.002)


def test_half_of_the_pairs_are_no_exception() -> None:
    prior = learn([0.001, -0.09, 0.09, 0.002, -0.001, 0.089, -0.091, 0.09])
    assert prior is not None
    assert prior.bad == 0.0
    assert prior.sd > 0.05


@given(st.lists(st.floats(-2, 2), max_size=40))
def test_anything_finite_can_be_learned_from(differences: list[float]) -> None:
    prior = learn(differences)
    assert (prior is None) == (not differences)


# --------------------------------------------------------------------------------------------- the package


def test_scattered_samples_are_told() -> None:
    scattered = [PairSamples.of([95.0, 100.0, 105.0, 98.0], [101.0, 94.0, 106.0, 99.0])]
    decision = decide(Policy(), NoisePrior(0.003, 10), scattered, "lower")
    assert "samples_scatter" in codes(decision)
    assert "samples_scatter" not in codes(decide(Policy(), NoisePrior(0.003, 10), pairs_of([0.0]), "lower"))


def test_no_prior_is_told_with_what_was_assumed() -> None:
    told = [warning for warning in judged([0.0], None).warnings if warning.code == "no_prior"]
    assert told[0].data["assumed_sd"] == 0.02
    assert "perfgate calibrate" in told[0].text


STATISTICS = ("values", "noise", "explain", "caveats", "sequential", "power", "decompose")


@pytest.mark.parametrize("module", STATISTICS)
def test_statistics_stand_alone(module: str) -> None:
    """Standard library, each other and the words of the records; nothing else of perfgate."""
    source = Path(perfgate.judge.__file__).with_name(f"{module}.py").read_text()
    for node in ast.walk(ast.parse(source)):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            own = name == "perfgate.records" or name.removeprefix("perfgate.judge.") in STATISTICS
            assert own or name.split(".")[0] in sys.stdlib_module_names, f"{module} imports {name}"


def test_what_the_estimate_stands_on_is_without_the_bad_pair() -> None:
    decision = judged([0.001, -0.002, 0.4, 0.001], TIGHT)
    assert decision.believed == (0, 1, 3)
