"""Ctrl-C, a runner's cancel, kill -9, a full disk: what is measured stays, nothing else does, and --resume goes on."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from perfgate import records as r
from perfgate.engine import tree
from perfgate.host.lock import BoxLock
from perfgate.records.files import read_facts

from .harness import GONE_S, LIMIT_S, PLAIN, Case, Done, World, acting, facts_in, finished, holds, on, wait_for

pytestmark = pytest.mark.timeout(1200)  # waiting for its turn counts, too

SLOWER = acting(token_ms=4.8)


@dataclass(frozen=True)
class Stopped:
    """A gate that was ended, and the same gate resumed."""

    first: Done
    facts: list[r.Fact]  # when it had ended
    resumed: Done

    def fault(self) -> r.Fault:
        faults = [fact for fact in self.facts if isinstance(fact, r.Fault)]
        assert [fault.code for fault in faults] == [r.STOPPED_FAULT]
        return faults[0]


class Frozen:
    """The watchdog of a running gate, stopped: whatever happens meanwhile does not wait for the clean-up."""

    def __init__(self, world: World) -> None:
        record = next((world.state / "running").glob("launch-*.json"))
        self.pid = int(json.loads(record.read_text())["watchdog"]["pid"])

    def __enter__(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGCONT)


def in_mid_sample(world: World) -> subprocess.Popen[str]:
    """A gate whose first launch that counts has a sample."""
    process = world.start(*PLAIN)

    def sampling() -> bool:
        return any(isinstance(fact, r.Sample) and fact.pair == 1 for fact in facts_in(world.root / "run"))

    wait_for(sampling, process)
    return process


def end_and_resume(send: Callable[[World, subprocess.Popen[str]], None]) -> Callable[[World], Stopped]:
    def act(world: World) -> Stopped:
        with in_mid_sample(world) as process:
            send(world, process)
            first = finished(process, world.root / "run")
        facts = read_facts(world.root / "run")
        world.check_nothing_left(within_s=GONE_S)
        return Stopped(first, facts, world.gate(*PLAIN, "--resume"))

    return act


def check_resumed(stopped: Stopped, verdict: str) -> None:
    """The verdict of an uninterrupted run, without measuring a finished pair again."""
    assert stopped.resumed.verdict == verdict, stopped.resumed.err
    finished_pairs = {fact.pair for fact in stopped.facts if isinstance(fact, r.Pair)}
    new = stopped.resumed.facts[len(stopped.facts) :]
    assert not finished_pairs & {fact.pair for fact in new if isinstance(fact, r.LaunchBegin) and fact.pair > 0}
    pairs = [fact.pair for fact in stopped.resumed.facts if isinstance(fact, r.Pair)]
    assert pairs == sorted(set(pairs))
    assert stopped.resumed.facts[: len(stopped.facts)] == stopped.facts, "what was written was changed"


# ------------------------------------------------------------------------------------------ Ctrl-C, cancel


def ctrl_c(world: World, process: subprocess.Popen[str]) -> None:
    """As a terminal sends it: to the whole foreground group."""
    with Frozen(world):
        os.killpg(process.pid, signal.SIGINT)
        wait_for(holds(world.root / "run", r.Fault), process)


@on(Case(head=SLOWER, act=end_and_resume(ctrl_c)))
def test_ctrl_c_is_on_disk_before_the_clean_up_and_resumes(done: Stopped) -> None:
    assert done.first.code == 130
    assert done.fault().text == "cancelled by SIGINT"
    assert "--resume" in done.first.err
    assert "Traceback" not in done.first.err
    assert done.first.out == ""
    assert done.resumed.code == 1
    check_resumed(done, "regression")


def unread(world: World) -> Stopped:
    """As `perfgate gate … 2>&1 | tee log`, where Ctrl-C ends tee as well."""
    with in_mid_sample(world) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()
        os.killpg(process.pid, signal.SIGINT)
        code = process.wait(LIMIT_S)
    world.check_nothing_left(within_s=GONE_S)
    facts = read_facts(world.root / "run")
    with world.start(*PLAIN, "--resume") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()
        resumed = process.wait(LIMIT_S)
    run = world.root / "run"
    return Stopped(Done(code, "", "", run), facts, Done(resumed, "", "", run))


@on(Case(act=unread))
def test_a_reader_who_goes_away_changes_no_exit_code(done: Stopped) -> None:
    assert done.first.code == 130
    assert done.fault().text == "cancelled by SIGINT"
    assert done.resumed.code == 0
    check_resumed(done, "pass")


def twice(world: World, process: subprocess.Popen[str]) -> None:
    """The second one does not wait for the watchdog, which goes on without us."""
    with Frozen(world):
        os.killpg(process.pid, signal.SIGINT)
        wait_for(holds(world.root / "run", r.Fault), process)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(10) == 130


@on(Case(head=SLOWER, act=end_and_resume(twice)))
def test_a_second_ctrl_c_ends_at_once_and_leaves_the_rest_to_the_watchdog(done: Stopped) -> None:
    assert done.first.code == 130
    assert done.fault().code == r.STOPPED_FAULT
    check_resumed(done, "regression")


def cancel(_world: World, process: subprocess.Popen[str]) -> None:
    process.terminate()


@on(Case(act=end_and_resume(cancel)))
def test_a_runners_cancel(done: Stopped) -> None:
    assert done.first.code == 143
    assert done.fault().text == "cancelled by SIGTERM"
    check_resumed(done, "pass")


def while_building(world: World) -> Stopped:
    with world.start(*PLAIN) as process:
        wait_for(holds(world.root / "run", r.Doctor), process)
        process.terminate()
        first = finished(process, world.root / "run")
    world.check_nothing_left(within_s=GONE_S)
    facts = read_facts(world.root / "run")
    return Stopped(first, facts, world.gate(*PLAIN, "--resume"))


@on(Case(act=while_building, own_state=True))
def test_a_cancel_during_a_build(done: Stopped) -> None:
    assert done.first.code == 143
    assert done.fault().code == r.STOPPED_FAULT
    check_resumed(done, "pass")


def while_waiting(world: World) -> Done:
    """Another gate has the box."""
    with BoxLock.acquire(world.lock, "perfgate gate of somebody"), world.start(*PLAIN, "--wait", "5") as process:
        wait_for(holds(world.root / "run", r.Plan), process)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "waiting up to" in line
        assert "perfgate gate of somebody" in line
        process.send_signal(signal.SIGINT)
        return finished(process, world.root / "run")


@on(Case(act=while_waiting))
def test_ctrl_c_while_waiting_for_the_box(done: Done) -> None:
    assert done.code == 130
    assert [fact.kind for fact in done.facts] == ["plan", "fault"]


# ------------------------------------------------------------------------------------------ kill -9


def killed_after(seconds: float) -> Callable[[World], Stopped]:
    def act(world: World) -> Stopped:
        run = world.root / "run"
        with world.start(*PLAIN) as process:
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
            first = finished(process, run)
        world.check_all_ended(within_s=GONE_S)
        facts = facts_in(run)
        begun = any(isinstance(fact, r.Plan) for fact in facts)
        return Stopped(first, facts, world.gate(*PLAIN, *(["--resume"] if begun else [])))

    return act


def check_killed(done: Stopped, seed: int) -> None:
    print(f"seed {seed}: {len(done.facts)} facts when it was killed")  # shown where the test fails
    assert done.first.code in (-signal.SIGKILL, 1)
    assert (done.resumed.code, done.resumed.verdict) == (1, "regression")
    check_resumed(done, "regression")


def moment(seed: int) -> float:
    """Seconds after the start; a whole run takes about 12 s, more on a busy machine."""
    return random.Random(f"kill {seed}").uniform(0.3, 14.0)


SEEDS = range(3)
MORE_SEEDS = range(100, 120)
KILLED = {seed: Case(head=SLOWER, act=killed_after(moment(seed))) for seed in (*SEEDS, *MORE_SEEDS)}


@pytest.mark.parametrize(
    ("done", "seed"), [(KILLED[seed], seed) for seed in SEEDS], indirect=["done"], ids=map(str, SEEDS)
)
def test_killed_at_a_random_time(done: Stopped, seed: int) -> None:
    check_killed(done, seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("done", "seed"), [(KILLED[seed], seed) for seed in MORE_SEEDS], indirect=["done"], ids=map(str, MORE_SEEDS)
)
def test_killed_at_twenty_random_times(done: Stopped, seed: int) -> None:
    check_killed(done, seed)


def a_half_pair(**shell: str) -> Callable[[World], Stopped]:
    """Killed between the two launches of the first pair, and resumed from a shell with other variables."""

    def act(world: World) -> Stopped:
        with world.start(*PLAIN) as process:
            wait_for(lambda: any(end.valid for end in ends(world)), process)
            process.kill()
            first = finished(process, world.root / "run")
        world.check_all_ended(within_s=GONE_S)
        facts = read_facts(world.root / "run")
        return Stopped(first, facts, world.gate(*PLAIN, "--resume", environment=shell))

    return act


def ends(world: World) -> list[r.LaunchEnd]:
    return [fact for fact in facts_in(world.root / "run") if isinstance(fact, r.LaunchEnd) and fact.pair > 0]


@on(Case(act=a_half_pair()))
def test_a_half_pair_is_completed(done: Stopped) -> None:
    begun = [fact for fact in done.resumed.facts if isinstance(fact, r.LaunchBegin) and fact.pair == 1]
    first = next(fact for fact in done.facts if isinstance(fact, r.LaunchEnd) and fact.pair == 1 and fact.valid)
    assert [fact.id for fact in begun if fact.side is first.side][-1] == first.id
    check_resumed(done, "pass")


def while_the_canary_hangs(world: World) -> Done:
    """Its process answers no more, and does not see that perfgate is gone."""
    run = world.root / "run"
    with world.start(*PLAIN) as process:
        wait_for(holds(run, r.Canary), process)
        records = [json.loads(path.read_text())["watched"] for path in (world.state / "running").glob("launch-*.json")]
        token = next(watched["token"] for watched in records if watched["name"] == "canary")
        for pid in tree.all_processes():
            if tree.carries(pid, token):
                os.kill(pid, signal.SIGSTOP)
        process.kill()
        first = finished(process, run)
    world.check_all_ended(within_s=GONE_S)
    world.sweep()
    return first


@on(Case(act=while_the_canary_hangs))
def test_killed_beside_a_canary_that_hangs(done: Done) -> None:
    assert done.code == -signal.SIGKILL


def after_the_last_pair(world: World) -> tuple[Stopped, Done]:
    """Killed before it has a result; the box is unfit when the run goes on, and when it does so once more."""
    first = world.gate(*PLAIN)
    (first.folder / "result.json").unlink()
    (world.root / "model" / "config.json").unlink()
    stopped = Stopped(first, first.facts, world.gate(*PLAIN, "--resume"))
    return stopped, world.gate(*PLAIN, "--resume")


@on(Case(head=SLOWER, act=after_the_last_pair))
def test_a_decided_run_is_concluded_whatever_the_box_is_like_now(done: tuple[Stopped, Done]) -> None:
    stopped, again = done
    check_resumed(stopped, "regression")
    assert "nothing is left to measure: a regression is found" in stopped.resumed.err
    assert (stopped.resumed.code, again.code, again.verdict) == (1, 1, "regression")
    assert {fact.kind for fact in again.facts[len(stopped.facts) :]} == {"plan"}


def with_another_model(world: World) -> Stopped:
    """Somebody put other weights in the model's folder meanwhile."""
    with in_mid_sample(world) as process:
        process.terminate()
        first = finished(process, world.root / "run")
    (world.root / "model" / "weights.safetensors").write_text("new")
    return Stopped(first, read_facts(world.root / "run"), world.gate(*PLAIN, "--resume"))


