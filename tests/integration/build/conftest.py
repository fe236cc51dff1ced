from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfgate.host.sandbox import UNCONFINED, Confinement, Isolation, describe
from perfgate.store.folders import Store
from perfgate.store.removal import remove_tree
from tests.integration.build.lab import Lab, make_wheel
from tests.needs import require


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    for version in ("1.0", "2.0"):
        make_wheel(made.index, "tiny", version)
    make_wheel(made.index, "other", "1.0")
    yield made
    if (tmp_path / "state").exists():
        remove_tree(tmp_path / "state")  # read-only folders: pytest would stumble over them


@pytest.fixture
def store(lab: Lab) -> Iterator[Store]:
    with lab.store() as made:
        yield made


@pytest.fixture(params=[Isolation.NONE, Isolation.BUBBLEWRAP])
def confinement(request: pytest.FixtureRequest) -> Confinement:
    kind: Isolation = request.param
    if kind is Isolation.NONE:
        return UNCONFINED
    return bubblewrap()


@pytest.fixture
def confined() -> Confinement:
    return bubblewrap()


def bubblewrap() -> Confinement:
    require("bubblewrap")
    return describe(Isolation.BUBBLEWRAP)
