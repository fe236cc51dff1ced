"""`perfgate calibrate`, the gates after it and `perfgate power`, as a user types them, on the stand-in."""

from __future__ import annotations

import json
import math
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perfgate.records import LaunchBegin, LaunchEnd, Pair, Plan, Sample, Side
from perfgate.run.ledger import LEDGER_FILE
from perfgate.run.pairs import orders
from perfgate.store.removal import remove_tree

from ..gate.harness import Done, World, acting, facts_in, finished, started, wait_for

pytestmark = pytest.mark.timeout(1200)  # a whole box in one fixture, on a busy machine

PAIRS = 5
OF_A_PULL_REQUEST = ("author", "/perfgate accept", "loses less", "regression,")
LEARNING: dict[str, Any] = {  # a wide budget: what is learned of a busy machine must not ask for many samples
    "recipes": {"baseline": {"workload": {"samples": "auto"}}},
    "metrics": {"tok_s": {"budget": 0.6, "prior": None}},
}


def calibrate(world: World, *more: str, interrupt_after: int | None = None) -> Done:
    """Into the state directory, as a box's owner does it."""
    where: list[str | Path] = ["--repo", world.repository.path, "--commit", "main"]
    files: list[str | Path] = ["--config", world.config_file, "--box", world.box_file]
    with started("calibrate", *where, *files, "--recipes", "baseline", *more, home=world.home) as process:
        if interrupt_after is not None:
            wait_for(lambda: pairs_on_disk(world) >= interrupt_after, process)
            process.send_signal(signal.SIGINT)
        done = finished(process)
    return Done(done.code, done.out, done.err, world.newest_run())


def pairs_on_disk(world: World) -> int:
    run = world.newest_run()
    return sum(isinstance(fact, Pair) for fact in facts_in(run)) if run else 0


def power(world: World) -> str:
    done = world.perfgate("power", "--config", world.config_file, "--box", world.box_file)
    assert (done.code, done.err) == (0, "")
    assert max(len(line) for line in done.out.splitlines()) <= 80
    return " ".join(done.out.split())


def ledger(world: World) -> list[tuple[str, str, int]]:
    path = world.state / LEDGER_FILE
    if not path.exists():
        return []
    with sqlite3.connect(path) as connection:
        found = connection.execute("SELECT kind, run, number FROM pairs WHERE metric = 'tok_s' ORDER BY time")
        return found.fetchall()


def plan_of(done: Done) -> Plan:
    return [fact for fact in done.facts if isinstance(fact, Plan)][-1]


def samples_of(done: Done) -> set[int]:
    """How many samples the launches that count had."""
    launches = Counter(fact.id.rsplit("/", 1)[0] for fact in done.facts if isinstance(fact, Sample) and fact.pair > 0)
    return set(launches.values())


@dataclass(frozen=True)
class Story:
    """A new box: nothing known, a calibration with an interruption, a pull request twice, and what is known then."""

    before: str
    interrupted: Done
    ledger_interrupted: list[tuple[str, str, int]]
    calibrated: Done
    gate: Done
    rerun: Done
    after: str
    world: World


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    world = World(tmp_path_factory.mktemp("story") / "world", config=LEARNING)
    try:
        before = power(world)
        interrupted = calibrate(world, "--pairs", str(PAIRS), interrupt_after=2)
        nothing = ledger(world)
        calibrated = calibrate(world, "--pairs", str(PAIRS), "--resume")
        gate, rerun = (world.gate("--recipes", "baseline", "--max-pairs", "1", out=None) for _ in range(2))
        yield Story(before, interrupted, nothing, calibrated, gate, rerun, power(world), world)
        world.check_nothing_left()
    finally:
        remove_tree(world.state)


def test_power_of_a_box_that_nobody_calibrated_says_so(story: Story) -> None:
    assert "Nothing was measured on this box yet: `perfgate calibrate` learns its noise" in story.before
    assert "The noise is not known. 2.0 % is assumed here" in story.before
    assert "How long a launch of baseline takes here is not known yet." in story.before
    assert "GPU" not in story.before


