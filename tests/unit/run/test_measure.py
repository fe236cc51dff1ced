"""The loop of pairs: order of launches, repeats, blame, limits, and what an interrupted run goes on with."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from perfgate import records as r
from perfgate.conditions import assess_environment
from perfgate.engine.faults import ServerNotFreed
from perfgate.judge.evidence import Evidence, RunFacts
from perfgate.judge.result import cost_of, judge_run, minutes_spent
from perfgate.judge.verdict import NextStep
from perfgate.records import LaunchId
from perfgate.records.files import FACTS_FILE
from perfgate.run import gate
from perfgate.run import pairs as measure
from perfgate.run.journal import Journal
from perfgate.run.pairs import Measuring, end_here, orders, what_is_left

from .builders import TableBench, a_journal, a_plan


def steady(order: LaunchId) -> float:
    return 90.0


def slower_by(loss: float, recipe: str = "eagle3"):
    return lambda order: 90.0 * (1 - loss if (order.side, order.recipe) == (r.Side.HEAD, recipe) else 1)


def measured(where: Path, bench_of, plan: r.Plan | None = None) -> tuple[r.Result, TableBench]:
    with a_journal(where, plan) as journal:
        bench = bench_of(journal)
        Measuring(journal, bench).until_decided()
        return judge_run(Evidence(journal.run())), bench


def test_pairs_alternate_which_side_goes_first_and_recipes_are_interleaved(tmp_path: Path) -> None:
    result, bench = measured(tmp_path, lambda journal: TableBench(journal, slower_by(0.04)))
    first = {name: bench.launched.index(name) for name in bench.launched}
    ahead = [first[f"eagle3/p{n:02d}/base/a1"] < first[f"eagle3/p{n:02d}/head/a1"] for n in (1, 2)]
    assert ahead[0] != ahead[1]
    assert [name.split("/")[0] for name in bench.launched[:4]] == ["baseline", "baseline", "eagle3", "eagle3"]
    assert result.verdict is r.Verdict.REGRESSION


def test_first_order_is_drawn_from_the_seed() -> None:
    drawn = {orders(seed, "eagle3", 2)[0] for seed in range(20)}
    assert drawn == set(r.Side)
    assert orders(3, "eagle3", 4) == orders(3, "eagle3", 4)


def test_no_change_passes_and_stops_early(tmp_path: Path) -> None:
    result, bench = measured(tmp_path, lambda journal: TableBench(journal, steady))
    assert result.verdict is r.Verdict.PASS
    assert len(bench.launched) <= 8
    assert result.exit_code == 0


def test_a_launch_that_fails_once_is_repeated_and_leaves_no_fault(tmp_path: Path) -> None:
    result, bench = measured(
        tmp_path,
        lambda journal: TableBench(journal, steady, fails=lambda o: o.attempt == 1 and o.pair == 1),
    )
    assert result.verdict is r.Verdict.PASS
    assert "baseline/p01/head/a2" in bench.launched


@pytest.mark.parametrize("side", list(r.Side))
def test_a_side_that_fails_twice_is_named(tmp_path: Path, side: r.Side) -> None:
    result, bench = measured(tmp_path, lambda journal: TableBench(journal, steady, fails=lambda o: o.side is side))
    assert result.verdict is r.Verdict.BENCH_FAILED
    assert result.failed_side is side
    assert sum(f"/{side.value}/" in name for name in bench.launched) == 2


def test_when_neither_side_serves_nobody_is_blamed(tmp_path: Path) -> None:
    result, _ = measured(tmp_path, lambda journal: TableBench(journal, steady, fails=lambda o: True))
    assert result.verdict is r.Verdict.BENCH_FAILED
    assert result.failed_side is None
    assert "neither side" in result.reason


def test_a_proven_regression_outlives_a_server_that_dies_later(tmp_path: Path) -> None:
    plan = a_plan()
    result, _ = measured(
        tmp_path,
        lambda journal: TableBench(
            journal, slower_by(0.3, "baseline"), fails=lambda o: o.recipe == "eagle3" and o.pair == 2
        ),
        plan,
    )
    assert result.verdict is r.Verdict.REGRESSION


def test_the_limit_of_minutes_ends_it_as_inconclusive(tmp_path: Path) -> None:
    plan = a_plan(limits=r.RunLimits(max_pairs=6, min_pairs_to_fail=2, minutes=5, alpha=0.01, beta=0.05))
    result, _ = measured(tmp_path, lambda journal: TableBench(journal, slower_by(0.04)), plan)
    assert result.verdict is r.Verdict.INCONCLUSIVE
    assert "5 minutes" in result.reason


def test_without_the_probe_the_cycle_is_gated_in_its_place(tmp_path: Path) -> None:
    result, _ = measured(tmp_path, lambda journal: TableBench(journal, slower_by(0.1), verify=False))
    gated = {(m.recipe, m.metric) for m in result.metrics if m.gated}
    assert gated == {("baseline", "tok_s"), ("baseline", "cycle_ms"), ("eagle3", "tok_s"), ("eagle3", "cycle_ms")}
    verify = next(m for m in result.metrics if m.metric == "verify_ms")
    assert (verify.base, verify.verdict) == (None, r.MetricVerdict.ABSENT)
    assert any(notice.code == "metric_absent" for notice in result.warnings)
    assert result.verdict is r.Verdict.REGRESSION


def test_a_loss_in_one_kind_of_prompt_is_named(tmp_path: Path) -> None:
    result, _ = measured(tmp_path, lambda journal: TableBench(journal, steady, kinds={"code": 0.6}))
    told = [notice for notice in result.warnings if notice.code == "loss_confined_to_kind"]
    assert told
    assert told[0].data["kind"] == "code"
    assert "−40 %" in told[0].text


class Killed(BaseException):
    pass


def killed_after(bench: TableBench, launches: int) -> None:
    """The bench's process ends right after that many launches, as after kill -9."""
    launch = bench.launch

    def until_killed(order: LaunchId) -> r.LaunchEnd:
        if len(bench.launched) == launches:
            raise Killed
        return launch(order)

    bench.launch = until_killed  # type: ignore[method-assign]


