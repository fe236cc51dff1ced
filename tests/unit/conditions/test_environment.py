"""Whose doing a difference is: the box's ends as `environment` and is named, the code's explains and never excuses."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate import records as r
from perfgate.conditions import assess_environment, compare, fingerprints
from perfgate.judge.evidence import RunFacts
from perfgate.judge.result import Conditions
from tests.unit.conditions.box import (
    GPU,
    PROBE,
    SYSTEM,
    LaunchBox,
    assessed,
    changed,
    head,
    launch_facts,
    normal,
    run_of,
    sung,
)

Change = Callable[[LaunchBox], LaunchBox]


def texts(conditions: Conditions) -> list[str]:
    return [one.text for one in conditions.disturbances]


def explained(conditions: Conditions) -> list[str]:
    return [one.sentence for one in conditions.environment.explained]


def without(name: str) -> Change:
    """A variable that nobody finds at start any more."""

    def change(box: LaunchBox) -> LaunchBox:
        assert box.at_start is not None
        assert box.effective is not None
        return replace(
            box,
            at_start={k: v for k, v in box.at_start.items() if k != name},
            effective={k: v for k, v in box.effective.items() if k != name},
        )

    return change


def test_nothing_differs() -> None:
    seen = assessed()
    assert texts(seen) == []
    assert seen.environment.unexplained == ()
    assert seen.environment.explained == ()
    assert seen.notices == ()
    told = [one.sentence for one in seen.environment.same]
    assert "both sides were given the same 7 variables" in told
    assert "both sides found the same variables at their start" in told
    assert "both sides loaded NCCL 2.27.5" in told
    assert "8 GPUs, the same on both sides: links at Gen5 x16; limited to 600 W" in told


# ------------------------------------------------------------------------------------------------ variables


def test_lost_before_the_code_runs_is_the_box_s() -> None:
    assert texts(assessed(head(without("NCCL_PROTO")))) == ["Head started without NCCL_PROTO=LL."]


def says(value: str | None) -> Change:
    """What head's own processes write down of their start; the box was the same for both."""

    def change(box: LaunchBox) -> LaunchBox:
        said = {**(box.at_start or {}), "NCCL_PROTO": value}
        found = {name: text for name, text in said.items() if text is not None}
        return replace(box, found=box.at_start, at_start=found)

    return change


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("Simple", "head says that it started with NCCL_PROTO=Simple instead of LL"),
        (None, "head says that it started without NCCL_PROTO=LL"),
    ],
)
def test_what_head_says_of_its_own_start_is_never_the_box_s(value: str | None, sentence: str) -> None:
    """Six lines in a commit write whatever reading they like."""
    seen = assessed(head(says(value)))
    assert texts(seen) == []
    assert sentence in explained(seen)
    assert "code_sets_variable" in [one.code for one in seen.notices]


def test_one_rank_alone_is_named() -> None:
    found = {k: v for k, v in normal(r.Side.HEAD, 1).given.items() if k.startswith(("NCCL_", "SGLANG_"))}
    lost = {k: v for k, v in found.items() if k != "NCCL_PROTO"}
    seen = assessed(head(lambda box: replace(box, rank={3: {"at_start": lost}})))
    assert texts(seen) == []
    assert "head rank 3 says that it started without NCCL_PROTO=LL" in explained(seen)


def test_lost_on_base_is_told_of_base() -> None:
    assert texts(assessed(changed(r.Side.BASE, without("NCCL_PROTO")))) == ["Base started without NCCL_PROTO=LL."]


def test_changed_at_start_names_both_values() -> None:
    def other(box: LaunchBox) -> LaunchBox:
        return replace(box, at_start={**(box.at_start or {}), "NCCL_PROTO": "Simple"})

    assert texts(assessed(head(other)))[0] == "Head started with NCCL_PROTO=Simple instead of LL."


def test_lost_by_a_sitecustomize_that_its_processes_ran_is_the_code_s() -> None:
    def own(box: LaunchBox) -> LaunchBox:
        return replace(box, sitecustomize=(*box.sitecustomize, f"{box.tree}/sitecustomize.py"))

    seen = assessed(head(says(None)), head(own))
    assert texts(seen) == []
    assert explained(seen)[0] == (
        "head says that it started without NCCL_PROTO=LL (/state/trees/head/python/sitecustomize.py)"
    )


