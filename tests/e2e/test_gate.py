"""The whole way for real: an event, act, the real gate on the server stand-in, the comment and the check.

One box serves all tests of this module: its state is kept, as on a real one.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfgate.engine import tree
from perfgate.host.sandbox import Isolation
from perfgate.host.trial import available
from perfgate.store.removal import remove_tree
from tests.e2e.act import finish
from tests.e2e.conftest import Perfgate, Theatre, call, opened
from tests.e2e.hub import payloads
from tests.e2e.hub.repositories import Upstream
from tests.e2e.hub.world import PullRequest
from tests.integration.gate.harness import CONFIG, PYTHON, PYTHON_FOLDER, as_yaml, merged, processes_of
from tests.needs import require
from tests.standin import Behaviour, make_repository
from tests.standin.repository import BEHAVIOUR_FILE, write_behaviour

CANARY = "canary-of-the-jobs-environment"
ONE_RECIPE: dict[str, Any] = merged(CONFIG, {"recipes": {"eagle3": {"enabled": False}}})


@dataclass(frozen=True)
class Box:
    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Box:
        for name in ("model", "wheels"):
            (folder / name).mkdir(parents=True)
        (folder / "model" / "config.json").write_text("{}\n")
        return cls(folder)

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def file(self, **changes: Any) -> Path:
        about = {
            "name": "test-box",
            "state_dir": str(self.state),
            "gpus": "none",
            "models": {"m": str(self.folder / "model")},
            "tools": {"python": str(PYTHON_FOLDER)},
            **changes,
        }
        path = self.folder / f"box-{'-'.join(changes) or 'as-it-is'}.yml"
        path.write_text(as_yaml(about))
        return path

    def logs(self) -> dict[Path, str]:
        return {
            path: path.read_text(errors="replace") for path in self.state.glob("runs/*/logs/**/*") if path.is_file()
        }

    def servers(self) -> list[str]:
        return [line for line in processes_of(self.state) if "sglang" in line]


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    """Where a second user can reach it, unlike pytest's own folders."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="perfgate-box-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Box.made(Path(folder) / "first")
        for state in Path(folder).glob("*/state"):
            remove_tree(state)


@pytest.fixture(scope="module")
def standin_upstream(tmp_path_factory: pytest.TempPathFactory, real_perfgate: Perfgate, box: Box) -> Path:
    folder = tmp_path_factory.mktemp("upstream")
    repository = make_repository(folder / "sglang", base=Behaviour())
    upstream = Upstream(folder, start=repository.path)
    call(upstream, real_perfgate, as_yaml(ONE_RECIPE), f"      box: {box.file()}\n")
    return folder


@pytest.fixture
def play(tmp_path: Path, real_perfgate: Perfgate, standin_upstream: Path, box: Box) -> Iterator[Theatre]:
    with opened(tmp_path, Upstream.copy(standin_upstream, tmp_path / "upstream"), real_perfgate) as theatre:
        theatre.act.extra = {
            "UV_OFFLINE": "1",
            "UV_FIND_LINKS": str(box.folder / "wheels"),
            "JOB_SECRET": CANARY,
            "PIP_INDEX_URL": f"https://user:{CANARY}@example.org/simple",
        }
        yield theatre


def change(play: Theatre, behaviour: Behaviour, **how: Any) -> PullRequest:
    """A pull request whose head behaves so."""
    work = play.stage.upstream.work
    before = (work / BEHAVIOUR_FILE).read_text()
    write_behaviour(work, behaviour, number=1)
    text = (work / BEHAVIOUR_FILE).read_text()
    (work / BEHAVIOUR_FILE).write_text(before)
    return play.stage.pull({str(BEHAVIOUR_FILE): text}, **how)


def use(play: Theatre, old: Path, new: Path) -> None:
    """Has the workflow use another box's file."""
    workflow = play.stage.upstream.work / ".github/workflows/perfgate.yml"
    text = workflow.read_text().replace(str(old), str(new))
    play.stage.upstream.commit({".github/workflows/perfgate.yml": text}, "Another box")
    play.stage.upstream.push("main")


def until(condition: Callable[[], bool], limit_s: float) -> bool:
    return tree.wait_until(condition, limit_s)


def test_no_change_passes(play: Theatre) -> None:
    pull = change(play, Behaviour())
    ran = play.push(pull, "opened")
    assert ran.code == 0, ran.log
    check = play.stage.check(pull.head)
    assert check["conclusion"] == "success", play.stage.sticky(pull).body
    assert "tok/s" in play.stage.sticky(pull).body
    assert CANARY not in ran.log


ATTACKS = """
import glob, os, sys
def attack(name, action):
    try:
        action()
        print(f"ATTACK {name} SUCCEEDED", flush=True)
    except BaseException as error:
        print(f"ATTACK {name} failed: {type(error).__name__}", flush=True)
def append(path):
    with open(path, "a") as file:
        file.write('{"v": 1}\\n')
def every(pattern, action):
    found = glob.glob(pattern, recursive=True, include_hidden=True) or [pattern]
    failures = []
    for path in found:
        try:
            action(path)
        except Exception as error:
            failures.append(error)
    if len(failures) == len(found):
        raise failures[0]
state, runner, SECRET = STATE, RUNNER, b"canary-of-" + b"the-jobs"
attack("facts", lambda: every(state + "/runs/*/facts.jsonl", append))
attack("ledger", lambda: every(state + "/ledger*", append))
attack("ledger-new", lambda: append(state + "/ledger.sqlite"))
attack("environment", lambda: every(state + "/environments/**/*.py", append))
attack("trees", lambda: every(state + "/**/python/sglang/__init__.py", append))
attack("own-tree", lambda: append(os.path.dirname(os.path.abspath(sys.modules["sglang"].__file__)) + "/x.py"))
attack("credentials", lambda: every(runner + "/**/.credentials", lambda path: print(open(path).read())))
attack("github-env", lambda: every(runner + "/**/envs.txt", append))
attack("others", lambda: every("/proc/[0-9]*/environ", lambda path: open(path, "rb").read().index(SECRET)))
print("ENVIRON", dict(os.environ), flush=True)
"""


