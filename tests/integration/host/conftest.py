"""One box for all gates here: its state keeps the builds, so only the first gate makes them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfgate.store.removal import remove_tree
from tests import nvml
from tests.integration.gate.harness import World
from tests.integration.host.scenes import world_of


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def boxes() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="boxes") as folder:
        yield Path(folder).resolve()
        for state in Path(folder).glob("state"):
            remove_tree(state)  # read-only folders: the temporary directory would stumble over them


@pytest.fixture
def new_world(boxes: Path, request: pytest.FixtureRequest) -> Callable[..., World]:
    number = len(list(boxes.glob("world*")))
    return lambda **settings: world_of(boxes / f"world{number}", boxes / "state", **settings)
