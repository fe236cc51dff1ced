"""Each scene of the box, through the whole gate: the right verdict, and the sentence that names what was wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perfgate.records import Canary, Doctor, LaunchEnd, Telemetry
from tests.integration.gate.harness import Done, World, acting
from tests.integration.host.scenes import AT_WORK, Scenery, gate_in
from tests.nvml import HEALTHY, HW_THERMAL, LOST, Scene

NewWorld = Callable[..., World]


def reasons(done: Done) -> str:
    return str(done.result["reason"])


def unexplained(done: Done) -> list[str]:
    return [one["sentence"] for one in done.result["environment"]["unexplained"]]


def assert_no_excuse(done: Done) -> None:
    """Measured to a verdict, and the box had no part in it. Which verdict is not asked: this machine is a busy one."""
    assert done.pairs > 0, done.err
    assert done.verdict in ("pass", "inconclusive", "regression")
    assert unexplained(done) == []


def test_a_healthy_box_is_measured_on(new_world: NewWorld, nvml_library: Path) -> None:
    done = gate_in(new_world(), nvml_library, Scenery(rest=HEALTHY), "--max-pairs", "2")
    assert_no_excuse(done)
    assert "8 GPUs, the same on both sides: links at Gen5 x16; limited to 600 W" in [
        one["sentence"] for one in done.result["environment"]["same"]
    ]
    doctor = next(fact for fact in done.facts if isinstance(fact, Doctor))
    assert doctor.fingerprint["driver"] == "590.48.01"
    assert all(len(fact.gpus) == 8 for fact in done.facts if isinstance(fact, Telemetry))
    sung = [fact for fact in done.facts if isinstance(fact, Canary)]
    assert len(sung) == 2 * len(done.launches())
    assert all(fact.readings["gpu7_sm_clock_mhz"] == (2320.0,) for fact in sung)
    secrets = ("GPU-0000", "165012400")
    for name in ("facts.jsonl", "result.json", "comment.md", "index.html"):
        text = (done.folder / name).read_text()
        assert not [secret for secret in secrets if secret in text], name


@pytest.mark.parametrize(
    ("scene", "sentence"),
    [
        (HEALTHY.gpu(3, pcie_width=8), "links: GPU 3's link is x8, it could be x16"),
        (HEALTHY.gpu(0, mig=1), "gpus whole: GPU 0 is cut into slices (MIG)"),
        (HEALTHY.gpu(5, processes="4123456:2048"), "gpus free: GPU 5 is in use by pid 4123456"),
    ],
)
def test_a_sick_box_is_not_measured_on(new_world: NewWorld, nvml_library: Path, scene: Scene, sentence: str) -> None:
    done = gate_in(new_world(), nvml_library, Scenery(rest=scene))
    assert (done.code, done.verdict) == (4, "environment")
    assert sentence in reasons(done)
    assert done.launches() == []


def test_heat_beside_head_repeats_the_launch_once_and_then_ends_the_run(
    new_world: NewWorld, nvml_library: Path
) -> None:
    hot = AT_WORK.gpu(2, reasons=hex(HW_THERMAL), sm_mhz=1500)
    done = gate_in(new_world(head=acting(token_ms=4.8)), nvml_library, Scenery(head=hot))
    assert (done.code, done.verdict) == (4, "environment"), done.err
    assert "GPU 2 was slowed by heat, down to 1500 MHz during head's launch" in reasons(done)
    ends = [fact for fact in done.facts if isinstance(fact, LaunchEnd) and fact.pair > 0]
    tries = [(fact.attempt, fact.valid) for fact in ends if fact.side.value == "head"]
    assert tries == [(1, False), (2, False)]


@pytest.mark.slow
def test_heat_that_has_gone_at_the_second_try_costs_a_launch_and_nothing_else(
    new_world: NewWorld, nvml_library: Path
) -> None:
    hot = AT_WORK.gpu(2, reasons=hex(HW_THERMAL), sm_mhz=1500)
    done = gate_in(new_world(), nvml_library, Scenery(head=hot, again=AT_WORK), "--max-pairs", "1")
    assert_no_excuse(done)
    assert done.pairs == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("beside_head", "sentence"),
    [
        (AT_WORK.gpu(3, pcie_gen=3), "GPU 3's link ran at Gen3 x16 for head and Gen5 x16 for base"),
        (AT_WORK.gpu(3, pcie_width=8), "GPU 3's link ran at Gen5 x8 for head and Gen5 x16 for base"),
        (AT_WORK.all(power_limit_mw=400000), "GPU 0 was limited to 400 W for head and 600 W for base"),
        (AT_WORK.gpu(6, error=LOST), "GPU 6 was lost during head's launch"),
        (AT_WORK.gpu(1, processes="4123456:2048"), "used GPU 1 during head's launch"),
    ],
)
def test_what_befalls_head_s_launches_is_not_blamed_on_head(
    new_world: NewWorld, nvml_library: Path, beside_head: Scene, sentence: str
) -> None:
    """Head is slower, too: without the box's trouble it would be a regression."""
    done = gate_in(new_world(head=acting(token_ms=4.8)), nvml_library, Scenery(head=beside_head))
    assert (done.code, done.verdict) == (4, "environment"), done.err
    assert sentence in f"{reasons(done)} {unexplained(done)}"


NINE_PERCENT = "under the same load GPU 4's clock was 2110 MHz next to head's launches and 2320 MHz next to base's"


@pytest.mark.slow
def test_a_clock_nine_percent_down_without_any_flag_makes_the_run_worthless(
    new_world: NewWorld, nvml_library: Path
) -> None:
    """No throttle reason, no limit changed: only the canary's fixed load shows it."""
    tight = {"metrics": {"tok_s": {"budget": 0.01}}}  # so that one pair does not do
    offset = Scenery(head=AT_WORK.gpu(4, sm_mhz=2110))
    done = gate_in(new_world(config=tight), nvml_library, offset, "--max-pairs", "2")
    assert (done.code, done.verdict) == (4, "environment"), done.err
    assert unexplained(done) == [NINE_PERCENT]


@pytest.mark.slow
def test_a_clock_nine_percent_down_does_not_excuse_half_the_speed(new_world: NewWorld, nvml_library: Path) -> None:
    world = new_world(head=acting(token_ms=6.0))
    done = gate_in(world, nvml_library, Scenery(head=AT_WORK.gpu(4, sm_mhz=2110)))
    assert (done.code, done.verdict) == (1, "regression"), done.err
    assert unexplained(done) == [NINE_PERCENT]
    (told,) = done.warnings("box_moved_little")
    assert "GPU 4's clock" in told["text"]


@pytest.mark.slow
def test_a_regression_on_a_healthy_box_stays_one(new_world: NewWorld, nvml_library: Path) -> None:
    done = gate_in(new_world(head=acting(token_ms=4.8)), nvml_library, Scenery())
    assert (done.code, done.verdict) == (1, "regression"), done.err


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_one_or_two_gpus(new_world: NewWorld, nvml_library: Path, count: int) -> None:
    few = Scene(count=count, every=AT_WORK.every)
    done = gate_in(new_world(), nvml_library, Scenery(few, few, few), "--max-pairs", "1")
    assert_no_excuse(done)


@pytest.mark.slow
def test_cards_that_tell_next_to_nothing(new_world: NewWorld, nvml_library: Path) -> None:
    mute = Scene(every={"name": "NVIDIA Something", "memory_used_mib": 1, "memory_total_mib": 1000})
    done = gate_in(new_world(), nvml_library, Scenery(mute, mute, mute), "--max-pairs", "1")
    assert_no_excuse(done)
