"""What perfgate itself costs: its CPU while a server is measured, the wait for the comment, a build from the cache.

    python -m benchmarks.overhead                  on the stand-in, which decodes as fast as eight GPUs do (90 tok/s)
    python -m benchmarks.overhead --token-ms 3     … three times as fast
    python -m benchmarks.overhead --cpu-profile    on real SGLang, by `perfgate demo`

CPU is read from /proc every 50 ms for perfgate, its watchdog and all its children that are no part of a launch, and
counted within the samples alone, whose begin and end stand in the facts. Exits 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import mmap
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from perfgate import records as r
from perfgate.config.model import Workload
from perfgate.engine import tree
from perfgate.engine.tree import Process
from perfgate.records.files import FACTS_FILE, read_facts
from perfgate.store.entries import remove_tree
from tests.integration.gate.harness import PERFGATE, World, acting

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PERIOD_S = 0.05
REFRESH_S = 0.5  # how often new processes are looked for
LIMIT_CPU = 0.02  # of one core
LIMIT_COMMENT_S = 1.0
LIMIT_BUILD_S = 3.0
LIMIT_JUDGE_S = 1.0
LIMIT_FAULT_S = 1.0
LIMIT_GONE_S = 10.0

F = TypeVar("F", bound=r.Fact)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu-profile", action="store_true")
    parser.add_argument("--change", default="none", help="of the demo")
    parser.add_argument("--token-ms", type=float, default=11.0, help="of the stand-in's plain decoding")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overhead") as folder:
        root = Path(folder).resolve()
        try:
            lines = on_the_demo(root, asked.change) if asked.cpu_profile else on_the_stand_in(root, asked.token_ms)
        finally:
            for state in root.glob("*/state"):
                remove_tree(state)
    print("| what | measured | limit | |")
    print("|---|--:|--:|---|")
    for line in lines:
        print(line)
    return int(any(line.missed for line in lines))


@dataclass(frozen=True)
class Line:
    """One row; `limit` None where there is none."""

    what: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def missed(self) -> bool:
        return self.limit is not None and self.value > self.limit

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"≤ {self.limit:g} {self.unit}"
        mark = "" if self.limit is None else ("**missed**" if self.missed else "holds")
        return f"| {self.what} | {self.value:.3g} {self.unit} | {limit} | {mark} |"


def on_the_stand_in(root: Path, token_ms: float) -> list[Line]:
    speed = {"token_ms": token_ms, "verify_ms": 1.6 * token_ms, "draft_ms": 0.2 * token_ms, "extend_ms": 0.2 * token_ms}
    workload = {"output_tokens": Workload.model_fields["output_tokens"].default, "samples": 2}
    world = World(
        root / "world",
        base=acting(**speed),
        head=acting(**speed, answers=1),
        config={"recipes": {"baseline": {"workload": workload}}, "metrics": {"tok_s": {"prior": {"sd": 0.005}}}},
    )
    command = [str(PERFGATE), *map(str, world.arguments("--max-pairs", "1"))]
    first = measured(command, world.root / "run")
    again = [*command[: command.index("--out") + 1], str(world.root / "again"), "--recipes", "baseline"]
    second = measured(again, world.root / "again")
    return [*told(first), *told_of_build(second), *told_of_judging(first, root), *told_of_cancelling(world)]


def on_the_demo(root: Path, change: str) -> list[Line]:
    """A demo that finds its builds in the cache measures the second build, too."""

    def demo(name: str) -> Measured:
        return measured([str(PERFGATE), "demo", "--change", change, "--out", str(root / name)], root / name)

    first = demo("first")
    second = first if all(build.cached for build in first.of(r.Build)) else demo("second")
    return [*told(first), *told_of_build(second), *told_of_judging(first, root)]


# ------------------------------------------------------------------------------------------------ CPU


@dataclass
class Meter:
    """CPU seconds of a process and its children outside launches, over time."""

    pid: int
    times: list[float] = field(default_factory=list)  # mono
    spent: dict[str, list[float]] = field(default_factory=dict)  # seconds at each of `times`
    _processes: dict[Process, str] = field(default_factory=dict)
    _ended: dict[str, float] = field(default_factory=dict)
    _last: dict[Process, float] = field(default_factory=dict)

    def follow(self, until: threading.Event) -> None:
        refresh_at = 0.0
        while not until.wait(PERIOD_S):
            now = time.monotonic()
            if now >= refresh_at:
                self._look_around()
                refresh_at = now + REFRESH_S
            self._read(now)

    def _look_around(self) -> None:
        root = tree.look(self.pid)
        if root is None:
            return
        entries = tree.all_processes()
        for process in tree.descendants(root.process, entries):
            self._add(process)
        for process in (entry.process for entry in entries.values()):
            if process not in self._processes and b"perfgate.engine.watchdog" in _command(process.pid):
                self._add(process)

    def _add(self, process: Process) -> None:
        environment = _read_bytes(process.pid, "environ")
        if process not in self._processes and tree.TOKEN_VARIABLE.encode() not in environment:
            self._processes[process] = "perfgate" if process.pid == self.pid else _name(process.pid)

    def _read(self, now: float) -> None:
        total = dict(self._ended)
        for process, name in list(self._processes.items()):
            seconds = _cpu_seconds(process, with_reaped=process.pid == self.pid)
            if seconds is None:
                del self._processes[process]
                self._ended[name] = self._ended.get(name, 0.0) + self._last.pop(process, 0.0)
                seconds = 0.0
            else:
                self._last[process] = seconds
            total[name] = total.get(name, 0.0) + seconds
        for name in total.keys() - self.spent.keys():
            self.spent[name] = [0.0] * len(self.times)
        self.times.append(now)
        for name, values in self.spent.items():
            values.append(total.get(name, values[-1] if values else 0.0))

    def within(self, name: str, begin: float, end: float) -> float:
        """Seconds spent between two moments, linear between readings."""
        return self._at(name, end) - self._at(name, begin)

    def _at(self, name: str, moment: float) -> float:
        place = bisect_left(self.times, moment)
        if place in (0, len(self.times)):
            return self.spent[name][min(place, len(self.times) - 1)]
        (t0, t1), (v0, v1) = (values[place - 1 : place + 1] for values in (self.times, self.spent[name]))
        return v0 + (v1 - v0) * (moment - t0) / (t1 - t0)


def _cpu_seconds(process: Process, *, with_reaped: bool) -> float | None:
    """utime + stime, and those of reaped children; a server is reaped after its samples."""
    fields = _read_bytes(process.pid, "stat").rpartition(b")")[2].split()
    if len(fields) < 20 or int(fields[19]) != process.started:
        return None
    return TICK_S * sum(int(value) for value in fields[11 : 15 if with_reaped else 13])


def _read_bytes(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _command(pid: int) -> bytes:
    return _read_bytes(pid, "cmdline")


def _name(pid: int) -> str:
    if b"perfgate.engine.watchdog" in _command(pid):
        return "watchdog"
    return _read_bytes(pid, "comm").decode(errors="replace").strip() or "gone"


# ------------------------------------------------------------------------------------------------ one run


@dataclass(frozen=True)
class Measured:
    run: Path
    facts: Sequence[r.Fact]
    meter: Meter
    began: float  # mono, at the command's start
    wall_s: float

    def of(self, kind: type[F]) -> list[F]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def samples(self) -> list[r.Sample]:
        return [sample for sample in self.of(r.Sample) if sample.pair > 0]


def measured(command: Sequence[str], run: Path) -> Measured:
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        meter, ended = Meter(process.pid), threading.Event()
        thread = threading.Thread(target=meter.follow, args=(ended,))
        thread.start()
        try:
            _, errors = process.communicate()
        finally:
            ended.set()
            thread.join()
    if not (run / "comment.md").exists():
        sys.exit(errors)
    return Measured(run, read_facts(run), meter, began, time.monotonic() - began)


def told(run: Measured) -> Iterator[Line]:
    windows = [(sample.begin, sample.end) for sample in run.samples]
    seconds = sum(end - begin for begin, end in windows)
    by_name = {
        name: sum(run.meter.within(name, begin, end) for begin, end in windows) / seconds for name in run.meter.spent
    }
    tokens = sum(request.tokens for sample in run.samples for request in sample.requests)
    yield Line("CPU of perfgate and its children while sampling", 100 * sum(by_name.values()), "%", 100 * LIMIT_CPU)
    for name, share in sorted(by_name.items(), key=lambda item: -item[1]):
        if share > 0.0001:
            yield Line(f"– of it {name}", 100 * share, "%")
    yield Line("– in samples of", seconds, "s")
    yield Line("– for each token", 1e6 * by_name["perfgate"] * seconds / tokens, "µs")
    yield Line("– a page touched after a rest of 0.3 s, here", rested_page_us(), "µs")
    yield from told_of_the_end(run)
    yield from told_of_shares(run)


def rested_page_us(pages: int = 256, rounds: int = 5) -> float:
    """What this machine asks for a page of memory that was not used for a while.

    Far below 1 µs on plain hardware; above 10 µs on some virtual machines, whose host takes such pages out of its
    tables. A process that wakes up seldom pays mostly that there.
    """
    memory = bytearray(pages * mmap.PAGESIZE)
    spent = []
    for _ in range(rounds):
        time.sleep(0.3)
        began = time.thread_time()
        memory[:: mmap.PAGESIZE] = bytes(pages)
        spent.append((time.thread_time() - began) / pages)
    return 1e6 * statistics.median(spent)


def told_of_the_end(run: Measured) -> Iterator[Line]:
    """Its parts: the server must be gone, the box is heard once more (seconds, where it has GPUs), then all is said."""
    last = max(run.samples, key=lambda sample: sample.end)
    written = (run.run / "comment.md").stat().st_mtime
    ended, paired = run.of(r.LaunchEnd)[-1], run.of(r.Pair)[-1]
    yield Line("last sample → comment", written - _wall(last, last.end), "s", LIMIT_COMMENT_S)
    yield Line("– of it until the server is gone", ended.mono - last.end, "s")
    yield Line("– canary", paired.mono - ended.mono, "s")
    yield Line("– judge, result, comment", written - _wall(paired, paired.mono), "s")


def _wall(fact: r.Fact, mono: float) -> float:
    """Seconds since the epoch of a moment of the fact's clock."""
    return datetime.fromisoformat(fact.t).timestamp() - (fact.mono - mono)


