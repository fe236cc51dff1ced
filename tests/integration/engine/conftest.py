"""A stand-in server of scripted behaviour, ready to be launched."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from perfgate.config.model import Workload
from perfgate.engine.command import EnvironmentParts, child_environment, server_command
from perfgate.engine.launch import LaunchPlan
from perfgate.engine.server import LaunchSpec, Server, free_port
from perfgate.host.handover import hand_over
from perfgate.host.sandbox import UNCONFINED, Confinement, Isolation, describe, interpreter_folders
from perfgate.host.trial import choose
from perfgate.records import LaunchId, Side
from tests.needs import require
from tests.standin import Behaviour, make_repository

PYTHON = Path(sys.executable)
LEISURELY = {"token_ms": 4.0, "verify_ms": 6.0}  # an answer takes long enough to be seen on a busy box
SYSTEM_PYTHON = Path("/usr/bin/python3")
SPECULATIVE = {"speculative-algorithm": "EAGLE3", "speculative-num-steps": 2}
WORKLOAD = Workload(
    prompts_per_kind=1, output_tokens=16, samples=2, warmup_min=1, warmup_max=2, request_timeout_s=20, concurrency=[1]
)


@dataclass(frozen=True)
class Bench:
    """Makes launches of one commit of the stand-in."""

    place: Path
    tree: Path
    python: Path = PYTHON
    confinement: Confinement = UNCONFINED
    stall_s: float = 20.0
    stop_s: float = 10.0

    @property
    def home(self) -> Path:
        return self.place / "home"

    def spec(self, flags: dict[str, object] | None = None, **changes: object) -> LaunchSpec:
        port = free_port()
        environment = child_environment(
            os.environ,
            EnvironmentParts(
                python=self.python,
                path_entries=[self.tree / "python"],
                home={"HOME": str(self.home), "TMPDIR": str(self.home)},
            ),
        )
        spec = LaunchSpec(
            argv=server_command(self.python, flags or {}, model="stand/in", port=port),  # type: ignore[arg-type]
            environment=environment,
            cwd=self.home,
            port=port,
            log=self.place / "logs" / "server.log",
            stall_s=self.stall_s,
            stop_s=self.stop_s,
            confinement=self.confinement,
            readable=(*interpreter_folders(self.python), self.tree, *own_folders()),
            writable=(self.home,),
        )
        return replace(spec, **changes)  # type: ignore[arg-type]

    def plan(self, workload: Workload = WORKLOAD, *, speculative: bool = False) -> LaunchPlan:
        return LaunchPlan(
            launch=LaunchId("recipe", 1, Side.BASE, 1, 1),
            sha="0" * 40,
            build="key",
            spec=self.spec(dict(SPECULATIVE) if speculative else None),
            workload=workload,
            speculative=speculative,
            log="logs/server.log",
        )


def own_folders() -> tuple[Path, ...]:
    """Where this test run's packages lie, for an interpreter that has them by a link."""
    return tuple(Path(entry).resolve() for entry in sys.path if entry and Path(entry).is_dir())


def confined(isolation: str, place: Path) -> tuple[Confinement, Path]:
    """A confinement by name, and an interpreter that it can read. "bubblewrap, not root": as a runner uses it."""
    if isolation == "user":
        if os.geteuid() != 0 or not SYSTEM_PYTHON.exists():
            pytest.skip("needs root, and an interpreter that everybody may read")
        require("setpriv")
        open_to_all(place)
        return describe(Isolation.USER, run_as="daemon"), SYSTEM_PYTHON
    if isolation.startswith("bubblewrap"):
        require("bubblewrap")
    if isolation == "bubblewrap, not root":
        return replace(describe(Isolation.BUBBLEWRAP, hidden=[place]), uid=None, gid=None), PYTHON
    return choose(isolation, hidden=[place]), PYTHON


def open_to_all(place: Path) -> None:
    """Lets others pass, as a box's state folder does; pytest's own folders do not."""
    for folder in (place, *place.parents):
        if folder.stat().st_uid == os.geteuid() and folder not in (Path("/"), Path("/tmp")):
            folder.chmod(folder.stat().st_mode | 0o055)


Make = Callable[..., Bench]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """`make(isolation="none", **behaviour)`: a bench for a commit that behaves so."""

    made = 0

    def build(isolation: str = "none", stall_s: float = 20.0, stop_s: float = 10.0, **behaviour: object) -> Bench:
        nonlocal made
        made += 1
        place = tmp_path.resolve() / f"bench-{made}"
        head = Behaviour(**(LEISURELY | behaviour))  # type: ignore[arg-type]
        repository = make_repository(place / "sglang", head=head)
        confinement, python = confined(isolation, place)
        bench = Bench(place, repository.path, python, confinement, stall_s, stop_s)
        bench.home.mkdir()
        hand_over([bench.home], bench.confinement)
        return bench

    return build


@pytest.fixture
def serving() -> Iterator[Callable[..., Server]]:
    """Starts servers and sees to it that none is left, whatever the test does."""
    started: list[Server] = []

    def start(spec: LaunchSpec, **more: object) -> Server:
        started.append(Server.start(spec, **more))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for server in started:
        if server.alive() or server.processes():
            server.stop()
