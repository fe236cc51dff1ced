"""For all tests: a busy box fails no property, and the same examples are tried each time; a user who is not root."""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from perfgate.store.removal import remove_tree
from tests import needs

settings.register_profile("perfgate", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("random", settings.get_profile("perfgate"), derandomize=False)
settings.load_profile("perfgate")

# Before any test module imports it: others than the gate's own use it, too.
pytest.register_assert_rewrite("tests.integration.gate.harness")

UNPRIVILEGED = 65_000  # a uid nobody has


TOGETHER = {
    "tests/integration/gate/": "gate",
    "tests/integration/calibration/": "calibration",
    "tests/integration/host/": "boxes",
    "tests/e2e/test_workflow.py": "act",
    "tests/e2e/test_gate.py": "act",
    "tests/unit/cpu/test_shim.py": "shim",
    "tests/unit/commands/test_streams.py": "streams",
}
"""Tests that share what costs much are run by one worker, all others by any. By path and not by `xdist_group`: what
xdist adds to the names of grouped tests is lost under pytest 9.2."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((group for path, group in TOGETHER.items() if nodeid.startswith(path)), nodeid)

    return Together(config, log)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        needs.require(mark.args[0])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = Counter(why[2].removeprefix("Skipped: ") for why in skipped if isinstance(why, tuple))
    for reason, number in reasons.most_common():
        terminalreporter.write_line(f"{number} skipped: {reason}", yellow=True)


@pytest.fixture
def swept_path(tmp_path: Path) -> Iterator[Path]:
    """For folders nested so deep that pytest stumbles over them, in this run or a later one."""
    yield tmp_path
    for path in tmp_path.iterdir():
        remove_tree(path)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


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
