"""Finding the processes of a launch, and the records of what runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.engine import tree, watchdog
from perfgate.engine.tree import ProcEntry, Process
from perfgate.engine.watchdog import Watched, sweep, watched_from


def entries(*rows: tuple[int, int]) -> dict[int, ProcEntry]:
    return {pid: ProcEntry(Process(pid, 100 + pid), parent, False) for pid, parent in rows}


def test_descendants_are_found_parents_first() -> None:
    table = entries((1, 0), (5, 1), (6, 5), (7, 6), (8, 1))
    assert [one.pid for one in tree.descendants(Process(5, 105), table)] == [5, 6, 7]


def test_a_pid_that_was_given_out_again_is_somebody_else() -> None:
    assert tree.descendants(Process(5, 99), entries((5, 1), (6, 5))) == []


def test_this_process_is_alive_and_one_with_its_pid_from_another_time_is_not() -> None:
    entry = tree.look(os.getpid())
    assert entry is not None
    assert entry.process.alive
    assert not Process(os.getpid(), entry.process.started + 1).alive


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    entry = tree.look(child.pid)
    assert entry is not None
    assert tree.wait_until(lambda: not entry.process.alive, 10.0)
    child.wait()


def test_a_signal_is_not_sent_to_a_pid_that_was_given_out_again() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    entry = tree.look(child.pid)
    assert entry is not None
    tree.tell(Process(child.pid, entry.process.started - 1), 9)
    assert entry.process.alive
    tree.tell(entry.process, 9)
    assert child.wait() == -9


def test_a_port_in_use_is_not_free() -> None:
    with tree.socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        assert not tree.port_free(listening.getsockname()[1])


PROCESSES = st.builds(Process, st.integers(1, 2**22), st.integers(0, 2**40))


@given(
    st.builds(
        Watched,
        token=st.text("0123456789abcdef", min_size=32, max_size=32),
        name=st.text(),
        port=st.integers(1, 65535),
        stop_s=st.floats(0.1, 1000),
        root=st.none() | PROCESSES,
        recorded=st.lists(PROCESSES, max_size=4).map(tuple),
        memory=st.lists(st.text(), max_size=3).map(tuple),
    )
)
def test_what_is_watched_survives_its_way_through_the_pipe(watched: Watched) -> None:
    assert watched_from(json.loads(json.dumps(asdict(watched)))) == watched


def record(folder: Path, **changes: object) -> Path:
    body = {
        "watched": asdict(Watched(token="t" * 32, name="x/p01/base/a1", port=1, stop_s=1.0, root=Process(1, 1))),
        "owner": {"pid": 2**22 + 1, "started": 1},
        "watchdog": {"pid": 2**22 + 2, "started": 1},
        "world": watchdog._world(),
    } | changes
    path = folder / "launch-tttt.json"
    path.write_text(json.dumps(body))
    return path


def test_a_record_whose_processes_are_gone_is_swept(tmp_path: Path) -> None:
    path = record(tmp_path)
    assert [(one.name, one.processes, one.clean) for one in sweep(tmp_path)] == [("x/p01/base/a1", 0, True)]
    assert not path.exists()


def test_a_launch_of_a_living_perfgate_is_left_alone(tmp_path: Path) -> None:
    entry = tree.look(os.getpid())
    assert entry is not None
    path = record(tmp_path, owner=asdict(entry.process))
    assert sweep(tmp_path) == []
    assert path.exists()


def test_a_record_of_another_boot_is_forgotten_and_nothing_is_signalled(tmp_path: Path) -> None:
    own = tree.look(os.getpid())
    assert own is not None
    watched = asdict(Watched(token="t", name="n", port=1, stop_s=1.0, root=own.process))
    path = record(tmp_path, world="another-boot/pid:[1]", watched=watched)
    assert sweep(tmp_path) == []
    assert not path.exists()


def test_a_record_of_another_container_is_left_alone(tmp_path: Path) -> None:
    boot = watchdog._world().partition("/")[0]
    path = record(tmp_path, world=f"{boot}/pid:[1]")
    assert sweep(tmp_path) == []
    assert path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"watched": {}}', '{"watched": {"token": 1}, "owner": null}'])
def test_a_torn_record_is_forgotten(tmp_path: Path, text: str) -> None:
    path = tmp_path / "launch-x.json"
    path.write_text(text)
    assert sweep(tmp_path) == []
    assert not path.exists()


def test_a_record_that_was_never_finished_is_removed(tmp_path: Path) -> None:
    """kill -9 while it was written; the launch had not begun, or stands in the record of before."""
    (tmp_path / "launch-x.partial").write_text('{"watch')
    (tmp_path / "somebody-elses.partial").write_text("")
    assert sweep(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["somebody-elses.partial"]


def test_who_adopts_the_others_is_killed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed earlier, it would let go of what the others leave behind."""
    root, child, left_behind = Process(10, 1), Process(11, 1), Process(12, 1)
    rounds = iter([[root, child], [root, left_behind], [root], []])
    killed: list[Process] = []
    monkeypatch.setattr(tree, "tell", lambda process, _number: killed.append(process))
    assert tree.end(lambda: next(rounds), last=root, limit_s=5.0) == []
    assert killed == [child, left_behind, root]


def test_what_cannot_be_ended_is_returned_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Process(10, 1)
    monkeypatch.setattr(tree, "tell", lambda *_: None)
    assert tree.end(lambda: [stuck], last=stuck, limit_s=0.2) == [stuck]
