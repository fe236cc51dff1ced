"""The canary: it measures, in ranks of its own, survives whatever goes wrong with it, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from perfgate.host import canary_script
from perfgate.host.canary import CanaryProcess, CanarySetup, clocks_under_load
from perfgate.host.gpu import GpuReading

SETUP = CanarySetup(python=Path(sys.executable), device="cpu", ranks=2, repeats=2)


def test_without_torch_the_computing_kernel_runs_on_the_standard_library() -> None:
    with CanaryProcess(SETUP) as canary:
        first, second = canary.measure(), canary.measure()
    assert first.readings.keys() == {"compute_ms"}
    assert len(first.readings["compute_ms"]) == 2
    assert all(value > 0 for value in (*first.readings["compute_ms"], *second.readings["compute_ms"]))
    assert "no torch" in first.notes[0]


def test_one_process_serves_all_readings_and_is_gone_afterwards() -> None:
    canary = CanaryProcess(SETUP)
    canary.measure()
    (pid,) = canary.pids
    canary.measure()
    assert canary.pids == (pid,)
    children = psutil.Process(pid).children(recursive=True)
    assert children == []
    canary.close()
    assert not psutil.pid_exists(pid)


def program(tmp_path: Path, text: str, limit_s: float = 30.0) -> CanarySetup:
    """A canary that is something else."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{text}")
    python.chmod(0o755)
    return replace(SETUP, python=python, limit_s=limit_s)


@pytest.mark.parametrize(
    ("text", "limit_s", "why"),
    [
        ("import sys; sys.exit(3)", 30.0, "status 3|Broken pipe"),
        ("print('not json', flush=True); input(); input()", 30.0, "gave no answer"),
        ("print('[]', flush=True); input(); input()", 30.0, "gave no answer"),
        ('print(\'{"readings": {"a": ["x"]}, "notes": []}\', flush=True); input(); input()', 30.0, "gave no answer"),
        ("import time; time.sleep(60)", 1.5, "not within 2 s"),
    ],
)
def test_a_canary_that_cannot_sing_is_a_note(tmp_path: Path, text: str, limit_s: float, why: str) -> None:
    with CanaryProcess(program(tmp_path, text, limit_s)) as canary:
        reading = canary.measure()
        assert reading.readings == {}
        assert re.search(why, reading.notes[0])
        assert canary.pids == ()


def test_a_missing_interpreter_is_a_note() -> None:
    with CanaryProcess(replace(SETUP, python=Path("/nowhere/python"))) as canary:
        assert "gave no answer" in canary.measure().notes[0]


def test_it_gets_nccl_s_variables_and_no_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setenv("NCCL_PROTO", "from the shell")
    text = """
import os
input()
given = sorted(name for name in os.environ if name.startswith(("NCCL", "GITHUB")))
print('{"readings": {}, "notes": ["' + " ".join(f"{n}={os.environ[n]}" for n in given) + '"]}', flush=True)
input()
"""
    setup = replace(program(tmp_path, text), environment={"NCCL_P2P_LEVEL": "SYS"})
    with CanaryProcess(setup) as canary:
        assert canary.measure().notes == ("NCCL_P2P_LEVEL=SYS",)


def test_a_rank_that_fails_is_told_and_no_number_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(rank: int, *_: object) -> dict[str, list[float]]:
        if rank == 1:
            raise RuntimeError("CUDA error: out of memory")
        return {"compute_ms": [1.0]}

    monkeypatch.setattr(canary_script, "measure", fails)
    monkeypatch.setattr(canary_script, "torch", object())
    answer = canary_script.answer({"ranks": 2, "device": "cpu", "sizes": [], "repeats": 1})
    assert answer["readings"] == {}
    assert answer["notes"] == ["rank 1: RuntimeError: CUDA error: out of memory"]


def test_a_rank_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary_script, "measure", lambda *_: os._exit(9))
    answer = canary_script.answer({"ranks": 1, "device": "cpu", "sizes": [], "repeats": 1})
    assert answer["notes"][0] == "rank 0: ended without a word"


def test_the_slowest_rank_counts_repeat_by_repeat() -> None:
    assert canary_script.slowest([{"a": [1.0, 5.0]}, {"a": [2.0, 3.0]}]) == {"a": [2.0, 5.0]}


def reading(index: int, clock: int | None, gen: int | None = 5) -> GpuReading:
    return GpuReading(index=index, at=0.0, lost=False, sm_clock_mhz=clock, pcie_gen=gen)


def test_clocks_are_those_under_load() -> None:
    """A heat cap shows after a while; the second card tells nothing of its clock."""
    seen = [
        [reading(0, clock, gen), reading(1, None)]
        for clock, gen in ((2400, 4), (2385, 5), (1900, 5), (1900, 5), (1895, 5))
    ]
    assert clocks_under_load(seen) == {
        "gpu0_sm_clock_mhz": (1900.0,),
        "gpu0_pcie_gen": (5.0,),
        "gpu1_pcie_gen": (5.0,),
    }


LOADED = """
import json, sys, time
for _ in sys.stdin:
    time.sleep(0.3)
    print('{"load": "begins"}', flush=True); open(MARK, "w").close(); time.sleep(0.6)
    import os; os.unlink(MARK); print('{"load": "ends"}', flush=True); time.sleep(0.3)
    print('{"readings": {"compute_ms": [1.5]}, "notes": []}', flush=True)
"""


def test_clocks_are_read_inside_the_load_alone(tmp_path: Path) -> None:
    mark = tmp_path / "load"

    def read(_at: float) -> list[GpuReading]:
        return [reading(0, 1900 if mark.exists() else 180)]

    with CanaryProcess(program(tmp_path, LOADED.replace("MARK", repr(str(mark)))), read) as canary:
        assert canary.measure().readings["gpu0_sm_clock_mhz"] == (1900.0,)


def test_there_is_one_reading_between_two_launches() -> None:
    with CanaryProcess(SETUP) as canary:
        first = canary.before_launch()
        assert canary.before_launch() is first
        after = canary.measure()
        assert after is not first
        assert canary.before_launch() is after


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1.0", "0"])
def test_numbers_that_are_none_are_no_reading(tmp_path: Path, value: str) -> None:
    text = f'print(\'{{"readings": {{"compute_ms": [{value}]}}, "notes": []}}\', flush=True); input(); input()'
    with CanaryProcess(program(tmp_path, text)) as canary:
        assert canary.measure().readings == {}


def test_without_gpus_there_are_no_clocks() -> None:
    assert clocks_under_load([]) == {}
