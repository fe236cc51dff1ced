"""Whole launches on the stand-in: their facts, and every way they fail."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.engine import launch as launch_module
from perfgate.engine import tree
from perfgate.engine.client import LoadClient
from perfgate.engine.faults import ClientError, GpusNotFreed, LaunchError, ServerNotFreed
from perfgate.engine.launch import LaunchHooks, LaunchPlan, run_launch
from perfgate.engine.server import Server
from perfgate.engine.tree import Process
from perfgate.engine.watchdog import Watchdog, WatchdogLost, watched_from
from perfgate.errors import PerfgateError
from perfgate.records import Blame, Fact, LaunchBegin, LaunchEnd, Sample
from perfgate.records.files import FactsWriter, read_facts
from tests.integration.engine.conftest import WORKLOAD, Make


def nothing_left(facts: list[Fact], end: LaunchEnd | None = None) -> bool:
    ports = [fact.port for fact in facts if isinstance(fact, LaunchBegin)]
    living = [pid for pid in (end.pids if end else ()) if (entry := tree.look(pid)) and not entry.zombie]
    return all(map(tree.port_free, ports)) and not living


@pytest.mark.parametrize("isolation", ["none", "bubblewrap"])
def test_a_launch_leaves_its_facts_and_nothing_else(make: Make, tmp_path: Path, isolation: str) -> None:
    workload = WORKLOAD.model_copy(update={"concurrency": [1, 2]})
    plan = make(isolation).plan(workload, speculative=True)
    told: list[str] = []
    with FactsWriter(tmp_path / "run") as writer:
        end = run_launch(plan, writer.append, progress=told.append)
    facts = read_facts(tmp_path / "run")
    assert [fact.kind for fact in facts] == ["launch_begin", *["sample"] * 4, "launch_end"]
    samples = [fact for fact in facts if isinstance(fact, Sample)]
    assert [(one.sample, one.concurrency) for one in samples] == [(0, 1), (1, 1), (2, 2), (3, 2)]
    assert all(one.id == f"{plan.launch.launch_id}/s{one.sample}" for one in samples)
    assert end.valid
    assert end.reasons == ()
    assert end.ready_s is not None
    assert end.ready_s < end.wall_s
    assert end.facts_from_log["max_total_num_tokens"] == 8192
    assert len(end.pids) >= 4
    assert nothing_left(facts, end)
    assert told[-1] == "ending the server"
    begin = facts[0]
    assert isinstance(begin, LaunchBegin)
    assert begin.argv[-2:] == ("--port", str(begin.port))
    assert "PERFGATE_LAUNCH" not in begin.given


def test_hooks_are_called_around_every_sample_in_order(make: Make) -> None:
    calls: list[str] = []
    hooks = LaunchHooks(
        ready=lambda server: calls.append(f"ready {server.alive()}"),
        before_sample=lambda _server, concurrency, number: calls.append(f"before {concurrency} {number}"),
        after_sample=lambda _server, sample: calls.append(f"after {sample.sample}"),
        before_stop=lambda server: calls.append(f"stop {server.alive()}"),
        after_stop=lambda samples: calls.append(f"stopped {len(samples)}"),
    )
    run_launch(make().plan(), lambda fact: calls.append(fact.kind), hooks=hooks)
    assert calls == [
        *("launch_begin", "ready True"),
        *("before 1 0", "sample", "after 0"),
        *("before 1 1", "sample", "after 1"),
        *("stop True", "stopped 2", "launch_end"),
    ]


@pytest.mark.parametrize(
    ("behaviour", "code", "reason"),
    [
        ({"fail_after_requests": 6}, "scheduler_exception", "ValueError: scripted: the scheduler dies here"),
        ({"fail_after_requests": 6, "fail": "killed"}, "scheduler_died", "scheduler is dead"),
        ({"fail_after_requests": 6, "fail": "out_of_memory"}, "out_of_memory", "CUDA out of memory"),
        ({"fail_after_requests": 6, "fail": "hang"}, "answer_hung", "stopped answering"),
        ({"garbage": "truncated"}, "answer_cut", "ended in the middle"),
        ({"garbage": "short"}, "answer_length", "where exactly 16 were asked for"),
        ({"crash": "load"}, "out_of_memory", "--mem-fraction-static"),
    ],
)
def test_a_failing_launch_ends_as_not_valid_with_its_reason(
    make: Make, behaviour: dict[str, object], code: str, reason: str
) -> None:
    workload = WORKLOAD.model_copy(update={"request_timeout_s": 2.0})
    facts: list[Fact] = []
    end = run_launch(make(**behaviour).plan(workload), facts.append)
    assert facts[-1] is end
    assert not end.valid
    assert end.code == code
    assert reason in end.reasons[0]
    assert "\n" not in end.reasons[0]
    assert end.blame is Blame.SIDE
    assert nothing_left(facts, end)


def test_a_port_taken_meanwhile_is_tried_again_on_another(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make().plan()
    facts: list[Fact] = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        ports = iter([taken, launch_module.free_port()])
        monkeypatch.setattr(launch_module, "free_port", lambda: next(ports))
        end = run_launch(plan, facts.append)
    assert end.valid
    begun = [fact.port for fact in facts if isinstance(fact, LaunchBegin)]
    assert begun[0] == taken != begun[1]


def test_a_port_taken_every_time_is_the_boxs_fault(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(launch_module, "free_port", lambda: other.getsockname()[1])
        end = run_launch(make().plan(), lambda _fact: None)
    assert (end.valid, end.code, end.blame) == (False, "port_taken", Blame.BOX)


def test_what_a_hook_finds_wrong_makes_the_launch_not_valid(make: Make) -> None:
    def throttled(_server: Server, _sample: Sample) -> None:
        raise LaunchError("throttled", "GPU 3 was thermally throttled", blame=Blame.BOX)

    facts: list[Fact] = []
    end = run_launch(make().plan(), facts.append, hooks=LaunchHooks(after_sample=throttled))
    assert (end.valid, end.code, end.blame) == (False, "throttled", Blame.BOX)
    assert nothing_left(facts, end)


def test_gpus_that_are_not_freed_make_the_launch_not_valid_and_end_the_measuring(make: Make) -> None:
    facts: list[Fact] = []
    with pytest.raises(GpusNotFreed):
        run_launch(make(stop_s=3.0).plan(), facts.append, gpus_free=lambda: False)
    end = facts[-1]
    assert isinstance(end, LaunchEnd)
    assert (end.valid, end.code, end.blame) == (False, "gpus_not_freed", Blame.BOX)


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """A process that no signal ends, like one that waits for the driver."""
    with subprocess.Popen(["sleep", "60"]) as popen:
        entry = tree.look(popen.pid)
        assert entry is not None
        tell = tree.tell
        monkeypatch.setattr(
            tree, "tell", lambda process, number: None if process == entry.process else tell(process, number)
        )
        yield entry.process
        popen.kill()


@pytest.mark.parametrize("behaviour", [{}, {"fail_after_requests": 6, "fail": "hang"}])
def test_what_cannot_be_ended_is_the_boxs_fault_and_ends_the_measuring_whatever_went_wrong_before(
    make: Make, unkillable: Process, behaviour: dict[str, object]
) -> None:
    def joined(server: Server) -> None:
        server.watched = replace(server.watched, recorded=(*server.watched.recorded, unkillable))

    workload = WORKLOAD.model_copy(update={"request_timeout_s": 2.0})
    facts: list[Fact] = []
    with pytest.raises(ServerNotFreed) as caught:
        run_launch(make(stop_s=1.0, **behaviour).plan(workload), facts.append, hooks=LaunchHooks(ready=joined))
    end = facts[-1]
    assert isinstance(end, LaunchEnd)
    assert (end.valid, end.code, end.blame) == (False, "not_ended", Blame.BOX)
    assert end.reasons[0] == caught.value.text == f"processes of the server cannot be ended: {unkillable.pid}"
    assert any("stopped answering" in reason for reason in end.reasons) is bool(behaviour)


def test_a_full_disk_ends_the_launch_and_is_passed_on(make: Make) -> None:
    facts: list[Fact] = []

    def full(fact: Fact) -> None:
        if isinstance(fact, Sample):
            raise PerfgateError("facts cannot be written: No space left on device")
        facts.append(fact)

    with pytest.raises(PerfgateError, match="No space left"):
        run_launch(make().plan(), full)
    assert [fact.kind for fact in facts] == ["launch_begin"]
    assert nothing_left(facts)


@pytest.mark.parametrize("isolation", ["none", "bubblewrap"])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_passed_on_at_once_and_the_watchdog_cleans_up(
    make: Make, tmp_path: Path, isolation: str, interrupt: type[BaseException]
) -> None:
    facts: list[Fact] = []
    servers: list[Server] = []

    def interrupted(server: Server, *_: object) -> None:
        servers.append(server)
        raise interrupt

    watchdog = Watchdog.start(None, tmp_path / "records")
    with pytest.raises(interrupt):
        run_launch(
            make(isolation, ignore_sigterm=True).plan(),
            facts.append,
            hooks=LaunchHooks(before_sample=interrupted),
            watchdog=watchdog,
        )
    assert [fact.kind for fact in facts] == ["launch_begin"]
    assert watchdog.close()
    assert not servers[0].processes()
    assert nothing_left(facts)
    assert not list((tmp_path / "records").glob("launch-*"))
    servers[0].popen.wait()


def test_a_watchdog_lost_while_the_server_loads_ends_the_launch_and_the_server(make: Make, tmp_path: Path) -> None:
    watchdog = Watchdog.start(None, tmp_path / "records")
    facts: list[Fact] = []
    with pytest.raises(WatchdogLost):
        run_launch(
            make().plan(), facts.append, progress=lambda _text: tree.tell(watchdog.process, 9), watchdog=watchdog
        )
    watched = [json.loads(path.read_text())["watched"] for path in (tmp_path / "records").glob("launch-*.json")]
    assert [one for one in watched if watched_from(one).find()] == []
    assert nothing_left(facts)
    watchdog.close()


Run = Callable[[LaunchPlan], LaunchEnd]


def test_a_second_launch_of_the_same_home_has_its_own_noise(make: Make) -> None:
    """What the gate's tests build on: noise differs from launch to launch."""
    bench = make(noise_sd=1.0, token_ms=4.0)
    speeds = []
    for _ in range(2):
        facts: list[Fact] = []
        run_launch(bench.plan(), facts.append)
        speeds.append(next(fact.tok_s for fact in facts if isinstance(fact, Sample)))
    assert speeds[0] is not None
    assert speeds[1] is not None
    assert abs(speeds[0] / speeds[1] - 1) > 0.05


def test_what_this_machine_denies_the_client_is_not_the_sides_fault(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(_client: LoadClient) -> None:
        raise ClientError("client_starved", "this machine allows perfgate no connection", blame=Blame.BOX)

    monkeypatch.setattr(LoadClient, "warm_up", deny)
    end = run_launch(make().plan(WORKLOAD), lambda _fact: None)
    assert (end.valid, end.code, end.blame) == (False, "client_starved", Blame.BOX)
