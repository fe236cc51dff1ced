"""Which runs teach the ledger, what it then tells a plan, and how many samples that makes of a launch."""

from __future__ import annotations

import dataclasses
import math
import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from perfgate import records as r
from perfgate.config.files import load, resolve
from perfgate.config.model import BoxFile
from perfgate.judge.evidence import RunFacts
from perfgate.judge.power import MOST, LaunchCost, Spread, planned_samples, samples_per_launch
from perfgate.judge.values import NoisePrior
from perfgate.records import LaunchId, Notice
from perfgate.run.evidence import launch_cost, usual_costs
from perfgate.run.folder import write_run_file
from perfgate.run.launch import workload_hash
from perfgate.run.ledger import LEDGER_FILE, KnownNoise, Ledger, PairKind
from perfgate.run.noise import (
    Memory,
    kind_of,
    prior_at,
    recall,
    remember,
    why_not_learned,
    with_known_noise,
    with_planned_samples,
)
from perfgate.run.pairs import Measuring, expected_pair_minutes
from perfgate.source.repository import Repository
from tests.standin import make_repository
from tests.standin.repository import git

from .builders import TableBench, a_journal, a_plan

TREE = "1" * 40
SAME = {"base": r.Commit(sha="a" * 40, tree=TREE), "head": r.Commit(sha="a" * 40, tree=TREE)}
PAIRS = 6


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of facts: nothing here is about a crash, so none waits for the disk."""
    monkeypatch.setattr("os.fsync", lambda _: None)


def calibration(**changes: object) -> r.Plan:
    """No prior, so that what a plan knows comes from the ledger."""
    plan = a_plan(calibration=True, **SAME)
    unknown = tuple(dataclasses.replace(one, prior_sd=None, prior_df=None) for one in plan.metrics)
    return dataclasses.replace(plan, metrics=unknown, **changes)  # type: ignore[arg-type]


def nearly_steady(order: LaunchId) -> float:
    """Launches that differ by 0.2 and 0.4 %."""
    return 90.0 * (1 + 0.002 * (order.pair % 3) * (1 if order.side is r.Side.HEAD else -1))


def measured(
    where: Path,
    plan: r.Plan | None = None,
    speed: Callable[[LaunchId], float] = nearly_steady,
    fails: Callable[[LaunchId], bool] = lambda order: False,
) -> RunFacts:
    with a_journal(where, plan or calibration()) as journal:
        Measuring(journal, TableBench(journal, speed, fails=fails)).all_pairs()
        return journal.run()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / LEDGER_FILE)


def taught(ledger: Ledger, run: RunFacts, kind: PairKind = PairKind.SAME) -> list[str]:
    told: list[str] = []
    remember(run, ledger, kind, told.append)
    return told


def rows(ledger: Ledger) -> list[tuple[str, str, int]]:
    if not ledger.path.exists():
        return []
    with sqlite3.connect(ledger.path) as connection:
        return connection.execute("SELECT kind, metric, number FROM pairs ORDER BY recipe, metric, number").fetchall()


def of_metric(ledger: Ledger, metric: str = "tok_s") -> list[int]:
    """Numbers of the pairs of both recipes."""
    return sorted(number for _, name, number in rows(ledger) if name == metric)


def priors(plan: r.Plan) -> set[float | None]:
    return {metric.prior_sd for metric in plan.metrics}


# ------------------------------------------------------------------------------------------------ learning


def test_a_calibration_teaches_each_metric_of_each_recipe(tmp_path: Path, ledger: Ledger) -> None:
    assert taught(ledger, measured(tmp_path / "run")) == []
    assert {kind for kind, _, _ in rows(ledger)} == {"same"}
    assert of_metric(ledger) == sorted(2 * list(range(1, PAIRS + 1)))
    plan = with_known_noise(calibration(run_id="next"), recall(calibration(run_id="next"), ledger, ""))
    for metric in plan.metrics:
        assert metric.prior_from.startswith(f"ledger, {PAIRS} pairs since ")
        assert metric.prior_sd == pytest.approx(0.005, rel=0.3)
        assert metric.prior_df == PAIRS


def test_a_pair_is_filed_under_the_time_it_was_measured_at(tmp_path: Path, ledger: Ledger) -> None:
    run = measured(tmp_path / "run")
    taught(ledger, run)
    with sqlite3.connect(ledger.path) as connection:
        times = {time for (time,) in connection.execute("SELECT time FROM pairs")}
    assert times == {pair.t.replace("Z", "+00:00") for pair in run.pairs}


def test_too_few_pairs_are_said_where_a_prior_would_stand(tmp_path: Path, ledger: Ledger) -> None:
    plan = calibration(limits=dataclasses.replace(a_plan().limits, max_pairs=3))
    taught(ledger, measured(tmp_path / "run", plan))
    known = with_known_noise(plan, recall(plan, ledger, ""))
    assert priors(known) == {None}
    assert {one.prior_from for one in known.metrics} == {"the ledger holds 3 pairs of the same code, 5 are needed"}


def test_what_is_configured_holds_until_the_ledger_knows_better(tmp_path: Path, ledger: Ledger) -> None:
    configured = a_plan()
    assert with_known_noise(configured, recall(configured, ledger, "")) == configured
    taught(ledger, measured(tmp_path / "run"))
    assert priors(with_known_noise(configured, recall(configured, ledger, ""))).isdisjoint({0.01, None})


def test_a_pull_request_is_recorded_and_never_learned_from(tmp_path: Path, ledger: Ledger) -> None:
    pr = r.PullRequest(repository="o/r", number=7)
    run = measured(tmp_path / "run", a_plan(pr=pr))
    assert taught(ledger, run, PairKind.PULL_REQUEST) == []
    assert {kind for kind, _, _ in rows(ledger)} == {"pull_request"}
    assert len(of_metric(ledger)) == 2 * PAIRS
    memory = recall(calibration(), ledger, "")
    assert [known.prior for known in memory.known] == [None] * 4
    assert with_planned_samples(calibration(), memory, COSTS, RECIPES) == calibration()


def test_a_change_between_merged_commits_is_taken_out(tmp_path: Path, ledger: Ledger) -> None:
    run = measured(tmp_path / "run", a_plan(), lambda o: nearly_steady(o) * (0.7 if o.side is r.Side.HEAD else 1))
    taught(ledger, run, PairKind.BASE_BRANCH)
    known = recall(calibration(), ledger, "").known[0]
    assert known.prior is not None
    assert known.prior.sd < 0.01
    assert known.prior.df == PAIRS - 1


def test_a_stop_by_time_is_no_fault(tmp_path: Path, ledger: Ledger) -> None:
    run = measured(tmp_path / "run")
    stopped = r.Fault(id="f", code=r.STOPPED_FAULT, text="the limit", blame=r.Blame.USER)
    assert taught(ledger, dataclasses.replace(run, faults=(stopped,))) == []
    assert len(of_metric(ledger)) == 2 * PAIRS


@pytest.mark.parametrize("kind", [PairKind.SAME, PairKind.BASE_BRANCH])
def test_a_run_that_a_failing_launch_ended_teaches_nothing(tmp_path: Path, ledger: Ledger, kind: PairKind) -> None:
    run = measured(tmp_path / "run", fails=lambda o: o.pair == 4 and o.side is r.Side.HEAD)
    assert len(run.pairs) == 6
    (told,) = taught(ledger, run, kind)
    assert told.startswith("the ledger learns nothing from this run: head failed 2 times in baseline")
    assert rows(ledger) == []


@pytest.mark.parametrize("kind", [PairKind.SAME, PairKind.BASE_BRANCH])
def test_a_run_on_a_box_that_was_not_the_same_teaches_nothing(tmp_path: Path, ledger: Ledger, kind: PairKind) -> None:
    run = measured(tmp_path / "run")
    facts = [
        dataclasses.replace(fact, given={"NCCL_PROTO": "LL"})
        if isinstance(fact, r.LaunchBegin) and fact.side is r.Side.HEAD and fact.pair == 2
        else fact
        for fact in run.facts
    ]
    disturbed = RunFacts.of(facts)
    assert disturbed is not None
    assert why_not_learned(run) is None
    (told,) = taught(ledger, disturbed, kind)
    assert "NCCL_PROTO" in told
    assert rows(ledger) == []


def test_a_pair_with_a_repeated_launch_is_left_out(tmp_path: Path, ledger: Ledger) -> None:
    run = measured(
        tmp_path / "run", fails=lambda o: (o.recipe, o.pair, o.side, o.attempt) == ("eagle3", 2, r.Side.BASE, 1)
    )
    assert len(run.pairs) == 2 * PAIRS
    assert taught(ledger, run) == [
        "1 of 12 pairs are not learned from: one of their launches had to be repeated",
    ]
    assert of_metric(ledger) == sorted([1, 2, 3, 4, 5, 6, 1, 3, 4, 5, 6])


def test_a_throw_away_launch_that_failed_costs_no_pair(tmp_path: Path, ledger: Ledger) -> None:
    with a_journal(tmp_path / "run", calibration()) as journal:
        bench = TableBench(journal, nearly_steady, fails=lambda o: o.pair == 0)
        bench.launch(LaunchId("baseline", 0, r.Side.BASE, 0, 1))
        Measuring(journal, bench).all_pairs()
        run = journal.run()
    assert taught(ledger, run) == []
    assert len(of_metric(ledger)) == 2 * PAIRS


# ------------------------------------------------------------------------------------------------ foreign noise


FLAGS = {"flags": {"tp-size": 4}}
VARIABLES = {"environment": {"NCCL_PROTO": "LL"}}


def changed(plan: r.Plan, **changes: object) -> r.Plan:
    recipes = tuple(dataclasses.replace(one, **changes) for one in plan.recipes)  # type: ignore[arg-type]
    return dataclasses.replace(plan, recipes=recipes)


@pytest.mark.parametrize(
    "other",
    [
        changed(calibration(), **FLAGS),
        changed(calibration(), **VARIABLES),
        calibration(autotune="seed"),
        calibration(profile="cpu"),
    ],
    ids=["flags", "variables", "autotune", "profile"],
)
def test_noise_under_other_conditions_is_named_and_not_used(tmp_path: Path, ledger: Ledger, other: r.Plan) -> None:
    taught(ledger, measured(tmp_path / "run"))
    memory = recall(other, ledger, "")
    assert {known.prior for known in memory.known} == {None}
    assert memory.warnings == (
        "6 pairs in the ledger from the same box under another fingerprint not used: `perfgate calibrate` renews them.",
    )


def test_another_fingerprint_of_the_box_is_another_box(tmp_path: Path, ledger: Ledger) -> None:
    taught(ledger, measured(tmp_path / "run"))
    assert {known.prior for known in recall(calibration(), ledger, "another driver").known} == {None}


@pytest.mark.parametrize(
    "same",
    [changed(calibration(), samples=9), calibration(seed=99), calibration(autotune="fresh", run_id="x")],
    ids=["samples", "seed", "run"],
)
def test_noise_holds_whatever_else_a_run_is(tmp_path: Path, ledger: Ledger, same: r.Plan) -> None:
    taught(ledger, measured(tmp_path / "run", calibration(autotune="fresh")))
    plan = dataclasses.replace(same, autotune="fresh")
    assert all(known.prior is not None for known in recall(plan, ledger, "").known)


def test_the_number_of_samples_is_no_part_of_the_workload() -> None:
    def hashed(workload: str) -> str:
        text = f"recipes: {{baseline: {{model: m, workload: {{{workload}}}}}, eagle3: {{enabled: false}}}}"
        return workload_hash(resolve(load(text.encode(), "perfgate.yml")).recipe("baseline"))

    assert hashed("samples: 2") == hashed("samples: 9") == hashed("samples: auto") == hashed("")
    assert hashed("output_tokens: 32") != hashed("")


def _with_draft(draft: str = "d", models: Mapping[str, str] | None = None) -> str:
    text = f"recipes: {{baseline: {{model: m}}, eagle3: {{draft: {draft}}}}}"
    return workload_hash(resolve(load(text.encode(), "perfgate.yml"), BoxFile(models=models or {})).recipe("eagle3"))


def test_another_draft_or_revision_of_it_is_another_workload() -> None:
    old, new = (f"org/d, draft_revision: '{digit * 40}'" for digit in "12")
    assert len({_with_draft(draft) for draft in ("org/d", "org/e", old, new)}) == 4


def _write(path: Path, text: str, time: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time, time))


@pytest.mark.parametrize("model", ["m", "d"])
def test_other_weights_in_a_folder_of_the_box_are_another_workload(tmp_path: Path, model: str) -> None:
    weights, hidden = tmp_path / "parts" / "one.safetensors", tmp_path / ".cache" / "x"
    for path in (weights, hidden):
        _write(path, "abc")
    (tmp_path / "nowhere").symlink_to("gone")

    def hashed() -> str:
        return _with_draft(models={model: str(tmp_path)})

    first = hashed()
    _write(hidden, "other")
    _write(weights, "abc")
    assert hashed() == first
    seen = {first}
    for text, time in (("abcd", 1), ("abc", 2)):  # a draft that was trained on has the size that it had
        _write(weights, text, time)
        seen.add(hashed())
    weights.rename(weights.with_name("two.safetensors"))
    seen.add(hashed())
    assert len(seen) == 4
    assert first != _with_draft()


def test_which_seed_was_planted_does_not_matter(tmp_path: Path, ledger: Ledger) -> None:
    taught(ledger, measured(tmp_path / "run", calibration(autotune="seed 0123456789ab")))
    assert all(known.prior for known in recall(calibration(autotune="seed"), ledger, "").known)


def test_each_warning_of_the_ledger_is_told_once_with_its_largest_number() -> None:
    def known(pairs: int, code: str = "ledger_old") -> KnownNoise:
        return KnownNoise(None, "", warnings=(Notice(code, f"{pairs} {code}", {"pairs": pairs}),))

    memory = Memory((known(3), known(12), known(7), known(1, "ledger_foreign")))
    assert memory.warnings == ("12 ledger_old", "1 ledger_foreign")


# ------------------------------------------------------------------------------------------------ kinds of runs


def test_what_two_commits_are_to_each_other(tmp_path: Path) -> None:
    made = make_repository(tmp_path / "sglang")
    repository = Repository(made.path)
    base, head = repository.resolve(made.base), repository.resolve(made.head)

    def kind(pr: r.PullRequest | None = None, branch: str | None = None, **sides: r.Commit) -> PairKind:
        return kind_of(a_plan(**{"base": base, "head": head, "pr": pr, **sides}), repository, branch)

    pr = r.PullRequest(repository="o/r", number=1)
    assert kind(head=base) is PairKind.SAME
    assert kind(head=base, pr=pr) is PairKind.PULL_REQUEST
    assert kind() is PairKind.PULL_REQUEST
    assert kind(base=head, head=base) is PairKind.PULL_REQUEST, "an unmerged base is a stranger's code, too"
    assert kind(branch="no such branch") is PairKind.PULL_REQUEST
    git(made.path, "branch", "-f", "main", "change")
    assert kind() is PairKind.BASE_BRANCH
    assert kind(base=head, head=base) is PairKind.BASE_BRANCH
    assert kind(pr=pr) is PairKind.PULL_REQUEST


# ------------------------------------------------------------------------------------------------ samples


COSTS = {"baseline": LaunchCost(300, 20), "eagle3": LaunchCost(300, 20)}
RECIPES = ("baseline", "eagle3")


def knowing(**spreads: Spread) -> Memory:
    """By metric; the plan's are baseline tok_s and decode_ms, eagle3 tok_s and verify_ms."""
    return Memory(
        tuple(
            KnownNoise(NoisePrior(0.01, 10), "ledger", 10, spreads.get(metric.metric), 4.0)
            if metric.metric in spreads
            else KnownNoise(None, "")
            for metric in calibration().metrics
        )
    )


