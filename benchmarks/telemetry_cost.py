"""What watching costs while samples run: CPU of the GPU telemetry thread, and of the readings around a sample.

    python benchmarks/telemetry_cost.py [SECONDS]

Runs on this machine's NVML, or on the stand-in (8 GPUs) where there is none. The stand-in costs what pynvml and
perfgate cost; a real driver adds its own calls. Must stay under 1 % of one core.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from perfgate.host.nvml import Nvml, NvmlAbsentError
from perfgate.host.system import SystemWatch
from perfgate.host.telemetry import GpuTelemetry


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 30.0
    with tempfile.TemporaryDirectory() as folder, open_nvml(Path(folder)) as nvml:
        for period in (1.0, 0.5):
            with GpuTelemetry.of(nvml, period) as telemetry:
                begin, cpu = time.monotonic(), time.process_time()
                time.sleep(seconds)
                used = time.process_time() - cpu
                readings = telemetry.between(begin, time.monotonic())[0]["readings"]
            print(
                f"{len(nvml.handles)} GPUs at {1 / period:.0f} Hz: {100 * used / seconds:.3f} % of one core"
                f" ({readings} readings in {seconds:.0f} s, {1000 * used / readings:.2f} ms each)"
            )
    begin, cpu = time.perf_counter(), time.process_time()
    SystemWatch.start([os.getpid()]).stop()
    wall, used = time.perf_counter() - begin, time.process_time() - cpu
    print(f"system, before and after a sample together: {1000 * wall:.1f} ms, {1000 * used:.1f} ms of CPU")


def open_nvml(folder: Path) -> Nvml:
    try:
        return Nvml.open()
    except NvmlAbsentError as error:
        print(f"{error}: the stand-in instead")
    from tests import nvml

    os.environ["NVML_SCENE"] = str(nvml.HEALTHY.loaded().write(folder / "scene"))
    nvml.load(nvml.build(folder))
    import pynvml

    pynvml.nvmlLib = None
    return Nvml.open()


if __name__ == "__main__":
    main()