def told_of_shares(run: Measured) -> Iterator[Line]:
    ends = run.of(r.LaunchEnd)
    sampling = sum(sample.end - sample.begin for sample in run.of(r.Sample))
    starting = sum(end.ready_s or 0.0 for end in ends)
    launches = sum(end.wall_s for end in ends)
    first = {one.id: one.mono for one in reversed(run.of(r.LaunchBegin))}
    warming = sum(
        min((sample.begin for sample in run.of(r.Sample) if sample.id.startswith(f"{end.id}/")), default=0.0)
        - first[end.id]
        - (end.ready_s or 0.0)
        for end in ends
        if end.valid
    )
    shares: Mapping[str, float] = {
        "servers starting": starting,
        "warm-up": warming,
        "samples": sampling,
        "servers ending, between samples": launches - starting - warming - sampling,
        "perfgate (builds, doctor, canary, judge)": run.wall_s - launches,
    }
    yield Line("wall time", run.wall_s, "s")
    for name, seconds in shares.items():
        yield Line(f"– {name}", 100 * seconds / run.wall_s, "%")


def told_of_build(second: Measured) -> Iterator[Line]:
    builds = second.of(r.Build)
    assert all(build.cached for build in builds), "the second build was not from the cache"
    yield Line("second build of the same pair", sum(build.seconds for build in builds), "s", LIMIT_BUILD_S)


