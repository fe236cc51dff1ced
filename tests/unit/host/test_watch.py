"""The box watched during a launch: telemetry facts, strangers on GPUs, and what makes a launch unfit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest

from perfgate.host.watch import BoxWatch, unfit_gpus
from perfgate.records import LaunchFact, Side, Telemetry
from perfgate.records.files import fact_from_line, fact_to_line
from tests.nvml import HEALTHY, HW_THERMAL, LOST, Scene, environment
from tests.unit.host.nccl_logs import rank_lines

Play = Callable[[Scene], None]
LAUNCH = LaunchFact(id="eagle3/p01/head/a1", recipe="eagle3", pair=1, side=Side.HEAD, position=2, attempt=1)


@pytest.fixture
def stranger() -> Iterator[int]:
    """A process that is not perfgate's: its parent is init."""
    program = """
import subprocess, sys
sleeper = [sys.executable, '-c', 'import time; time.sleep(60)']
print(subprocess.Popen(sleeper, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True).pid)
"""
    pid = int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    yield pid
    os.kill(pid, 9)


@pytest.fixture
def server() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


def one_sample(box: BoxWatch, server: int, facts: list[Telemetry], during: Callable[[], None]) -> tuple[str, ...]:
    watch = box.launch(LAUNCH, facts.append)
    watch.ready([server])
    watch.before_sample([server])
    begin = time.monotonic()
    during()
    box.telemetry.read_now() if box.telemetry else None
    watch.after_sample(0, begin, time.monotonic(), [server])
    unfit = watch.unfit()
    watch.after_stop(Path("/nowhere"), ranks=8, flags={"disable-custom-all-reduce": True})
    return unfit


def test_a_quiet_launch_leaves_telemetry_and_no_complaint(play: Play, server: int) -> None:
    facts: list[Telemetry] = []
    play(HEALTHY.loaded().all(memory_used_mib=0))
    with BoxWatch.open(period_s=60) as box:
        assert box.gpus_free()
        assert one_sample(box, server, facts, lambda: None) == ()
    sample, launch = facts
    assert (sample.sample, sample.id) == (0, "eagle3/p01/head/a1/telemetry/s0")
    assert (launch.sample, launch.id) == (None, "eagle3/p01/head/a1/telemetry/launch")
    assert [gpu["pcie"] for gpu in launch.gpus] == ["Gen5 x16"] * 8
    assert sample.system["server_cpu_s"] is not None
    assert launch.system["all_reduce"]["route"] == "nccl"
    assert all(fact_from_line(fact_to_line(fact), "here") == fact for fact in facts)


@pytest.mark.parametrize(
    ("scene", "sentence"),
    [
        (HEALTHY.loaded().gpu(4, error=LOST), "GPU 4 was lost"),
        (HEALTHY.loaded().gpu(2, reasons=hex(HW_THERMAL), sm_mhz=1500), "GPU 2 was slowed by heat, down to 1500 MHz"),
        (HEALTHY.loaded().gpu(2, thermal_ns=900_000_000), "GPU 2 was slowed by heat for 900 ms"),
    ],
)
def test_what_happens_during_a_sample_makes_a_launch_unfit(
    play: Play, server: int, scene: Scene, sentence: str
) -> None:
    play(HEALTHY.loaded())
    with BoxWatch.open(period_s=60) as box:
        assert one_sample(box, server, [], lambda: play(scene)) == (sentence,)


def test_a_power_cap_does_not(play: Play, server: int) -> None:
    play(HEALTHY.loaded())
    with BoxWatch.open(period_s=60) as box:
        assert one_sample(box, server, [], lambda: play(HEALTHY.loaded().all(reasons="0x4"))) == ()


def test_a_stranger_on_a_gpu_is_told_and_ours_is_not(play: Play, server: int, stranger: int) -> None:
    facts: list[Telemetry] = []
    ours = HEALTHY.loaded().all(processes=f"{server}:80000")
    play(HEALTHY)
    with BoxWatch.open(period_s=60) as box:
        (sentence,) = one_sample(box, server, facts, lambda: play(ours.gpu(1, processes=f"{server}:1,{stranger}:9")))
    assert sentence.startswith(f"another process (pid {stranger}, command ")
    assert sentence.endswith("used GPU 1")
    assert facts[-1].system["gpu_guests"][0]["pid"] == stranger


