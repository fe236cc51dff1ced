"""Starting, watching and ending real processes of the stand-in."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import requests

from perfgate.engine import server as server_module
from perfgate.engine import tree
from perfgate.engine.faults import (
    CannotStart,
    GpusNotFreed,
    LaunchError,
    PortTaken,
    ServerDied,
    ServerHung,
    ServerNotFreed,
)
from perfgate.engine.server import Server, free_port
from perfgate.engine.watchdog import Watchdog, WatchdogLost, Watched
from perfgate.records import Blame
from tests.integration.engine.conftest import SPECULATIVE, Make

Start = Callable[..., Server]


def gone(server: Server) -> bool:
    return not server.processes() and tree.port_free(server.spec.port)


def names(server: Server) -> set[str]:
    return {Path(f"/proc/{process.pid}/comm").read_text().strip() for process in server.processes()}


@pytest.mark.parametrize("isolation", ["none", "bubblewrap", "bubblewrap, not root", "user"])
def test_a_server_becomes_ready_and_all_of_it_ends(make: Make, serving: Start, isolation: str) -> None:
    server = serving(make(isolation).spec(SPECULATIVE))
    told: list[str] = []
    ready_s = server.wait_ready(told.append)
    assert 0 < ready_s < 60
    assert told[0].startswith("starting")
    assert {"sglang::schedu0", "sglang::detoken"} <= names(server)
    assert len(server.pids) >= 4
    assert server.log.read().spec_worker
    server.stop()
    assert gone(server)
    assert not server.alive()


def test_the_private_process_table_hides_the_box(make: Make, serving: Start) -> None:
    """What the server calls its pid is not what the box calls it; the recorded pids are the box's."""
    server = serving(make("bubblewrap").spec())
    server.wait_ready()
    inside = next(line for line in server.spec.log.read_text().splitlines() if "Started server process" in line)
    assert int(inside.partition("[")[2].partition("process [")[2].rstrip("]")) < 100
    assert all(Path(f"/proc/{pid}").exists() for pid in server.pids)
    server.stop()


@pytest.mark.parametrize("isolation", ["none", "bubblewrap", "bubblewrap, not root", "user"])
def test_a_process_that_left_tree_session_and_environment_is_ended_too(
    make: Make, serving: Start, isolation: str
) -> None:
    server = serving(make(isolation, orphan=True).spec())
    server.wait_ready()
    orphans = [one for one in server.processes() if b"SIG_IGN" in Path(f"/proc/{one.pid}/cmdline").read_bytes()]
    assert len(orphans) == 1
    assert not tree.carries(orphans[0].pid, server.watched.token)
    server.stop()
    assert gone(server)
    assert not orphans[0].alive


def test_a_server_that_ignores_requests_to_end_is_ended_at_once(make: Make, serving: Start) -> None:
    server = serving(make(ignore_sigterm=True, stop_s=3.0).spec())
    server.wait_ready()
    begin = time.monotonic()
    server.stop()
    assert time.monotonic() - begin < server.spec.stop_s
    assert gone(server)


def test_shared_memory_of_the_launch_is_removed_and_nobody_elses(make: Make, serving: Start) -> None:
    others = Path("/dev/shm") / f"not-perfgates-{time.monotonic_ns()}"
    others.write_bytes(b"x")
    try:
        server = serving(make(leaves_memory=True).spec())
        server.wait_ready()
        (ours,) = server.memory
        assert ours.exists()
        server.stop()
        assert not ours.exists()
        assert others.exists()
    finally:
        others.unlink()


@pytest.mark.parametrize("isolation", ["none", "bubblewrap"])
def test_no_process_of_a_launch_has_anything_of_our_environment(
    make: Make, serving: Start, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "ghs_secret")
    server = serving(make(isolation).spec())
    server.wait_ready()
    environments = [Path(f"/proc/{process.pid}/environ").read_bytes() for process in server.processes()]
    assert len(environments) >= 4
    assert not any(b"ghs_secret" in environment for environment in environments)


def test_stopping_twice_is_fine(make: Make, serving: Start) -> None:
    server = serving(make().spec())
    server.wait_ready()
    server.stop()
    server.stop()
    assert gone(server)


