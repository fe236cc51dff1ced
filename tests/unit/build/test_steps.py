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

from perfgate.build import steps
from perfgate.build.environment import failure_of
from perfgate.build.steps import BuildStep, Runner, StepFailed, StepNotEnded, _second_user
from perfgate.host import supervisor
from perfgate.host.sandbox import UNCONFINED, Confinement, Isolation, SandboxError
from perfgate.records import Blame
from tests.needs import require

SECOND_USER = 65_017  # a uid nobody has: no process of another test is its


def _step(script: str, tmp_path: Path, *, theirs: bool = False) -> BuildStep:
    return BuildStep(
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


@pytest.fixture(params=list(Isolation))
def confinement(request: pytest.FixtureRequest, tmp_path: Path) -> Confinement:
    kind: Isolation = request.param
    if kind is Isolation.USER and os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    if kind is Isolation.BUBBLEWRAP:
        require("bubblewrap")
    uid, gid = (os.geteuid(), os.getegid()) if kind is Isolation.USER else (None, None)
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


@pytest.mark.needs("setpriv")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_processes_that_are_gone_whenever_they_are_listed_are_ended_together() -> None:
    """A chain in which each starts the next and ends; never more than two at a time."""
    program = (
        "import sys\n"
        "from perfgate.host import supervisor\n"
        "supervisor.children = lambda: []\n"  # as where each has ended when its turn comes
        "supervisor.PATIENCE_S = 0.2\n"
        "sys.exit(supervisor.main(sys.argv[1:]))\n"
    )
    chain = "import os, time\nend = time.time() + 40\nwhile time.time() < end:\n  if os.fork(): os._exit(0)\n"
    become = ["setpriv", f"--reuid={SECOND_USER}", f"--regid={SECOND_USER}", "--clear-groups", "--"]
    bystander = subprocess.Popen(["sleep", "60"])
    begin = time.monotonic()
    try:
        command = ["sh", "-c", 'exec "$@" &', "sh", *become, sys.executable, "-IS", "-c", chain]
        argv = [sys.executable, "-c", program, f"{supervisor.ALL_OF}{SECOND_USER}", *command]
        subprocess.run(argv, check=True, timeout=60)
        assert time.monotonic() - begin < 30
        assert not [found for found in psutil.process_iter(["uids"]) if _is_second_users(found)]
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def _is_second_users(process: psutil.Process) -> bool:
    return process.info["uids"] is not None and process.info["uids"].real == SECOND_USER


def test_a_step_as_a_second_user_may_be_ended_so(tmp_path: Path) -> None:
    step = _step("true", tmp_path, theirs=True)
    theirs = Confinement(kind=Isolation.USER, uid=SECOND_USER, gid=SECOND_USER)
    allowed = f"--all-of={SECOND_USER}" in _runner(tmp_path, confinement=theirs)._command(step)
    assert allowed is (os.geteuid() == 0)
    assert not [part for part in _runner(tmp_path)._command(step) if part.startswith("--all-of")]


def test_only_a_second_users_processes_are_ended_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert _second_user(Confinement(kind=Isolation.USER, uid=7, gid=7)) == 7
    for confinement in (
        Confinement(kind=Isolation.USER, uid=0, gid=0),
        Confinement(kind=Isolation.USER),
        Confinement(kind=Isolation.BUBBLEWRAP, uid=7, gid=7),
        UNCONFINED,
    ):
        assert _second_user(confinement) is None
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    assert _second_user(Confinement(kind=Isolation.USER, uid=7, gid=7)) is None


def test_the_blow_is_not_struck_by_root_or_with_its_powers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every process of the box would be hit."""
    monkeypatch.setattr(os, "kill", lambda *_: (tmp_path / "struck").touch())
    monkeypatch.setattr(os, "setresuid", lambda *_: None)
    monkeypatch.setattr(supervisor, "powerless", lambda: True)
    supervisor.end_user(0)
    supervisor.end_user(os.getuid() + 1)
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setattr(os, "getuid", lambda: 7)
    monkeypatch.setattr(supervisor, "powerless", lambda: False)
    supervisor.end_user(7)
    assert not (tmp_path / "struck").exists()
    monkeypatch.setattr(supervisor, "powerless", lambda: True)
    supervisor.end_user(7)
    assert (tmp_path / "struck").exists()


def test_what_cannot_be_ended_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_ENDING_S", 0.2)
    monkeypatch.setattr(steps, "supervised", lambda *_, **__: ("/bin/sh", "-c", "trap '' TERM; echo on; sleep 30"))
    with pytest.raises(StepNotEnded, match="did not end within") as error:
        _runner(tmp_path, 1.0).run(_step("true", tmp_path, theirs=True))
    assert failure_of(error.value).blame is Blame.BOX


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
    step = BuildStep(
        what="x", argv=["/bin/true"], environment={}, cwd=tmp_path, theirs=True, writable=(tmp_path / "lib",)
    )
    with pytest.raises(SandboxError, match="a link lies where"):
        _runner(tmp_path).run(step)


@pytest.mark.parametrize("theirs", [False, True])
def test_steps_die_with_perfgate(tmp_path: Path, theirs: bool) -> None:
    script = f"{_survivor(tmp_path)}; sleep 1000" if theirs else f": > {tmp_path / 'child'}; exec sleep 1000"
    program = (
        "import sys, time; from pathlib import Path; from perfgate.build.steps import *\n"
        "place = Path(sys.argv[1])\n"
        "argv = ['/bin/sh', '-c', sys.argv[2]]\n"
        f"step = BuildStep(what='x', argv=argv, environment={{}}, cwd=place, theirs={theirs})\n"
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