def test_removed_by_head_s_code_explains_and_excuses_nothing() -> None:
    def removes(box: LaunchBox) -> LaunchBox:
        return replace(box, effective={k: v for k, v in (box.effective or {}).items() if k != "NCCL_PROTO"})

    seen = assessed(head(removes))
    assert texts(seen) == []
    assert explained(seen) == ["head's code takes NCCL_PROTO=LL away"]
    assert seen.environment.unexplained == ()


@pytest.mark.parametrize(
    ("side", "value", "sentence"),
    [
        (r.Side.HEAD, "0", "head's code sets NCCL_GRAPH_REGISTER=0"),
        (r.Side.BASE, "0", "head's code no longer sets NCCL_GRAPH_REGISTER=0"),
    ],
)
def test_set_by_one_side_s_code(side: r.Side, value: str, sentence: str) -> None:
    def sets(box: LaunchBox) -> LaunchBox:
        return replace(box, effective={**(box.effective or {}), "NCCL_GRAPH_REGISTER": value})

    seen = assessed(changed(side, sets))
    assert texts(seen) == []
    assert explained(seen) == [sentence]


def test_set_differently_by_both() -> None:
    def sets(box: LaunchBox) -> LaunchBox:
        return replace(box, effective={**(box.effective or {}), "NCCL_ALGO": box.side.value})

    assert explained(assessed(sets)) == ["head's code sets NCCL_ALGO=head, base's sets base"]


def test_given_to_one_side_only_is_the_box_s() -> None:
    def keeps(box: LaunchBox) -> LaunchBox:
        return replace(box, given={k: v for k, v in box.given.items() if k != "NCCL_PROTO"})

    assert texts(assessed(head(keeps), head(without("NCCL_PROTO")))) == ["Head was not given NCCL_PROTO=LL."]


def test_own_folders_are_no_difference() -> None:
    """Each side has its own HOME, tree and probe directory; only what they are called differs."""
    base, other = (fingerprints(run_of())[f"eagle3/p01/{side.value}/a1"] for side in r.Side)
    assert base.given != other.given
    assert not [finding for finding in compare(base, other) if finding.rule]


def test_a_build_s_own_folders_are_explained_by_its_pins() -> None:
    def other_build(box: LaunchBox) -> LaunchBox:
        given_ = {**box.given, "PATH": "/state/environments/9999/bin:/usr/bin"}
        return replace(box, build="env-9999", given=given_, versions={**box.versions, "torch": "2.11.0"})

    seen = assessed(head(other_build))
    assert texts(seen) == []
    assert "PATH names each build's own folder" in explained(seen)
    assert "head runs torch 2.11.0, base 2.9.1: a pin that the pull request changes" in explained(seen)


def test_lost_on_both_sides_is_fair_and_told() -> None:
    seen = assessed(without("NCCL_PROTO"))
    assert texts(seen) == []
    assert [(one.code, one.text) for one in seen.notices] == [
        ("setting_lost", "NCCL_PROTO=LL was given but was in effect on neither side")
    ]


def test_an_unread_start_proves_nothing_and_says_so() -> None:
    seen = assessed(head(lambda box: replace(box, readable=False)))
    assert texts(seen) == []
    assert [one.code for one in seen.notices] == ["environment_not_proven"]


def test_other_nccl_with_other_pins_is_explained() -> None:
    seen = assessed(head(lambda box: replace(box, build="other", nccl=("2.30.7", "ffff"))))
    assert texts(seen) == []
    assert "head loaded NCCL 2.30.7, base 2.27.5, as the pins of the pull request differ" in explained(seen)


def test_other_worker_room_and_all_reduce_are_explained() -> None:
    def other(box: LaunchBox) -> LaunchBox:
        route = "custom" if box.side is r.Side.HEAD else "nccl"
        box = replace(box, launch_system={"all_reduce": {"route": route}})
        return replace(box, worker="EAGLEWorker", log={"max_total_num_tokens": 1}) if route == "custom" else box

    seen = assessed(other)
    assert texts(seen) == []
    assert "head reduces through custom, base reduces through nccl" in explained(seen)
    assert "head has room for 1 tokens, base has room for 812345 tokens" in explained(seen)


def reported(channels: int, link: str, ranks: int = 8) -> dict[str, object]:
    return {"ranks": [{"rank": n, "coll_channels": channels, "links": {link: 16}, "invalid": {}} for n in range(ranks)]}


def test_what_nccl_reports_otherwise_under_the_same_variables_is_told_and_excuses_nothing() -> None:
    """The story: both were given the same, and one went another way."""

    def other(box: LaunchBox) -> LaunchBox:
        on_head = box.side is r.Side.HEAD
        return replace(box, launch_system={"nccl": reported(2, "SHM/direct") if on_head else reported(24, "P2P/IPC")})

    seen = assessed(other)
    assert texts(seen) == []
    told = "NCCL of head reports 2 channels through SHM/direct, of base 24 channels through P2P/IPC"
    assert told in explained(seen)
    assert "nccl_reports_differ" in [one.code for one in seen.notices]


