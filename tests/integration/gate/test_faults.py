"""What goes wrong with a build or a server: whose fault it is, and what a person is told of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from perfgate.records import Blame, Build, Fault, LaunchEnd

from .harness import PLAIN, Case, Done, World, acting, on, one_gate

pytestmark = pytest.mark.timeout(1200)  # waiting for its turn counts, too

ONE_PAIR = (*PLAIN, "--max-pairs", "1")


def faults(done: Done) -> list[Fault]:
    return [fact for fact in done.facts if isinstance(fact, Fault)]


def failed_ends(done: Done, side: str) -> Sequence[LaunchEnd]:
    ends = (fact for fact in done.facts if isinstance(fact, LaunchEnd) and not fact.valid)
    return [end for end in ends if end.side.value == side]


def check_side_fails(done: Done, side: str, code: str) -> list[LaunchEnd]:
    """bench_failed of this side, tried twice where the other side served."""
    assert (done.code, done.verdict) == (4, "bench_failed")
    assert done.result["failed_side"] == side
    assert [fault.code for fault in faults(done)] == ["side_fails"]
    failed = [end for end in failed_ends(done, side) if end.pair > 0]
    assert [end.attempt for end in failed] == [1, 2]
    assert {end.code for end in failed} == {code}
    assert failed[0].reasons[0] in done.result["reason"]
    assert failed[0].reasons[0].split(":")[0] in done.out
    return failed


def check_measured(done: Done) -> None:
    """Its one pair is there; whether that is enough to pass is up to the noise."""
    assert (done.pairs, faults(done)) == (1, [])
    assert done.verdict in ("pass", "regression", "inconclusive")


LEFT_BEHIND = """
import os
home = os.environ["HOME"]
if not os.path.exists(f"{home}/locked"):
    os.mkdir(f"{home}/locked", 0)
if os.path.isdir(f"{home}/nccl"):
    os.rmdir(f"{home}/nccl")
    os.mkfifo(f"{home}/nccl")
"""
AS_AN_ORDINARY_USER = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--") if os.geteuid() == 0 else ()
"""For whom a locked folder is locked. What bubblewrap makes for root is not root's, so the box goes without."""


def after_a_vandal(world: World) -> Sequence[Done]:
    """Head leaves what its owner cannot read in its HOME, and a pipe in the place of perfgate's own folder."""
    server = "python/sglang/launch_server.py"
    before, future, after = (world.repository.path / server).read_text().partition("import annotations\n")
    world.commit({server: before + future + LEFT_BEHIND + after})
    return [world.gate(*ONE_PAIR, out=out, wrapper=AS_AN_ORDINARY_USER) for out in ("first", "second")]


@on(Case(act=after_a_vandal, box={"isolation": "none"}, own_state=True))
def test_what_a_server_leaves_in_its_home_ends_no_gate(done: Sequence[Done]) -> None:
    for one in done:
        check_measured(one)
        assert "Traceback" not in one.err, one.err


CRASHING = Case(head=acting(crash="load"))


@on(CRASHING)
def test_a_head_that_crashes_at_start_is_to_blame_with_its_last_lines(done: Done) -> None:
    for end in check_side_fails(done, "head", failed_ends(done, "head")[0].code):
        assert "Not enough memory" in end.reasons[0]
        assert any("RuntimeError: Not enough memory" in line for line in end.lines)
        assert len(end.lines) <= 20


@on(CRASHING)
def test_a_side_that_does_not_serve_is_warmed_up_once(done: Done) -> None:
    assert len([end for end in failed_ends(done, "head") if end.pair == 0]) == 1


@on(Case(base=acting(crash="import"), head=acting()))
def test_a_broken_base_is_not_the_heads_fault(done: Done) -> None:
    check_side_fails(done, "base", "server_died")
    assert "cannot import name" in done.result["reason"]


@on(Case(base=acting(crash="load"), head=acting(crash="load", answers=1)))
def test_where_neither_side_serves_nobody_is_blamed(done: Done) -> None:
    assert (done.code, done.verdict) == (4, "bench_failed")
    assert done.result["failed_side"] is None
    assert [fault.code for fault in faults(done)] == ["neither_side_serves"]


@on(Case(head=acting(hang="load"), config={"limits": {"launch_stall_s": 4}}))
def test_a_head_that_hangs_at_start_is_given_up(done: Done) -> None:
    failed = check_side_fails(done, "head", "server_hung")
    assert "no progress for 4 s" in failed[0].reasons[0]


@on(Case(head=acting(fail_after_requests=9, fail="die")))
def test_a_head_that_dies_in_mid_sample_gives_no_sample(done: Done) -> None:
    failed = check_side_fails(done, "head", "scheduler_exception")
    assert "scripted: the scheduler dies here" in " ".join((*failed[0].reasons, *failed[0].lines))
    assert done.pairs == 0


