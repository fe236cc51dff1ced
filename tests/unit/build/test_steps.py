"""Commands of a build: bounded in time and output, and not one outlives what started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from perfgate.build.steps import Runner, Step, StepFailed


def _step(script: str, tmp_path: Path, *, theirs: bool = False) -> Step:
    return Step(
        what="try",
        argv=["/bin/sh", "-c", script],
        environment={"PATH": "/usr/bin:/bin", "GIVEN": "yes"},
        cwd=tmp_path,
        theirs=theirs,
    )


def _runner(tmp_path: Path, seconds: float = 60.0) -> Runner:
    return Runner(log=tmp_path / "logs" / "build.log", deadline=time.monotonic() + seconds)


@pytest.mark.parametrize("theirs", [False, True])
def test_a_step_gets_its_environment_and_no_other(tmp_path: Path, theirs: bool) -> None:
    said = _runner(tmp_path).run(_step("env; pwd; echo oops >&2", tmp_path, theirs=theirs))
    assert "GIVEN=yes" in said
    assert "oops" in said
    assert str(tmp_path) in said
    assert not [line for line in said.splitlines() if line.startswith(("HOME=", "USER=", "GITHUB", "UV_"))]
    assert "GIVEN=yes" in (tmp_path / "logs" / "build.log").read_text()


def test_a_failure_carries_code_and_output(tmp_path: Path) -> None:
    with pytest.raises(StepFailed) as error:
        _runner(tmp_path).run(_step("echo first; exit 7", tmp_path))
    assert (error.value.code, error.value.output) == (7, "first\n")


def test_a_step_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(StepFailed) as error:
        _runner(tmp_path, 3.0).run(_step("sleep 1000 & echo $! > child; wait", tmp_path))
    assert error.value.code is None
    assert _ends(int((tmp_path / "child").read_text()))


def test_endless_output_is_bounded(tmp_path: Path) -> None:
    said = _runner(tmp_path).run(_step("echo begin; head -c 5000000 /dev/zero | tr '\\0' x; echo end", tmp_path))
    assert said.startswith("begin")
    assert said.endswith("end\n")
    assert len(said) <= 2**20


def test_a_child_that_keeps_the_pipe_is_not_waited_for(tmp_path: Path) -> None:
    script = "setsid sleep 30 & echo $! > child; echo done"
    said = _runner(tmp_path, 20.0).run(_step(script, tmp_path))
    assert said == "done\n"
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_steps_die_with_perfgate(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from perfgate.build.steps import *\n"
        "place = Path(sys.argv[1])\n"
        "step = Step(what='x', argv=['/bin/sh', '-c', 'echo $$ > child; exec sleep 1000'], environment={}, cwd=place)\n"
        "Runner(log=place / 'log', deadline=time.monotonic() + 60).run(step)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    child = tmp_path / "child"
    end = time.monotonic() + 30
    while not (child.exists() and child.read_text().strip()) and time.monotonic() < end:
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    assert _ends(int(child.read_text()))


def _ends(pid: int) -> bool:
    """Whether a process is gone, or only waits for its parent to notice."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False