@pytest.mark.parametrize("launches", range(6))
def test_resumed_at_any_launch_it_ends_as_if_never_interrupted(tmp_path: Path, launches: int) -> None:
    whole, _ = measured(tmp_path / "whole", lambda journal: TableBench(journal, slower_by(0.2)))
    where = tmp_path / "resumed"
    with a_journal(where) as journal:
        bench = TableBench(journal, slower_by(0.2))
        killed_after(bench, launches)
        with pytest.raises(Killed):
            Measuring(journal, bench).until_decided()
    with Journal(where) as journal:
        bench = TableBench(journal, slower_by(0.2))
        Measuring(journal, bench).until_decided()
        resumed = judge_run(Evidence(journal.run()))
    assert resumed.verdict is whole.verdict
    assert resumed.reason == whole.reason
    assert len({launch.id for launch in resumed.launches}) == len(whole.launches)


def test_a_half_pair_of_another_boot_or_too_old_is_measured_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_journal(tmp_path) as journal:
        bench = TableBench(journal, steady)
        killed_after(bench, 1)
        with pytest.raises(Killed):
            Measuring(journal, bench).until_decided()
        run = journal.run()
        first = run.recipe("baseline").first_orders[0]
        assert measure.half_pair(run, "baseline", 1, first) == f"baseline/p01/{first.value}/a1"
        assert measure.half_pair(run, "baseline", 1, first.other) is None
        monkeypatch.setattr(measure, "HALF_PAIR_SECONDS", -1)
        assert measure.half_pair(run, "baseline", 1, first) is None
        monkeypatch.undo()
        monkeypatch.setattr(measure, "boot_id", lambda: "another")
        assert measure.half_pair(run, "baseline", 1, first) is None
        bench = TableBench(journal, steady)
        Measuring(journal, bench).until_decided()
        assert f"baseline/p01/{first.value}/a2" in bench.launched
        unpaired = [launch.id for launch in judge_run(Evidence(journal.run())).launches if not launch.paired]
        assert unpaired == [f"baseline/p01/{first.value}/a1"]


