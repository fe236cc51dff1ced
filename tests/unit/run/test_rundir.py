"""Run directories: what may be begun, gone on with, and counted as evidence."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from perfgate import __version__
from perfgate import records as r
from perfgate.errors import PerfgateError
from perfgate.judge.evidence import RunFacts
from perfgate.records import LaunchId
from perfgate.records.files import FACTS_FILE
from perfgate.run.evidence import earlier_runs
from perfgate.run.folder import check_new, check_same, find_unfinished, write_run_file
from perfgate.run.journal import Journal
from perfgate.run.pairs import Measuring

from .builders import TableBench, a_plan, built


def even(_order: LaunchId) -> float:
    return 90.0


def a_run(runs: Path, plan: r.Plan) -> None:
    """A finished run in the state directory."""
    folder = runs / plan.run_id
    write_run_file(folder, plan)
    with Journal(folder) as journal:
        journal.append(plan)
        built(journal, "k")
        Measuring(journal, TableBench(journal, even)).until_decided()


def test_a_run_killed_before_its_first_fact_never_began(tmp_path: Path) -> None:
    write_run_file(tmp_path, a_plan())
    (tmp_path / FACTS_FILE).touch()
    check_new(tmp_path)
    with Journal(tmp_path) as journal:
        journal.append(a_plan())
    with pytest.raises(PerfgateError, match="holds a run already → --resume"):
        check_new(tmp_path)


def test_a_run_is_not_gone_on_with_without_its_recipes(tmp_path: Path) -> None:
    plan = a_plan(perfgate=__version__)
    same = (plan.base.sha, plan.head.sha, plan.config_hash)
    check_same(tmp_path, plan, *same, ["eagle3", "baseline", "more"])
    with pytest.raises(PerfgateError, match="measures baseline, eagle3 → give its --recipes, or none"):
        check_same(tmp_path, plan, *same, ["baseline"])
    with pytest.raises(PerfgateError, match="begun by perfgate test, this is"):
        check_same(tmp_path, a_plan(), *same, ["eagle3", "baseline"])


def test_only_a_run_that_has_begun_is_found_to_go_on_with(tmp_path: Path) -> None:
    plan, taught = a_plan(run_id="1"), a_plan(run_id="2", calibration=True)
    asked = (plan.base.sha, plan.head.sha, plan.config_hash)
    some = a_plan(run_id="4", measured=("eagle3",))
    for one in (plan, taught, a_plan(run_id="3"), some):
        write_run_file(tmp_path / one.run_id, one)
    for one in (plan, taught, some):  # the third was killed before its first fact
        with Journal(tmp_path / one.run_id) as journal:
            journal.append(one)
    assert find_unfinished(tmp_path, *asked) == tmp_path / "1"
    assert find_unfinished(tmp_path, *asked, calibration=True) == tmp_path / "2"
    assert find_unfinished(tmp_path, *asked, measured=("eagle3",)) == tmp_path / "4"
    assert find_unfinished(tmp_path, *asked[:2], "another") is None


def begun(folder: Path, plan: r.Plan) -> RunFacts:
    with Journal(folder) as journal:
        journal.append(plan)
        built(journal, "k")
        return journal.run()


def test_pairs_under_other_variables_answer_another_question(tmp_path: Path) -> None:
    a_run(tmp_path, a_plan(run_id="before"))
    again = a_plan(run_id="again")
    tuned = tuple(dataclasses.replace(one, environment={"NCCL_ALGO": "Ring"}) for one in again.recipes)
    now = begun(tmp_path / "again", again)
    assert [run.plan.run_id for run in earlier_runs(tmp_path, now)] == ["before"]
    assert earlier_runs(tmp_path, dataclasses.replace(now, plan=dataclasses.replace(again, recipes=tuned))) == ()
