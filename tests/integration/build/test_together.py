"""Two perfgates on one box, and one that is killed in the middle."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from perfgate.records import Side
from tests.integration.build.lab import Lab, make_wheel, run_python

REPOSITORY = Path(__file__).parents[3]


def _start(lab: Lab, sha: str, log: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.build.worker", str(lab.root), sha, str(log)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_build_the_same_key_once(lab: Lab) -> None:
    sha = lab.commit("tiny==1.0", "other")
    logs = [lab.root / f"log{number}" for number in range(3)]
    processes = [_start(lab, sha, log) for log in logs]
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    assert len({answer["key"] for answer in answers}) == 1
    made = ["# make a virtual environment" in log.read_text() for log in logs]  # twice where uv can fetch no Python
    assert sum(made) == 1
    assert sum(log.read_text().count("# install\n") for log in logs) == 1
    assert run_python(Path(answers[0]["python"]), (), "import tiny; print(tiny.VERSION)") == "1.0"


def _slow_lab(lab: Lab) -> str:
    """Enough files for the making to take its time in each of its steps."""
    files = {f"bulk/m{number}.py": "x = 1\n" * 50 for number in range(800)}
    make_wheel(lab.index, "bulky", "1.0", files)
    return lab.commit("tiny==1.0", "other", "bulky")


def _environment(lab: Lab) -> Path | None:
    folder = lab.root / "state" / "environments"
    found = [path for path in folder.glob("*") if not path.name.startswith(".")] if folder.is_dir() else []
    return found[0] if found else None


def _reached(lab: Lab, stage: str) -> bool:
    entry = _environment(lab)
    if entry is None:
        return False
    if stage == "begun":
        return True
    if stage == "installing":
        return any(entry.glob("venv/lib/*/site-packages/bulk/*.py"))
    return any(entry.glob("venv/lib/*/site-packages/bulk/__pycache__/*.pyc"))


@pytest.mark.parametrize("stage", ["begun", "installing", "compiling"])
def test_kill_in_the_middle_of_a_build(lab: Lab, stage: str) -> None:
    sha = _slow_lab(lab)
    process = _start(lab, sha, lab.root / "log")
    while not _reached(lab, stage):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.002)
    process.kill()
    process.communicate()
    _check_whole(lab, sha)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_kill_at_any_time(lab: Lab, seed: int) -> None:
    sha = _slow_lab(lab)
    delay = random.Random(seed).uniform(0.3, 4.0)
    print(f"seed {seed}: killed after {delay:.3f} s")
    process = _start(lab, sha, lab.root / "log")
    time.sleep(delay)
    process.kill()
    process.communicate()
    _check_whole(lab, sha)


def _check_whole(lab: Lab, sha: str) -> None:
    """The next perfgate makes it whole, nothing of the first one is left, and a third finds it ready."""
    with lab.store() as store:
        builder = lab.builder(store)
        built = builder.build(Side.BASE, builder.repository.resolve(sha), log=lab.root / "log2")
        code = "import tiny, bulk.m799, sglang; print(tiny.VERSION, bulk.m799.x)"
        assert run_python(built.python, built.path_entries, code) == "1.0 1"
        store.evict()
    with lab.store() as store:
        again = lab.builder(store).build(Side.BASE, builder.repository.resolve(sha), log=lab.root / "log3")
        assert again.cached
    left = [path.name for kind in ("environments", "trees") for path in (lab.root / "state" / kind).iterdir()]
    assert not [name for name in left if name.endswith((".making", ".scratch", ".partial"))]
    assert not [process for process in psutil.process_iter(["cmdline"]) if _belongs(process, lab)]


def _belongs(process: psutil.Process, lab: Lab) -> bool:
    return any(str(lab.root) in part for part in process.info["cmdline"] or [])