def samples(plan: r.Plan) -> dict[str, int]:
    return {recipe.name: recipe.samples for recipe in plan.recipes}


def test_samples_are_planned_by_the_gated_metric_that_needs_most() -> None:
    memory = knowing(tok_s=Spread(0.007, 0.007), decode_ms=Spread(0.012, 0.03))
    planned = with_planned_samples(calibration(), memory, COSTS, RECIPES)
    assert samples(planned) == {
        "baseline": samples_per_launch(300, 20, Spread(0.012, 0.03)),
        "eagle3": samples_per_launch(300, 20, Spread(0.007, 0.007)),
    }
    assert samples(planned)["baseline"] > samples(planned)["eagle3"] == 4


def test_an_explicit_number_stays() -> None:
    memory = knowing(tok_s=Spread(0.007, 0.02))
    planned = with_planned_samples(calibration(), memory, COSTS, ["eagle3"])
    assert samples(planned)["baseline"] == samples(calibration())["baseline"] == 2
    assert samples(planned)["eagle3"] > 2


@pytest.mark.parametrize(
    ("memory", "costs"), [(knowing(), COSTS), (knowing(tok_s=Spread(0.007, 0.02)), {})], ids=["noise", "cost"]
)
def test_without_noise_or_cost_nothing_is_planned(memory: Memory, costs: dict[str, LaunchCost]) -> None:
    assert with_planned_samples(calibration(), memory, costs, RECIPES) == calibration()


