"""GPUs through real pynvml on the NVML stand-in: the story's box, and each way in which it can be ill."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfgate.config.model import BoxFile
from perfgate.host.gpu import GpuBox, GpuReading, describe_gpus, read_gpus, share_of, why_not_free
from perfgate.host.gpus_free import gpus_free_command
from perfgate.host.nvml import Nvml, NvmlAbsentError
from perfgate.host.telemetry import GpuTelemetry, summary
from perfgate.records.files import short_hash
from tests.nvml import HEALTHY, HW_THERMAL, IDLE, LOST, POWER_CAP, Scene

Play = Callable[[Scene], None]


@pytest.fixture
def box(play: Play) -> Iterator[Callable[[Scene], GpuBox]]:
    opened: list[Nvml] = []

    def describe(scene: Scene) -> GpuBox:
        play(scene)
        opened.append(Nvml.open())
        return describe_gpus(opened[-1], 0.0)

    yield describe
    for nvml in opened:
        nvml.close()


def test_the_story_s_box(box: Callable[[Scene], GpuBox]) -> None:
    seen = box(HEALTHY)
    assert (seen.driver, seen.cuda, len(seen.gpus)) == ("590.48.01", "13.1", 8)
    gpu, reading = seen.gpus[3], seen.readings[3]
    assert gpu.name == "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    assert (gpu.sm_max_mhz, gpu.pcie_gen_max, gpu.pcie_width_max, gpu.power_limit_w) == (2430, 5, 16, 600.0)
    assert (gpu.persistence, gpu.ecc, gpu.mig, gpu.compute_mode) == (True, True, False, "default")
    assert (reading.pcie_gen, reading.pstate, reading.power_w, reading.reasons) == (1, 8, 24.0, ("idle",))
    assert seen.topology[0] == ("X", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS")
    assert why_not_free(seen) == ()


def test_identifiers_are_hashed(box: Callable[[Scene], GpuBox]) -> None:
    seen = box(HEALTHY)
    assert seen.gpus[0].uuid == short_hash("GPU-00000000-c0de-4bad-8bad-00000000cafe")
    assert seen.gpus[0].serial == short_hash("1650124000000")
    assert "GPU-0000" not in repr(seen)
    assert "165012400" not in repr(seen)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_any_number_of_gpus(box: Callable[[Scene], GpuBox], count: int) -> None:
    seen = box(Scene(count=count))
    assert len(seen.gpus) == len(seen.readings) == len(seen.topology) == len(seen.processes) == count


EVERY_CALL = [
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetPowerManagementDefaultLimit",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetViolationStatus",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
]


@pytest.mark.parametrize("function", EVERY_CALL)
def test_any_single_call_may_be_unsupported(box: Callable[[Scene], GpuBox], function: str) -> None:
    whole, without = box(HEALTHY), box(HEALTHY.without(function))
    assert all(not reading.lost for reading in without.readings)
    assert known(whole) - known(without) <= 8 * 8, "one call takes its own answers with it, no others"


def test_a_card_that_answers_nothing_is_all_none_and_never_zero(box: Callable[[Scene], GpuBox]) -> None:
    seen = box(Scene(count=2).without(*EVERY_CALL))
    for gpu in seen.gpus:
        assert {value for name, value in vars(gpu).items() if name != "index"} == {None}
    for reading in seen.readings:
        assert {value for name, value in vars(reading).items() if name not in ("index", "at", "lost")} == {None}
    assert why_not_free(seen) == ()


def known(seen: GpuBox) -> int:
    return sum(value is not None for one in (*seen.gpus, *seen.readings) for value in vars(one).values())


def test_older_drivers_know_throttle_reasons_only(play: Play) -> None:
    play(HEALTHY.all(reasons=hex(POWER_CAP | HW_THERMAL)).without("nvmlDeviceGetCurrentClocksEventReasons"))
    with Nvml.open() as nvml:
        assert read_gpus(nvml, 0.0)[0].reasons == ("power_cap", "hw_thermal")


def test_unknown_reasons_are_kept_by_bit(play: Play) -> None:
    play(HEALTHY.all(reasons=hex(1 << 40 | IDLE)))
    with Nvml.open() as nvml:
        assert read_gpus(nvml, 0.0)[0].reasons == ("idle", "bit_40")


def test_no_driver_is_one_reason(play: Play) -> None:
    with pytest.raises(NvmlAbsentError, match="not loaded"):
        Nvml.open()


def test_driver_and_library_of_different_versions(play: Play) -> None:
    play(HEALTHY.machine(init_error=18))
    with pytest.raises(NvmlAbsentError, match="differ in version"):
        Nvml.open()


def test_foreign_process_is_named_by_pid_and_hash(box: Callable[[Scene], GpuBox]) -> None:
    seen = box(HEALTHY.gpu(3, processes=f"{os.getpid()}:2048", memory_used_mib=2100))
    (sentence,) = why_not_free(seen)
    assert sentence.startswith(f"GPU 3 is in use by pid {os.getpid()} (command ")
    assert "pytest" not in sentence
    assert why_not_free(seen, ours=[os.getpid()]) == ()


def test_process_of_another_container_is_told_by_pid_or_by_memory_alone(box: Callable[[Scene], GpuBox]) -> None:
    listed = box(HEALTHY.gpu(0, processes="4123456:1024"))
    assert "pid 4123456 (not visible from here: another container?, 1.0 GiB)" in why_not_free(listed)[0]
    unlisted = box(HEALTHY.gpu(5, memory_used_mib=40960))
    assert "GPU 5 has 40.0 GiB in use by a process that cannot be seen from here" in why_not_free(unlisted)[0]


def test_our_own_memory_is_no_stranger(box: Callable[[Scene], GpuBox]) -> None:
    seen = box(HEALTHY.gpu(0, processes="77:88000", memory_used_mib=88000))
    assert why_not_free(seen, ours=[77]) == ()


def test_lost_in_mid_run(play: Play) -> None:
    play(HEALTHY.loaded())
    with Nvml.open() as nvml:
        telemetry = GpuTelemetry.of(nvml)
        telemetry.read_now()
        play(HEALTHY.loaded().gpu(6, error=LOST))
        telemetry.read_now()
        seen = telemetry.between(0, time.monotonic())
    assert [gpu["index"] for gpu in seen if gpu["lost"]] == [6]
    assert seen[6]["sm_clock_mhz"] == 2320, "from before it was lost"
    assert seen[0]["readings"] == 2


def test_telemetry_summarises_a_window(play: Play) -> None:
    play(HEALTHY)
    with Nvml.open() as nvml:
        telemetry = GpuTelemetry.of(nvml)
        telemetry.read_now()
        begin = time.monotonic()
        play(HEALTHY.loaded())
        telemetry.read_now()
        play(HEALTHY.loaded().gpu(1, reasons=hex(HW_THERMAL), sm_mhz=1800, thermal_ns=250_000_000, pcie_replays=4))
        telemetry.read_now()
        healthy, hot = telemetry.between(begin, time.monotonic())[:2]
    assert (healthy["pcie"], healthy["power_w"], healthy["throttle"], healthy["readings"]) == ("Gen5 x16", 231.0, [], 2)
    assert (hot["throttle"], hot["sm_clock_min_mhz"], hot["thermal_ms"]) == (["hw_thermal"], 1800, 250.0)
    assert hot["pcie_replays"] == 4


def test_a_window_too_short_takes_the_nearest_reading(play: Play) -> None:
    play(HEALTHY)
    with Nvml.open() as nvml:
        telemetry = GpuTelemetry.of(nvml)
        telemetry.read_now()
        assert telemetry.between(0.0, 0.001)[0]["readings"] == 1


def test_the_thread_reads_by_itself_and_ends(play: Play) -> None:
    play(HEALTHY)
    with Nvml.open() as nvml, GpuTelemetry.of(nvml, period_s=0.02) as telemetry:
        deadline = time.monotonic() + 10
        while telemetry.between(0, time.monotonic())[0]["readings"] < 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert not telemetry._thread.is_alive()


def test_absent_sensors_stay_absent_in_the_summary() -> None:
    seen = summary([GpuReading(index=0, at=0.0, lost=False), GpuReading(index=0, at=1.0, lost=False)])
    for name in ("sm_clock_mhz", "temperature_c", "power_w", "pcie", "throttle", "thermal_ms", "pcie_replays"):
        assert seen[name] is None, name


def test_a_resident_may_stay_within_its_memory_and_nobody_else(play: Play) -> None:
    name = Path("/proc/self/comm").read_text().strip()
    play(HEALTHY.gpu(1, graphics=f"{os.getpid()}:4"))
    share = share_of(BoxFile(residents={name: 64}), {})
    with Nvml.open() as nvml:
        seen = describe_gpus(nvml, 0.0)
    assert why_not_free(seen, share=share) == ()
    assert why_not_free(seen, share=share_of(BoxFile(residents={name: 1}), {})) != ()
    (told,) = why_not_free(seen, named=True)
    assert f"({name}, 4 MiB)" in told
    assert name not in why_not_free(seen)[0]


def test_one_set_of_gpus_by_number_or_uuid(play: Play) -> None:
    play(HEALTHY.gpu(2, processes="77:4096"))
    for said in ("0,1,5", "GPU-00000000,GPU-00000001,GPU-00000005"):
        share = share_of(BoxFile(env={"CUDA_VISIBLE_DEVICES": said}), {"CUDA_VISIBLE_DEVICES": "7"})
        with Nvml.open(share.visible) as nvml:
            seen = describe_gpus(nvml, 0.0)
            assert [reading.index for reading in read_gpus(nvml, 0.0)] == [0, 1, 5]
        assert [gpu.index for gpu in seen.gpus] == [0, 1, 5]
        assert why_not_free(seen, share=share) == ()
        assert share.variables == {"CUDA_VISIBLE_DEVICES": said, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert share_of(BoxFile(), {}).visible is None
    assert share_of(BoxFile(), {"CUDA_VISIBLE_DEVICES": "7"}).visible == ("7",)


def test_the_watchdog_asks_about_the_same_gpus(play: Play, nvml_library: Path) -> None:
    play(HEALTHY.gpu(2, processes="77:4096"))
    mine = gpus_free_command(share_of(BoxFile(env={"CUDA_VISIBLE_DEVICES": "0,1"}), {}))
    every = gpus_free_command(share_of(BoxFile(), {}))
    about = {**os.environ, "LD_LIBRARY_PATH": str(nvml_library.parent)}
    assert [subprocess.run(command, env=about, check=False).returncode for command in (mine, every)] == [0, 1]