def test_one_rank_that_goes_another_way_is_named() -> None:
    def other(box: LaunchBox) -> LaunchBox:
        report = reported(24, "P2P/IPC")
        if box.side is r.Side.HEAD:
            report["ranks"][3]["links"] = {"SHM/direct": 16}  # type: ignore[index]
        return replace(box, launch_system={"nccl": report})

    told = "NCCL of head rank 3 reports 24 channels through SHM/direct, of base 24 channels through P2P/IPC"
    assert told in explained(assessed(other))


def test_the_same_reports_are_the_same_and_no_report_is_nothing() -> None:
    same = assessed(lambda box: replace(box, launch_system={"nccl": reported(24, "P2P/IPC")}))
    sentences = [one.sentence for one in same.environment.same]
    assert "NCCL reports the same on both sides: 24 channels through P2P/IPC" in sentences
    assert not any("NCCL reports" in one.sentence for one in assessed(lambda box: box).environment.same)


def test_a_fusion_that_the_box_prevents_is_told_though_both_sides_lack_it() -> None:
    way = {"all_reduce": {"route": "nccl", "prevented": "pidfd_getfd: Operation not permitted"}}
    seen = assessed(lambda box: replace(box, launch_system=way))
    assert texts(seen) == []
    assert [one.code for one in seen.notices] == ["all_reduce_prevented"]


# ------------------------------------------------------------------------------------------------ GPUs


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pcie": "Gen3 x16"}, "GPU 5's link ran at Gen3 x16 for head and Gen5 x16 for base."),
        ({"pcie": "Gen5 x8"}, "GPU 5's link ran at Gen5 x8 for head and Gen5 x16 for base."),
        ({"power_limit_w": 450.0}, "GPU 5 was limited to 450 W for head and 600 W for base."),
        (
            {"throttle": ["sw_thermal"], "sm_clock_min_mhz": 1800},
            "GPU 5 was slowed by heat, down to 1800 MHz during head's launch.",
        ),
        (
            {"throttle": ["power_brake"]},
            "GPU 5 was slowed by the power brake, down to 2310 MHz during head's launch.",
        ),
        ({"thermal_ms": 900.0}, "GPU 5 was slowed by heat for 900 ms during head's launch."),
        ({"lost": True}, "GPU 5 was lost during head's launch."),
    ],
)
def test_a_sick_gpu_beside_head(changes: dict[str, Any], sentence: str) -> None:
    assert texts(assessed(head(lambda box: box.gpu(5, **changes)))) == [sentence]


def test_clocks_and_power_follow_load() -> None:
    seen = assessed(head(lambda box: box.gpu(2, sm_clock_mhz=2100, throttle=["power_cap"], power_w=600.0)))
    assert texts(seen) == []
    assert [one.code for one in seen.notices] == ["clock_follows_load", "power_cap_on_one_side"]


def test_a_difference_within_tolerance_is_none() -> None:
    assert assessed(head(lambda box: box.gpu(2, sm_clock_mhz=2310, power_limit_w=603.0))).environment.explained == ()


def test_fewer_gpus() -> None:
    assert texts(assessed(head(lambda box: replace(box, gpus=box.gpus[:7])))) == ["Head had 7 GPUs, base 8."]


def test_absent_sensors_are_no_difference() -> None:
    nothing = {name: None for name in GPU if name != "lost"}
    seen = assessed(lambda box: replace(box, gpus=tuple({"index": i, **nothing} for i in range(8))))
    assert texts(seen) == []


def test_a_stranger_on_a_gpu_is_named() -> None:
    guests = {"gpu_guests": [{"gpu": 1, "pid": 77, "command": "c0ffee"}]}
    seen = assessed(head(lambda box: replace(box, launch_system=guests)))
    assert texts(seen) == ["Another process (pid 77, command c0ffee) used GPU 1 during head's launch."]


def test_a_disturbed_try_that_was_repeated_does_not_count() -> None:
    facts = list(run_of().facts)
    hot = replace(normal(r.Side.HEAD, 1).gpu(0, throttle=["hw_thermal"]), valid=False)
    begin = next(i for i, fact in enumerate(facts) if isinstance(fact, r.LaunchBegin) and fact.side is r.Side.HEAD)
    again = [replace(fact, attempt=2, id=fact.id.replace("a1", "a2")) if _of_head_1(fact) else fact for fact in facts]
    again = [replace(f, head="eagle3/p01/head/a2") if isinstance(f, r.Pair) and f.pair == 1 else f for f in again]
    run = RunFacts.of([*again[:begin], *launch_facts(hot, 2), *again[begin:]])
    assert run is not None
    assert texts(assess_environment(run)) == []


