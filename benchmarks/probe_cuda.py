"""The probe's CUDA-event path around a real asynchronous workload. For a machine with an NVIDIA GPU and PyTorch.

    PYTHONPATH=. python benchmarks/probe_cuda.py [--cycles 400]

Needs nothing of perfgate's dependencies. A cycle is draft, verify and draft-extend, as kernels that spin for a while
on the device (`torch.cuda._sleep`) beside matrix products. It exits 1 unless

1. no phase's device time is off by more than 1 % (or 20 µs) from the truth: the same phase alone, timed by the host
   between two synchronisations, less what an empty phase takes;
2. nothing waits: all that could is made to raise while the timers run, the host is done with a cycle in less than
   half of its device time, and cycles per second with timers are within 1 % of those without;
3. a graph captured in the middle is whole, and the cycle that captured it is marked;
4. a phase on a stream of its own is timed as well;
5. every cycle is written but the last few.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from types import SimpleNamespace
from typing import Any

from perfgate.probe.inside.hooks import _timed
from perfgate.probe.inside.timers import CudaClock, Timers

SPIN_MS = {"draft": 1.0, "verify": 6.0, "draft_extend": 1.5}
MODE = SimpleNamespace(is_idle=lambda: False, is_extend=lambda: False, is_decode=lambda: True)
BATCH = SimpleNamespace(forward_mode=MODE, seq_lens=[1], is_extend_in_batch=False)
Phase = Callable[[Any, Any], None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=400)
    cycles = parser.parse_args().cycles
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("no CUDA device here", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    bench = Bench(torch)
    checks = [
        *bench.check_times(cycles),
        bench.check_speed(cycles),
        bench.check_graph(),
        bench.check_other_stream(),
    ]
    for good, text in checks:
        print("ok   " if good else "WRONG", text)
    return 0 if all(good for good, _ in checks) else 1


class Bench:
    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.left = torch.randn(1024, 1024, device="cuda", dtype=torch.float16)
        self.right = torch.randn(1024, 1024, device="cuda", dtype=torch.float16)
        self.spin_per_ms = self._calibrate()
        self.phases: dict[str, Phase] = {name: self._phase(ms) for name, ms in SPIN_MS.items()}

    def _calibrate(self) -> int:
        """Clock cycles that `_sleep` spins for a millisecond, after the clocks have risen."""
        for _ in range(50):
            self.torch.cuda._sleep(10_000_000)
        self.torch.cuda.synchronize()
        begin = time.perf_counter()
        self.torch.cuda._sleep(200_000_000)
        self.torch.cuda.synchronize()
        return int(200_000_000 / ((time.perf_counter() - begin) * 1000))

    def _phase(self, ms: float) -> Phase:
        spin = int(self.spin_per_ms * ms)

        def run(worker: Any, batch: Any) -> None:
            self.torch.mm(self.left, self.right)
            self.torch.cuda._sleep(spin)
            self.torch.mm(self.left, self.right)

        return run

    def truth(self, name: str, repeats: int = 60) -> float:
        """Device milliseconds of a phase alone, by the host's clock between synchronisations, less an empty phase."""

        def timed(run: Callable[[], None]) -> float:
            times = []
            for _ in range(repeats):
                self.torch.cuda.synchronize()
                begin = time.perf_counter()
                run()
                self.torch.cuda.synchronize()
                times.append((time.perf_counter() - begin) * 1000)
            return median(times)

        return timed(lambda: self.phases[name](None, BATCH)) - timed(lambda: None)

    def timers(self, lines: list[str]) -> Timers:
        return Timers(lambda _worker: CudaClock(self.torch), lines.append, print)

    def cycle(self, timers: Timers | None, phases: dict[str, Phase] | None = None) -> Callable[[], None]:
        chosen = phases or self.phases

        def wrap(function: Phase, phase: str) -> Phase:
            return function if timers is None else _timed(function, phase, timers)  # type: ignore[arg-type]

        wrapped = {name: wrap(run, name) for name, run in chosen.items()}

        def whole(worker: Any, batch: Any) -> None:
            for run in wrapped.values():
                run(worker, batch)

        timed = wrap(whole, "cycle")
        return lambda: timed(None, BATCH)

    # ------------------------------------------------------------------------------------------- checks

    def check_times(self, cycles: int) -> Iterator[tuple[bool, str]]:
        lines: list[str] = []
        timers = self.timers(lines)
        cycle = self.cycle(timers)
        host = []
        with self.nothing_waits():
            for number in range(cycles):
                begin = time.perf_counter()
                cycle()
                host.append((time.perf_counter() - begin) * 1000)
                if number % 8 == 7:  # a server waits for its tokens now and then, not for the probe
                    time.sleep(8 * sum(SPIN_MS.values()) / 1000)
        self._collected(cycle)
        read = [line for line in map(json.loads, lines) if line["m"] == ""]
        for name in SPIN_MS:
            seen, truth = median(line[name][0] for line in read), self.truth(name)
            good = abs(seen - truth) <= max(0.01 * truth, 0.02)
            yield good, f"{name}: probe {seen:.3f} ms, truth {truth:.3f} ms ({seen / truth - 1:+.2%})"
        whole = median(line["cycle"][0] for line in read)
        parts = sum(median(line[name][0] for line in read) for name in SPIN_MS)
        yield 0.98 <= parts / whole <= 1.001, f"phases make {parts / whole:.1%} of the cycle ({whole:.3f} ms)"
        yield median(host) < whole / 2, f"the host is done after {median(host) * 1000:.0f} µs: it does not wait"
        good = timers.on and len(lines) >= cycles
        yield (
            good,
            f"{len(lines)} lines of {cycles} cycles and the few after; timers are {'on' if timers.on else 'OFF'}",
        )

    def _collected(self, cycle: Callable[[], None], more: int = 12) -> None:
        """Some more cycles: each writes a few that are finished."""
        for _ in range(more):
            self.torch.cuda.synchronize()
            cycle()
        self.torch.cuda.synchronize()

    def check_speed(self, cycles: int) -> tuple[bool, str]:
        """In turns, with timers and without: the device is kept busy, so what the timers add on it would show."""
        lines: list[str] = []
        with_timers, without = self.cycle(self.timers(lines)), self.cycle(None)
        ratios = []
        for _ in range(8):
            on, off = self._seconds(with_timers, cycles // 8), self._seconds(without, cycles // 8)
            ratios.append(on / off - 1)
        return abs(median(ratios)) <= 0.01, f"timers add {median(ratios):+.3%} to a busy device's cycle"

    def _seconds(self, cycle: Callable[[], None], cycles: int) -> float:
        self.torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(cycles):
            cycle()
        self.torch.cuda.synchronize()
        return time.perf_counter() - begin

    def check_graph(self) -> tuple[bool, str]:
        """A cycle inside a capture: no event goes into the graph, and the graph can be replayed."""
        lines: list[str] = []
        timers = self.timers(lines)
        cycle = self.cycle(timers)
        for _ in range(20):
            cycle()
        self.torch.cuda.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            cycle()
        graph.replay()
        self._collected(cycle)
        marks = [json.loads(line)["m"] for line in lines]
        return marks.count("capture") == 1 and timers.on, f"a captured cycle is marked: {marks.count('capture')} of 1"

    def check_other_stream(self) -> tuple[bool, str]:
        """Verify runs on a stream of its own that the others wait for."""
        stream = self.torch.cuda.Stream()
        verify = self.phases["verify"]

        def elsewhere(worker: Any, batch: Any) -> None:
            stream.wait_stream(self.torch.cuda.current_stream())
            with self.torch.cuda.stream(stream):
                verify(worker, batch)
            self.torch.cuda.current_stream().wait_stream(stream)

        lines: list[str] = []
        cycle = self.cycle(self.timers(lines), {**self.phases, "verify": elsewhere})
        for _ in range(60):
            cycle()
        self._collected(cycle)
        seen = median(line["verify"][0] for line in map(json.loads, lines) if line["m"] == "")
        truth = self.truth("verify")
        return abs(seen - truth) <= max(0.02 * truth, 0.03), f"verify on its own stream: {seen:.3f} of {truth:.3f} ms"

    @contextmanager
    def nothing_waits(self) -> Iterator[None]:
        """Whatever waits for the device raises, and the probe's timers would stop."""

        def refuse(*_args: Any, **_options: Any) -> None:
            raise RuntimeError("waited for the device")

        cuda = self.torch.cuda
        places = [(cuda, "synchronize"), (cuda.Event, "synchronize"), (cuda.Stream, "synchronize")]
        kept = [(owner, name, getattr(owner, name)) for owner, name in places]
        for owner, name in places:
            setattr(owner, name, refuse)
        try:
            yield
        finally:
            for owner, name, real in kept:
                setattr(owner, name, real)


if __name__ == "__main__":
    sys.exit(main())
