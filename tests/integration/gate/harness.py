"""The gate as a user types it: `perfgate gate …` on the stand-in, with real git, uv and isolation.

    world = World(tmp_path, head=Behaviour(verify_ms=3.0))
    done = world.gate()
    assert (done.code, done.verdict) == (1, "regression")
    world.check_nothing_left()

A world is a folder with a repository, a configuration, a box's file and perfgate's state. Several worlds may share a
state directory: builds and warm caches are then made once.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from perfgate import cli
from perfgate.engine import tree
from perfgate.host.lock import current_holder
from perfgate.records import Fact, LaunchBegin, LaunchEnd, Pair
from perfgate.records.files import read_facts
from tests.needs import lacking
from tests.standin import Behaviour, StandinRepository, commit_change, make_repository

PERFGATE = Path(sys.executable).with_name("perfgate")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHON_FOLDER = Path(sys.base_prefix) / "bin"
PATH = os.environ["PATH"]  # read once: `run_here` changes the variables while other cases are begun
LIMIT_S = 600.0  # for one command, on a busy machine
GONE_S = 30.0  # for the watchdog to end all

WORKLOAD = {
    "output_tokens": 32,
    "prompts_per_kind": 1,
    "samples": 2,
    "warmup_min": 1,
    "warmup_max": 1,
    "request_timeout_s": 60,
}
RULE = {"budget": 0.2, "prior": {"sd": 0.06, "df": 10}}  # a neighbour may take a core for a while
CONFIG: Mapping[str, Any] = {
    "version": 1,
    "recipes": {
        "baseline": {"model": "m", "flags": {"tp-size": 1}, "workload": WORKLOAD},
        "eagle3": {"draft": "m"},
    },
    # Only what the client measures is gated: a busy machine moves times of a millisecond, and another process' work
    # is no fault of the gate's.
    "metrics": {"tok_s": RULE, "decode_ms": {**RULE, "gated": False}, "verify_ms": {**RULE, "gated": False}},
    "limits": {"launch_stall_s": 120, "stop_s": 30, "minutes": 30},
    "caches": {"min_free_gb": 1, "autotune": "off"},
    "environment": {"rules": {"neighbour": "off", "canary": "off"}},
    "build": {"python": PYTHON},
}
PLAIN = ("--recipes", "baseline")
DRAFTING = ("--recipes", "eagle3")


def acting(**changes: Any) -> Behaviour:
    """A commit of the stand-in, slow enough (330 and 400 tok/s) to be timed on a busy machine."""
    return Behaviour(**{"token_ms": 3.0, "draft_ms": 0.6, "verify_ms": 4.0, "extend_ms": 0.4, **changes})


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Key by key; None takes a key away."""
    together = copy.deepcopy(dict(lower))
    for key, value in upper.items():
        below = together.get(key)
        if value is None:
            together.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(below, dict):
            together[key] = merged(below, value)
        else:
            together[key] = copy.deepcopy(value)
    return together


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str
    run: Path | None = None

    @property
    def folder(self) -> Path:
        assert self.run is not None, self.err
        return self.run

    @property
    def result(self) -> dict[str, Any]:
        assert (self.folder / "result.json").exists(), self.err
        body: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return body

    @property
    def verdict(self) -> str:
        return str(self.result["verdict"])

    @property
    def facts(self) -> list[Fact]:
        return read_facts(self.folder)

    @property
    def pairs(self) -> int:
        return sum(isinstance(fact, Pair) for fact in self.facts)

    def metric(self, name: str, recipe: str) -> dict[str, Any]:
        return next(one for one in self.result["metrics"] if (one["recipe"], one["metric"]) == (recipe, name))

    def warnings(self, code: str) -> list[dict[str, Any]]:
        return [one for one in self.result["warnings"] if one["code"] == code]

    def launches(self, kind: type[LaunchBegin] | type[LaunchEnd] = LaunchEnd) -> list[str]:
        """Ids of launches in order, without the throw-away ones."""
        return [fact.id for fact in self.facts if isinstance(fact, kind) and fact.pair > 0]

    def one_line(self) -> str:
        """The only line on stderr that is not progress."""
        lines = [line for line in self.err.splitlines() if line.startswith("perfgate: ") and "what will be" not in line]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err, self.err
        return lines[0].removeprefix("perfgate: ")


