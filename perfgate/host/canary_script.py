"""The canary itself: runs in an environment that no pull request touches, and needs nothing of perfgate.

    python canary_script.py          reads one JSON request a line, answers each with one JSON line, and tells before
                                     it, on lines of their own, when the computing load begins and ends

A request: {"ranks": 8, "device": "cuda" | "cpu", "sizes": [32768, …], "repeats": 5}. The answer: {"readings":
{"allreduce_32k_us": [one a repeat], "compute_ms": […]}, "notes": […]}. Each number is the mean over a fixed amount of
work; with several ranks it is the slowest rank's, since everybody waits for that one.

The process stays between launches of a server with torch imported but no GPU touched, and forks fresh ranks for each
request, which give back all memory when they end. Without torch only the computing kernel runs, on the standard
library.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

try:
    import torch
    import torch.distributed as dist
except ImportError:
    torch = None
    dist = None

WARM_UPS = 20
ALL_REDUCES = 200  # in one timed piece
GRAPH = 100  # all-reduces in a CUDA graph: one takes 10 to 26 µs, and Python would be timed beside it
GPU_MATRIX, GPU_PRODUCTS = 8192, 40
GPU_LOAD_S = 2.5  # all repeats together: a clock settles under a power or heat cap within a second or so
LOAD_BEGINS, LOAD_ENDS = '{"load": "begins"}', '{"load": "ends"}'
CPU_MATRIX, CPU_PRODUCTS = 192, 40
HASHED = bytes(range(256)) * 4096  # 1 MiB
HASHES = 20

Readings = dict[str, list[float]]


def main() -> None:
    if torch is not None:
        torch.set_num_threads(1)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(request)), flush=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Forks the ranks, waits for all, and joins what they measured."""
    ranks = int(request["ranks"]) if torch is not None else 1
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(rank, ranks, request, folder) for rank in range(ranks)]
        outcomes = [_outcome(*child) for child in children]
    failed = [str(outcome["error"]) for outcome in outcomes if "error" in outcome]
    notes = [f"rank {rank}: {outcome['error']}" for rank, outcome in enumerate(outcomes) if "error" in outcome][:3]
    if torch is None:
        notes.append("no torch in this environment: only the computing kernel ran")
    return {"readings": {} if failed else slowest([outcome["readings"] for outcome in outcomes]), "notes": notes}


def slowest(of_ranks: list[Readings]) -> Readings:
    """Repeat by repeat the slowest rank's."""
    return {
        name: [max(values) for values in zip(*(readings[name] for readings in of_ranks), strict=True)]
        for name in of_ranks[0]
    }


def _fork(rank: int, ranks: int, request: dict[str, Any], folder: str) -> tuple[int, int]:
    """(pid, descriptor to read the outcome from)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    outcome: dict[str, Any]
    try:
        outcome = {"readings": measure(rank, ranks, request, folder)}
    except BaseException as error:  # noqa: BLE001 (whatever it is, the parent must hear of it)
        outcome = {"error": f"{type(error).__name__}: {error}"[:300]}
    with suppress(OSError):
        os.write(writing, json.dumps(outcome).encode())
    os._exit(0)


def _outcome(pid: int, reading: int) -> dict[str, Any]:
    text = b""
    while part := os.read(reading, 65536):
        text += part
    os.close(reading)
    os.waitpid(pid, 0)
    try:
        outcome: dict[str, Any] = json.loads(text)
    except ValueError:
        return {"error": "ended without a word"}
    return outcome


def measure(rank: int, ranks: int, request: dict[str, Any], folder: str) -> Readings:
    repeats = int(request["repeats"])
    if torch is None:
        with _told_load(rank):
            return {"compute_ms": [milliseconds(_hash) for _ in range(repeats)]}
    on_gpu = request["device"] == "cuda"
    if on_gpu:
        torch.cuda.set_device(rank)
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    readings: Readings = {}
    if ranks > 1:
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks
        )
        for size in request["sizes"]:
            readings[f"allreduce_{size // 1024}k_us"] = _all_reduces(int(size), device, repeats)
    if ranks > 1:
        dist.barrier()
    with _told_load(rank):
        readings["compute_ms"] = _products(device, repeats)
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()
    return readings


def _all_reduces(size: int, device: Any, repeats: int) -> list[float]:
    tensor = torch.zeros(size // 2, dtype=torch.bfloat16, device=device)

    def some(count: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(count):
                dist.all_reduce(tensor)

        return run

    timed(some(WARM_UPS), device)
    piece = some(ALL_REDUCES)
    if device.type == "cuda":
        graph = _captured(some(GRAPH))

        def piece() -> None:
            for _ in range(ALL_REDUCES // GRAPH):
                graph.replay()

        timed(piece, device)
    return [timed(piece, device) * 1000 / ALL_REDUCES for _ in range(repeats)]


def _captured(run: Callable[[], None]) -> Any:
    """A CUDA graph of it. Other threads (NCCL's watchdog) may call CUDA meanwhile."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph


def _products(device: Any, repeats: int) -> list[float]:
    """A fixed load: products of random matrices, since constant data take less power than any model's."""
    on_gpu = device.type == "cuda"
    side, count = (GPU_MATRIX, GPU_PRODUCTS) if on_gpu else (CPU_MATRIX, CPU_PRODUCTS)
    torch.manual_seed(0)
    one = torch.randn(side, side, dtype=torch.bfloat16 if on_gpu else torch.float32, device=device)

    def some(number: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(number):
                torch.mm(one, one)

        return run

    first = timed(some(count), device)
    if not on_gpu:
        return [timed(some(count), device) for _ in range(repeats)]
    pieces = max(1, round(GPU_LOAD_S * 1000 / repeats / max(first, 1.0)))
    return [timed(some(count * pieces), device) / pieces for _ in range(repeats)]


@contextmanager
def _told_load(rank: int) -> Iterator[None]:
    """Tells whoever reads the clocks when all ranks are at it."""
    if rank == 0:
        print(LOAD_BEGINS, flush=True)
    yield
    if rank == 0:
        print(LOAD_ENDS, flush=True)


def timed(run: Callable[[], object], device: Any) -> float:
    """Milliseconds; on a GPU by its own clock, around work that is queued faster than it is done."""
    if device.type != "cuda":
        return milliseconds(run)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize(device)
    return float(begin.elapsed_time(end))


def milliseconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1000


def _hash() -> None:
    for _ in range(HASHES):
        hashlib.sha256(HASHED).digest()


if __name__ == "__main__":
    main()
