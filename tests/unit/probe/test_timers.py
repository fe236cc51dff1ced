"""Marks of a cycle: nesting, threads, sums, trouble."""

from __future__ import annotations

import ast
import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfgate.probe.inside import HERE
from perfgate.probe.inside.timers import MAX_TROUBLE, WARMUP_CYCLES, HostClock, Timers

MODE = SimpleNamespace(is_idle=lambda: False, is_extend=lambda: False, is_decode=lambda: True)
ARGS = (SimpleNamespace(), SimpleNamespace(forward_mode=MODE, seq_lens=[1, 2], is_extend_in_batch=False))


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def timers(lines: list[str]) -> Timers:
    made = Timers(lambda _worker: HostClock(), lines.append, lines.append)
    for _ in range(WARMUP_CYCLES):
        run(made, "cycle")
    lines.clear()
    return made


def run(timers: Timers, phase: str, *inner: str) -> None:
    span = timers.enter(phase, ARGS, {})
    for name in inner:
        run(timers, name)
    if span is not None:
        timers.leave(span)


def read(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def test_a_phase_that_runs_twice_is_summed_and_a_nested_one_counts_once(timers: Timers, lines: list[str]) -> None:
    cycle = timers.enter("cycle", ARGS, {})
    run(timers, "draft")
    run(timers, "draft")
    run(timers, "verify", "verify", "decode")  # an override that calls its super, and the target's forward
    run(timers, "cycle")
    run(timers, "decode")  # the target's forward outside verify is nobody's phase
    assert cycle is not None
    timers.leave(cycle)
    (line,) = read(lines)
    assert set(line) == {"k", "i", "t", "b", "m", "cycle", "draft", "verify", "target"}
    assert line["b"] == 2
    assert line["cycle"][1] >= line["draft"][1] + line["verify"][1]
    assert line["verify"][1] >= line["target"][1]


def test_without_a_cycle_each_phase_is_a_record_of_its_own(timers: Timers, lines: list[str]) -> None:
    run(timers, "draft")
    run(timers, "verify", "decode")
    assert [set(line) - {"k", "i", "t", "b", "m"} for line in read(lines)] == [{"draft"}, {"verify", "target"}]


def test_another_thread_during_a_cycle_is_not_part_of_it(timers: Timers, lines: list[str]) -> None:
    cycle = timers.enter("cycle", ARGS, {})
    assert cycle is not None
    other = threading.Thread(target=run, args=(timers, "draft"))
    other.start()
    other.join()
    timers.leave(cycle)
    (line,) = read(lines)
    assert "draft" not in line


def test_a_clock_that_fails_ends_the_timers_after_a_few(lines: list[str]) -> None:
    class Broken(HostClock):
        def stamp(self) -> Any:
            raise RuntimeError("no event")

    timers = Timers(lambda _worker: Broken(), lines.append, lines.append)
    for _ in range(MAX_TROUBLE + 2):
        run(timers, "cycle", "draft")
    assert not timers.on
    assert lines[-1].startswith("timers off: RuntimeError: no event")


def test_a_batch_given_by_name_is_found(timers: Timers, lines: list[str]) -> None:
    span = timers.enter("cycle", (ARGS[0],), {"model_worker_batch": ARGS[1]})
    assert span is not None
    timers.leave(span)
    assert read(lines)[0]["b"] == 2


FILES = sorted(HERE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_probe_needs_nothing_but_python_3_10(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 10))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {name.name.split(".")[0] for name in node.names} <= sys.stdlib_module_names
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            assert str(node.module).split(".")[0] in sys.stdlib_module_names