def works(kind: Isolation) -> bool:
    """Whether this machine can confine in this way, and a second user could run a Python here."""
    return Path(f"/usr/bin/python{PYTHON}").exists() and available(kind, run_as=SECOND_USER).status == "ok"


SECOND_USER = "backup"  # all of it is ended; not nobody, as whom bubblewrap lets other tests' servers run


@pytest.mark.parametrize("kind", [Isolation.BUBBLEWRAP, Isolation.USER])
def test_a_hostile_fork_reaches_nothing(play: Theatre, box: Box, kind: Isolation) -> None:
    """Its head is slow, too, so that the run is a whole one; every attempt is told by the server's own log."""
    if kind is Isolation.BUBBLEWRAP:
        require("bubblewrap")
    elif not works(kind):
        pytest.skip(f"no isolation by {kind} here")
    if kind is Isolation.USER:
        file, box = box.file(), Box.made(box.folder.parent / "second")
        use(play, file, box.file(isolation="user", run_as=SECOND_USER, tools={"python": "/usr/bin"}))
    before = set(box.logs())
    runner = play.act.folder / "home"
    runner.mkdir()
    (runner / ".credentials").write_text(CANARY)
    on_start = ATTACKS.replace("STATE", repr(str(box.state))).replace("RUNNER", repr(str(runner)))
    pull = change(play, Behaviour(token_ms=2.6, on_start=on_start), fork=True, author="stranger")
    play.stage.person("maintainer", "write")
    ran = play.say(pull, "maintainer", f"/perfgate run {pull.head}")

    logs = {path: text for path, text in box.logs().items() if path not in before}
    told = [line for text in logs.values() for line in text.splitlines() if line.startswith("ATTACK")]
    assert len(told) >= 9, play.stage.sticky(pull).body
    assert [line for line in told if "SUCCEEDED" in line] == []
    seen = {str(path): text for path, text in logs.items() if CANARY in text}
    assert seen == {}
    assert CANARY not in ran.log
    assert any("ENVIRON" in text for text in logs.values())

    assert ran.code == 0, ran.log
    assert play.stage.check(pull.head)["conclusion"] == "failure", play.stage.sticky(pull).body
    assert "tok/s" in play.stage.sticky(pull).body
    assert len(play.stage.said(pull)) == 1
    assert len(play.stage.hub.calls()) <= 25


def test_without_isolation_forks_are_refused(play: Theatre, box: Box) -> None:
    use(play, box.file(), box.file(isolation="none"))
    play.stage.person("maintainer", "write")
    pull = change(play, Behaviour(on_start="print('ATTACK')"), fork=True, author="stranger")
    launched = set(box.logs())
    play.say(pull, "maintainer", f"/perfgate run {pull.head}")
    assert play.stage.check(pull.head)["conclusion"] == "neutral"
    assert "forks are refused" in play.stage.sticky(pull).body
    assert set(box.logs()) == launched


def gate_of(play: Theatre) -> int:
    """The gate's own process, in the middle of a measurement."""
    job = str(play.act.folder)
    found = [
        process.pid
        for process in psutil.process_iter()
        if "gate-request" in _words(process) and any(job in value for value in _environment(process).values())
    ]
    (gate,) = found
    return gate


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def _environment(process: psutil.Process) -> dict[str, str]:
    with suppress(psutil.Error):
        return process.environ()
    return {}


def test_cancel_in_the_middle(play: Theatre, box: Box) -> None:
    """`/perfgate cancel` enters the group; GitHub then interrupts the step, and here the test does."""
    pull = change(play, Behaviour(start_s=25.0))
    payload = payloads.pull_request(play.stage.repository, pull, "opened")
    process = play.start("pull_request", payload, next(play.stage.runs))
    try:
        assert until(lambda: bool(box.servers()), 120.0)
        play.stage.person("maintainer", "write")
        cancel = play.say(pull, "maintainer", "/perfgate cancel")
        assert cancel.job("cancel") == "success"
        assert cancel.job("measure") == cancel.job("publish") == ""
        os.kill(gate_of(play), signal.SIGINT)
        assert until(lambda: not box.servers(), 10.0), box.servers()
    finally:
        ran = finish(process)
    assert ran.job("measure") == "failure"
    assert play.stage.check(pull.head)["status"] == "completed"
    assert play.stage.check(pull.head)["conclusion"] in ("neutral", "cancelled")


def test_the_runner_is_lost(play: Theatre, box: Box) -> None:
    pull = change(play, Behaviour(start_s=24.0))
    payload = payloads.pull_request(play.stage.repository, pull, "opened")
    process = play.start("pull_request", payload, next(play.stage.runs))
    try:
        assert until(lambda: bool(box.servers()), 120.0)
        os.kill(gate_of(play), signal.SIGKILL)
    finally:
        ran = finish(process)
    assert ran.job("publish") == "success"
    assert play.stage.check(pull.head)["conclusion"] == "neutral"
    assert "runner was lost" in play.stage.sticky(pull).body
    assert until(lambda: not box.servers(), 30.0), box.servers()