# ------------------------------------------------------------------------------------------------ other waits


def told_of_judging(run: Measured, root: Path) -> Iterator[Line]:
    """`perfgate judge` of fifty launches: the run's first pair, 25 times."""
    many = root / "many"
    many.mkdir()
    recipe = run.of(r.Pair)[0].recipe
    lines = (run.run / FACTS_FILE).read_text().splitlines(keepends=True)
    once = [line for line in lines if f'"recipe":"{recipe}","pair":1,' in line]
    before = [line for line in lines if '"pair":' not in line or '"kind":"plan"' in line]
    renumbered = [
        line.replace("/p01", f"/p{number:02d}").replace('"pair":1,', f'"pair":{number},')
        for number in range(1, 26)
        for line in once
    ]
    (many / FACTS_FILE).write_text("".join([*before, *renumbered]))
    assert sum(isinstance(fact, r.Pair) for fact in read_facts(many)) == 25
    times = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run([PERFGATE, "judge", many], stdout=subprocess.DEVNULL, check=False)
        times.append(time.monotonic() - began)
    yield Line("perfgate judge of 50 launches, whole command", statistics.median(times), "s", LIMIT_JUDGE_S)


def told_of_cancelling(world: World) -> Iterator[Line]:
    """Ctrl-C in the middle of a sample."""
    run = world.root / "cancelled"
    with world.start("--recipes", "baseline", out="cancelled") as process:
        while not (run / FACTS_FILE).exists() or not any(isinstance(fact, r.Sample) for fact in read_facts(run)):
            time.sleep(0.05)
        sent = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        process.communicate()
    ended = time.monotonic()
    tree.wait_until(lambda: not world.leftovers(), 60)
    gone = time.monotonic()
    fault = next(fact for fact in read_facts(run) if isinstance(fact, r.Fault))
    yield Line("Ctrl-C → on disk", fault.mono - sent, "s", LIMIT_FAULT_S)
    yield Line("Ctrl-C → perfgate has ended", ended - sent, "s", LIMIT_GONE_S)
    yield Line("Ctrl-C → all is gone", gone - sent, "s", LIMIT_GONE_S)


if __name__ == "__main__":
    sys.exit(main())