@on(Case(head=acting(garbage="not_json"), act=one_gate(*ONE_PAIR)))
def test_a_head_that_answers_garbage(done: Done) -> None:
    check_side_fails(done, "head", "answer_garbage")


@on(Case(head=acting(garbage="short"), act=one_gate(*ONE_PAIR)))
def test_a_head_that_answers_with_fewer_tokens_is_not_faster(done: Done) -> None:
    check_side_fails(done, "head", "answer_length")


@on(Case(head=acting(orphan=True, ignore_sigterm=True, leaves_memory=True), act=one_gate(*ONE_PAIR)))
def test_a_head_that_leaves_a_process_on_its_port_is_cleaned_up(done: Done) -> None:
    check_measured(done)


@on(
    Case(
        head=acting(orphan=True, ignore_sigterm=True, leaves_memory=True),
        act=one_gate(*ONE_PAIR),
        box={"isolation": "none"},
        config={"limits": {"stop_s": 6}},
    )
)
def test_the_same_without_isolation(done: Done) -> None:
    check_measured(done)


def impossible_pin(world: World) -> Done:
    text = (world.repository.path / "python/pyproject.toml").read_text()
    world.commit({"python/pyproject.toml": text.replace("dependencies = []", 'dependencies = ["a>=2", "a<1"]')})
    return world.gate(*PLAIN)


@on(Case(act=impossible_pin))
def test_a_head_that_cannot_be_built(done: Done) -> None:
    assert (done.code, done.verdict) == (4, "build_failed")
    assert done.result["failed_side"] == "head"
    build = next(fact for fact in done.facts if isinstance(fact, Build) and not fact.ok)
    assert build.reason in done.result["reason"] + "."
    assert build.lines
    assert build.log is not None
    assert (done.folder / build.log).read_text()
    assert done.launches() == []


SQUATTER = """
import os, pathlib, sys, time, socket
port = int(sys.argv[sys.argv.index("--port") + 1])
seen = pathlib.Path(os.environ["HOME"]) / "squatted"
if not seen.exists():
    seen.touch()
    if os.fork() == 0:
        squatter = socket.socket()
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        time.sleep(60)
    time.sleep(0.3)
"""


@on(Case(head=acting(on_start=SQUATTER), act=one_gate(*ONE_PAIR)))
def test_a_port_that_the_code_under_test_takes_itself_is_no_fault_of_the_box(done: Done) -> None:
    """It is free again once all of the server is gone: nobody else had it."""
    check_measured(done)
    (failed,) = (fact for fact in done.facts if isinstance(fact, LaunchEnd) and fact.id == "baseline/p00/head/a1")
    assert not failed.valid, "the squatter did not get in the way"
    assert (failed.code, failed.blame) == ("port_refused", Blame.SIDE)


NOISY = Case(  # the launches that count draw head 29 % slower, then 29 % faster
    base=acting(noise_sd=0.2, seed=1), head=acting(noise_sd=0.2, seed=0), act=one_gate(*PLAIN, "--max-pairs", "2")
)


@on(NOISY)
def test_a_box_too_noisy_to_say_is_inconclusive(done: Done) -> None:
    assert (done.code, done.verdict) == (3, "inconclusive")
    assert "would have shown" in done.result["reason"]
    assert done.pairs == 2


@on(Case(head=acting(token_ms=4.8), config={"limits": {"minutes": 0.02}}))  # one pair can neither fail nor pass
def test_the_time_limit_ends_it_as_inconclusive(done: Done) -> None:
    assert (done.code, done.verdict) == (3, "inconclusive")
    assert "the limit of 0.02 minutes" in done.result["reason"]
    assert done.pairs == 1


HOG = """
import fcntl, pathlib, socket, struct, subprocess, sys
up = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
fcntl.ioctl(up, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("20008 32000")
held = [socket.socket() for _ in range(8)]
for number, one in enumerate(held):
    one.bind(("127.0.0.1", 20000 + number))
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""
"""In a network of its own: all ports that are not given to outgoing connections are taken."""

OWN_NETWORK = ("unshare", "--net", *(() if os.geteuid() == 0 else ("--map-root-user",)))


def without_ports(world: World) -> Done:
    return world.gate(*ONE_PAIR, wrapper=(*OWN_NETWORK, sys.executable, "-c", HOG))


def may_unshare() -> bool:
    return subprocess.run([*OWN_NETWORK, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="a network of one's own is not allowed here")
@on(Case(act=without_ports, box={"isolation": "none"}))
def test_a_box_without_a_free_port_is_nobodys_fault(done: Done) -> None:
    assert (done.code, done.verdict) == (4, "bench_failed")
    assert done.result["failed_side"] is None
    assert "no free port on 127.0.0.1" in done.result["reason"]
