"""Warnings of the probe reach the result: once for each kind, bounded, whatever the code under test says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from perfgate import records as r
from perfgate.judge.evidence import Evidence, RunFacts
from perfgate.judge.notices import MOST_NOTICES, probe_notices
from perfgate.judge.result import judge_run
from perfgate.run.pairs import Measuring

from .builders import TableBench, a_journal


def run_with(where: Path, warnings: list[dict[str, object]]) -> RunFacts:
    with a_journal(where) as journal:
        Measuring(journal, TableBench(journal, lambda order: 90.0)).until_decided()
        facts = [
            dataclasses.replace(fact, warnings=tuple(warnings))
            if isinstance(fact, r.Phases) and fact.side is r.Side.HEAD
            else fact
            for fact in journal.facts
        ]
    run = RunFacts.of(facts)
    assert run is not None
    return run


def test_each_kind_is_said_once_with_the_side(tmp_path: Path) -> None:
    run = run_with(tmp_path, [{"code": "cycle_disagrees", "text": "the cycle is 9 % off the client's", "data": {}}])
    told = probe_notices(run)
    assert {(notice.code, notice.data["side"]) for notice in told} == {("cycle_disagrees", "head")}
    assert len(told) == len(run.plan.recipes)
    assert all("9 %" in notice.text for notice in told)
    assert any(notice.code == "cycle_disagrees" for notice in judge_run(Evidence(run)).warnings)


def test_a_flood_is_bounded(tmp_path: Path) -> None:
    run = run_with(tmp_path, [{"code": f"code{n}", "text": "x" * 10_000} for n in range(50)])
    told = probe_notices(run)
    assert len(told) == MOST_NOTICES
    assert all(len(notice.text) < 400 for notice in told)


def test_without_warnings_nothing_is_said(tmp_path: Path) -> None:
    assert probe_notices(run_with(tmp_path, [])) == ()
