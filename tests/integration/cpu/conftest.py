from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfgate.cpu.environment import CpuEnvironment, prepare


@pytest.fixture(scope="session")
def state() -> Path:
    """Where the cpu profile's environment is kept: PERFGATE_CPU_STATE, else where a laptop's is."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PERFGATE_CPU_STATE") or f"{cache}/perfgate")


@pytest.fixture(scope="session")
def cpu(state: Path) -> CpuEnvironment:
    """Made the first time, which takes minutes."""
    return prepare(state, print)