def test_a_launch_disturbed_at_its_last_try_counts_although_it_made_no_pair() -> None:
    facts = [fact for fact in run_of(pairs=1).facts if not isinstance(fact, r.Pair)]
    hot = replace(normal(r.Side.HEAD, 1).gpu(0, throttle=["hw_thermal"]), valid=False)
    run = RunFacts.of([*facts, *launch_facts(hot, 2, attempt=2)])
    assert run is not None
    assert texts(assess_environment(run)) == ["GPU 0 was slowed by heat, down to 2310 MHz during head's launch."]


def _of_head_1(fact: r.Fact) -> bool:
    return isinstance(fact, r.LaunchFact) and fact.side is r.Side.HEAD and fact.pair == 1


def test_a_reboot_within_a_pair() -> None:
    seen = assessed(changed(r.Side.HEAD, lambda box: replace(box, boot="boot2"), pairs=(2,)))
    assert texts(seen) == ["The box was started anew between base's launch and head's."]


# ------------------------------------------------------------------------------------------------ neighbours


def crowded(cores: float, waited: float) -> Change:
    return lambda box: replace(box, system={**SYSTEM, "others_cpu_s": cores * 30, "main_wait_s": waited * 30})


def test_a_busy_neighbour_beside_head() -> None:
    seen = assessed(head(crowded(1.9, 0.35)))
    (disturbance,) = seen.disturbances
    assert disturbance.text.startswith("Others used 1.9 cores during head's samples and 0.1 during base's; the server")
    assert disturbance.shift == pytest.approx(0.43, abs=0.01)
    assert disturbance.alone


def test_a_neighbour_that_took_nothing_from_the_server_is_no_excuse() -> None:
    seen = assessed(head(crowded(20, 0.0005)))
    assert texts(seen) == []
    assert "too little to matter" in explained(seen)[0]


def test_a_neighbour_of_both_sides_is_no_difference() -> None:
    assert texts(assessed(crowded(1.0, 0.3))) == []


def test_a_head_that_crowds_its_own_cores_is_no_victim() -> None:
    """Its threads wait for each other; nobody else took anything."""
    assert texts(assessed(head(crowded(0.1, 0.5)))) == []


def test_an_uncertain_neighbour_only_excuses() -> None:
    """A little waiting in one pair alone: not enough to call the run off by itself."""
    seen = assessed(changed(r.Side.HEAD, crowded(1.5, 0.09), pairs=(2,)))
    (disturbance,) = seen.disturbances
    assert not disturbance.alone
    assert disturbance.shift is not None
    assert disturbance.shift < 0.06


# ------------------------------------------------------------------------------------------------ canary


def slower(factor: float) -> Change:
    def change(box: LaunchBox) -> LaunchBox:
        times = {name: tuple(value * factor for value in values) for name, values in box.before.items()}
        return replace(box, before=times, after=times)

    return change


def test_a_steady_canary_says_so() -> None:
    seen = assessed()
    assert [one.steady for one in seen.canary] == [True] * 3
    assert seen.canary[1].sentence == "the box did not move: all-reduce of 32 KB 26.1 → 26.1 µs"


@pytest.mark.parametrize(("side", "sign"), [(r.Side.HEAD, 1), (r.Side.BASE, -1)])
def test_a_canary_that_moved_is_told_in_both_directions(side: r.Side, sign: int) -> None:
    seen = assessed(changed(side, slower(1.2)))
    assert len(seen.disturbances) == 3
    assert all(one.shift == pytest.approx(sign * 0.182, abs=0.01) for one in seen.disturbances)
    expected = (
        "31.3 µs next to head's launches and 26.1 µs" if sign > 0 else "26.1 µs next to head's launches and 31.3 µs"
    )
    assert f"All-reduce of 32 KB was {expected} next to base's." in texts(seen)
    assert [one.steady for one in seen.canary] == [False] * 3


def clocks(box: LaunchBox, **changed_: float) -> LaunchBox:
    readings = {f"gpu{i}_sm_clock_mhz": (changed_.get(f"gpu{i}", 2325.0),) for i in range(8)}
    links = {f"gpu{i}_pcie_gen": (changed_.get(f"link{i}", 5.0),) for i in range(8)}
    return replace(box, before={**box.before, **readings, **links}, after={**box.after, **readings, **links})


