"""benchmarks/one_gpu.sh where there is no GPU: each part fails alone and says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "one_gpu.sh"
PARTS = re.findall(r"^part ([\w-]+) ", SCRIPT.read_text(), re.MULTILINE)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_a_part_that_fails_hides_no_other(tmp_path: Path) -> None:
    about = {**os.environ, "PYTHON": sys.executable, "TMPDIR": str(tmp_path)}
    done = subprocess.run(["bash", str(SCRIPT)], env=about, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert len(PARTS) == 11
    told = re.findall(r"^([✔✖]) ([\w-]+): ", done.stdout, re.MULTILINE)
    assert [name for _, name in told] == PARTS
    assert {name: mark for mark, name in told}["host"] == "✔"
    assert "✖ nvml: status 1" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_one_part_alone(tmp_path: Path) -> None:
    about = {**os.environ, "PYTHON": sys.executable, "TMPDIR": str(tmp_path)}
    done = subprocess.run(["bash", str(SCRIPT), "host"], env=about, capture_output=True, text=True, check=False)
    assert (done.returncode, re.findall(r"^=== (.*)$", done.stdout, re.MULTILINE)) == (0, ["host"])
