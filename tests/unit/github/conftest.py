from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.hub.repositories import Upstream
from tests.e2e.hub.stage import Stage, raised


@pytest.fixture(scope="session")
def upstream_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("upstream")
    Upstream(folder)
    return folder


@pytest.fixture
def stage(tmp_path: Path, upstream_template: Path) -> Iterator[Stage]:
    """A repository on a GitHub of our own."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    with raised(folder, Upstream.copy(upstream_template, tmp_path / "upstream")) as stage:
        yield stage