def test_a_clock_nine_percent_off_without_any_flag() -> None:
    seen = assessed(clocks, head(lambda box: clocks(box, gpu4=2120.0)))
    assert texts(seen) == [
        "Under the same load GPU 4's clock was 2120 MHz next to head's launches and 2325 MHz next to base's."
    ]
    assert "the box did not move: the slowest GPU's clock 2325 → 2325 MHz" in [
        one.sentence for one in assessed(clocks).canary
    ]


def test_a_link_that_did_not_wake_up_beside_head() -> None:
    seen = assessed(clocks, head(lambda box: clocks(box, link6=3.0)))
    assert texts(seen) == ["GPU 6's link reached Gen3 next to head's launches, Gen5 next to base's."]


def test_a_silent_canary_is_told_once() -> None:
    seen = assessed(lambda box: replace(box, before={"compute_ms": ()}, after={}))
    assert [one.code for one in seen.notices] == ["canary_silent"]


def test_a_noisy_canary_claims_nothing() -> None:
    draw = random.Random(5)
    seen = assessed(sung(draw, 250, within=0.4, between=0.2))
    assert texts(seen) == []
    assert seen.canary[0].steady is None
    assert "too few readings" in seen.canary[0].sentence


# ------------------------------------------------------------------------------------------------ rules, hostility


def test_a_rule_can_be_turned_to_a_warning_or_off() -> None:
    hot = head(lambda box: box.gpu(5, power_limit_w=450.0))
    warned = assessed(hot, plan={"environment": {"rules": {"power_limit": "warn"}}})
    assert texts(warned) == []
    assert [one.code for one in warned.notices] == ["box_power_limit"]
    assert len(warned.environment.unexplained) == 1
    silent = assessed(hot, plan={"environment": {"rules": {"power_limit": "off"}}})
    assert (texts(silent), silent.notices, silent.environment.unexplained) == ([], (), ())


def test_tolerances_come_from_the_plan() -> None:
    hot = head(lambda box: box.gpu(5, power_limit_w=450.0))
    assert texts(assessed(hot, plan={"environment": {"power_w": 200.0}})) == []


def test_thousands_of_forged_variables_stay_bounded() -> None:
    def forged(box: LaunchBox) -> LaunchBox:
        flood = {f"NCCL_X{n}": "v" * 5000 for n in range(3000)}
        return replace(box, effective={**(box.effective or {}), **flood}, ranks=2)

    seen = assessed(head(forged), pairs=1)
    assert len(seen.environment.explained) <= 40
    assert len(seen.notices) <= 60
    assert max(len(one.text) for one in seen.notices) <= 320


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=40), max_size=4))
def test_any_reading_of_head_s_code_gives_printable_sentences(readings: dict[str, str]) -> None:
    named = {f"NCCL_{name}": value for name, value in readings.items()}
    seen = assessed(
        head(lambda box: replace(box, ranks=1, effective=named)), lambda box: replace(box, ranks=1), pairs=1
    )
    assert texts(seen) == []
    for difference in (*seen.environment.explained, *seen.environment.same):
        assert difference.sentence.replace("\u00a0", " ").isprintable()


def test_a_run_without_any_reading_is_assessed_too() -> None:
    bare = [fact for fact in run_of().facts if not isinstance(fact, r.Proof | r.Telemetry | r.Canary)]
    run = RunFacts.of(bare)
    assert run is not None
    seen = assess_environment(run)
    assert texts(seen) == []
    assert seen.canary == ()


def test_the_probe_s_own_sitecustomize_is_no_suspect() -> None:
    assert PROBE in normal(r.Side.HEAD, 1).sitecustomize[0]
    assert texts(assessed(head(without("NCCL_PROTO")))) == ["Head started without NCCL_PROTO=LL."]


def test_a_tree_core_that_is_not_the_default_is_told_on_one_side_or_on_both() -> None:
    why = {"python_tree_core": "cargo is missing"}
    both = assessed(lambda box: replace(box, log=why)).environment.same
    assert "each side serves with the Python TreeCore (cargo is missing)" in [one.sentence for one in both]
    one = assessed(lambda box: replace(box, log=why) if box.side is r.Side.HEAD else box)
    told = "head serves with the Python TreeCore (cargo is missing), base serves with the default TreeCore"
    assert told in explained(one)
    assert not any("TreeCore" in same.sentence for same in assessed(lambda box: box).environment.same)
