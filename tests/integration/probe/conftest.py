from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfgate.cpu.environment import CpuEnvironment, prepare
from perfgate.cpu.install import InstallError


@pytest.fixture(scope="session")
def cpu() -> CpuEnvironment:
    """The cpu profile's environment, below PERFGATE_CPU_STATE; made there the first time (some 400 MB)."""
    state = os.environ.get("PERFGATE_CPU_STATE")
    if not state:
        pytest.skip("PERFGATE_CPU_STATE names no directory for the cpu profile's environment")
    try:
        return prepare(Path(state), print)
    except InstallError as error:
        pytest.skip(str(error))
