"""From cycles to a launch's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfgate.engine.device_timer import device_timer
from perfgate.probe.phases import LaunchPhases, SamplePhases, phases_of
from perfgate.probe.proofs import proofs_of
from perfgate.probe.reading import ProbedProcess, ProbeReading, TimedCycle
from perfgate.records import LaunchFact, Phases, Proof, Side
from perfgate.records.files import fact_from_line, fact_to_line

LAUNCH = LaunchFact(id="eagle3/p01/head/a1", recipe="eagle3", pair=1, side=Side.HEAD, position=1, attempt=1)


def process(rank: int = 0, **fields: Any) -> ProbedProcess:
    return ProbedProcess(
        pid=100 + rank,
        ppid=1,
        root=False,
        launch="l1",
        began=0.0,
        argv=(),
        title=f"sglang::scheduler_TP{rank}",
        worker="W",
        clock="perf_counter",
        ranks={"tp": rank},
        **fields,
    )


def fill(
    of: ProbedProcess, begin: float, count: int, *, period: float = 0.025, mark: str = "", **ms: float | None
) -> ProbedProcess:
    """`count` cycles from `begin`, one each `period` seconds."""
    spans = {"cycle": 24.0, "draft": 2.0, "verify": 19.0, "draft_extend": 2.0, "decode": None, "target": 18.0, **ms}
    first = len(of.cycles)
    for number in range(count):
        of.cycles.add(TimedCycle(first + number, begin + number * period, 1, mark, *spans.values()))
    return of


def reading(*processes: ProbedProcess, dropped: dict[str, int] | None = None) -> ProbeReading:
    return ProbeReading(processes=processes, dropped=dropped or {})


def only(phases: LaunchPhases) -> SamplePhases:
    (sample,) = phases.samples
    return sample


def codes(phases: LaunchPhases) -> list[str]:
    return [warning.code for warning in (*(w for s in phases.samples for w in s.warnings), *phases.warnings)]


def test_only_whole_cycles_inside_a_window_count() -> None:
    of = fill(process(), 10.0, 40)
    of = fill(of, 20.0, 40, verify=29.0, cycle=34.0, period=0.04)
    found = phases_of(reading(of), [(0, 10.0, 11.01), (1, 19.99, 20.5)])
    assert [sample.sample for sample in found.samples] == [0, 1]
    assert [sample.cycles for sample in found.samples] == [40, 12]  # the 13th of the second ends after its window
    assert [sample.verify_ms for sample in found.samples] == [19.0, 29.0]
    assert found.samples[0].period_ms == pytest.approx(25.0)
    assert found.samples[1].period_ms == pytest.approx(40.0)
    assert found.whole is not None
    assert found.whole.cycles == 52


def test_marked_cycles_never_count() -> None:
    of = fill(process(), 10.0, 30, mark="warmup", verify=99.0)
    for mark in ("idle", "capture", "extend"):
        fill(of, 12.0 + len(of.cycles), 5, mark=mark, verify=99.0)
    fill(of, 100.0, 30)
    sample = only(phases_of(reading(of), [(0, 0.0, 200.0)]))
    assert (sample.cycles, sample.verify_ms) == (30, 19.0)


def test_nothing_between_two_cycles_but_a_cycle_is_a_period() -> None:
    of = process()
    for request in range(3):
        fill(of, 10.0 + request * 5, 1, mark="extend")
        fill(of, 10.1 + request * 5, 10)
    assert only(phases_of(reading(of), [(0, 0.0, 100.0)])).period_ms == pytest.approx(25.0)


def test_windows_of_one_sample_are_joined() -> None:
    of = fill(fill(process(), 10.0, 20), 20.0, 20)
    assert only(phases_of(reading(of), [(0, 10.0, 10.6), (0, 20.0, 20.6)])).cycles == 40


def test_the_slowest_rank_is_the_number_and_the_spread_the_straggler() -> None:
    ranks = [fill(process(rank), 10.0, 30, verify=19.0 + rank / 4, cycle=24.0 + rank / 4) for rank in range(8)]
    sample = only(phases_of(reading(*ranks), [(0, 10.0, 11.0)], expected_ranks=8))
    assert sample.verify_ms == 20.75
    assert sample.straggler_ms == 1.75
    assert [rank.verify_ms for rank in sample.ranks] == [19.0 + rank / 4 for rank in range(8)]
    assert sample.warnings == ()


def test_plain_decoding_has_decode_alone() -> None:
    none = {"cycle": None, "draft": None, "verify": None, "draft_extend": None, "target": None}
    ranks = [fill(process(rank), 10.0, 30, **none, decode=18.0 + rank) for rank in range(2)]
    sample = only(phases_of(reading(*ranks), [(0, 10.0, 11.0)]))
    assert (sample.decode_ms, sample.verify_ms, sample.cycle_ms, sample.straggler_ms) == (19.0, None, None, 1.0)


def test_absent_is_none_and_never_zero() -> None:
    of = fill(process(), 10.0, 30, verify=None, target=None)
    of.targets["sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2.verify"] = "no verify"
    found = phases_of(reading(of), [(0, 10.0, 11.0)])
    assert only(found).verify_ms is None
    assert codes(found) == ["probe_no_target"]


def test_no_cycles_and_no_files() -> None:
    assert codes(phases_of(reading(), [(0, 0.0, 1.0)])) == ["probe_silent"]
    assert codes(phases_of(reading(process()), [(0, 0.0, 1.0)])) == ["probe_no_cycles"]
    elsewhere = phases_of(reading(fill(process(), 50.0, 30)), [(0, 0.0, 1.0)])
    assert elsewhere.samples == ()
    assert elsewhere.whole is None


def test_agreement_with_the_client() -> None:
    of = fill(process(), 10.0, 30, period=0.025)
    window = [(0, 10.0, 11.0)]
    assert codes(phases_of(reading(of), window, client_cycle_ms={0: 25.9})) == []
    assert codes(phases_of(reading(of), window, client_cycle_ms={0: 27.0})) == ["probe_disagrees"]


def test_a_rank_that_lost_cycles_is_told() -> None:
    found = phases_of(reading(fill(process(0), 10.0, 40), fill(process(1), 10.0, 25)), [(0, 10.0, 12.0)])
    (warning,) = only(found).warnings
    assert (warning.code, warning.data) == ("probe_rank_incomplete", {"most": 40, "ranks": {"1": 25}})


def test_claims_of_more_time_than_there_was_are_not_used() -> None:
    forged = fill(process(1), 10.0, 40, cycle=500.0, verify=400.0)
    found = phases_of(reading(fill(process(0), 10.0, 40), forged), [(0, 10.0, 12.0)])
    assert only(found).verify_ms == 19.0
    assert [warning.code for warning in only(found).warnings] == ["probe_impossible"]
    alone = phases_of(reading(fill(process(0), 10.0, 40, cycle=500.0)), [(0, 10.0, 12.0)])
    assert only(alone).verify_ms is None
    assert "probe_impossible" in codes(alone)


def test_ranks_that_collide_or_are_too_many_are_told() -> None:
    twice = phases_of(
        reading(fill(process(0), 10.0, 30), fill(process(0), 10.0, 30, verify=20.0)),
        [(0, 10.0, 11.0)],
        expected_ranks=1,
    )
    assert [rank.rank for rank in only(twice).ranks] == [0, 1]
    assert set(codes(twice)) == {"probe_ranks", "probe_ranks_collide"}


def test_what_was_dropped_and_noted_is_told() -> None:
    of = fill(process(), 10.0, 30)
    of.notes.append("timers off: RuntimeError")
    found = phases_of(reading(of, dropped={"line malformed": 3}), [(0, 10.0, 11.0)])
    assert codes(found) == ["probe_dropped", "probe_notes"]
    assert found.warnings[0].data == {"line malformed": 3}


def test_few_cycles_are_told() -> None:
    assert codes(phases_of(reading(fill(process(), 10.0, 5)), [(0, 10.0, 11.0)])) == ["probe_few_cycles"]


def test_a_sample_is_a_fact_that_survives_the_file() -> None:
    of = fill(process(), 10.0, 5)
    fact = only(phases_of(reading(of), [(0, 10.0, 11.0)])).fact(LAUNCH, concurrency=1)
    again = fact_from_line(fact_to_line(fact), "x")
    assert isinstance(again, Phases)
    assert (again.verify_ms, again.cycles, again.ranks[0].verify_ms) == (19.0, 5, 19.0)
    assert again.warnings[0]["code"] == "probe_few_cycles"


def test_what_concerns_the_launch_stands_with_its_first_sample() -> None:
    of = fill(fill(process(), 10.0, 30), 20.0, 30)
    of.notes.append("trouble")
    found = phases_of(reading(of), [(0, 10.0, 11.0), (1, 20.0, 21.0)])
    first, second = found.facts(LAUNCH, {0: 1, 1: 8})
    assert [warning["code"] for warning in first.warnings] == ["probe_notes"]
    assert (second.concurrency, second.warnings) == (8, ())
    (empty,) = phases_of(reading(), [(0, 10.0, 11.0)]).facts(LAUNCH, {0: 1})
    assert (empty.cycles, empty.verify_ms) == (0, None)
    assert [warning["code"] for warning in empty.warnings] == ["probe_silent"]


def test_a_proof_is_a_fact_that_survives_the_file() -> None:
    of = process(entry={}, start={}, effective={"NCCL_ALGO": "Ring", "SGLANG_RUN_ID": "x"})
    (fact,) = proofs_of(reading(of), LAUNCH, {"NCCL_ALGO": "Ring", "PATH": "/bin"})
    again = fact_from_line(fact_to_line(fact), "x")
    assert isinstance(again, Proof)
    assert again.given == {"NCCL_ALGO": "Ring"}
    assert again.effective == {"NCCL_ALGO": "Ring"}  # without what names one launch
    assert again.at_start is None  # no first process left a reading


BEFORE = """# HELP sglang:forward_execution_seconds_total x
sglang:forward_execution_seconds_total{category="target_verify",tp_rank="0"} 1.0
sglang:forward_execution_seconds_total{category="eagle_draft",tp_rank="0"} 0.1
sglang:forward_execution_seconds_total{category="extend",tp_rank="0"} 0.1
"""
AFTER = BEFORE.replace("} 1.0", "} 2.9").replace("} 0.1", "} 0.3")


def test_sglangs_own_timer_is_read() -> None:
    assert device_timer(BEFORE, AFTER, 100) == pytest.approx({"target": 19.0, "draft": 2.0})
    old = 'sglang:gpu_execution_seconds_total{category="forward_decode"} '
    assert device_timer(old + "1\n", old + "3.4\n", 100) == pytest.approx({"cycle": 24.0})


@pytest.mark.parametrize("text", ["", AFTER.replace("2.9", "nan"), AFTER.replace("2.9", "1e999"), "x" * 1000, "{" * 99])
def test_an_odd_answer_of_the_server_gives_nothing(text: str) -> None:
    assert "target" not in device_timer(BEFORE, text, 100)
    assert device_timer(BEFORE, AFTER, 0) == {}


def test_recorded_metrics_of_a_cpu_server_hold_no_device_timer() -> None:
    recorded = (Path(__file__).parent / "metrics-0.5.23-cpu.txt").read_text()
    assert device_timer(recorded, recorded, 10) == {}


def test_agreement_with_sglangs_own_timer() -> None:
    of = fill(process(), 10.0, 30)
    window = [(0, 10.0, 11.0)]
    assert codes(phases_of(reading(of), window, device_timer_ms={"target": 17.5, "draft": 2.05})) == []
    found = phases_of(reading(of), window, device_timer_ms={"target": 15.0})
    assert found.warnings[0].code == "probe_device_timer_disagrees"
    assert found.warnings[0].data == {"phase": "target", "probe_ms": 18.0, "sglang_ms": 15.0}


@pytest.mark.parametrize("share", [0.1, 0.3, 0.45])
def test_a_slowdown_of_some_cycles_moves_the_number_as_far_as_it_moves_the_client_s(share: float) -> None:
    """Fewer than half of them cannot move a median, and yet a client waits for each."""
    of, slow_at = process(), set(range(0, 1000, round(1 / share)))
    for number in range(1000):
        verify = 38.0 if number in slow_at else 19.0
        fill(of, 10.0 + number * 0.05, 1, verify=verify, cycle=verify + 5.0)
    sample = only(phases_of(reading(of), [(0, 10.0, 61.0)]))
    true = 19.0 * (1 + len(slow_at) / 1000)
    assert sample.verify_ms == pytest.approx(true, rel=0.01)
    assert sample.slow_share == pytest.approx(len(slow_at) / 1000, abs=0.006)
    assert "probe_slow_cycles" in codes(phases_of(reading(of), [(0, 10.0, 61.0)]))


def test_phases_add_up_to_their_cycle() -> None:
    """Also where verify is slow in other cycles than draft, and where some cycles did not run a phase."""
    of = process()
    for number in range(1000):
        draft, verify = (9.0, 19.0) if number % 3 == 0 else (2.0, 26.0)
        extend = None if number % 50 == 0 else 2.0
        spans = {"draft": draft, "verify": verify, "draft_extend": extend}
        fill(of, 10.0 + number * 0.05, 1, **spans, cycle=draft + verify + (extend or 0.0) + 1.0)
    sample = only(phases_of(reading(of), [(0, 10.0, 61.0)]))
    assert sample.cycle_ms is not None
    parts = (sample.draft_ms or 0) + (sample.verify_ms or 0) + (sample.draft_extend_ms or 0)
    assert parts + 1.0 == pytest.approx(sample.cycle_ms)


def test_a_hiccup_of_the_machine_does_not_move_the_number() -> None:
    of = fill(process(), 10.0, 400, period=0.05)
    fill(of, 30.1, 1, verify=2000.0, cycle=2005.0)
    sample = only(phases_of(reading(of), [(0, 10.0, 40.0)]))
    assert sample.verify_ms == pytest.approx(19.0)
    assert sample.slow_share == 0
