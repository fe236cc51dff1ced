"""What some tests need besides Python, git and the locked packages. Without it they are skipped, told and counted.

@pytest.mark.needs("gcc")      a test
require("bubblewrap")          in a fixture
"""

from __future__ import annotations

import shutil
import sys
from functools import cache
from pathlib import Path

import pytest

from perfgate.host.sandbox import Isolation
from perfgate.host.trial import available

INSTALL = {
    "gcc": "sudo apt-get install gcc libc6-dev",
    "setpriv": "sudo apt-get install util-linux",
    "act": ".ci/setup dev",
}


@cache
def lacking(tool: str) -> str | None:
    """Why it cannot be used here, and what mends it. bubblewrap is tried: a kernel may not allow it."""
    if tool == "bubblewrap":
        check = available(Isolation.BUBBLEWRAP)
        return None if check.status == "ok" else f"{check.text} → {check.remedy}"
    here = (Path(sys.executable).parent / tool).exists() or shutil.which(tool) is not None
    return None if here else f"{tool} is not installed → {INSTALL[tool]}"


def require(tool: str) -> None:
    why = lacking(tool)
    if why is not None:
        pytest.skip(f"needs {tool}: {why}")
