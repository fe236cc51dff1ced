"""What the probe costs: microseconds per cycle, and per cent of tok/s inside one launch of real SGLang.

    python -m benchmarks.probe_overhead cycle
    PERFGATE_CPU_STATE=<directory> python -m benchmarks.probe_overhead server

`server` serves EAGLE-3 on the cpu profile and asks each prompt twice, once with the timers on and once with them off;
the order alternates (on off, off on, …), so that a drift of the machine meets both alike. Requests are short for the
same reason: what else the machine does changes within seconds. The wrappers stay in place
when the timers are off, so `cycle` prints their cost as well. A pair's difference is log(tok/s on / tok/s off); the
estimate is the mean of the middle 80 % of pairs with the interval of Tukey and McLaughlin (trimmed mean, winsorised
variance: Wilcox, Introduction to Robust Estimation, 4.3), for a shared machine now and then stalls a request.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from scipy.stats import t as student

from perfgate.cpu.environment import prepare
from perfgate.probe.inside.hooks import _timed
from perfgate.probe.inside.journal import ProbeJournal
from perfgate.probe.inside.timers import Clock, CudaClock, HostClock, Timers
from tests.integration.probe.serving import Server, serving

TRIM = 0.1  # of the pairs at each end
MODE = SimpleNamespace(is_idle=lambda: False, is_extend=lambda: False, is_decode=lambda: True)
BATCH = SimpleNamespace(forward_mode=MODE, seq_lens=[1], is_extend_in_batch=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cycle", "server"])
    parser.add_argument("--requests", type=int, default=2400)
    parser.add_argument("--tokens", type=int, default=17)
    asked = parser.parse_args()
    if asked.what == "cycle":
        report_cycle()
    else:
        report_server(asked.requests, asked.tokens)


# ------------------------------------------------------------------------------------------------ one cycle


def report_cycle() -> None:
    """A cycle of empty phases: what is left is the probe. CUDA events are fakes here; a real one adds about a
    microsecond for each of the ten records (`probe_cuda.py` measures that on a GPU)."""
    bare = cost_of(cycle_of(lambda function, phase: function))
    print(f"the calls themselves              {bare:7.2f} µs per cycle")
    rows: list[tuple[str, Clock, bool]] = [
        ("wrapped, timers off", HostClock(), False),
        ("timers on, perf_counter", HostClock(), True),
        ("timers on, (fake) cuda events", CudaClock(fake_torch()), True),
    ]
    for name, clock, on in rows:
        with tempfile.TemporaryDirectory() as directory:
            timers = Timers(lambda _worker, clock=clock: clock, ProbeJournal(directory, 2**30).add, print)
            timers.on = on
            cost = cost_of(cycle_of(lambda function, phase, timers=timers: _timed(function, phase, timers)))
        print(f"{name:33s} {cost - bare:7.2f} µs per cycle more")


def cycle_of(wrap: Callable[[Any, str], Callable[..., Any]]) -> Callable[[], None]:
    """One cycle as SGLang calls it: draft, verify with the target's forward in it, draft-extend."""

    def nothing(worker: Any, batch: Any) -> None:
        pass

    draft, extend, target = wrap(nothing, "draft"), wrap(nothing, "draft_extend"), wrap(nothing, "decode")

    def verify(worker: Any, batch: Any) -> None:
        target(worker, batch)

    verified = wrap(verify, "verify")

    def whole(worker: Any, batch: Any) -> None:
        draft(worker, batch)
        verified(worker, batch)
        extend(worker, batch)

    cycled = wrap(whole, "cycle")
    return lambda: cycled(None, BATCH)


def cost_of(cycle: Callable[[], None], rounds: int = 7, cycles: int = 4000) -> float:
    """Microseconds; the best of some rounds, for nothing makes code faster than it is."""
    for _ in range(500):
        cycle()
    best = math.inf
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(cycles):
            cycle()
        best = min(best, time.perf_counter() - begin)
    return best / cycles * 1e6


def fake_torch() -> Any:
    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = time.perf_counter()

        def query(self) -> bool:
            return True

        def elapsed_time(self, end: Event) -> float:
            return (end.at - self.at) * 1000

    return SimpleNamespace(cuda=SimpleNamespace(Event=Event, is_current_stream_capturing=lambda: False))


# ------------------------------------------------------------------------------------------------ one launch


def report_server(requests: int, tokens: int) -> None:
    state = os.environ.get("PERFGATE_CPU_STATE")
    if not state:
        raise SystemExit("set PERFGATE_CPU_STATE to a directory for the cpu profile's environment")
    environment = prepare(Path(state), print)
    with tempfile.TemporaryDirectory() as directory, serving(environment, Path(directory), toggle=True) as server:
        differences, speeds = ask_in_pairs(server, Path(directory) / "probe" / "toggle", requests // 2, tokens)
    estimate, half = trimmed(differences)
    print(f"{requests} requests of {tokens} tokens, {statistics.median(speeds):.1f} tok/s")
    print(f"timers on against off: {estimate:+.2%} of tok/s ± {half:.2%} (95 %)")
    print(f"standard deviation of a pair: {statistics.stdev(differences):.2%}")


def ask_in_pairs(server: Server, toggle: Path, pairs: int, tokens: int) -> tuple[list[float], list[float]]:
    """Log differences of tok/s (on − off) of the pairs, and all speeds."""
    for warmup in range(8):
        server.ask(warmup, tokens)
    differences, speeds = [], []
    with toggle.open("r+b", buffering=0) as switch:
        for pair in range(pairs):
            speed = {}
            for on in (True, False) if pair % 2 else (False, True):
                switch.seek(0)
                switch.write(b"1" if on else b"0")
                answer = server.ask(1000 + pair, tokens)
                speed[on] = (answer.tokens - 1) / (answer.last - answer.first)
            differences.append(math.log(speed[True] / speed[False]))
            speeds += speed.values()
    return differences, speeds


def trimmed(values: list[float]) -> tuple[float, float]:
    """Trimmed mean and the half-width of its 95 % interval."""
    ordered = sorted(values)
    cut = int(len(ordered) * TRIM)
    kept = ordered[cut : len(ordered) - cut]
    winsorised = [min(max(value, kept[0]), kept[-1]) for value in ordered]
    error = statistics.stdev(winsorised) / ((1 - 2 * TRIM) * math.sqrt(len(ordered)))
    return statistics.fmean(kept), float(student.ppf(0.975, len(kept) - 1)) * error


if __name__ == "__main__":
    main()
