"""`perfgate judge` and `perfgate report`: verdict and comment again, from a run's files alone."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.standin.repository import commit_all, write_behaviour

from .harness import PLAIN, Case, Done, World, acting, on, snapshot

pytestmark = pytest.mark.timeout(1200)  # waiting for its turn counts, too


@dataclass(frozen=True)
class Judged:
    honest: Done
    slow: Done
    again: dict[str, Done]  # judged where they lie
    same: dict[str, bool]  # whether all files of the run were as before
    swapped: dict[str, Done]  # judged with each other's facts
    report: Done
    elsewhere: Done  # a copy of the facts alone, in another place


def two_runs(world: World) -> Judged:
    """Of a commit that does nothing and of one that slows decoding, and their facts swapped."""
    honest = world.gate(*PLAIN, out="honest")
    write_behaviour(world.repository.path, acting(token_ms=4.8), 7)
    slower = commit_all(world.repository.path, "Slow", 7)
    world.untouched = snapshot(world.repository.path)
    slow = world.gate(*PLAIN, "--base", world.repository.base, out="slow", head=slower)
    runs = {"honest": honest.folder, "slow": slow.folder}
    before = {name: files_of(run) for name, run in runs.items()}
    again = {name: world.perfgate("judge", run) for name, run in runs.items()}
    same = {name: files_of(run) == before[name] for name, run in runs.items()}
    report = world.perfgate("report", runs["slow"])
    copy = world.home / "tmp" / "copy"
    copy.mkdir()
    shutil.copy(runs["slow"] / "facts.jsonl", copy)
    elsewhere = world.perfgate("judge", copy)
    assert (copy / "result.json").read_bytes() == (runs["slow"] / "result.json").read_bytes()
    shutil.rmtree(copy)
    facts = {name: (run / "facts.jsonl").read_bytes() for name, run in runs.items()}
    for name, other in (("honest", "slow"), ("slow", "honest")):
        (runs[name] / "facts.jsonl").write_bytes(facts[other])
    swapped = {name: world.perfgate("judge", run) for name, run in runs.items()}
    return Judged(honest, slow, again, same, swapped, report, elsewhere)


def files_of(run: Path) -> dict[str, bytes]:
    names = ("facts.jsonl", "result.json", "comment.md", "index.html")
    return {name: (run / name).read_bytes() for name in names}


TWO = Case(act=two_runs)


@on(TWO)
def test_judged_again_it_is_the_same_to_the_byte(done: Judged) -> None:
    assert (done.honest.code, done.slow.code) == (0, 1)
    assert {name: one.code for name, one in done.again.items()} == {"honest": 0, "slow": 1}
    assert done.same == {"honest": True, "slow": True}
    assert done.again["slow"].out.startswith("regression: baseline tok/s")
    assert done.elsewhere.code == 1


@on(TWO)
def test_the_report_is_the_comment(done: Judged) -> None:
    assert done.report.code == 0
    assert done.report.out == done.slow.out


@on(TWO)
def test_swapped_facts_turn_the_verdict(done: Judged) -> None:
    assert {name: one.code for name, one in done.swapped.items()} == {"honest": 1, "slow": 0}
