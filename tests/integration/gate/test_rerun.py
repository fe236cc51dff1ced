"""A rerun adds pairs to the evidence: nobody reruns until it is green."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from perfgate.judge.evidence import Evidence, RunFacts
from perfgate.judge.result import judge_run

from .harness import PLAIN, Case, Done, World, acting, on

pytestmark = pytest.mark.timeout(1200)  # waiting for its turn counts, too

ONE_PAIR = (*PLAIN, "--max-pairs", "1")


def pairs_counted(done: Done) -> int:
    return int(done.metric("tok_s", "baseline")["pairs"])


def continues(done: Done) -> list[str]:
    return list(done.result["continues"])


def three_gates(world: World) -> list[Done]:
    done = [world.gate(*ONE_PAIR, out=None) for _ in range(2)]
    return [*done, world.gate(*ONE_PAIR)]  # --out elsewhere: evidence is the state directory's all the same


THREE = Case(act=three_gates, own_state=True)


@on(THREE)
def test_pairs_of_earlier_runs_are_counted_together(done: list[Done]) -> None:
    first, second, _ = done
    assert [continues(one) for one in done] == [
        [],
        [first.result["run_id"]],
        [first.result["run_id"], second.result["run_id"]],
    ]
    assert [pairs_counted(one) for one in done] == [1, 2, 3]
    assert [one.pairs for one in done] == [1, 1, 1]
    assert first.folder != second.folder


@on(THREE)
def test_builds_are_made_once_and_a_later_run_knows_how_long_a_launch_takes(done: list[Done]) -> None:
    first, second, _ = done
    assert {fact.cached for fact in first.facts if fact.kind == "build"} == {False}  # type: ignore[attr-defined]
    assert {fact.cached for fact in second.facts if fact.kind == "build"} == {True}  # type: ignore[attr-defined]
    assert "throw-away" in first.err
    assert "throw-away" not in second.err


def another_question(world: World) -> list[Done]:
    """The first again, on a box of another name, and under another workload."""
    first = world.gate(*ONE_PAIR, out=None)
    box = world.box_file.read_text()
    world.box_file.write_text(box.replace("name: test-box", "name: other-box"))
    other_box = world.gate(*ONE_PAIR, out=None)
    world.box_file.write_text(box)
    world.write_config(recipes={"baseline": {"workload": {"output_tokens": 24}}})
    return [first, other_box, world.gate(*ONE_PAIR, out=None)]


@on(Case(act=another_question, own_state=True))
def test_another_box_or_workload_is_another_question(done: list[Done]) -> None:
    assert [continues(one) for one in done] == [[], [], []]
    assert [pairs_counted(one) for one in done] == [1, 1, 1]


# The scripted noise of these two commits: head is 30 % dearer per token (a log difference of 0.26, over the budget of
# 0.2). The first two pairs come out at 0.41 and 0.43, the next ones at −0.06, 0.03 and 0.20: the rerun would pass alone
# wherever between about −0.1 and 0.1 the box's own noise puts its pairs. Steps are long to keep that noise small.
UNLUCKY = Case(
    base=acting(noise_sd=0.1, seed=235, token_ms=6.0),
    head=acting(noise_sd=0.1, seed=268, token_ms=7.8),
    config={"metrics": {"tok_s": {"prior": {"sd": 0.05, "df": 10}}}},
    act=lambda world: [world.gate(*PLAIN, "--max-pairs", "2", out=None) for _ in range(3)],
    own_state=True,
)


@on(UNLUCKY)
def test_a_lucky_rerun_does_not_turn_a_loss_into_a_pass(done: Sequence[Done]) -> None:
    first, *reruns = done
    assert first.verdict == "regression"
    assert alone(reruns[0]) == "pass", "the rerun was not lucky, so this shows nothing"
    for one in reruns:
        assert one.verdict in ("regression", "inconclusive")
        assert first.result["run_id"] in continues(one)


def alone(done: Done) -> str:
    """The verdict of a run if its earlier evidence were forgotten."""
    facts = RunFacts.of(done.facts)
    assert facts is not None
    forgetful = dataclasses.replace(facts, plan=dataclasses.replace(facts.plan, continues=()))
    return judge_run(Evidence(forgetful)).verdict.value