@pytest.mark.parametrize(
    ("now", "reused"),
    [
        ({"PATH": "/usr/bin", "LANG": "C"}, True),
        ({"PATH": "/opt/other/bin:/usr/bin", "LANG": "C"}, False),
        ({"PATH": "/usr/bin"}, False),
        ({"PATH": "/usr/bin", "LANG": "C", "CUDA_MODULE_LOADING": "EAGER"}, False),
    ],
)
def test_a_half_pair_is_completed_only_from_a_shell_that_gives_its_partner_the_same(
    tmp_path: Path, now: dict[str, str], reused: bool
) -> None:
    with a_journal(tmp_path) as journal:
        first = journal.run().recipe("baseline").first_orders[0]
        bench = TableBench(journal, steady)
        bench.shell = {"PATH": "/usr/bin", "LANG": "C"}
        killed_after(bench, 1)
        with pytest.raises(Killed):
            Measuring(journal, bench).until_decided()
        bench = TableBench(journal, steady)
        bench.shell = now
        Measuring(journal, bench).until_decided()
        assert (f"baseline/p01/{first.value}/a2" not in bench.launched) is reused
        run = journal.run()
    assert assess_environment(run).disturbances == ()
    assert judge_run(Evidence(run)).verdict is r.Verdict.PASS


def test_faults_before_a_resumed_plan_no_longer_count(tmp_path: Path) -> None:
    with a_journal(tmp_path) as journal:
        journal.append(r.Fault(id="f", code="disk_full", text="no space left", blame=r.Blame.BOX))
        assert judge_run(Evidence(journal.run())).verdict is r.Verdict.BENCH_FAILED
        journal.append(dataclasses.replace(a_plan(), id="plan"))
        Measuring(journal, TableBench(journal, steady)).until_decided()
        assert judge_run(Evidence(journal.run())).verdict is r.Verdict.PASS


def go_on(journal: Journal, plan: r.Plan) -> NextStep:
    """As the gate looks at a run that is resumed."""
    left = what_is_left(journal.facts, plan)
    if left.recipe is None:
        end_here(journal, plan, left)
    return left


def a_fault(code: str, blame: r.Blame, side: r.Side | None = None) -> r.Fault:
    return r.Fault(id=f"fault/{code}", code=code, text=f"told by {code}", blame=blame, side=side)


@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_a_run_that_was_killed_after_its_last_pair_needs_no_box(tmp_path: Path, loss: float) -> None:
    """Nor does one that was cancelled then, or that an unfit box kept from going on."""
    whole, bench = measured(tmp_path, lambda journal: TableBench(journal, slower_by(loss)))
    with Journal(tmp_path) as journal:
        journal.append(measure.stopped("cancelled by SIGINT"))
        journal.append(a_fault(r.DOCTOR_FAULT, r.Blame.BOX))
        step = go_on(journal, a_plan())
        again = judge_run(Evidence(journal.run()))
    assert step.recipe is None
    assert (again.verdict, again.reason, again.cost.launches) == (whole.verdict, whole.reason, len(bench.launched))


def test_looking_at_what_is_left_writes_nothing(tmp_path: Path) -> None:
    with a_journal(tmp_path) as journal:
        before = tuple(journal.facts)
        assert what_is_left(journal.facts, a_plan()).recipe is not None
        assert tuple(journal.facts) == before
    assert what_is_left((), a_plan()).recipe is not None


@pytest.mark.parametrize("launches", range(4))
def test_a_run_with_a_pair_to_measure_goes_on(tmp_path: Path, launches: int) -> None:
    with a_journal(tmp_path) as journal:
        bench = TableBench(journal, slower_by(0.2))
        killed_after(bench, launches)
        with pytest.raises(Killed):
            Measuring(journal, bench).until_decided()
    with Journal(tmp_path) as journal:
        assert go_on(journal, a_plan()).recipe is not None


@pytest.mark.parametrize(("launches", "recipe"), [(7, "eagle3"), (8, None)])
@pytest.mark.parametrize("kind", ["calibration", "exact"])
def test_all_pairs_of_a_calibration_and_of_a_searchs_step_are_measured(
    tmp_path: Path, launches: int, recipe: str | None, kind: str
) -> None:
    """Two pairs of each recipe, whatever the judge would say."""
    plan = a_plan(**{kind: True}, limits=dataclasses.replace(a_plan().limits, max_pairs=2))
    with a_journal(tmp_path, plan) as journal:
        bench = TableBench(journal, slower_by(0.3))
        killed_after(bench, launches)
        if launches < 8:
            with pytest.raises(Killed):
                Measuring(journal, bench).all_pairs()
        else:
            Measuring(journal, bench).all_pairs()
    with Journal(tmp_path) as journal:
        assert go_on(journal, plan).recipe == recipe