def test_an_interrupted_calibration_says_how_to_go_on_and_teaches_nothing(story: Story) -> None:
    assert story.interrupted.code == 130
    assert f"perfgate calibrate … --out {story.interrupted.folder} --resume" in story.interrupted.err
    assert story.ledger_interrupted == []


def test_the_resumed_calibration_measures_what_was_missing(story: Story) -> None:
    done = story.calibrated
    assert (done.code, done.folder) == (0, story.interrupted.folder)
    pairs = [fact for fact in done.facts if isinstance(fact, Pair)]
    assert [pair.pair for pair in pairs] == list(range(1, PAIRS + 1))
    used = [name for pair in pairs for name in (pair.base, pair.head)]
    assert len(set(used)) == 2 * PAIRS
    firsts = [pair.first for pair in pairs]
    assert all(one is not other for one, other in pairwise(firsts))
    assert samples_of(done) == {4} == {plan.samples for plan in plan_of(done).recipes}


def test_one_tree_is_one_side_twice(story: Story) -> None:
    """One HOME, warmed once by a throw-away launch; every launch has a name of its own."""
    begun = [fact for fact in story.calibrated.facts if isinstance(fact, LaunchBegin)]
    assert len({fact.id for fact in begun}) == len(begun)
    assert [fact.id for fact in begun if fact.pair == 0] == ["baseline/p00/base/a1"]
    assert len({fact.given["HOME"] for fact in begun}) == 1
    assert {(fact.sha, fact.build) for fact in begun if fact.side is Side.BASE} == {
        (fact.sha, fact.build) for fact in begun if fact.side is Side.HEAD
    }
    assert len({fact.log for fact in begun}) == len(begun)


def test_a_calibration_says_what_can_be_detected_now(story: Story) -> None:
    out = " ".join(story.calibrated.out.split())
    assert out.startswith("📏 perfgate: calibration with ")
    assert f"One commit against itself, {PAIRS} pairs of baseline: pairs of the same code differ by" in out
    assert f"(ledger, {PAIRS} pairs since 20" in out
    assert "is found nine times in ten" in out or "No change of this table" in out
    assert "A launch of baseline takes" in out


def test_a_calibration_is_no_verdict_on_a_change(story: Story) -> None:
    result = story.calibrated.result
    assert (result["calibration"], result["verdict"], result["exit_code"]) == (True, "pass", 0)
    comment = (story.calibrated.folder / "comment.md").read_text()
    for text in (comment, story.calibrated.out):
        assert [words for words in OF_A_PULL_REQUEST if words in text] == []
    judged = story.world.perfgate("judge", story.calibrated.folder)
    assert (judged.code, judged.out.startswith("pass: One commit against itself")) == (0, True)


def test_the_next_gate_plans_with_what_was_learned(story: Story) -> None:
    plan = plan_of(story.gate)
    (metric,) = [metric for metric in plan.metrics if metric.gated]
    assert metric.prior_from.startswith(f"ledger, {PAIRS} pairs since 20")
    assert metric.prior_sd is not None
    assert plan.recipes[0].expected_launch_s is not None
    assert "Expected: about" in story.gate.err
    assert not story.gate.warnings("no_prior")


def test_the_gate_takes_as_many_samples_as_were_planned(story: Story) -> None:
    for done in (story.gate, story.rerun):
        (recipe,) = plan_of(done).recipes
        assert samples_of(done) == {recipe.samples}
        assert f"baseline 1 {recipe.samples} " in " ".join(done.err.split())


def test_a_pull_request_is_recorded_and_teaches_nothing(story: Story) -> None:
    kinds = Counter((kind, run) for kind, run, _ in ledger(story.world))
    runs = [plan_of(done).run_id for done in (story.calibrated, story.gate, story.rerun)]
    assert kinds == {("same", runs[0]): PAIRS, ("pull_request", runs[1]): 1, ("pull_request", runs[2]): 1}
    (metric,) = [metric for metric in plan_of(story.rerun).metrics if metric.gated]
    assert metric.prior_from.startswith(f"ledger, {PAIRS} pairs since 20")