@pytest.mark.parametrize(
    ("spread", "count"),
    [
        (Spread(0.0, 0.02), 8),  # pairs then differ by a third of the budget: the formula's 32 would cost more
        (Spread(0.002, 0.003), 3),
        (Spread(0.007, 0.007), 4),
        (Spread(0.0, 0.5), MOST),
        (Spread(0.02, 0.0), 3),
    ],
)
def test_no_more_samples_than_a_verdict_can_use(spread: Spread, count: int) -> None:
    assert planned_samples(LaunchCost(300, 20), spread, 0.03) == count


def test_fewer_samples_than_the_ledger_learned_from_leave_more_noise() -> None:
    known = KnownNoise(NoisePrior(0.01, 10, bad=0.05, far=0.06), "ledger", 10, Spread(0.006, 0.01), samples=8.0)
    fewer = prior_at(known, 2)
    assert fewer is not None
    assert fewer.sd == pytest.approx(math.sqrt(0.01**2 + 2 * 0.01**2 * (1 / 2 - 1 / 8)))
    assert (fewer.df, fewer.bad, fewer.far) == (10, 0.05, 0.06)
    assert prior_at(known, 8) == prior_at(known, 20) == known.prior, "more are not trusted before they are seen"


def test_the_plan_takes_the_prior_of_its_own_number_of_samples() -> None:
    memory = Memory(tuple(KnownNoise(NoisePrior(0.01, 10), "ledger", 10, Spread(0.006, 0.01), 8.0) for _ in range(4)))
    few, many = (with_known_noise(changed(calibration(), samples=count), memory) for count in (2, 8))
    assert priors(many) == {0.01}
    assert all(sd is not None and sd > 0.01 for sd in priors(few))


