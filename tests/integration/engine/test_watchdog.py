"""perfgate is killed, and what it started goes all the same."""

from __future__ import annotations

import fcntl
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfgate.engine import tree
from perfgate.engine.server import LaunchSpec
from perfgate.engine.tree import Process
from perfgate.engine.watchdog import Watchdog, WatchdogLost, Watched, sweep
from tests.integration.engine.conftest import Make

GATE = Path(__file__).parent / "killed_gate.py"
LIMIT_S = 30.0


class Gate:
    """A perfgate in a process group of its own, its watchdog, and its server's processes."""

    def __init__(self, place: Path, spec: LaunchSpec, *, ready: bool = True) -> None:
        self.lock, self.records, self.port = place / "lock", place / "records", spec.port
        (place / "spec").write_bytes(pickle.dumps(spec))
        extra = [] if ready else ["at once"]
        self.popen = subprocess.Popen(
            [sys.executable, str(GATE), str(self.lock), str(self.records), str(place / "spec"), *extra],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "RUNNER_TRACKING_ID": "runner"},
        )
        assert self.popen.stdout is not None
        pids = [int(word) for word in self.popen.stdout.readline().split()]
        found = [entry.process for pid in pids if (entry := tree.look(pid)) is not None]
        self.watchdog, self.processes = found[0], found[1:]

    def lock_is_free(self) -> bool:
        with self.lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    def left(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    def clean_within(self, limit_s: float = LIMIT_S) -> bool:
        return tree.wait_until(lambda: not self.left() and not self.watchdog.alive, limit_s)

    def end(self) -> None:
        for process in (*self.left(), self.watchdog):
            tree.tell(process, signal.SIGKILL)
        self.popen.kill()
        self.popen.wait()
        assert self.popen.stdout is not None
        self.popen.stdout.close()


Start = Callable[..., Gate]


@pytest.fixture
def gate(make: Make, tmp_path: Path) -> Iterator[Start]:
    gates: list[Gate] = []

    def start(isolation: str = "none", *, ready: bool = True, **behaviour: object) -> Gate:
        gates.append(Gate(tmp_path, make(isolation, **behaviour).spec(), ready=ready))
        return gates[-1]

    yield start
    for one in gates:
        one.end()


@pytest.mark.parametrize("isolation", ["none", "bubblewrap"])
@pytest.mark.parametrize("behaviour", [{}, {"orphan": True}, {"ignore_sigterm": True}, {"leaves_memory": True}])
def test_kill_9_of_perfgates_whole_group_leaves_nothing(
    gate: Start, isolation: str, behaviour: dict[str, object]
) -> None:
    memory = set(Path("/dev/shm").glob("standin_*"))
    running = gate(isolation, **behaviour)
    assert len(running.left()) >= 4
    os.killpg(running.popen.pid, signal.SIGKILL)
    assert running.clean_within()
    assert tree.port_free(running.port)
    assert running.lock_is_free()
    assert not list(running.records.glob("launch-*"))
    assert set(Path("/dev/shm").glob("standin_*")) == memory


def test_killed_in_the_middle_of_a_start_nothing_is_left(gate: Start) -> None:
    running = gate(ready=False, start_s=2.0)
    os.killpg(running.popen.pid, signal.SIGKILL)
    assert running.clean_within()
    time.sleep(0.3)
    port = str(running.port).encode()
    assert not [pid for pid in tree.all_processes() if b"sglang.launch_server" in command(pid) and port in command(pid)]


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_the_lock_is_held_until_the_last_process_is_gone(gate: Start) -> None:
    running = gate(orphan=True)
    seen: list[tuple[bool, bool]] = []
    os.killpg(running.popen.pid, signal.SIGKILL)
    while running.watchdog.alive:
        free, left = running.lock_is_free(), bool(running.left())
        seen.append((free, left))
    assert not any(free and left for free, left in seen)
    assert running.lock_is_free()


def test_the_watchdog_does_not_end_with_the_terminal_or_the_runner(gate: Start) -> None:
    running = gate()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(running.watchdog.pid, number)
    os.killpg(running.popen.pid, signal.SIGINT)
    assert running.clean_within()
    assert running.lock_is_free()


def test_the_watchdog_is_outside_perfgates_tree_and_carries_no_mark_of_the_runner(gate: Start) -> None:
    running = gate()
    entry = tree.look(running.watchdog.pid)
    assert entry is not None
    assert entry.parent != running.popen.pid
    assert os.getsid(running.watchdog.pid) != running.popen.pid
    assert b"RUNNER_TRACKING_ID" not in Path(f"/proc/{running.watchdog.pid}/environ").read_bytes()


def test_the_next_gate_sweeps_what_is_left_when_the_watchdog_was_killed_too(gate: Start) -> None:
    running = gate()
    tree.tell(running.watchdog, signal.SIGKILL)
    os.killpg(running.popen.pid, signal.SIGKILL)
    running.popen.wait()
    assert tree.wait_until(lambda: not running.watchdog.alive, LIMIT_S)
    assert running.left()
    (swept,) = sweep(running.records)
    assert swept.clean
    assert swept.processes >= 4
    assert not running.left()
    assert tree.port_free(running.port)
    assert sweep(running.records) == []


def test_a_living_gate_is_not_swept(gate: Start) -> None:
    running = gate()
    assert sweep(running.records) == []
    assert len(running.left()) == len(running.processes)


def test_a_lost_watchdog_is_noticed(tmp_path: Path) -> None:
    watchdog = Watchdog.start(None, tmp_path)
    tree.tell(watchdog.process, signal.SIGKILL)
    assert tree.wait_until(lambda: not watchdog.process.alive, LIMIT_S)
    with pytest.raises(WatchdogLost):
        watchdog.watch(Watched(token="t", name="n", port=1, stop_s=1.0))
    watchdog.close()


def test_it_waits_for_the_gpus_by_the_command_given(tmp_path: Path) -> None:
    mark = tmp_path / "asked"
    script = f"echo >> {mark}; [ $(wc -l < {mark}) -ge 2 ]"
    watchdog = Watchdog.start(None, tmp_path, gpus_free=["/bin/sh", "-c", script])
    watchdog.watch(Watched(token="no-process-has-this", name="n", port=1, stop_s=1.0))
    assert watchdog.close()
    assert mark.read_text().count("\n") == 2


def test_without_anything_to_end_it_leaves_at_once(tmp_path: Path) -> None:
    with Watchdog.start(None, tmp_path) as watchdog:
        assert watchdog.process.alive
    assert tree.wait_until(lambda: not watchdog.process.alive, LIMIT_S)
