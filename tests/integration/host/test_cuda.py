"""Whether the GPUs can be used in the sandbox, against a driver's library whose device node appears when asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate.config.model import BoxFile, ResolvedRecipe, Workload
from perfgate.host.doctor.cuda_checks import compiler_checks, cuda_check, cuda_mismatch, wake_gpus
from perfgate.host.doctor.gpu_checks import other_machine
from perfgate.host.sandbox import Confinement, Isolation, describe
from tests import nvml
from tests.integration.engine.conftest import open_to_all
from tests.needs import require

Driver = Callable[..., dict[str, str]]


@pytest.fixture
def confinement(tmp_path: Path) -> Confinement:
    require("bubblewrap")
    open_to_all(tmp_path)
    (tmp_path / "dev").mkdir()
    return replace(describe(Isolation.BUBBLEWRAP), device_folder=tmp_path / "dev")


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    require("gcc")

    def build(**defined: str) -> dict[str, str]:
        folder = tmp_path / "driver"
        folder.mkdir(exist_ok=True)
        nvml.build_cuda(folder, NODE=f'"{tmp_path}/dev/nvidia-uvm"', **defined)
        return {"LD_LIBRARY_PATH": str(folder)}

    return build


def test_a_node_that_only_a_program_outside_can_make(confinement: Confinement, driver: Driver, tmp_path: Path) -> None:
    environment = driver()
    before = cuda_check(confinement, environment, 8)
    assert (before.status, before.name) == ("fail", "cuda")
    assert "CUDA_ERROR_NO_DEVICE" in before.text
    assert "nvidia-modprobe" in before.remedy
    wake_gpus(environment)
    (tmp_path / "dev" / "nvidia-uvm").chmod(0o666)
    after = cuda_check(confinement, environment, 8)
    assert (after.status, after.text) == (
        "ok",
        f"8 GPUs answer in isolation ({confinement}), peer access between 24 of 56 pairs",
    )


def test_memory_that_is_refused_and_gpus_that_are_missing(
    confinement: Confinement, driver: Driver, tmp_path: Path
) -> None:
    node = tmp_path / "dev" / "nvidia-uvm"
    node.touch()
    node.chmod(0o666)
    assert "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY" in cuda_check(confinement, driver(FAILING='"yes"'), 8).text
    assert "4 of 8 GPUs can be used" in cuda_check(confinement, driver(COUNT="4"), 8).text


def test_a_box_without_the_drivers_library(confinement: Confinement) -> None:
    assert "libcuda.so.1" in cuda_check(confinement, {}, 8).text


RECIPE = ResolvedRecipe(
    name="baseline",
    model="m",
    model_path="/m",
    revision=None,
    draft=None,
    draft_path=None,
    draft_revision=None,
    flags={"numa-node": "0"},
    env={},
    workload=Workload(),
    rules={},
    speculative=False,
)


def compilers(box: BoxFile, *recipes: ResolvedRecipe, search: str = "/usr/bin:/bin") -> list[str]:
    checks = list(compiler_checks(box, recipes, python="3.12", search=search, driver_cuda="12.8"))
    assert all(check.status == "fail" and check.remedy for check in checks)
    return [check.text for check in checks]


def test_what_sglang_compiles_with_is_asked_for_before_it_serves(tmp_path: Path) -> None:
    require("gcc")
    assert compilers(BoxFile()) == ["nvcc is not found"]
    box = BoxFile(tools={"nvcc": str(nvml.nvcc(tmp_path / "cuda", "12.4"))})
    assert compilers(box) == []
    newer = BoxFile(tools={"nvcc": str(nvml.nvcc(tmp_path / "newer", "13.0"))})
    assert compilers(newer) == ["nvcc is of CUDA 13.0, the driver serves up to 12.8"]
    assert compilers(box, search="/nowhere") == ["no C and C++ compiler"]
    assert compilers(box, RECIPE, search="/nowhere")[1:] == [
        "numactl is not found, and baseline binds ranks to NUMA nodes"
    ]


def test_an_interpreter_of_the_box_without_headers(tmp_path: Path) -> None:
    require("gcc")
    tools = nvml.nvcc(tmp_path / "cuda", "12.4")
    (tools / "python3.12").write_text("#!/bin/sh\necho False\n")
    (tools / "python3.12").chmod(0o755)
    assert compilers(BoxFile(tools={"nvcc": str(tools)})) == [f"{tools}/python3.12 has no Python.h"]


def test_nvcc_and_torch_of_different_majors() -> None:
    told = "nvcc is of CUDA 12.8, torch of CUDA 13.0: SGLang's kernels would not compile"
    assert cuda_mismatch("12.8", "13.0") == told
    assert cuda_mismatch("12.8", "12.6") is None
    assert cuda_mismatch(None, "13.0") is None


def test_machines_that_perfgate_was_not_made_for(tmp_path: Path) -> None:
    assert other_machine(tmp_path, "x86_64") is None
    arm = other_machine(tmp_path, "aarch64")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    amd = other_machine(tmp_path, "x86_64")
    assert arm is not None
    assert amd is not None
    assert ("no NVIDIA" in arm.text, "no NVIDIA" in amd.text) == (True, True)
    assert "install the NVIDIA driver" not in amd.remedy + arm.remedy