def test_a_rerun_says_which_pairs_it_stands_on(story: Story) -> None:
    first = plan_of(story.gate).run_id
    assert story.gate.result["continues"] == []
    assert story.rerun.result["continues"] == [first]
    (notice,) = story.rerun.warnings("evidence_joined")
    assert notice["data"] == {"pairs": 1, "runs": {first: {"baseline": 1}}}
    assert story.rerun.metric("tok_s", "baseline")["pairs"] == 2
    firsts = [fact.first for done in (story.gate, story.rerun) for fact in done.facts if isinstance(fact, Pair)]
    assert set(firsts) == set(Side), "the order goes on alternating"


def test_power_knows_the_box_then(story: Story) -> None:
    assert "Nothing was measured" not in story.after
    assert f"(ledger, {PAIRS} pairs since 20" in story.after
    assert "GPU" not in story.after, "a box without GPUs costs no GPU minutes"
    (recipe,) = plan_of(story.rerun).recipes
    assert f", with {recipe.samples} samples of" in story.after
    ends = [fact for fact in story.rerun.facts if isinstance(fact, LaunchEnd) and fact.pair > 0]
    mean = sum(end.wall_s for end in ends) / len(ends)
    assert f"A launch of baseline takes {mean:.0f} s" in story.after


# ------------------------------------------------------------------------------------------------ chance, and failure


SEED = 3  # of the order of launches
NOISE = 0.3


def unlucky() -> int:
    """A seed of the stand-in's noise by which head draws the slower launch of both pairs, by far."""
    first, second = orders(SEED, "baseline", 2)
    sides = [first, first.other, second, second.other]

    def factors(seed: int) -> dict[Side, list[float]]:
        drawn = [math.exp(random.Random(f"{seed}/{number}").gauss(0, NOISE)) for number in range(1, 5)]
        return {side: [factor for factor, of in zip(drawn, sides, strict=True) if of is side] for side in Side}

    return next(
        seed
        for seed in range(100_000)
        if min(factors(seed)[Side.HEAD]) > 1.5 * max(factors(seed)[Side.BASE])
        and max(factors(seed)[Side.HEAD]) < 1.15 * min(factors(seed)[Side.HEAD])
        and max(factors(seed)[Side.BASE]) < 1.15 * min(factors(seed)[Side.BASE])
    )


def test_a_loss_by_chance_is_a_warning_and_ends_with_0(tmp_path: Path) -> None:
    behaviour = acting(noise_sd=NOISE, seed=unlucky())
    world = World(tmp_path / "world", base=behaviour, head=behaviour)
    try:
        done = calibrate(world, "--pairs", "2", "--seed", str(SEED))
        assert done.code == 0, done.err
        assert done.metric("tok_s", "baseline")["verdict"] == "regression"
        assert (done.verdict, len(done.warnings("false_alarm"))) == ("pass", 1)
        out = " ".join(done.out.split())
        assert "The judge would have called this commit slower than itself: baseline tok/s by" in out
        assert len(ledger(world)) == 2
        assert "(configuration)" in out, "two pairs are too few to know the noise by"
    finally:
        remove_tree(world.state)


def test_a_commit_that_does_not_serve_is_told_and_teaches_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "world", base=acting(crash="load"))
    try:
        done = calibrate(world, "--pairs", "2")
        assert done.code == 4
        assert (done.verdict, done.result["failed_side"]) == ("bench_failed", None)
        assert "calibration with " in done.out
        assert ", could not be measured – the box's owner has to act" in " ".join(done.out.split())
        assert "Not enough memory" in " ".join(done.out.split())
        assert "is found nine times in ten" not in done.out
        assert ledger(world) == []
        assert json.loads((done.folder / "result.json").read_text())["calibration"] is True
    finally:
        remove_tree(world.state)