def test_without_time_to_try_again_what_had_gone_wrong_stands(tmp_path: Path) -> None:
    limits = r.RunLimits(max_pairs=6, min_pairs_to_fail=2, minutes=5, alpha=0.01, beta=0.05)
    plan = a_plan(limits=limits)
    whole, _ = measured(
        tmp_path,
        lambda journal: TableBench(journal, steady, fails=lambda o: o.recipe == "eagle3" and o.side is r.Side.HEAD),
        plan,
    )
    assert (whole.verdict, whole.failed_side) == (r.Verdict.BENCH_FAILED, r.Side.HEAD)
    for _ in range(2):
        with Journal(tmp_path) as journal:
            assert go_on(journal, plan).out_of_time
            again = judge_run(Evidence(journal.run()))
        assert (again.verdict, again.failed_side, again.reason) == (whole.verdict, whole.failed_side, whole.reason)


def test_a_run_out_of_time_says_so_when_it_goes_on(tmp_path: Path) -> None:
    plan = a_plan(limits=r.RunLimits(max_pairs=6, min_pairs_to_fail=2, minutes=5, alpha=0.01, beta=0.05))
    measured(tmp_path, lambda journal: TableBench(journal, slower_by(0.04)), plan)
    facts = tmp_path / FACTS_FILE
    facts.write_text("".join(line for line in facts.read_text().splitlines(True) if '"kind":"fault"' not in line))
    with Journal(tmp_path) as journal:  # it was killed just before it said so
        assert go_on(journal, plan).out_of_time
        result = judge_run(Evidence(journal.run()))
    assert result.verdict is r.Verdict.INCONCLUSIVE
    assert "measuring ended at the limit of 5 minutes" in result.reason


def test_what_the_box_spoiled_does_not_count_against_a_side(tmp_path: Path) -> None:
    """Spoiled by the box, then failed by itself: head gets another try, and is not said to have failed twice."""

    def fault(order: LaunchId) -> r.Blame | None:
        if (order.recipe, order.pair, order.side) != ("baseline", 1, r.Side.HEAD):
            return None
        return {1: r.Blame.BOX, 2: r.Blame.SIDE}.get(order.attempt)

    result, bench = measured(tmp_path, lambda journal: TableBench(journal, steady, blames=fault))
    assert result.verdict is r.Verdict.PASS
    assert "baseline/p01/head/a3" in bench.launched


@pytest.mark.parametrize("second", [r.Blame.BOX, r.Blame.SIDE])
def test_a_launch_is_given_up_when_the_same_one_is_to_blame_again(tmp_path: Path, second: r.Blame) -> None:
    faults = {1: r.Blame.BOX, 2: r.Blame.SIDE, 3: second}
    result, bench = measured(
        tmp_path,
        lambda journal: TableBench(
            journal, steady, blames=lambda o: faults[o.attempt] if o.side is r.Side.HEAD else None
        ),
    )
    assert result.verdict is r.Verdict.BENCH_FAILED
    assert sum("/head/" in name for name in bench.launched) == 3
    assert result.failed_side is (r.Side.HEAD if second is r.Blame.SIDE else None)


def a_plan_with_head_first() -> r.Plan:
    plan = a_plan()
    return dataclasses.replace(
        plan, recipes=tuple(dataclasses.replace(one, first_orders=(r.Side.HEAD,) * 6) for one in plan.recipes)
    )


@pytest.mark.parametrize(
    ("base", "code"),
    [
        ({1: r.Blame.BOX}, "side_fails"),  # the box spoils one launch of base, the next one serves
        ({1: r.Blame.BOX, 2: r.Blame.BOX}, "box_disturbed"),
        ({1: r.Blame.BOX, 2: r.Blame.SIDE, 3: r.Blame.SIDE}, "neither_side_serves"),
        ({1: r.Blame.SIDE}, "side_fails"),
    ],
)
def test_whether_the_other_side_serves_is_not_judged_on_a_launch_that_failed_once(
    tmp_path: Path, base: dict[int, r.Blame], code: str
) -> None:
    def blames(order: LaunchId) -> r.Blame | None:
        return r.Blame.SIDE if order.side is r.Side.HEAD else base.get(order.attempt)

    with a_journal(tmp_path, a_plan_with_head_first()) as journal:
        Measuring(journal, TableBench(journal, steady, blames=blames)).until_decided()
        (fault,) = journal.run().faults
        result = judge_run(Evidence(journal.run()))
    assert result.verdict is r.Verdict.BENCH_FAILED
    assert result.failed_side is (r.Side.HEAD if code == "side_fails" else None)
    assert fault.code == code
    assert ("could not be measured" in fault.text) is (code == "box_disturbed")
    assert fault.launch == ("baseline/p01/base/a2" if code == "box_disturbed" else "baseline/p01/head/a2")


