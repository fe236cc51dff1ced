"""`perfgate doctor` as a user types it, on the NVML stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.nvml import HEALTHY, Scene, environment, nvcc


@pytest.fixture
def box(tmp_path: Path) -> Path:
    file = tmp_path / "box.yml"
    about = {"nccl": {"NCCL_PROTO": "LL"}, "tools": {"nvcc": str(nvcc(tmp_path / "cuda"))}}
    file.write_text(yaml.safe_dump({"name": "pro6000x8", "state_dir": str(tmp_path / "state"), **about}))
    return file


def doctor(library: Path, scene: Scene, box: Path, *more: str) -> subprocess.CompletedProcess[str]:
    scene_file = scene.write(box.with_name("scene"))
    command = [sys.executable, "-m", "perfgate", "doctor", "--box", str(box), *more]
    surroundings = {**os.environ, "NO_COLOR": "1", "COLUMNS": "110", **environment(library, scene_file)}
    return subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)


def test_a_healthy_box(nvml_library: Path, box: Path) -> None:
    done = doctor(nvml_library, HEALTHY, box)
    small_disk = "✖  disk" in done.stdout  # of the machine that runs the tests
    assert done.returncode == (4 if small_disk else 0), done.stdout + done.stderr
    assert "✔  gpus" in done.stdout
    assert "8 × NVIDIA RTX PRO 6000 Blackwell Server Edition, driver 590.48.01" in done.stdout
    assert done.stdout.count("✖") == (2 if small_disk else 0)


def test_a_sick_box_says_what_why_and_how_to_mend_it(nvml_library: Path, box: Path) -> None:
    done = doctor(nvml_library, HEALTHY.gpu(3, pcie_width=8), box)
    assert done.returncode == 4
    assert "✖  links" in done.stdout
    assert "GPU 3's link is x8, it could be x16" in done.stdout
    assert "→ reseat the card" in done.stdout


def test_for_machines(nvml_library: Path, box: Path) -> None:
    done = doctor(nvml_library, HEALTHY.gpu(0, mig=1), box, "--json")
    assert done.returncode == 4
    body = json.loads(done.stdout)
    assert body["ok"] is False
    assert next(check["name"] for check in body["checks"] if check["status"] == "fail") == "gpus whole"
    assert len(body["fingerprint"]["gpus"]) == 8
    for secret in ("GPU-0000", "165012400"):
        assert secret not in done.stdout


def test_without_gpus_on_the_cpu_profile(box: Path) -> None:
    command = [sys.executable, "-m", "perfgate", "doctor", "--profile", "cpu", "--box", str(box)]
    done = subprocess.run(command, env={**os.environ, "COLUMNS": "110"}, capture_output=True, text=True, check=False)
    assert done.returncode == (4 if "✖  disk" in done.stdout else 0), done.stdout
    assert "none needed here" in done.stdout
