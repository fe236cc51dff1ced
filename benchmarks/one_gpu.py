"""Parts of one_gpu.sh that need Python: nvml, cuda, canary, all-reduce, inductor. Each prints what it saw."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

READINGS = 20
BUSY_S = 6.0
CALLS = 1000


def nvml() -> None:
    """Every answer that perfgate asks for, and what a reading costs."""
    from perfgate.host.gpu import describe_gpus, read_gpus, why_not_free
    from perfgate.host.nvml import Nvml

    with Nvml.open() as found:
        box = describe_gpus(found, time.monotonic())
        print(box)
        print("in use:", why_not_free(box) or "by nobody")
        begin = time.perf_counter()
        for _ in range(READINGS):
            read_gpus(found, time.monotonic())
        print(f"a reading of {len(box.gpus)} GPUs: {(time.perf_counter() - begin) / READINGS * 1000:.2f} ms")


def cuda() -> None:
    """cuInit, memory and peers: outside first, then as the confined user."""
    from perfgate.host.doctor.cuda_checks import cuda_check, wake_gpus
    from perfgate.host.nvml import Nvml
    from perfgate.host.trial import choose

    with Nvml.open() as found:
        count = len(found.handles)
    confinement = choose("auto")
    print("confined by", confinement, "with", [node.name for node in confinement.devices])
    wake_gpus(dict(os.environ))
    print("after a first CUDA program:", [node.name for node in confinement.devices])
    check = cuda_check(confinement, dict(os.environ), count)
    print(check.status, check.text)
    sys.exit(check.status == "fail")


def canary() -> None:
    """What its clock readings see inside the load, and what constant data would show instead."""
    import torch

    from perfgate.host.canary import CanaryProcess, CanarySetup
    from perfgate.host.gpu import read_gpus
    from perfgate.host.nvml import Nvml

    with Nvml.open() as found:
        setup = CanarySetup(python=Path(sys.executable), device="cuda", ranks=1)
        with CanaryProcess(setup, lambda at: read_gpus(found, at)) as process:
            for _ in range(2):
                begin = time.monotonic()
                reading = process.measure()
                print(f"{time.monotonic() - begin:.1f} s:", dict(reading.readings), *reading.notes)
        device = torch.device("cuda", 0)
        for name, one in (
            ("ones", torch.ones(8192, 8192, device=device, dtype=torch.bfloat16)),
            ("random", torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)),
        ):
            print(name, *_under(one, found), sep="; ")


def _under(one: Any, found: Any) -> list[str]:
    """Clock and power in each second of products of one matrix."""
    import torch

    from perfgate.host.gpu import read_gpus

    log: list[tuple[float, int, float]] = []
    going = threading.Event()

    def watch() -> None:
        while not going.wait(0.02):
            state = read_gpus(found, time.monotonic())[0]
            log.append((state.at, state.sm_clock_mhz or 0, state.power_w or 0.0))

    thread = threading.Thread(target=watch)
    thread.start()
    begin = time.monotonic()
    while time.monotonic() - begin < BUSY_S:
        for _ in range(20):
            torch.mm(one, one)
        torch.cuda.synchronize()
    going.set()
    thread.join()
    seconds = range(int(BUSY_S))
    inside = [[row for row in log if begin + second <= row[0] < begin + second + 1] for second in seconds]
    return [
        f"{statistics.median(row[1] for row in rows):.0f} MHz {statistics.median(row[2] for row in rows):.0f} W"
        for rows in inside
        if rows
    ]


def all_reduce() -> None:
    """Host or device: what one call of one rank costs, call by call and in a CUDA graph."""
    import torch
    import torch.distributed as dist

    from perfgate.host import canary_script

    with tempfile.TemporaryDirectory() as folder:
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        tensor = torch.zeros(16384, dtype=torch.bfloat16, device="cuda")
        for _ in range(50):
            dist.all_reduce(tensor)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(CALLS):
            dist.all_reduce(tensor)
        queued = time.perf_counter() - begin
        torch.cuda.synchronize()
        print(f"call by call: host {queued / CALLS * 1e6:.1f} µs, with the device", end=" ")
        print(f"{(time.perf_counter() - begin) / CALLS * 1e6:.1f} µs")
        times = canary_script._all_reduces(32 * 1024, torch.device("cuda", 0), 5)
        print("in a CUDA graph:", *(f"{value:.1f}" for value in times), "µs")
        dist.destroy_process_group()


def inductor() -> None:
    """PyTorch's compiler as the confined user."""
    from perfgate.host.doctor import trial_script
    from perfgate.host.handover import hand_over
    from perfgate.host.sandbox import OUTER_ENVIRONMENT, confine, interpreter_folders
    from perfgate.host.trial import choose

    confinement = choose("auto")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o755)
        home = place / "home"
        home.mkdir()
        shutil.copyfile(trial_script.__file__, place / "trial.py")
        hand_over([home], confinement)
        argv = confine(
            [sys.executable, str(place / "trial.py"), "inductor", "cuda"],
            {"PATH": os.environ["PATH"], "HOME": str(home), "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor")},
            confinement=confinement,
            readable=(place, *interpreter_folders(Path(sys.executable))),
            writable=[home],
            cwd=home,
        )
        sys.exit(subprocess.run(argv, env=OUTER_ENVIRONMENT, check=False).returncode)


PARTS = {"nvml": nvml, "cuda": cuda, "canary": canary, "all-reduce": all_reduce, "inductor": inductor}

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
