"""Hostile programs, really confined."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perfgate.engine import tree
from perfgate.host.handover import check_readable, hand_over
from perfgate.host.sandbox import OUTER_ENVIRONMENT, UNCONFINED, Confinement, Isolation, SandboxError, confine, describe
from perfgate.host.trial import available, choose
from perfgate.store.removal import remove_tree
from tests.integration.engine.conftest import open_to_all
from tests.needs import require
from tests.nesting import TOO_LONG, nest

ROOT = os.geteuid() == 0
UNPRIVILEGED = 65_000  # a uid nobody has


@dataclass(frozen=True)
class Place:
    """A run's folders, as they lie on a box."""

    run: Path  # facts, ledger
    other: Path  # the other side's tree
    secret: Path  # the runner's
    home: Path  # our own
    tree: Path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    base = tmp_path.resolve()
    open_to_all(base)
    found = Place(base / "run", base / "other", base / "secret", base / "home", base / "tree")
    for folder in (found.run, found.other, found.home, found.tree):
        folder.mkdir()
    (found.run / "facts.jsonl").write_text("facts\n")
    (found.other / "code.py").write_text("code\n")
    (found.tree / "code.py").write_text("code\n")
    found.secret.write_text("secret\n")
    found.secret.chmod(stat.S_IRUSR | stat.S_IWUSR)
    return found


Shell = Callable[[str], str]


