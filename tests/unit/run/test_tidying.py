"""What a server leaves in its HOME ends no gate: neither its own, nor those of others."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perfgate.errors import PerfgateError
from perfgate.records import Side
from perfgate.run.gate import _tidy
from perfgate.run.launch import SglangBench, _regular_files
from perfgate.store.folders import Eviction, Store


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_link(path: Path) -> None:
    path.symlink_to("elsewhere")


def locked(path: Path) -> None:
    (path / "deeper").mkdir(parents=True)
    (path / "deeper").chmod(0)
    path.chmod(0)


@pytest.mark.parametrize("left", [a_pipe, a_link, locked, Path.touch, Path.mkdir])
def test_a_folder_is_emptied_whatever_was_left_in_its_place(
    users_folder: Path, monkeypatch: pytest.MonkeyPatch, left: Callable[[Path], None]
) -> None:
    monkeypatch.setattr("perfgate.run.launch.hand_over", lambda *_: None)
    folder, bench, home = users_folder / "nccl", SimpleNamespace(confinement=None), SimpleNamespace(path=users_folder)
    left(folder)
    SglangBench._forget(cast(Any, bench), cast(Any, home), users_folder / "probe")
    assert not folder.is_symlink()
    assert list(folder.iterdir()) == []


def test_a_locked_folder_holds_no_logs(users_folder: Path) -> None:
    home = users_folder / "home"
    (home / "nccl").mkdir(parents=True)
    (home / "nccl" / "log").touch()
    assert _regular_files(home / "nccl") == [home / "nccl" / "log"]
    (home / "nccl").chmod(0)
    assert _regular_files(home / "nccl") == []
    home.chmod(0)
    assert _regular_files(home / "nccl") == []


@pytest.mark.parametrize("error", [OSError(errno.ENAMETOOLONG, "File name too long"), RecursionError("too deep")])
def test_a_launch_that_cannot_be_prepared_ends_with_a_sentence(error: Exception) -> None:
    def refuse(_: Side) -> None:
        raise error

    bench: Any = SimpleNamespace(caches=SimpleNamespace(home=refuse), _probe_dir=lambda _: Path("/probe"))
    order: Any = SimpleNamespace(launch_id="eagle3/1/head/1", side=Side.HEAD, recipe="eagle3")
    recipe: Any = None
    with pytest.raises(PerfgateError, match=r"eagle3/1/head/1.*cannot be prepared: .*too"):
        SglangBench._launch(bench, order, recipe)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied", "x"), PerfgateError("no room")])
def test_a_result_stands_although_the_state_directory_is_not_tidied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def evict(_: Store) -> Eviction:
        raise error

    monkeypatch.setattr(Store, "evict", evict)
    told: list[str] = []
    _tidy(Store(tmp_path), told.append)
    assert told == [f"the state directory could not be tidied: {error}"]


def test_what_stays_in_the_state_directory_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "evict", lambda _: Eviction(stuck=("homes/a: too deep",)))
    told: list[str] = []
    _tidy(Store(tmp_path), told.append)
    assert told == ["the state directory could not be tidied: homes/a: too deep"]