def run_perfgate(
    *arguments: str | Path, home: Path, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Done:
    with started(*arguments, home=home, cwd=cwd, environment=environment) as process:
        return finished(process)


def started(
    *arguments: str | Path,
    home: Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """perfgate in a process group of its own, as a shell with job control starts it. Its HOME and /tmp are `home`'s."""
    return subprocess.Popen(
        [*wrapper, str(PERFGATE), *map(str, arguments)],
        env=surroundings(home) | dict(environment or {}),
        cwd=cwd or home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def surroundings(home: Path) -> dict[str, str]:
    """The variables of a perfgate that has `home`, which is made."""
    for name in ("tmp", "wheels"):
        (home / name).mkdir(parents=True, exist_ok=True)
    return {
        "PATH": PATH,
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "LC_ALL": "C.UTF-8",
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(home / "wheels"),
        "UV_PYTHON_DOWNLOADS": "never",
    }


def run_here(*arguments: str | Path, home: Path) -> Done:
    """perfgate in this process, for what it refuses before it starts anything: its imports take longest."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.dict(os.environ, surroundings(home), clear=True),
        mock.patch.object(sys, "argv", ["perfgate", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
    said = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Done(code, *said)


def finished(process: subprocess.Popen[str], run: Path | None = None, limit_s: float = LIMIT_S) -> Done:
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"perfgate did not end within {limit_s:.0f} s:\n{err}") from None
    return Done(process.returncode, out, err, run)


@dataclass
class World:
    """One repository and one box. `config` and `box` are laid over the stand-in's."""

    root: Path
    base: Behaviour = field(default_factory=acting)
    head: Behaviour = field(default_factory=acting)
    config: Mapping[str, Any] = field(default_factory=dict)
    box: Mapping[str, Any] = field(default_factory=dict)
    state: Path = Path()
    main_moves: bool = False
    here: bool = False  # commands are run in this process

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self.root = self.root.resolve()
        self.state = self.state.resolve() if self.state != Path() else self.root / "state"
        self.repository: StandinRepository = make_repository(
            self.root / "sglang", base=self.base, head=self.head, main_moves=self.main_moves
        )
        (self.root / "model").mkdir()
        (self.root / "model" / "config.json").write_text("{}\n")
        self.write_config()
        self.untouched = snapshot(self.repository.path)
        WORLDS.append(self)

    # ------------------------------------------------------------------------------------------ files

    @property
    def config_file(self) -> Path:
        return self.root / "perfgate.yml"

    @property
    def box_file(self) -> Path:
        return self.root / "box.yml"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def lock(self) -> Path:
        return self.state / "box.lock"

    def write_config(self, **changes: Any) -> None:
        self.config_file.write_text(as_yaml(merged(CONFIG, merged(self.config, changes))))
        box = {
            "name": "test-box",
            "state_dir": str(self.state),
            "gpus": "none",
            "isolation": "auto" if lacking("bubblewrap") is None else "none",
            "models": {"m": str(self.root / "model")},
            "tools": {"python": str(PYTHON_FOLDER)},
        }
        self.box_file.write_text(as_yaml(merged(box, self.box)))

    def commit(self, changes: Mapping[str, str | None], title: str = "A change") -> str:
        sha = commit_change(self.repository.path, changes, title)
        self.untouched = snapshot(self.repository.path)
        return sha

    # ------------------------------------------------------------------------------------------ commands

    def arguments(self, *more: str | Path, out: str | None = "run", head: str = "change") -> list[str | Path]:
        where: list[str | Path] = ["--out", self.root / out] if out else []
        files: list[str | Path] = ["--config", self.config_file, "--box", self.box_file]
        return ["gate", "--repo", self.repository.path, "--head", head, *files, *where, *more]

    def start(
        self,
        *more: str | Path,
        out: str | None = "run",
        head: str = "change",
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
    ) -> subprocess.Popen[str]:
        arguments = self.arguments(*more, out=out, head=head)
        return started(*arguments, home=self.home, environment=environment, wrapper=wrapper)

    def gate(
        self,
        *more: str | Path,
        out: str | None = "run",
        head: str = "change",
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
    ) -> Done:
        """A whole gate. Without `out` its run is the newest of the state directory."""
        if self.here:
            assert not environment
            assert not wrapper
            done = self.perfgate(*self.arguments(*more, out=out, head=head))
            return replace(done, run=self.root / out if out else self.newest_run())
        with self.start(*more, out=out, head=head, environment=environment, wrapper=wrapper) as process:
            done = finished(process)
        return Done(done.code, done.out, done.err, self.root / out if out else self.newest_run())

    def perfgate(self, *arguments: str | Path) -> Done:
        return (run_here if self.here else run_perfgate)(*arguments, home=self.home)

    def newest_run(self) -> Path | None:
        found = sorted((self.state / "runs").glob("2*"))
        return found[-1] if found else None

    # ------------------------------------------------------------------------------------------ afterwards

    def check_nothing_left(self, *, within_s: float = 0.0) -> None:
        """No process, port, lock, record or half-written file; the repository as it was; nothing outside."""
        self.check_all_ended(within_s)
        assert snapshot(self.repository.path) == self.untouched
        expected = {"sglang", "model", "perfgate.yml", "box.yml", "home", "state"}
        strange = [path.name for path in self.root.iterdir() if path.name not in expected and not is_run(path)]
        assert strange == []
        assert sorted(str(path.relative_to(self.home)) for path in self.home.rglob("*")) == ["tmp", "wheels"]

    def sweep(self) -> None:
        """As the next gate on the box does: the temporary folders of a killed one are left to it."""
        swept = {**os.environ, "TMPDIR": str(self.home / "tmp")}
        code = "from perfgate.host.temporary import sweep_temporary; sweep_temporary()"
        subprocess.run([sys.executable, "-c", code], env=swept, check=True, timeout=60)

    def check_all_ended(self, within_s: float) -> None:
        """After a kill: what lies in the temporary folder is left to the next gate."""
        tree.wait_until(lambda: not self.leftovers(), within_s)
        assert self.leftovers() == []

    def leftovers(self) -> list[str]:
        """In words, what a run has left on the box."""
        left = [f"process {line}" for line in processes_of(self.root, self.state)]
        busy = {port for port in self.ports() if not tree.port_free(port)}
        left += [f"port {port}" for port in sorted(busy - (self.ports_of_others() if busy else set()))]
        holder = current_holder(self.lock)
        left += [f"lock held by {holder}"] if holder else []
        left += [f"record {path.name}" for path in self.state.glob("running/launch-*")]
        for folder in (*self.runs(), self.state, self.state / "runs"):
            left += [f"half-written {path}" for path in folder.glob(".*.partial")]
        return left

    def runs(self) -> list[Path]:
        inside = (self.state / "runs").glob("2*")
        return [path for path in (*self.root.iterdir(), *inside) if is_run(path)]

    def ports(self) -> set[int]:
        return ports_begun(self.runs())

    def ports_of_others(self) -> set[int]:
        """Ports are drawn at random: another world's server may live on one that was this world's before."""
        others = {run for world in WORLDS if world is not self and world.root.exists() for run in world.runs()}
        return ports_begun(others - set(self.runs()))


WORLDS: list[World] = []
"""All that were made in this test run; some are at work at the same time."""


def ports_begun(runs: Iterable[Path]) -> set[int]:
    begun = [fact for run in runs for fact in read_facts(run) if isinstance(fact, LaunchBegin)]
    return {fact.port for fact in begun}


def as_yaml(value: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(value))  # nothing twice, else the dumper writes anchors
    return yaml.safe_dump(plain, sort_keys=False)


def is_run(path: Path) -> bool:
    return (path / "facts.jsonl").exists()


def processes_of(*places: Path) -> list[str]:
    """Command lines of living processes that have one of these folders in their command or environment."""
    marks = [os.fsencode(place) for place in places]
    ours = {os.getpid(), os.getppid()}
    found = []
    for entry in tree.all_processes().values():
        pid = entry.process.pid
        if entry.zombie or pid in ours:
            continue
        command, environment = _read(pid, "cmdline"), _read(pid, "environ")
        if any(mark in command or mark in environment for mark in marks):
            found.append(f"{pid} {command.replace(bytes(1), b' ').decode(errors='replace')[:120]}")
    return found


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def snapshot(folder: Path) -> dict[str, str]:
    """Every file below a folder with its mode, time and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(folder))] = f"{about.st_mode:o} {about.st_mtime_ns if content else 0} {content}"
    return found


def wait_for(there: Callable[[], bool], process: subprocess.Popen[str], limit_s: float = LIMIT_S) -> None:
    """Until something has happened in a running gate. Fails at once where the gate has ended before."""
    assert tree.wait_until(lambda: there() or process.poll() is not None, limit_s), "it never happened"
    if not there():
        out, err = process.communicate()
        raise AssertionError(f"the gate ended with {process.returncode} before:\n{out}\n{err}")


def facts_in(run: Path) -> list[Fact]:
    """What a run in progress has written so far."""
    return read_facts(run) if (run / "facts.jsonl").exists() else []


def holds(run: Path, kind: type[Fact]) -> Callable[[], bool]:
    return lambda: any(isinstance(fact, kind) for fact in facts_in(run))


# ---------------------------------------------------------------------------------------------- cases


def one_gate(*arguments: str) -> Callable[[World], Done]:
    return lambda world: world.gate(*arguments)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a test needs to have happened: a world, and what is done in it. See conftest.py."""

    base: Behaviour = field(default_factory=acting)
    head: Behaviour = field(default_factory=acting)
    config: Mapping[str, Any] = field(default_factory=dict)
    box: Mapping[str, Any] = field(default_factory=dict)
    act: Callable[[World], Any] = field(default_factory=lambda: one_gate(*PLAIN))
    own_state: bool = False  # a box that has seen nothing yet
    here: bool = False  # without another process; so without a lane, too
    within_s: float = 0.0  # until all must be gone; a gate that ended by itself has waited for it


def on(case: Case) -> pytest.MarkDecorator:
    """The test's `done` is what came of this case."""
    return pytest.mark.parametrize("done", [case], indirect=True, ids=[""])