@pytest.mark.parametrize(
    ("behaviour", "code", "text"),
    [
        ({"crash": "import"}, "server_died", "ImportError: cannot import name 'scripted_failure'"),
        ({"crash": "load"}, "out_of_memory", "Not enough memory. Please try to increase --mem-fraction-static"),
        ({"crash": "ready"}, "warmup_failed", "Initialization failed. warmup error"),
        ({"refused_flags": ["--port"]}, "bad_flag", "unrecognized arguments: --port"),
        ({"on_start": "import os; os._exit(3)"}, "server_died", "exit code 3"),
        ({"on_start": "import os; os.kill(os.getpid(), 9)"}, "server_killed", "signal 9"),
        ({"on_start": "raise SystemExit(0)"}, "server_died", "by itself with exit code 0"),
    ],
)
@pytest.mark.parametrize("isolation", ["none", "bubblewrap"])
def test_a_server_that_dies_at_start_says_why_in_one_line(
    make: Make, serving: Start, isolation: str, behaviour: dict[str, object], code: str, text: str
) -> None:
    server = serving(make(isolation, **behaviour).spec())
    with pytest.raises(ServerDied) as caught:
        server.wait_ready()
    fault = caught.value
    assert fault.code == code
    assert text in str(fault)
    assert "\n" not in str(fault)
    assert fault.blame is Blame.SIDE
    assert not any("Traceback" in line for line in fault.lines)
    server.stop()
    assert gone(server)


def test_a_missing_model_is_told_as_such(make: Make, serving: Start) -> None:
    spec = make().spec()
    argv = tuple("/nowhere/model" if part == "stand/in" else part for part in spec.argv)
    server = serving(replace(spec, argv=argv))
    with pytest.raises(ServerDied) as caught:
        server.wait_ready()
    assert caught.value.code == "model_missing"
    assert "/nowhere/model" in str(caught.value)


QUIET = """
import sys
class Nothing:
    def write(self, text): pass
    def flush(self): pass
sys.stderr = Nothing()
"""
GLUED = """
from sglang.srt import log
said = log.line
def glued(text):
    if "fired up" in text:
        log.sys.stderr.write("Capturing batches (bs=1): 96%|### | 27/28 [00:06<00:00,  4.40it/s]")
    said(text)
log.line = glued
"""
LOOKS_BAD = """
from sglang.srt import log
log.line("The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=80.1")
log.line("Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=True)")
log.line("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8998): address already in use")
"""


def test_a_server_whose_log_says_nothing_is_ready_when_it_answers(make: Make, serving: Start) -> None:
    """As with `log-level: warning`."""
    server = serving(make(on_start=QUIET).spec())
    server.wait_ready()
    assert not server.log.read().ready


def test_a_record_glued_to_a_progress_bar_is_seen(make: Make, serving: Start) -> None:
    server = serving(make(on_start=GLUED).spec())
    server.wait_ready()
    assert server.log.read().ready


def test_a_server_that_warns_and_lives_is_not_killed(
    make: Make, serving: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "PATIENCE_S", 0.2)
    server = serving(make(on_start=LOOKS_BAD, start_s=2.0).spec())
    server.wait_ready()
    server.stop()


def test_a_server_that_blames_its_port_for_its_death_is_at_fault_where_the_port_is_free(
    make: Make, serving: Start
) -> None:
    dies = "from sglang.srt import log; log.line('ERROR:    [Errno 98] address already in use'); raise SystemExit(1)"
    server = serving(make(on_start=dies).spec())
    with pytest.raises(ServerDied) as caught:
        server.wait_ready()
    assert (caught.value.code, caught.value.blame) == ("port_refused", Blame.SIDE)


def test_a_crash_is_told_and_not_the_address_in_use_before_it(make: Make, serving: Start) -> None:
    dies = "from sglang.srt import log; log.line('[Errno 98] address already in use'); raise KeyError('gate')"
    server = serving(make(on_start=dies).spec())
    with pytest.raises(ServerDied) as caught:
        server.wait_ready()
    assert (caught.value.code, caught.value.blame) == ("server_died", Blame.SIDE)
    assert "KeyError: 'gate'" in str(caught.value)


@pytest.mark.parametrize("where", ["load", "ready"])
def test_a_server_that_says_nothing_more_has_hung(make: Make, serving: Start, where: str) -> None:
    server = serving(make(hang=where, stall_s=1.0).spec())
    with pytest.raises(ServerHung) as caught:
        server.wait_ready()
    assert caught.value.code == "server_hung"
    assert "no progress for 1 s" in str(caught.value)
    server.stop()
    assert gone(server)


def test_output_is_a_sign_of_progress(make: Make, serving: Start) -> None:
    talk = "import time\nfor n in range(10):\n    print('still at it', n, flush=True); time.sleep(0.5)"
    server = serving(make(on_start=talk, stall_s=4.0).spec())
    assert server.wait_ready() > 4.5


def test_endless_talk_does_not_make_a_launch_endless(make: Make, serving: Start) -> None:
    talk = "import time\nwhile True:\n    print('still at it', flush=True); time.sleep(0.05)"
    server = serving(make(on_start=talk).spec(ready_s=2.0))
    with pytest.raises(ServerHung) as caught:
        server.wait_ready()
    assert caught.value.code == "server_slow"


