"""Commits that want the box: through whole gates, in bubblewrap and as a second user."""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfgate.host.supervisor import processes_of
from perfgate.records import Canary
from tests.integration.engine.conftest import open_to_all

from .harness import PLAIN, Case, Done, World, acting, on

pytestmark = pytest.mark.timeout(1200)  # waiting for its turn counts, too

SECOND = "games"  # nothing else runs as it
AS_USER: Mapping[str, Any] = {"isolation": "user", "run_as": SECOND, "tools": {"python": "/usr/bin"}}
needs_second_user = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/usr/bin/python3.11").exists(), reason="needs root, and a Python for everybody"
)

RUNAWAY = """
import glob, os, time
home, state, secrets = os.environ["HOME"], STATE, SECRETS

def write(path):
    with open(path, "w") as file:
        file.write("evil")

def attack(name, action):
    try:
        action()
        print(f"ATTACK {name} SUCCEEDED", flush=True)
    except OSError as error:
        print(f"ATTACK {name} failed: {error}", flush=True)

for other in glob.glob(state + "/homes/*-*"):
    if other != home and not other.endswith((".lock", ".launches", ".used")):
        attack("other-home", lambda: write(other + "/.evil"))

def flip():
    try:
        if os.path.islink(home + "/trap"):
            os.unlink(home + "/trap")
            os.rename(home + "/aside", home + "/trap")
        else:
            os.rename(home + "/trap", home + "/aside")
            os.symlink(secrets, home + "/trap")
    except OSError:
        pass

if os.path.islink(home + "/trap"):  # as the last server left it
    os.unlink(home + "/trap")
os.makedirs(home + "/trap", exist_ok=True)
for number in range(300):
    write(home + f"/trap/{number}")
if os.fork() == 0:
    os.setsid()
    for descriptor in range(3):
        os.dup2(os.open("/dev/null", os.O_RDWR), descriptor)
    end = time.monotonic() + 90
    while time.monotonic() < end:  # never the same process for longer than a millisecond
        if os.fork():
            os._exit(0)
        flip()
        time.sleep(0.0005)
    os._exit(0)
"""


@dataclass(frozen=True)
class Attacked:
    done: Done
    secret: os.stat_result
    evil: list[Path]
    running: list[int]


def run_away(world: World) -> Attacked:
    open_to_all(world.root)
    secrets = world.root / "sglang" / "secrets"
    secrets.mkdir()
    (secrets / "key").write_text("secret")
    (secrets / "key").chmod(stat.S_IRUSR | stat.S_IWUSR)
    text = RUNAWAY.replace("STATE", repr(str(world.state))).replace("SECRETS", repr(str(secrets)))
    script = world.repository.path / "python/sglang/launch_server.py"
    before, mark, after = script.read_text().partition('if __name__ == "__main__":\n')
    hostile = f"{before}{mark}    exec({text!r}, {{}})\n{after}"
    world.commit({"python/sglang/launch_server.py": hostile})
    done = world.gate(*PLAIN, "--max-pairs", "2")
    left = processes_of(pwd.getpwnam(SECOND).pw_uid)
    world.untouched = {}
    evil = list((world.state / "homes").rglob(".evil"))
    secret = (secrets / "key").stat()
    (secrets / "key").unlink()
    secrets.rmdir()
    world.commit({"README.md": "as it was\n"})  # what lies in the repository is compared afterwards
    return Attacked(done, secret, evil, left)


def check_held(came: Attacked) -> None:
    logs = "".join(path.read_text() for path in (came.done.folder / "logs").glob("*.log"))
    assert "ATTACK" in logs, came.done.err
    assert "SUCCEEDED" not in logs
    assert came.evil == []
    assert (came.secret.st_uid, stat.S_IMODE(came.secret.st_mode)) == (os.getuid(), 0o600)
    assert came.running == []
    assert came.done.pairs >= 1, came.done.err


@needs_second_user
@on(Case(act=run_away, box=AS_USER, config={"build": {"python": "3.11"}}, own_state=True, head=acting()))
def test_what_forks_all_the_time_ends_with_its_server_and_reaches_no_other_home(done: Attacked) -> None:
    check_held(done)


@on(Case(act=run_away, own_state=True, head=acting(seed=1)))
def test_the_same_in_bubblewrap(done: Attacked) -> None:
    logs = "".join(path.read_text() for path in (done.done.folder / "logs").glob("*.log"))
    assert "SUCCEEDED" not in logs
    assert (done.evil, done.secret.st_uid) == ([], os.getuid())
    assert done.done.pairs >= 1, done.done.err


# ------------------------------------------------------------------------------------------------ a dependency

PTH = """import os; exec("try:\\n open('OWNED/' + str(os.getpid()), 'w')\\nexcept OSError: pass")\n"""


def wheel(folder: Path, owned: Path) -> None:
    """A distribution whose `.pth` every interpreter of the environment runs as it starts."""
    about = "helpful-1.0.dist-info"
    files = {
        "helpful.pth": PTH.replace("OWNED", str(owned)),
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: helpful\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digest = {
        name: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for name, text in files.items()
    }
    record = "".join(f"{name},sha256={digest[name]},{len(text)}\n" for name, text in files.items())
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "helpful-1.0-py3-none-any.whl", "w") as archive:
        for name, text in {**files, f"{about}/RECORD": f"{record}{about}/RECORD,,\n"}.items():
            archive.writestr(name, text)


@dataclass(frozen=True)
class Owned:
    done: Done
    files: list[str]


def depend(world: World) -> Owned:
    """Base and head depend on it; what it could write outside of a sandbox is perfgate's own state."""
    open_to_all(world.root)
    owned = world.state / "owned"
    owned.mkdir(parents=True)
    wheel(world.home / "wheels", owned)
    pins = "python/pyproject.toml"
    text = (world.repository.path / pins).read_text().replace("dependencies = []", 'dependencies = ["helpful==1.0"]')
    base = world.commit({pins: text})
    world.commit({"python/sglang/note.py": "NOTE = 1\n"})
    done = world.gate(*PLAIN, "--base", base, "--max-pairs", "1")
    found = sorted(path.name for path in owned.iterdir())
    (world.home / "wheels" / "helpful-1.0-py3-none-any.whl").unlink()
    return Owned(done, found)


def check_sung_and_held(came: Owned) -> None:
    assert came.done.pairs == 1, came.done.err
    assert [fact.readings.keys() for fact in came.done.facts if isinstance(fact, Canary)] == [{"compute_ms"}] * 4
    assert came.files == []


@on(Case(act=depend, own_state=True))
def test_a_dependency_of_base_runs_with_the_canary_and_reaches_nothing(done: Owned) -> None:
    check_sung_and_held(done)


@needs_second_user
@on(Case(act=depend, box=AS_USER, config={"build": {"python": "3.11"}}, own_state=True))
def test_nor_as_a_second_user(done: Owned) -> None:
    check_sung_and_held(done)