def test_pids_of_another_numbering_are_taken_as_ours_if_there_from_the_start(play: Play, server: int) -> None:
    """In a container the driver may count pids otherwise: the server's own processes cannot be seen by them."""
    ours = HEALTHY.loaded().all(processes="4100001:80000")
    facts: list[Telemetry] = []
    play(HEALTHY)
    with BoxWatch.open(period_s=60) as box:
        watch = box.launch(LAUNCH, facts.append)
        play(ours)
        watch.ready([server])
        watch.after_sample(0, 0.0, time.monotonic(), [server])
        assert watch.unfit() == ()
        play(ours.gpu(3, processes="4100001:80000,4100002:7"))
        watch.after_sample(1, 0.0, time.monotonic(), [server])
        (sentence,) = watch.unfit()
    assert sentence == "another process (pid 4100002, not visible from here) used GPU 3"


def test_who_was_there_before_the_server_is_no_server(play: Play, server: int) -> None:
    play(HEALTHY.loaded().gpu(6, processes="4100001:80000"))
    with BoxWatch.open(period_s=60) as box:
        (sentence,) = one_sample(box, server, [], lambda: None)
    assert sentence == "another process (pid 4100001, not visible from here) used GPU 6"


def test_gpus_in_use_are_not_free(play: Play) -> None:
    play(HEALTHY.gpu(5, memory_used_mib=40000))
    with BoxWatch.open(period_s=60) as box:
        (sentence,) = box.why_not_free()
        assert not box.gpus_free()
    assert sentence.startswith("GPU 5 has 39.1 GiB in use")


def test_without_nvml_the_system_is_watched_alone(play: Play, server: int) -> None:
    facts: list[Telemetry] = []
    with BoxWatch.open() as box:
        assert box.absent == "the NVIDIA driver is not loaded"
        assert box.gpus_free()
        assert box.read_gpus() is None
        assert one_sample(box, server, facts, lambda: None) == ()
    assert [fact.gpus for fact in facts] == [(), ()]
    assert facts[0].system["wall_s"] > 0


def test_what_nccl_said_is_with_the_launch(play: Play, server: int, tmp_path: Path) -> None:
    logs = [tmp_path / f"nccl.{rank}" for rank in range(8)]
    for rank, log in enumerate(logs):
        log.write_text("\n".join(rank_lines(rank)) + "\n")
    facts: list[Telemetry] = []
    with BoxWatch.open() as box:
        box.launch(LAUNCH, facts.append).after_stop(tmp_path / "log", logs, ranks=8)
    report = facts[0].system["nccl"]
    assert [rank["rank"] for rank in report["ranks"]] == list(range(8))
    assert fact_from_line(fact_to_line(facts[0]), "here") is not None


def test_absent_telemetry_says_nothing_against_a_launch() -> None:
    assert unfit_gpus(()) == ()
    assert unfit_gpus([{"index": 0, "lost": False, "throttle": None, "thermal_ms": None}]) == ()
    assert unfit_gpus([{"index": 0, "lost": False, "throttle": [], "thermal_ms": 3.0}]) == ()


@pytest.mark.parametrize(("used", "status"), [(0, 0), (40000, 1)])
def test_the_watchdog_s_question(nvml_library: Path, tmp_path: Path, used: int, status: int) -> None:
    scene = HEALTHY.gpu(5, memory_used_mib=used).write(tmp_path / "scene")
    command = [sys.executable, "-m", "perfgate.host.gpus_free"]
    done = subprocess.run(
        command, env={**os.environ, **environment(nvml_library, scene)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    assert ("GPU 5" in done.stdout) == bool(status)


def test_the_watchdog_s_question_without_gpus() -> None:
    command = [sys.executable, "-m", "perfgate.host.gpus_free"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_facts_carry_the_launch_they_are_of(play: Play, server: int) -> None:
    facts: list[Telemetry] = []
    with BoxWatch.open() as box:
        one_sample(box, server, facts, lambda: None)
    for fact in facts:
        assert replace(LAUNCH, id=fact.id) == LaunchFact(**{f.name: getattr(fact, f.name) for f in fields(LaunchFact)})
