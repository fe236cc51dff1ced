"""Whether both sides answer alike, where what is measured is never asked twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfgate import records as r
from perfgate.judge.evidence import RunFacts
from perfgate.judge.notices import compared_outputs
from perfgate.records.files import read_facts

STORY = Path(__file__).parents[2] / "fixtures" / "run-story"


def run_with(*, warm: dict[r.Side, str], measured: dict[r.Side, str], noisy: bool = False) -> RunFacts:
    """The story's run, every prompt answered so; `noisy`: base's warm-up answers differ from launch to launch."""
    facts: list[r.Fact] = []
    for fact in read_facts(STORY):
        if isinstance(fact, r.LaunchEnd):
            output = warm[fact.side] + (fact.id if noisy and fact.side is r.Side.BASE else "")
            fact = replace(fact, outputs={"code-01": output, "chat-01": output})
        elif isinstance(fact, r.Sample):
            asked = [f"{fact.recipe}/{fact.pair}/{fact.sample}/{place}" for place in range(len(fact.requests))]
            requests = [
                replace(one, prompt="code-01", output=f"{name}/{measured[fact.side]}", asked=name)
                for one, name in zip(fact.requests, asked, strict=True)
            ]
            fact = replace(fact, requests=tuple(requests))
        facts.append(fact)
    run = RunFacts.of(facts)
    assert run is not None
    return run


SAME = dict.fromkeys(r.Side, "same")
OTHER = {r.Side.BASE: "base", r.Side.HEAD: "head"}


@pytest.mark.parametrize(
    ("warm", "measured", "differ"), [(SAME, SAME, 0), (OTHER, OTHER, 2), (OTHER, SAME, 2), (SAME, OTHER, 1)]
)
def test_other_answers_are_seen_before_and_while_measuring(
    warm: dict[r.Side, str], measured: dict[r.Side, str], differ: int
) -> None:
    """The last one answers honestly only where it is not measured."""
    found = compared_outputs([run_with(warm=warm, measured=measured)])
    assert found
    assert {(one.differ, one.compared) for one in found.values()} == {(differ, 2)}


def test_a_side_that_answers_differently_each_time_says_nothing() -> None:
    assert compared_outputs([run_with(warm=SAME, measured=OTHER, noisy=True)]) == {}
