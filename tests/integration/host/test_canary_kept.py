"""Whatever becomes of perfgate while the canary sings: its ranks end, and the GPUs are waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from perfgate.engine import tree
from perfgate.engine.tree import Process
from perfgate.engine.watchdog import NotEnded, Watchdog
from perfgate.host.canary import CanaryProcess, CanarySetup
from perfgate.host.lock import current_holder

LIMIT_S = 30.0
HANGING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
input()
if os.fork() == 0:
    os.setsid()  # as a rank that no signal to the canary's group reaches
with open("{pids}", "a") as file:
    file.write(f"{{os.getpid()}}\\n")
time.sleep(600)
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A canary with a rank that hangs; both write their pids down."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{HANGING.format(pids=tmp_path / 'pids')}")
    program.chmod(0o755)
    return program


def sung(tmp_path: Path) -> list[Process]:
    """The canary and its rank, once both are there."""

    def pids() -> list[int]:
        return [int(line) for line in (tmp_path / "pids").read_text().split()] if (tmp_path / "pids").exists() else []

    assert tree.wait_until(lambda: len(pids()) == 2, LIMIT_S)
    entries = [tree.look(pid) for pid in pids()]
    return [entry.process for entry in entries if entry is not None]


@pytest.fixture
def watchdog(tmp_path: Path) -> Iterator[Watchdog]:
    with Watchdog.start(None, tmp_path / "records") as started:
        yield started


def test_killed_during_a_reading_the_ranks_end_and_the_lock_is_held_until_the_gpus_are_free(
    tmp_path: Path, python: Path
) -> None:
    lock, records, asked = tmp_path / "lock", tmp_path / "records", tmp_path / "asked"
    gpus_free = f"echo asked >> {asked}; [ $(wc -l < {asked}) -ge 2 ]"
    command = [sys.executable, str(Path(__file__).with_name("killed_reading.py"))]
    with subprocess.Popen(
        [*command, str(lock), str(records), str(python), gpus_free],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as perfgate:
        ranks = sung(tmp_path)
        (record,) = records.glob("launch-*.json")
        assert json.loads(record.read_text())["watched"]["name"] == "canary"
        assert current_holder(lock) is not None
        perfgate.kill()
    try:
        assert tree.wait_until(lambda: current_holder(lock) is None, LIMIT_S)
        assert [rank for rank in ranks if rank.alive] == []
    finally:
        for rank in ranks:
            tree.tell(rank, signal.SIGKILL)
    assert asked.read_text().split() == ["asked", "asked"]
    assert list(records.glob("launch-*")) == []


def test_a_reading_that_takes_too_long_is_ended_with_all_its_ranks(
    tmp_path: Path, python: Path, watchdog: Watchdog
) -> None:
    setup = CanarySetup(python=python, device="cpu", ranks=2, limit_s=2.0)
    with CanaryProcess(setup, keep=partial(watchdog.keeping, "canary")) as canary:
        assert "not within 2 s" in canary.measure().notes[0]
        ranks = sung(tmp_path)
        assert [rank for rank in ranks if rank.alive] == []
        assert list((tmp_path / "records").glob("launch-*")) == []


def test_a_rank_that_cannot_be_ended_ends_the_run(
    tmp_path: Path, python: Path, watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "tell", lambda process, number: None)
    setup = CanarySetup(python=python, device="cpu", ranks=2, limit_s=2.0)
    canary = CanaryProcess(setup, keep=partial(watchdog.keeping, "canary", stop_s=0.5))
    with pytest.raises(NotEnded, match="processes of the canary cannot be ended"):
        canary.measure()
    left = [rank for rank in sung(tmp_path) if rank.alive]
    assert len(left) == 1
    assert watchdog.close()  # it is with the watchdog, whose signals reach it
    assert not left[0].alive


def test_an_interrupt_is_not_held_up_and_leaves_it_to_the_watchdog(watchdog: Watchdog) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def interrupted() -> None:
        with watchdog.keeping("canary") as marks:
            started.append(subprocess.Popen(["sleep", "60"], env={**os.environ, **marks}))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    (sleeping,) = started
    assert sleeping.poll() is None
    assert watchdog.close()
    assert sleeping.wait(LIMIT_S) == -signal.SIGKILL


def test_what_is_kept_is_ended_at_the_end_of_the_block(watchdog: Watchdog) -> None:
    with watchdog.keeping("canary") as marks:
        sleeping = subprocess.Popen(["sleep", "60"], env={**os.environ, **marks})
    assert sleeping.wait(LIMIT_S) == -signal.SIGKILL