@pytest.fixture(params=["bubblewrap", "bubblewrap, not root", "user"])
def shell(request: pytest.FixtureRequest, place: Place) -> Shell:
    """Runs a shell script confined; what it printed."""
    if request.param != "bubblewrap" and not ROOT:
        pytest.skip("only root can become somebody else")
    kind = Isolation(request.param.partition(",")[0])
    require("setpriv")
    if kind is Isolation.BUBBLEWRAP:
        require("bubblewrap")
    if kind is Isolation.USER:  # nobody else's: the script kills whatever it may
        confinement = Confinement(kind=kind, uid=UNPRIVILEGED + 1, gid=UNPRIVILEGED + 1)
    else:
        confinement = describe(kind, hidden=[place.run.parent])
    become: tuple[str, ...] = ()
    if request.param == "bubblewrap, not root":  # as on a runner: no power to begin with
        confinement = replace(confinement, uid=None, gid=None)
        become = ("setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}", "--clear-groups", "--")
        os.chown(place.home, UNPRIVILEGED, UNPRIVILEGED)
    hand_over([place.home], confinement)

    def run(script: str) -> str:
        argv = confine(
            ["/bin/sh", "-c", script],
            {"PATH": OUTER_ENVIRONMENT["PATH"], "GIVEN": "yes"},
            confinement=confinement,
            readable=[place.tree],
            writable=[place.home],
            cwd=place.home,
        )
        done = subprocess.run(
            [*become, *argv],
            env=OUTER_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout + done.stderr

    return run


def test_it_lives_in_its_own_home_and_reads_its_tree(shell: Shell, place: Place) -> None:
    said = shell(f"echo mine > note && cat note {place.tree}/code.py && echo $GIVEN")
    assert said == "mine\ncode\nyes\n"
    assert (place.home / "note").read_text() == "mine\n"


def test_it_cannot_write_facts_the_other_tree_or_its_own_tree(shell: Shell, place: Place) -> None:
    for path in (place.run / "facts.jsonl", place.other / "code.py", place.tree / "code.py", place.run / "new"):
        before = path.read_bytes() if path.exists() else None
        shell(f"echo forged > {path}; rm -f {path}; mv {path.parent} {path.parent}-moved")
        assert (path.read_bytes() if path.exists() else None) == before


def test_it_cannot_read_a_secret(shell: Shell, place: Place) -> None:
    said = shell(
        f"cat {place.secret}; cp {place.secret} here; ln {place.secret} link; cat link; chmod 666 {place.secret}"
    )
    assert "secret\n" not in said
    assert stat.S_IMODE(place.secret.stat().st_mode) == stat.S_IRUSR | stat.S_IWUSR


def test_it_sees_nothing_of_our_environment(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_TOKEN", "secret")
    said = shell("env; cat /proc/*/environ | tr '\\0' '\\n'")
    assert "GIVEN=yes" in said
    assert "OUR_TOKEN" not in said


def test_it_cannot_gain_powers(shell: Shell) -> None:
    said = shell(
        "grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; mount -t tmpfs none /mnt && echo mounted; id -u"
    )
    assert "mounted" not in said
    assert "CapEff:\t0000000000000000" in said
    assert "NoNewPrivs:\t1" in said
    assert said.strip().splitlines()[-1] != "0"


def test_it_cannot_signal_a_process_of_the_box(shell: Shell) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        shell(f"kill -9 {sleeper.pid}; kill -9 -1")
        time.sleep(0.2)
        assert sleeper.poll() is None
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_link_in_the_place_of_a_folder_is_not_handed_over(place: Place) -> None:
    place.home.rmdir()
    place.home.symlink_to(place.other)
    before = place.other.stat()
    for confinement in (UNCONFINED, Confinement(kind=Isolation.USER, uid=UNPRIVILEGED, gid=UNPRIVILEGED)):
        with pytest.raises(SandboxError, match="a link lies where"):
            hand_over([place.home], confinement)
    assert place.other.stat().st_uid == before.st_uid
    assert (place.other / "code.py").stat().st_uid == before.st_uid


@pytest.mark.skipif(not ROOT, reason="only root can hand something over")
def test_a_name_too_long_for_the_kernel_keeps_nothing_else_from_being_handed_over(place: Place) -> None:
    (place.home / "first").touch()
    (place.home / "z").touch()
    nest(place.home, TOO_LONG)
    try:
        hand_over([place.home], Confinement(kind=Isolation.USER, uid=UNPRIVILEGED, gid=UNPRIVILEGED))
        assert {path.stat().st_uid for path in (place.home, *place.home.iterdir())} == {UNPRIVILEGED}
    finally:
        remove_tree(place.home)


def bubblewrapped(place: Place, script: str, **more: object) -> tuple[str, ...]:
    require("bubblewrap")
    confinement = choose("bubblewrap", hidden=[place.run.parent])
    hand_over([place.home], confinement)
    return confine(
        ["/bin/sh", "-c", script],
        {"PATH": OUTER_ENVIRONMENT["PATH"]},
        confinement=confinement,
        readable=[place.tree],
        writable=[place.home],
        cwd=place.home,
    )


def test_kill_9_of_the_outer_process_leaves_not_one_inside(place: Place) -> None:
    script = "setsid sleep 4321 & (setsid sh -c 'trap \"\" TERM; sleep 4321' &) ; echo started; sleep 4321"
    popen = subprocess.Popen(bubblewrapped(place, script), env=OUTER_ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    assert popen.stdout is not None
    assert popen.stdout.readline() == "started\n"
    entry = tree.look(popen.pid)
    assert entry is not None
    inside = tree.descendants(entry.process, tree.all_processes())
    assert len(inside) >= 5
    os.kill(popen.pid, signal.SIGKILL)
    popen.wait()
    popen.stdout.close()
    assert tree.wait_until(lambda: not any(process.alive for process in inside), 10.0)


def test_hidden_folders_are_empty_but_for_what_is_shown(place: Place) -> None:
    done = subprocess.run(
        bubblewrapped(
            place, f"ls {place.run.parent}; ls -A /root /home /run | grep -v :; touch /dev/shm/x && echo shm"
        ),
        env=OUTER_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split()[:2] == ["home", "tree"]
    assert "shm" in done.stdout


def test_private_tmp_is_gone_afterwards(place: Place) -> None:
    mark = f"perfgate-{time.monotonic_ns()}"
    argv = bubblewrapped(place, f"echo x > /tmp/{mark} && cat /tmp/{mark}")
    done = subprocess.run(argv, env=OUTER_ENVIRONMENT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "x\n"
    assert not Path("/tmp", mark).exists()


@pytest.mark.needs("gcc")
@pytest.mark.needs("bubblewrap")
def test_a_library_in_the_environment_is_not_loaded_before_confinement(place: Place) -> None:
    """LD_PRELOAD of a hostile commit must not reach the confining program."""
    library = place.tree / "evil.so"
    source = place.tree / "evil.c"
    source.write_text(
        "#include <stdio.h>\n"
        "__attribute__((constructor)) static void loaded(void) {\n"
        '  FILE *out = fopen(OUT, "w");\n'
        "  if (out) fclose(out);\n"
        "}\n"
    )
    mark = place.run / "was-here"
    subprocess.run(["gcc", "-shared", "-fPIC", f'-DOUT="{mark}"', "-o", library, source], check=True)
    confinement = choose("bubblewrap", hidden=[])
    argv = confine(["/bin/true"], {"LD_PRELOAD": str(library)}, confinement=confinement, cwd=Path("/"))
    subprocess.run(argv, env=OUTER_ENVIRONMENT, check=True, timeout=60)
    assert not mark.exists()


@pytest.mark.needs("bubblewrap")
def test_the_doctor_really_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available(Isolation.BUBBLEWRAP).status == "ok"
    assert available(Isolation.NONE).status == "warn"
    monkeypatch.setattr("perfgate.host.sandbox._bubblewrap", lambda argv, *_: tuple(argv))
    check = available(Isolation.BUBBLEWRAP)
    assert check.status == "fail"
    assert check.remedy


def test_a_missing_tool_is_told_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OUTER_ENVIRONMENT, "PATH", "/nowhere")
    check = available(Isolation.BUBBLEWRAP)
    assert (check.status, check.text) == ("fail", "bwrap is not installed")
    assert "apt-get install bubblewrap" in check.remedy
    with pytest.raises(SandboxError, match="bwrap is not installed"):
        choose("bubblewrap")
    assert choose("auto") == UNCONFINED


@pytest.mark.needs("bubblewrap")
def test_auto_takes_the_strictest_that_works() -> None:
    assert choose("auto").kind is Isolation.BUBBLEWRAP


def test_a_model_that_only_its_owner_may_read_is_named(place: Place) -> None:
    confinement = Confinement(kind=Isolation.BUBBLEWRAP, uid=UNPRIVILEGED, gid=UNPRIVILEGED)
    check_readable([place.tree], confinement)
    weights = place.tree / "model.safetensors"
    weights.touch(mode=0o600)
    with pytest.raises(SandboxError, match=r"model\.safetensors"):
        check_readable([place.tree], confinement)
