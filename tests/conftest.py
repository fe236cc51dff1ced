"""For all tests: a busy box fails no property, and the same examples are tried each time; a user who is not root."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from perfgate.store.removal import remove_tree

settings.register_profile("perfgate", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("random", settings.get_profile("perfgate"), derandomize=False)
settings.load_profile("perfgate")

# Before any test module imports it: others than the gate's own use it, too.
pytest.register_assert_rewrite("tests.integration.gate.harness")

UNPRIVILEGED = 65_000  # a uid nobody has


@pytest.fixture
def swept_path(tmp_path: Path) -> Iterator[Path]:
    """For folders nested so deep that pytest stumbles over them, in this run or a later one."""
    yield tmp_path
    for path in tmp_path.iterdir():
        remove_tree(path)


@pytest.fixture
def users_folder() -> Iterator[Path]:
    """A folder of an ordinary user, for whom a locked folder is locked. Root's tests are that user meanwhile."""
    root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        if root:
            os.chown(folder, UNPRIVILEGED, UNPRIVILEGED)
            os.seteuid(UNPRIVILEGED)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
            for path in folder.iterdir():
                remove_tree(path)
