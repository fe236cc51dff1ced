"""What a killed perfgate left in the temporary folder is removed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from perfgate.host import temporary
from perfgate.host.temporary import prefix, sweep_temporary, temporary_folder
from tests.nesting import TOO_DEEP, nest


def test_only_our_folders_of_processes_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(["true"]) as process:
        pass
    of_the_dead = prefix("origin").replace(str(os.getpid()), str(process.pid))
    names = [f"{of_the_dead}a1b2c3_d", f"{prefix('origin')}a1b2c3_d", "perfgate-notes", f"mine-{process.pid}-a"]
    for name in names:
        (tmp_path / name / "inside").mkdir(parents=True)
    sweep_temporary()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_a_folder_that_code_of_a_pull_request_was_using(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to the user whom that code ran as, and goes like the others."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(["true"]) as process:
        pass
    of_the_dead = prefix("origin").replace(str(os.getpid()), str(process.pid))
    folder = tmp_path / f"{of_the_dead}a1b2c3_d"
    folder.mkdir()
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    sweep_temporary()
    assert folder.exists()
    sweep_temporary(handed_to=owner)
    assert not folder.exists()


def test_who_has_ended_is_gone_although_nobody_has_asked_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie until it is waited for
        folder = tmp_path / f"perfgate-canary-{process.pid}-a1b2c3_d"
        folder.mkdir()
        sweep_temporary()
        assert not folder.exists()


def test_folders_nested_without_end_are_removed_at_once_and_later(
    swept_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(swept_path))
    with temporary_folder("origin") as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        nest(folder, TOO_DEEP)
    assert not list(swept_path.iterdir())
    with subprocess.Popen(["true"]) as process:
        pass
    left = swept_path / f"perfgate-origin-{process.pid}-a1b2c3_d"
    left.mkdir()
    nest(left, TOO_DEEP)
    sweep_temporary()
    assert not list(swept_path.iterdir())


def test_what_cannot_be_removed_ends_no_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(temporary, "remove_tree", refused)
    with subprocess.Popen(["true"]) as process:
        pass
    (tmp_path / f"perfgate-origin-{process.pid}-a1b2c3_d").mkdir()
    sweep_temporary()
    with temporary_folder("origin") as folder:
        pass
    assert folder.exists()
