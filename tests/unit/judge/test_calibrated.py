"""One commit against itself: no verdict on any change, whatever the judge makes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from perfgate import records as r
from perfgate.judge.evidence import Evidence, RunFacts
from perfgate.judge.result import Conditions, judge_run
from perfgate.judge.verdict import Disturbance
from perfgate.records import LaunchId
from perfgate.report.comment import render_comment
from perfgate.report.page import render_page
from perfgate.report.terminal import render_plan, render_result
from perfgate.run.pairs import Measuring
from perfgate.run.progress import minutes_left

from ..run.builders import TableBench, a_journal, a_plan

SAME = r.Commit(sha="a" * 40, tree="1" * 40, title="A commit")
VERDICTS = ("regression", "loses less", "below budget", "is slower", "author", "within budget", "/perfgate accept")


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


def calibration(pairs: int = 3, **changes: object) -> r.Plan:
    plan = a_plan(calibration=True, base=SAME, head=SAME)
    limits = dataclasses.replace(plan.limits, max_pairs=pairs, minutes=1)
    return dataclasses.replace(plan, **{"limits": limits, **changes})  # type: ignore[arg-type]


def steady(order: LaunchId) -> float:
    return 90.0


def head_slower(order: LaunchId) -> float:
    """As chance would have it: twelve per cent in every pair."""
    return 80.0 if order.side is r.Side.HEAD else 90.0


def measured(
    where: Path,
    speed: Callable[[LaunchId], float] = steady,
    fails: Callable[[LaunchId], bool] = lambda _: False,
    plan: r.Plan | None = None,
) -> tuple[RunFacts, TableBench]:
    with a_journal(where, plan or calibration()) as journal:
        bench = TableBench(journal, speed, fails=fails)
        Measuring(journal, bench).all_pairs()
        run = journal.run()
        return run, bench


def shown(what: object) -> str:
    console = Console(file=StringIO(), width=80)
    console.print(what)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("speed", [steady, head_slower])
def test_all_pairs_are_measured_whatever_the_judge_says_and_however_long_it_takes(
    tmp_path: Path, speed: Callable[[LaunchId], float]
) -> None:
    run, bench = measured(tmp_path, speed)
    assert [len(run.pairs_of(name)) for name in ("baseline", "eagle3")] == [3, 3]
    assert len(set(bench.launched)) == len(bench.launched) == 12
    assert sum(end.end.wall_s for end in run.launches.values() if end.end) > 60 * run.plan.limits.minutes


def test_it_says_by_how_much_pairs_of_the_same_code_differ(tmp_path: Path) -> None:
    def noisy(order: LaunchId) -> float:
        return 90.0 * (1.02 if (order.side is r.Side.HEAD) == (order.pair % 2 == 0) else 1)

    result = judge_run(Evidence(measured(tmp_path, noisy)[0]))
    assert (result.verdict, result.exit_code, result.calibration) == (r.Verdict.PASS, 0, True)
    assert result.reason.startswith("One commit against itself, 3 pairs of baseline and 3 of eagle3: pairs of the same")
    assert "differ by 2 % (baseline tok/s), 2 % (baseline decode ms)" in result.reason


def test_a_regression_by_chance_is_a_warning_and_no_verdict(tmp_path: Path) -> None:
    run, _ = measured(tmp_path, head_slower)
    result = judge_run(Evidence(run))
    assert {one.verdict for one in result.metrics if one.gated} == {r.MetricVerdict.REGRESSION}
    assert (result.verdict, result.exit_code) == (r.Verdict.PASS, 0)
    (alarm,) = [notice for notice in result.warnings if notice.code == "false_alarm"]
    metrics = {f"{one.recipe} {one.metric}": one.slowdown for one in result.metrics}
    assert alarm.data == {"slowdowns": metrics}
    assert "eagle3 verify ms by 12 %" in alarm.text
    assert "less than once in 100 calibrations" in alarm.text
    assert result.decomposition == ()


@pytest.mark.parametrize("speed", [steady, head_slower])
def test_no_report_of_it_reads_like_a_verdict_on_a_change(tmp_path: Path, speed: Callable[[LaunchId], float]) -> None:
    run, _ = measured(tmp_path, speed)
    result = judge_run(Evidence(run))
    for text in (render_comment(result), shown(render_result(result)), render_page(result, run.facts)):
        assert "calibration" in text
        told = text.replace("A commit", "").lower()
        assert [word for word in VERDICTS if word in told] == []
    assert f"perfgate calibrate --repo . --commit {SAME.sha} --pairs 3" in render_comment(result)


def test_without_a_prior_it_does_not_ask_for_a_calibration(tmp_path: Path) -> None:
    plan = calibration()
    unknown = tuple(dataclasses.replace(one, prior_sd=None) for one in plan.metrics)
    run, _ = measured(tmp_path, plan=dataclasses.replace(plan, metrics=unknown))
    told = " ".join(notice.text for notice in judge_run(Evidence(run)).warnings)
    assert "perfgate calibrate" not in told


def test_one_that_was_broken_off_is_not_complete(tmp_path: Path) -> None:
    run, _ = measured(tmp_path, plan=calibration(pairs=2))
    halted = dataclasses.replace(run, plan=calibration(pairs=5))
    result = judge_run(Evidence(halted))
    assert (result.verdict, result.exit_code) == (r.Verdict.INCONCLUSIVE, 3)
    assert (
        result.reason == "The calibration is not complete: 2 pairs of baseline and 2 of eagle3 of 5 each are measured."
    )
    stopped = r.Fault(id="f", code=r.STOPPED_FAULT, text="cancelled by SIGINT", blame=r.Blame.USER)
    assert (
        "measuring was cancelled by SIGINT"
        in judge_run(Evidence(dataclasses.replace(halted, faults=(stopped,)))).reason
    )


@pytest.mark.parametrize("side", list(r.Side))
def test_a_failing_launch_is_no_sides_fault(tmp_path: Path, side: r.Side) -> None:
    run, _ = measured(tmp_path, fails=lambda order: order.side is side and order.pair == 2)
    result = judge_run(Evidence(run))
    assert (result.verdict, result.exit_code, result.failed_side) == (r.Verdict.BENCH_FAILED, 4, None)
    assert "the server died" in result.reason
    assert "author" not in render_comment(result)


def test_a_build_that_fails_is_told_although_there_is_no_diff(tmp_path: Path) -> None:
    with a_journal(tmp_path, calibration(diff_class="nothing")) as journal:
        journal.append(
            r.Build(
                id="b", side=r.Side.BASE, key="k", ok=False, reason="base does not build: no space", blame=r.Blame.SIDE
            )
        )
        run = journal.run()
    result = judge_run(Evidence(run))
    assert (result.verdict, result.failed_side) == (r.Verdict.BUILD_FAILED, None)
    assert "base does not build" in result.reason


def test_a_box_that_moved_makes_it_useless(tmp_path: Path) -> None:
    run, _ = measured(tmp_path, head_slower)
    moved = Conditions(disturbances=(Disturbance("The canary moved.", shift=0.001),))
    result = judge_run(Evidence(run), moved)
    assert (result.verdict, result.exit_code) == (r.Verdict.ENVIRONMENT, 4)
    assert "of no use: the box was not steady" in render_comment(result)


def test_the_plan_says_that_all_pairs_are_measured_and_for_how_long(tmp_path: Path) -> None:
    plan = calibration(pairs=4)
    plan = dataclasses.replace(plan, recipes=tuple(dataclasses.replace(o, expected_launch_s=60) for o in plan.recipes))
    with a_journal(tmp_path, plan) as journal:
        run = journal.run()
    assert minutes_left(run) == 2 * 4 * 2, "no limit of minutes holds"
    text = " ".join(shown(render_plan(plan, minutes_left(run))).split())
    assert "Expected: about 16 min. One commit against itself: 4 pairs of each recipe, all of them." in text
    assert "until it is decided" not in text
