"""Real SGLang on the cpu profile, under the probe: started, asked one prompt after another, killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import requests

from perfgate.cpu.environment import SERVER_VARIABLES, CpuEnvironment
from perfgate.engine.server import free_port
from perfgate.probe.inside import probe_environment, probe_path

FLAGS = [
    *("--device", "cpu", "--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx"),
    *("--max-total-tokens", "8192", "--mem-fraction-static", "0.3", "--max-running-requests", "16"),
    *("--dtype", "float32", "--random-seed", "1", "--sleep-on-idle"),
]
EAGLE3 = [
    *("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "2", "--speculative-eagle-topk", "1"),
    *("--speculative-num-draft-tokens", "3"),
]


@dataclass(frozen=True)
class Answer:
    """One answered prompt by the client's clock. `cycle_ms`: decode time per cycle, plain decoding per token."""

    begin: float
    first: float
    last: float
    tokens: int
    cycles: int

    @property
    def window(self) -> tuple[float, float]:
        return self.begin, self.last

    @property
    def cycle_ms(self) -> float:
        return (self.last - self.first) * 1000 / self.cycles

    @property
    def accept_length(self) -> float:
        return (self.tokens - 1) / self.cycles


@dataclass(frozen=True)
class Server:
    port: int
    log: Path

    def ask(self, seed: int, tokens: int = 64) -> Answer:
        draw = random.Random(seed)
        body = {
            "input_ids": [draw.randrange(5, 1000) for _ in range(20)],
            "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
            "stream": True,
        }
        begin = time.monotonic()
        times: list[float] = []
        with requests.post(f"http://127.0.0.1:{self.port}/generate", json=body, stream=True, timeout=120) as response:
            for line in response.iter_lines(chunk_size=1):
                if line.startswith(b"data: {"):
                    times.append(time.monotonic())
                    meta = json.loads(line[6:])["meta_info"]
        cycles = meta.get("spec_verify_ct") or meta["completion_tokens"] - 1
        return Answer(begin, times[0], times[-1], meta["completion_tokens"], cycles)


@contextlib.contextmanager
def serving(
    cpu: CpuEnvironment,
    directory: Path,
    *,
    speculative: bool = True,
    tp: int = 1,
    before_sglang: tuple[Path, ...] = (),
    variables: Mapping[str, str] | None = None,
    toggle: bool = False,
) -> Iterator[Server]:
    """A ready server; its probe writes to `directory/probe`. Killed with all its processes in the end."""
    probe_dir = directory / "probe"
    probe_dir.mkdir(parents=True, exist_ok=True)
    (probe_dir / "toggle").write_text("1")
    port = free_port()
    model = [*("--model-path", str(cpu.target)), *("--host", "127.0.0.1"), *("--port", str(port)), *("--tp", str(tp))]
    draft = [*EAGLE3, "--speculative-draft-model-path", str(cpu.draft)] if speculative else []
    environment = {
        **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        **SERVER_VARIABLES,
        "PYTHONPATH": ":".join(map(str, (probe_path(), *before_sglang, cpu.wheel_tree))),
        **probe_environment(probe_dir, launch="real", toggle=toggle),
        **({"SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, cores(tp)))} if tp > 1 else {}),
        **(variables or {}),
    }
    log = directory / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(cpu.python), "-m", "sglang.launch_server", *model, *FLAGS, *draft],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _until_ready(process, log)
        yield Server(port, log)
        time.sleep(0.75)  # the probe's last cycles reach the disk within half a second
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def cores(ranks: int) -> list[int]:
    """One core for each rank, as SGLang wants it told where ranks outnumber NUMA nodes."""
    there = sorted(os.sched_getaffinity(0))
    return [there[rank % len(there)] for rank in range(ranks)]


def _until_ready(process: subprocess.Popen[bytes], log: Path, limit_s: float = 240) -> None:
    end = time.monotonic() + limit_s
    while b"The server is fired up" not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(log.read_text(errors="replace")[-4000:])
        time.sleep(0.25)