def test_where_something_of_a_launch_is_left_nothing_more_is_launched_and_nobody_is_blamed(tmp_path: Path) -> None:
    with a_journal(tmp_path) as journal:
        bench = TableBench(journal, steady)
        launch = bench.launch

        def left(order: LaunchId) -> r.LaunchEnd:
            launch(order)
            raise ServerNotFreed("not_ended", "processes of the server cannot be ended: 7", ("last words",))

        bench.launch = left  # type: ignore[method-assign]
        with pytest.raises(ServerNotFreed) as caught:
            Measuring(journal, bench).until_decided()
        gate._note(caught.value, journal)
        result = judge_run(Evidence(journal.run()))
    assert len(bench.launched) == 1
    assert (result.verdict, result.failed_side) == (r.Verdict.BENCH_FAILED, None)
    assert result.reason.startswith(f"{bench.launched[0]}: processes of the server cannot be ended: 7")
    (told,) = [notice for notice in result.warnings if notice.code == "not_ended"]
    assert told.data["lines"] == ["last words"]


def test_launches_too_far_apart_are_no_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between first and second lay failed tries: the first is measured once more, and came second then."""
    with a_journal(tmp_path) as journal:
        first = journal.run().recipe("baseline").first_orders[0]
        late = LaunchId("baseline", 1, first.other, 2, 1).launch_id
        monkeypatch.setattr(Measuring, "_apart", lambda _self, _one, other: other == late)
        Measuring(journal, TableBench(journal, steady)).until_decided()
        pair = journal.run().pairs_of("baseline")[0]
        assert pair.first is first.other
        assert {pair.base, pair.head} == {late, f"baseline/p01/{first.value}/a2"}
        result = judge_run(Evidence(journal.run()))
        assert [one.id for one in result.launches if not one.paired] == [f"baseline/p01/{first.value}/a1"]
        places = {one.id: one.position for one in result.launches}
        assert (places[late], places[f"baseline/p01/{first.value}/a2"]) == (1, 2)


def test_where_no_two_launches_come_close_the_box_is_to_blame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Measuring, "_apart", lambda *_: True)
    result, bench = measured(tmp_path, lambda journal: TableBench(journal, steady))
    assert result.verdict is r.Verdict.BENCH_FAILED
    assert result.failed_side is None
    assert "within 15 minutes" in result.reason
    assert len(bench.launched) == 4


def test_a_pause_is_no_part_of_the_cost(tmp_path: Path) -> None:
    """Ten seconds from fact to fact, an hour before the run went on."""
    with a_journal(tmp_path) as journal:
        Measuring(journal, TableBench(journal, steady)).until_decided()
        facts = list(journal.facts)
    cut = next(number for number, fact in enumerate(facts) if isinstance(fact, r.Pair)) + 1
    told = [*facts[:cut], facts[0], *facts[cut:]]
    run = RunFacts.of([lived_at(fact, 10.0 * number + 3600 * (number >= cut)) for number, fact in enumerate(told)])
    assert run is not None
    assert cost_of(run).wall_s == pytest.approx(10 * (len(told) - 2))


def test_a_killed_launch_has_cost_what_it_took_until_then(tmp_path: Path) -> None:
    with a_journal(tmp_path) as journal:
        Measuring(journal, TableBench(journal, steady)).until_decided()
        facts = list(journal.facts)
    end = next(number for number, fact in enumerate(facts) if isinstance(fact, r.LaunchEnd))
    run = RunFacts.of([lived_at(fact, 10.0 * number) for number, fact in enumerate(facts[:end])])
    assert run is not None
    begun = next(number for number, fact in enumerate(facts) if isinstance(fact, r.LaunchBegin))
    assert minutes_spent(run) == pytest.approx(10 * (end - 1 - begun) / 60)


def lived_at(fact: r.Fact, seconds: float) -> r.Fact:
    moment = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return dataclasses.replace(fact, mono=seconds, t=moment.isoformat())
