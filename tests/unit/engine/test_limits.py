"""Bounds of what a server may take of the box, in processes that are really started."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from perfgate.engine import server
from perfgate.engine.server import MAX_FILE, MAX_PROCESSES, limited

READS = "import resource as r; print(r.getrlimit(r.RLIMIT_FSIZE)[0], r.getrlimit(r.RLIMIT_NPROC)[0])"


def test_files_and_processes_are_bounded() -> None:
    told = subprocess.run(limited([sys.executable, "-c", READS]), capture_output=True, text=True, check=True).stdout
    assert tuple(map(int, told.split())) <= (MAX_FILE, MAX_PROCESSES)
    assert "-1" not in told


def test_a_lower_bound_that_holds_already_is_kept() -> None:
    code = (
        "import resource as r, subprocess, sys\n"
        "from perfgate.engine.server import limited\n"
        "r.setrlimit(r.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        f"sys.exit(subprocess.run(limited([sys.executable, '-c', {READS!r}])).returncode)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    ).stdout
    assert told.split()[0] == str(1 << 20)


def test_a_sparse_file_cannot_grow_without_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    code = "import os\ntry:\n    os.ftruncate(1, 16 << 40)\nexcept OSError:\n    raise SystemExit(7)"
    with path.open("wb") as output:
        ended = subprocess.run(limited([sys.executable, "-c", code]), stdout=output, check=False)
    assert ended.returncode == 7
    assert path.stat().st_size == 0


def test_without_util_linux_it_is_started_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.shutil, "which", lambda name, **_: None if name == "prlimit" else name)
    assert limited(["server"]) == ("server",)


def test_a_command_that_is_not_there_is_no_server_that_died() -> None:
    with pytest.raises(FileNotFoundError):
        limited(["/nowhere/bwrap", "server"])


def test_this_process_keeps_its_own_bounds() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    limited([sys.executable])
    assert resource.getrlimit(resource.RLIMIT_FSIZE) == before
