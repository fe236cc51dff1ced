"""What a run tells of itself: a cancel, a crash that did not come again, a count without scatter, what is to come."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from perfgate import records as r
from perfgate.judge.evidence import Evidence, RunFacts
from perfgate.judge.result import judge_run
from perfgate.records import LaunchId
from perfgate.report.comment import render_comment
from perfgate.run.pairs import Measuring, stopped
from perfgate.run.progress import minutes_left

from .builders import TableBench, a_journal, a_plan


def crashes_once(order: LaunchId) -> bool:
    return order.launch_id == "eagle3/p01/head/a1"


def test_a_crash_that_does_not_come_again_is_told_in_the_headline_of_the_pass(tmp_path: Path) -> None:
    with a_journal(tmp_path) as journal:
        Measuring(journal, TableBench(journal, lambda order: 90.0, fails=crashes_once)).until_decided()
        result = judge_run(Evidence(journal.run()))
    assert result.verdict is r.Verdict.PASS
    heading, _, rest = render_comment(result).partition("\n")
    assert "; head failed once in " in heading
    assert "launches, base never – nobody has to act" in heading
    assert "base never: the server died" in rest, "with the reason that its log gives"


def test_a_side_that_never_served_is_told_as_that_alone(tmp_path: Path) -> None:
    with a_journal(tmp_path) as journal:
        bench = TableBench(journal, lambda order: 90.0, fails=lambda order: order.side is r.Side.HEAD)
        Measuring(journal, bench).until_decided()
        result = judge_run(Evidence(journal.run()))
    assert result.verdict is r.Verdict.BENCH_FAILED
    assert "failed_in_passing" not in [notice.code for notice in result.warnings]


def test_a_cancelled_run_asks_nobody_to_act(tmp_path: Path) -> None:
    with a_journal(tmp_path) as journal:
        journal.append(stopped("cancelled by SIGTERM"))
        result = judge_run(Evidence(journal.run()))
    assert result.verdict is r.Verdict.INCONCLUSIVE
    assert result.reason.endswith("; measuring was cancelled by SIGTERM.")
    assert render_comment(result).startswith(
        "### ⏹️ perfgate: cancelled before a verdict on `aaaaaaaaaa` – nobody has to act"
    )


def test_a_count_that_never_changed_has_no_scatter(tmp_path: Path) -> None:
    """Before: −13 … +15 %, by the scatter that is assumed where nothing is known."""
    count = dataclasses.replace(a_plan().metrics[-1], metric="accept_length", gated=False, prior_sd=None, prior_df=None)
    plan = dataclasses.replace(a_plan(), metrics=(*a_plan().metrics, count))
    with a_journal(tmp_path, plan) as journal:
        Measuring(journal, TableBench(journal, lambda order: 90.0)).all_pairs()
        facts = journal.facts
    counted = [dataclasses.replace(one, accept_length=2.2) if isinstance(one, r.Sample) else one for one in facts]
    run = RunFacts.of(counted)
    assert run is not None
    (shown,) = (metric for metric in judge_run(Evidence(run)).metrics if metric.metric == "accept_length")
    assert (shown.low, shown.high, shown.effect, shown.verdict) == (0.0, 0.0, r.Effect.SAME, shown.verdict)


def test_what_is_expected_is_known_once_any_recipe_was_launched(tmp_path: Path) -> None:
    with a_journal(tmp_path) as journal:
        assert minutes_left(journal.run()) is None
        bench = TableBench(journal, lambda order: 90.0, wall_s=60.0)
        for side, position in ((r.Side.BASE, 1), (r.Side.HEAD, 2)):
            bench.launch(LaunchId(recipe="baseline", pair=1, side=side, position=position, attempt=1))
        assert minutes_left(journal.run()) == 2 * 2 * 2, "two pairs of two recipes, two minutes each"