@on(Case(act=with_another_model))
def test_pairs_of_another_model_are_not_added(done: Stopped) -> None:
    assert done.resumed.code == 2
    assert "baseline, or its models, has changed since → measure anew" in done.resumed.one_line()
    assert done.resumed.facts == done.facts  # how the run ended stands


@on(Case(act=a_half_pair(LC_ALL="C")))
def test_a_half_pair_from_another_shell_is_measured_afresh(done: Stopped) -> None:
    given = {fact.id: fact.given["LC_ALL"] for fact in done.resumed.facts if isinstance(fact, r.LaunchBegin)}
    pair = next(fact for fact in done.resumed.facts if isinstance(fact, r.Pair))
    assert (given[pair.base], given[pair.head]) == ("C", "C")
    assert "C.UTF-8" in given.values()
    check_resumed(done, "pass")


# ------------------------------------------------------------------------------------------ a full disk


def disk_fills_up(world: World) -> Stopped:
    """The kernel lets perfgate's files grow no further than the facts are now."""
    run = world.root / "run"
    with in_mid_sample(world) as process:
        size = (run / "facts.jsonl").stat().st_size
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size + 7, size + 7))
        first = finished(process, run)
    world.check_nothing_left(within_s=GONE_S)
    facts = read_facts(run)
    assert (run / "facts.jsonl").read_bytes().endswith(b"\n"), "half a line was left"
    return Stopped(first, facts, world.gate(*PLAIN, "--resume"))


