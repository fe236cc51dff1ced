"""Commands of a build: bounded in time and output, and not one outlives what started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from perfgate.build.steps import Runner, Step, StepFailed
from perfgate.host.sandbox import UNCONFINED, Confinement, Kind, SandboxError, available


def _step(script: str, tmp_path: Path, *, theirs: bool = False) -> Step:
    return Step(
        what="try",
        argv=["/bin/sh", "-c", script],
        environment={"PATH": "/usr/bin:/bin", "GIVEN": "yes"},
        cwd=tmp_path,
        theirs=theirs,
        writable=(tmp_path,) if theirs else (),
    )


def _runner(tmp_path: Path, seconds: float = 60.0, confinement: Confinement = UNCONFINED) -> Runner:
    log = tmp_path / "logs" / "build.log"
    return Runner(log=log, deadline=time.monotonic() + seconds, confinement=confinement)


@pytest.fixture(params=list(Kind))
def confinement(request: pytest.FixtureRequest, tmp_path: Path) -> Confinement:
    kind: Kind = request.param
    if kind is Kind.USER and os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    if kind is Kind.BUBBLEWRAP and available(kind).status != "ok":
        pytest.skip("bubblewrap does not work here")
    uid, gid = (os.geteuid(), os.getegid()) if kind is Kind.USER else (None, None)
    return Confinement(kind=kind, uid=uid, gid=gid)


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


def _survivor(tmp_path: Path) -> str:
    """Leaves its parent, session and process group, and does not mind SIGTERM."""
    child = tmp_path / "child"
    loop = f"trap : TERM; : > {child}; for _ in $(seq 60); do sleep 1; done"
    return f"setsid sh -c '{loop}' & while [ ! -e {child} ]; do sleep 0.02; done"


def _survivors(tmp_path: Path) -> list[int]:
    """By their command line: inside a sandbox a process does not know its own number."""
    mark = str(tmp_path / "child")
    return [found.pid for found in psutil.process_iter(["cmdline"]) if mark in " ".join(found.info["cmdline"] or ())]


def test_what_pr_code_starts_has_ended_when_its_step_has(tmp_path: Path, confinement: Confinement) -> None:
    said = _runner(tmp_path, confinement=confinement).run(
        _step(f"{_survivor(tmp_path)}; echo done", tmp_path, theirs=True)
    )
    assert said == "done\n"
    assert (tmp_path / "child").exists()
    assert not _survivors(tmp_path)


def test_what_pr_code_starts_has_ended_when_its_time_is_up(tmp_path: Path, confinement: Confinement) -> None:
    step = _step(f"trap : TERM; {_survivor(tmp_path)}; for _ in $(seq 60); do sleep 1; done", tmp_path, theirs=True)
    with pytest.raises(StepFailed) as error:
        _runner(tmp_path, 2.0, confinement=confinement).run(step)
    assert error.value.code is None
    assert (tmp_path / "child").exists()
    assert not _survivors(tmp_path)


def test_how_pr_code_ended_is_told(tmp_path: Path) -> None:
    with pytest.raises(StepFailed) as error:
        _runner(tmp_path).run(_step("exit 7", tmp_path, theirs=True))
    assert error.value.code == 7
    with pytest.raises(StepFailed) as error:
        _runner(tmp_path).run(_step("kill -KILL $$", tmp_path, theirs=True))
    assert error.value.code == 137


def test_a_link_is_never_handed_to_pr_code_as_its_folder(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (tmp_path / "lib").symlink_to(hidden)
    step = Step(what="x", argv=["/bin/true"], environment={}, cwd=tmp_path, theirs=True, writable=(tmp_path / "lib",))
    with pytest.raises(SandboxError, match="a link lies where"):
        _runner(tmp_path).run(step)


@pytest.mark.parametrize("theirs", [False, True])
def test_steps_die_with_perfgate(tmp_path: Path, theirs: bool) -> None:
    script = f"{_survivor(tmp_path)}; sleep 1000" if theirs else f": > {tmp_path / 'child'}; exec sleep 1000"
    program = (
        "import sys, time; from pathlib import Path; from perfgate.build.steps import *\n"
        "place = Path(sys.argv[1])\n"
        f"step = Step(what='x', argv=['/bin/sh', '-c', sys.argv[2]], environment={{}}, cwd=place, theirs={theirs})\n"
        "Runner(log=place / 'log', deadline=time.monotonic() + 60).run(step)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path), script])
    child = tmp_path / "child"
    assert _comes(child.exists)
    started = [process.pid for process in psutil.Process(parent.pid).children(recursive=True)]
    assert started
    parent.kill()
    parent.wait()
    assert all(_ends(pid) for pid in started)
    assert _comes(lambda: not _survivors(tmp_path))


def _comes(wanted: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not wanted() and time.monotonic() < end:
        time.sleep(0.02)
    return wanted()


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