def test_a_flood_of_output_is_stopped(make: Make, serving: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_LOG", 1_000_000)
    server = serving(make(on_start="while True:\n    print('x' * 1000)").spec())
    with pytest.raises(ServerHung) as caught:
        server.wait_ready()
    assert caught.value.code == "log_flood"


def test_a_file_larger_than_any_box_cannot_be_made(make: Make, serving: Start) -> None:
    grow = "import os\ntry:\n    os.ftruncate(1, 16 << 40)\nexcept OSError as error:\n    print('refused', error.errno)"
    server = serving(make(on_start=grow).spec())
    server.wait_ready()
    assert server.spec.log.stat().st_size < 1 << 20
    assert "refused 27" in server.spec.log.read_text()


def test_a_server_that_is_ready_and_does_not_answer(make: Make, serving: Start) -> None:
    server = serving(make(garbage="http500").spec())
    with pytest.raises(LaunchError) as caught:
        server.wait_ready()
    assert caught.value.code == "first_answer_bad"


def test_a_port_in_use_is_refused_before_anything_starts(make: Make) -> None:
    spec = make().spec()
    with socket.socket() as other:
        other.bind(("127.0.0.1", spec.port))
        other.listen()
        with pytest.raises(PortTaken):
            Server.start(spec)
    assert not spec.log.exists()


def test_a_port_taken_while_the_server_loads_is_told_apart_from_a_bad_server(make: Make, serving: Start) -> None:
    spec = make(start_s=0.6).spec()
    server = serving(spec)
    with socket.socket() as other:
        other.bind(("127.0.0.1", spec.port))
        other.listen()
        with pytest.raises(PortTaken) as caught:
            server.wait_ready()
    assert caught.value.blame is Blame.BOX


def test_a_port_that_stays_in_use_is_not_silently_accepted(make: Make, serving: Start) -> None:
    server = serving(make(stop_s=1.5).spec())
    server.wait_ready()
    requests.get(f"{server.url}/health", timeout=5)
    for process in server.processes():
        tree.tell(process, 9)
    tree.wait_until(lambda: gone(server), 5)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", server.spec.port))
        other.listen()
        with pytest.raises(ServerNotFreed) as caught:
            server.stop()
    assert (caught.value.code, caught.value.blame) == ("port_not_freed", Blame.BOX)


def test_gpus_are_waited_for(make: Make, serving: Start) -> None:
    asked: list[float] = []

    def free() -> bool:
        asked.append(time.monotonic())
        return len(asked) >= 3

    server = serving(make().spec(), gpus_free=free)
    server.wait_ready()
    server.stop()
    assert len(asked) == 3


def test_gpus_that_never_become_free_are_the_boxs_fault(make: Make, serving: Start) -> None:
    server = serving(make(stop_s=3.0).spec(), gpus_free=lambda: False)
    server.wait_ready()
    with pytest.raises(GpusNotFreed) as caught:
        server.stop()
    assert caught.value.blame is Blame.BOX


def lose(watchdog: Watchdog) -> None:
    tree.tell(watchdog.process, 9)
    assert tree.wait_until(lambda: not watchdog.process.alive, 30)


def test_a_server_is_ended_although_its_watchdog_is_lost(make: Make, serving: Start, tmp_path: Path) -> None:
    watchdog = Watchdog.start(None, tmp_path / "records")
    server = serving(make().spec(), watchdog=watchdog)
    server.wait_ready()
    lose(watchdog)
    server.stop()
    assert gone(server)
    assert not list((tmp_path / "records").glob("launch-*"))
    with pytest.raises(WatchdogLost):
        Server.start(make().spec(), watchdog=watchdog)
    watchdog.close()


def test_a_watchdog_lost_right_after_the_start_leaves_no_server(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watchdog = Watchdog.start(None, tmp_path / "records")
    told: list[Watched] = []

    def watch(watched: Watched) -> None:
        told.append(watched)
        if watched.root is not None:
            assert watched.root.alive
            lose(watchdog)
        Watchdog.watch(watchdog, watched)

    monkeypatch.setattr(watchdog, "watch", watch)
    with pytest.raises(WatchdogLost):
        Server.start(make(start_s=5.0).spec(), watchdog=watchdog)
    assert told[-1].root is not None
    assert told[-1].find() == []
    watchdog.close()


def test_a_program_that_is_not_there_cannot_start(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "confine", lambda *_, **__: ("/nowhere/python",))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(CannotStart):
        Server.start(make().spec())


def test_free_ports_are_not_given_to_outgoing_connections() -> None:
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 1
    assert not any(int(low) <= port <= int(high) for port in ports)


@pytest.mark.parametrize("isolation", ["none", "bubblewrap"])
def test_where_memory_runs_out_the_server_goes_before_perfgate(
    make: Make, serving: Callable[..., Server], isolation: str
) -> None:
    server = serving(make(isolation).spec())
    server.wait_ready()
    scores = [Path(f"/proc/{one.pid}/oom_score_adj").read_text().strip() for one in server.processes()]
    assert set(scores) == {"500"}
    assert int(Path("/proc/self/oom_score_adj").read_text()) < 500
