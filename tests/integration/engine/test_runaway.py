"""A second user's processes that are never the same for longer than a moment, so that no list is sure to hold them.

Whether they live is told by a file that each of them touches.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfgate.engine import tree
from perfgate.engine.server import Server
from perfgate.host.supervisor import end_everyone
from tests.integration.engine.conftest import Make, open_to_all

LIMIT_S = 20.0
CHAIN = """
import os, sys, time
end = time.monotonic() + 60
for _ in range(4):
    if os.fork() == 0:
        break
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    os.utime(sys.argv[1])
"""
FORKING = f"""
import os, sys
if os.fork() == 0:
    os.setsid()
    for descriptor in range(3):
        os.dup2(os.open("/dev/null", os.O_RDWR), descriptor)
    os.execve("/usr/bin/python3", ["python", "-S", "-c", {CHAIN!r}, MARK], {{}})  # nothing names the launch
"""


@pytest.fixture
def uid() -> Iterator[int]:
    if os.geteuid() != 0 or not Path("/usr/bin/python3").exists():
        pytest.skip("needs root, and an interpreter that everybody may read")
    found = pwd.getpwnam("daemon").pw_uid  # whom `confined("user", …)` runs as
    yield found
    end_everyone(found, 10.0)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    open_to_all(tmp_path)
    path = tmp_path / "mark"
    path.touch()
    path.chmod(0o666)
    os.chown(path, pwd.getpwnam("daemon").pw_uid, -1)
    return path


def beats(mark: Path, within_s: float) -> bool:
    before = mark.stat().st_mtime_ns
    return tree.wait_until(lambda: mark.stat().st_mtime_ns != before, within_s)


def test_they_end_with_their_server(make: Make, serving: Callable[..., Server], uid: int, mark: Path) -> None:
    server = serving(make("user", on_start=FORKING.replace("MARK", repr(str(mark)))).spec())
    server.wait_ready()
    assert beats(mark, LIMIT_S)
    server.stop()
    assert not beats(mark, 2.0)


def test_what_belongs_to_no_launch_any_more_ends_in_one_blow(uid: int, mark: Path) -> None:
    """As what a server leaves whose supervisor was ended first: nothing leads from perfgate to it."""
    become = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--")
    script = FORKING.replace("MARK", repr(str(mark)))
    subprocess.run([*become, "/usr/bin/python3", "-S", "-c", script], check=True)
    assert beats(mark, LIMIT_S)
    time.sleep(1.0)
    assert beats(mark, LIMIT_S)
    assert end_everyone(uid, 10.0) == ()
    assert not beats(mark, 2.0)
