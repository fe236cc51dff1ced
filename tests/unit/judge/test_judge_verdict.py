"""combine and next_step: the order of verdicts, the sentence, the next pair."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import Exit
from perfgate.judge import Decision, Disturbance, Faults, JudgedMetric, RecipeProgress, RunFailure, combine, next_step
from perfgate.records import Effect, MetricVerdict, Side, Verdict

from .judge_gates import gated_metric


def decision(state: MetricVerdict, slowdown: float = 0.0, pairs: int = 2) -> Decision:
    return Decision(
        state=state,
        slowdown=slowdown,
        low=slowdown - 0.01,
        high=slowdown + 0.01,
        pairs=pairs,
        detectable=0.035,
        effect=Effect.UNKNOWN,
    )


def gated(
    state: MetricVerdict | None, slowdown: float = 0.0, recipe: str = "eagle3", metric: str = "tok_s"
) -> JudgedMetric:
    return gated_metric(recipe, metric, decision(state, slowdown) if state else None, budget=0.03)


STORY = math.log(94 / 60)
EVERYTHING = Faults(
    skipped="Only documentation changed",
    build=(RunFailure("head does not build", Side.HEAD),),
    environment=(Disturbance("head rank 3 started without NCCL_PROTO"),),
    bench=(RunFailure("the server of head died twice", Side.HEAD),),
)


def test_the_first_that_applies_wins() -> None:
    metrics = [gated(MetricVerdict.REGRESSION, STORY), gated(MetricVerdict.CONTINUE, recipe="baseline")]
    faults = EVERYTHING
    seen = []
    for cured in ({"skipped": None}, {"build": ()}, {"environment": ()}):
        seen.append(combine(metrics, faults).verdict)
        faults = replace(faults, **cured)
    seen.append(combine(metrics, faults).verdict)
    seen.append(combine(metrics[1:], faults).verdict)
    seen.append(combine(metrics[1:], replace(faults, bench=())).verdict)
    seen.append(combine([gated(MetricVerdict.PASS)]).verdict)
    assert seen == [
        Verdict.SKIPPED,
        Verdict.BUILD_FAILED,
        Verdict.ENVIRONMENT,
        Verdict.REGRESSION,
        Verdict.BENCH_FAILED,
        Verdict.INCONCLUSIVE,
        Verdict.PASS,
    ]


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (combine([], Faults(skipped="docs")), Exit.OK),
        (combine([gated(MetricVerdict.PASS)]), Exit.OK),
        (combine([gated(MetricVerdict.REGRESSION, 0.1)]), Exit.REGRESSION),
        (combine([gated(MetricVerdict.INCONCLUSIVE)]), Exit.INCONCLUSIVE),
        (combine([], Faults(build=(RunFailure("x"),))), Exit.CANNOT),
        (combine([], Faults(environment=(Disturbance("x"),))), Exit.CANNOT),
        (combine([], Faults(bench=(RunFailure("x"),))), Exit.CANNOT),
    ],
)
def test_exit_codes(verdict: object, code: Exit) -> None:
    assert verdict.exit_code == code  # type: ignore[attr-defined]


def test_the_sentence_of_a_regression() -> None:
    told = combine([gated(MetricVerdict.REGRESSION, STORY), gated(MetricVerdict.REGRESSION, 0.05, recipe="baseline")])
    assert told.reason == (
        "eagle3 tok/s −36.2 % (−36.8 to −35.5 %) in 2 pairs, over the budget of −3.0 %; 1 more metric too."
    )


def test_a_slower_millisecond_metric_is_told_as_more() -> None:
    slower = gated_metric("eagle3", "verify_ms", decision(MetricVerdict.REGRESSION, math.log(29 / 19)), 0.05)
    assert combine([slower]).reason.startswith("eagle3 verify ms +52.6 % (+51.1 to +54.2 %)")


def test_nothing_measured_is_never_a_pass() -> None:
    assert combine([]).verdict is Verdict.INCONCLUSIVE
    absent = combine([gated(MetricVerdict.PASS), gated(None, metric="verify_ms")])
    assert absent.verdict is Verdict.INCONCLUSIVE
    assert "verify ms was not measured" in absent.reason


def test_a_small_shift_of_the_box_does_not_excuse_a_large_loss() -> None:
    shift = Disturbance("all-reduce 26 → 28 µs", shift=0.07)
    told = combine([gated(MetricVerdict.REGRESSION, STORY)], Faults(environment=(shift,)))
    assert told.verdict is Verdict.REGRESSION
    assert told.tolerated == (shift,)
    excused = combine([gated(MetricVerdict.REGRESSION, 0.10)], Faults(environment=(shift,)))
    assert excused.verdict is Verdict.ENVIRONMENT
    assert excused.tolerated == ()
    assert combine([gated(MetricVerdict.PASS)], Faults(environment=(shift,))).verdict is Verdict.ENVIRONMENT


def test_a_failed_side_is_named_only_when_it_is_one() -> None:
    head = RunFailure("head died", Side.HEAD)
    assert combine([], Faults(bench=(head, head))).failed_side is Side.HEAD
    assert combine([], Faults(bench=(head, RunFailure("base died", Side.BASE)))).failed_side is None


def test_why_measuring_ended_is_told() -> None:
    told = combine([gated(MetricVerdict.CONTINUE)], Faults(stopped="the limit of 90 minutes"))
    assert told.reason.endswith("a loss of 3.4 % would have shown; measuring ended at the limit of 90 minutes.")


def test_recipes_take_turns_until_all_is_decided() -> None:
    start = [RecipeProgress("eagle3", 0), RecipeProgress("baseline", 0)]
    assert next_step([gated(None), gated(None, recipe="baseline")], start, 6).recipe == "eagle3"
    going = [gated(MetricVerdict.CONTINUE), gated(MetricVerdict.CONTINUE, recipe="baseline")]
    assert next_step(going, [RecipeProgress("eagle3", 1), RecipeProgress("baseline", 0)], 6).recipe == "baseline"
    assert next_step(going, [RecipeProgress("eagle3", 1), RecipeProgress("baseline", 1)], 6).recipe == "eagle3"
    half = [gated(MetricVerdict.PASS), gated(MetricVerdict.CONTINUE, recipe="baseline")]
    assert next_step(half, [RecipeProgress("eagle3", 1), RecipeProgress("baseline", 2)], 6).recipe == "baseline"
    done = [gated(MetricVerdict.PASS), gated(MetricVerdict.PASS, recipe="baseline")]
    assert next_step(done, [RecipeProgress("eagle3", 1), RecipeProgress("baseline", 2)], 6).recipe is None


def test_one_undecided_metric_keeps_its_recipe_going() -> None:
    metrics = [gated(MetricVerdict.PASS), gated(MetricVerdict.CONTINUE, metric="verify_ms")]
    assert next_step(metrics, [RecipeProgress("eagle3", 3)], 6).recipe == "eagle3"
    assert next_step(metrics, [RecipeProgress("eagle3", 6)], 6).recipe is None


def test_after_a_regression_each_other_recipe_gets_one_pair() -> None:
    metrics = [
        gated(MetricVerdict.REGRESSION, STORY),
        gated(None, recipe="baseline"),
        gated(MetricVerdict.CONTINUE, recipe="c"),
    ]
    step = next_step(metrics, [RecipeProgress("eagle3", 2), RecipeProgress("c", 1), RecipeProgress("baseline", 0)], 6)
    assert step.recipe == "baseline"
    assert (
        next_step(
            metrics, [RecipeProgress("eagle3", 2), RecipeProgress("c", 1), RecipeProgress("baseline", 1)], 6
        ).recipe
        is None
    )


def test_a_metric_that_is_absent_asks_for_no_more_pairs() -> None:
    assert next_step([gated(None)], [RecipeProgress("eagle3", 1)], 6).recipe is None


def test_time_ends_it_and_says_so() -> None:
    dear, cheap = RecipeProgress("eagle3", 1, minutes_per_pair=20), RecipeProgress("baseline", 1, minutes_per_pair=5)
    going = [gated(MetricVerdict.CONTINUE), gated(MetricVerdict.CONTINUE, recipe="baseline")]
    assert next_step(going, [dear, cheap], 6, minutes_left=10).recipe == "baseline"
    end = next_step(going, [dear, cheap], 6, minutes_left=4)
    assert end.recipe is None
    assert end.out_of_time


states = st.sampled_from([None, *MetricVerdict])


@given(st.lists(states, max_size=5), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_every_mixture_has_one_verdict_and_a_sentence(
    of_metrics: list[MetricVerdict | None], skipped: bool, build: bool, environment: bool, bench: bool
) -> None:
    faults = Faults(
        skipped="docs" if skipped else None,
        build=EVERYTHING.build if build else (),
        environment=EVERYTHING.environment if environment else (),
        bench=EVERYTHING.bench if bench else (),
    )
    told = combine([gated(state, 0.05) for state in of_metrics], faults)
    assert told.reason.endswith(".")
    if told.verdict is Verdict.PASS:
        assert of_metrics
        assert set(of_metrics) == {MetricVerdict.PASS}
        assert faults == Faults()
    if told.verdict is Verdict.REGRESSION:
        assert MetricVerdict.REGRESSION in of_metrics


def test_open_is_told_with_what_is_sure() -> None:
    sure = combine([gated(MetricVerdict.INCONCLUSIVE, 0.025)]).reason
    assert "is slower for sure, but whether by the budget of −3.0 % is open" in sure
    assert "neither slower for sure nor" in combine([gated(MetricVerdict.INCONCLUSIVE, 0.005)]).reason