@on(Case(act=disk_fills_up))
def test_a_disk_that_fills_up(done: Stopped) -> None:
    assert done.first.code == 4
    line = done.first.one_line()
    assert "facts cannot be written" in line
    assert "free some space, then --resume" in line
    check_resumed(done, "pass")


@dataclass(frozen=True)
class SmallDisk:
    done: Done
    facts: list[r.Fact]


def on_a_small_disk(world: World) -> SmallDisk:
    """64 KiB for the run's files: told before anything is started."""
    run = world.root / "run"
    run.mkdir()
    with ExitStack() as stack:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(run)], check=True)
        stack.callback(subprocess.run, ["umount", str(run)], check=True)
        done = world.gate(*PLAIN)
        facts = facts_in(run)
    run.rmdir()
    return SmallDisk(done, facts)


def may_mount() -> bool:
    trial = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return os.geteuid() == 0 and subprocess.run(trial, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="mounting a small disk needs root")
@on(Case(act=on_a_small_disk))
def test_a_disk_too_small_to_begin(done: SmallDisk) -> None:
    fault = next(fact for fact in done.facts if isinstance(fact, r.Fault))
    assert (done.done.code, fault.blame) == (4, r.Blame.BOX)
    assert "0.0 GB free" in fault.text
    assert fault.text in done.done.out.replace("\\", "")
    assert not any(isinstance(fact, r.LaunchBegin) for fact in done.facts)