# ------------------------------------------------------------------------------------------------ costs


def test_a_launch_costs_what_those_that_count_took(tmp_path: Path) -> None:
    with a_journal(tmp_path / "run") as journal:
        TableBench(journal, nearly_steady, wall_s=900).launch(LaunchId("baseline", 0, r.Side.BASE, 0, 1))
        TableBench(journal, nearly_steady, wall_s=5, fails=lambda _: True).launch(
            LaunchId("baseline", 1, r.Side.BASE, 1, 1)
        )
        run = journal.run()
        plan = run.recipe("baseline")
        assert launch_cost(run, plan) is None
        assert expected_pair_minutes(run, plan) is None
        TableBench(journal, nearly_steady, wall_s=62).launch(LaunchId("baseline", 1, r.Side.BASE, 1, 2))
        run = journal.run()
    assert launch_cost(run, plan) == LaunchCost(start=60, sample=1)
    assert launch_cost(run, plan).seconds(5) == 65  # type: ignore[union-attr]
    assert expected_pair_minutes(run, plan) == pytest.approx(2 * 62 / 60)
    assert launch_cost(run, run.recipe("eagle3")) is None


def test_a_sample_is_one_pass_at_each_concurrency(tmp_path: Path) -> None:
    plan = changed(calibration(), concurrencies=(1, 8))
    run = measured(tmp_path / "run", plan)
    assert launch_cost(run, plan.recipes[0]) == LaunchCost(start=58, sample=2)


def test_usual_costs_are_the_newest_runs_under_the_same_workload(tmp_path: Path) -> None:
    for name, wall, workload in (("1", 100.0, "w"), ("2", 52.0, "w"), ("3", 999.0, "another")):
        plan = changed(a_plan(run_id=name), workload=workload)
        write_run_file(tmp_path / name, plan)
        with a_journal(tmp_path / name, plan) as journal:
            Measuring(journal, TableBench(journal, nearly_steady, wall_s=wall)).until_decided()
    recipes = a_plan().recipes
    assert usual_costs(tmp_path, "box", recipes) == {name: LaunchCost(50, 1) for name in RECIPES}
    assert usual_costs(tmp_path, "box", changed(a_plan(), workload="new").recipes) == {}
    assert usual_costs(tmp_path, "another box", recipes) == {}
