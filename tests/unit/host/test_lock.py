"""The box's lock: exclusive between processes, inherited by a watchdog, free after kill -9, and shown to who waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import Exit, PerfgateError
from perfgate.host.lock import BoxBusyError, BoxLock, Holder, current_holder

HOLD = """
import sys, time
from pathlib import Path
from perfgate.host.lock import BoxLock
lock = BoxLock.acquire(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "lock"


@pytest.fixture
def other(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, path, "run 42 of o/r"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_free_lock_is_taken_and_names_its_holder(path: Path) -> None:
    assert current_holder(path) is None
    with BoxLock.acquire(path, "gate 7"):
        holder = current_holder(path)
        assert holder is not None
        assert (holder.text, holder.pid) == ("gate 7", os.getpid())
    assert current_holder(path) is None


def test_held_lock_refuses_with_one_line_naming_holder_and_since(path: Path, other: subprocess.Popen[str]) -> None:
    with pytest.raises(BoxBusyError) as error:
        BoxLock.acquire(path, "mine")
    line = str(error.value)
    assert error.value.exit_code is Exit.CANNOT
    assert "\n" not in line
    assert f"run 42 of o/r, pid {other.pid}, since 20" in line


def test_waiting_tells_who_holds_it_and_gives_up_at_the_limit(path: Path, other: subprocess.Popen[str]) -> None:
    said: list[str] = []
    with pytest.raises(BoxBusyError, match="waited 0 s"):
        BoxLock.acquire(path, "mine", wait_s=0.2, progress=said.append)
    assert len(said) == 1
    assert "run 42 of o/r" in said[0]


def test_kill_9_of_the_holder_frees_the_lock(path: Path, other: subprocess.Popen[str]) -> None:
    other.send_signal(signal.SIGKILL)
    with BoxLock.acquire(path, "next", wait_s=10) as lock:
        assert lock.holder.text == "next"


def test_watchdog_with_the_descriptor_keeps_the_lock_after_release(path: Path) -> None:
    lock = BoxLock.acquire(path, "gate with watchdog")
    watchdog = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=(lock.fd,)
    )
    lock.release()
    held = current_holder(path)
    assert held is not None
    assert held.text == "gate with watchdog"
    watchdog.communicate(b"")
    assert current_holder(path) is None


def test_children_do_not_inherit_the_lock_unasked(path: Path) -> None:
    lock = BoxLock.acquire(path, "gate")
    program = "import sys; print('runs', flush=True); sys.stdin.read()"
    server = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"runs\n"  # the kernel closes close-on-exec files only as the program starts
    lock.release()
    assert current_holder(path) is None
    server.communicate(b"")


def test_lock_file_is_open_to_all_users_whatever_the_umask(path: Path) -> None:
    old = os.umask(0o077)
    try:
        BoxLock.acquire(path, "gate").release()
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o666


def test_replaced_file_is_not_mistaken_for_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone deletes the file between our open and our flock: the lock must be of the file that the path names."""
    from perfgate.host import lock as module

    BoxLock.acquire(path, "old").release()
    opened = module._open
    first = True

    def open_then_lose(where: Path) -> int:
        nonlocal first
        fd = opened(where)
        if first:
            first = False
            where.unlink()
        return fd

    monkeypatch.setattr(module, "_open", open_then_lose)
    with BoxLock.acquire(path, "mine") as lock:
        assert path.stat().st_ino == os.fstat(lock.fd).st_ino
        with pytest.raises(BoxBusyError):
            BoxLock.acquire(path, "second")


@pytest.mark.needs("setpriv")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_lock_is_shared_between_users(open_path: Path) -> None:
    path = open_path / "state" / "lock"
    path.parent.mkdir()
    path.parent.chmod(0o1777)
    program = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR); fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    as_other = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "/usr/bin/env",
        "python3",
        "-c",
        program,
        path,
    ]
    with BoxLock.acquire(path, "root's gate"):
        refused = subprocess.run(as_other, capture_output=True, text=True)
        assert "BlockingIOError" in refused.stderr
    assert subprocess.run(as_other, capture_output=True, text=True).returncode == 0


def test_a_folder_and_a_link_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(PerfgateError, match="cannot be opened"):
        BoxLock.acquire(tmp_path, "gate")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PerfgateError, match="cannot be opened"):
        BoxLock.acquire(tmp_path / "link", "gate")


@given(st.binary(max_size=5000))
def test_any_text_in_the_file_yields_a_holder(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("lock") / "lock"
    with BoxLock.acquire(path, "gate"):
        path.write_bytes(junk)
        holder = current_holder(path)
        assert holder is not None
        assert str(holder).isprintable()


def test_holder_says_how_long_ago() -> None:
    holder = Holder(text="gate", pid=1, since="2000-01-01T00:00:00Z", host="")
    assert str(holder).startswith("gate, pid 1, since 2000-01-01T00:00:00Z (")
    assert str(holder).endswith(" min ago)")