# ------------------------------------------------------------------------------------------ the box is busy


@dataclass(frozen=True)
class Busy:
    first: Done
    refused: Done
    waited: Done


def second_gate(world: World) -> Busy:
    with world.start(*PLAIN, "--max-pairs", "1", out="first") as first:
        wait_for(holds(world.root / "first", r.Doctor), first)
        with world.start(*PLAIN, "--max-pairs", "1", "--wait", "5", out="third") as third:
            refused = world.gate(*PLAIN, "--max-pairs", "1", out="second")
            done = finished(first, world.root / "first")
            return Busy(done, refused, finished(third, world.root / "third"))


@on(Case(act=second_gate))
def test_a_busy_box_is_refused_or_waited_for(done: Busy) -> None:
    assert (done.first.pairs, done.waited.pairs) == (1, 1)
    assert done.refused.code == 4
    line = done.refused.one_line()
    assert f"in use by perfgate gate of {done.first.result['head']['sha'][:12]}" in line
    assert "pid " in line
    assert "waiting up to" in done.waited.err
    assert [fact.kind for fact in done.refused.facts] == ["plan"]
    ended = max(fact.mono for fact in done.first.facts)
    assert min(fact.mono for fact in done.waited.facts if not isinstance(fact, r.Plan)) > ended
