"""Folders that a stranger filled are removed, whatever he did to them, and nothing beyond them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfgate.store import removal
from perfgate.store.removal import remove_tree
from tests.nesting import nest


@pytest.mark.parametrize(("length", "depth"), [(250, 20), (8, 900), (1, 1500), (1, 5000)])
def test_however_deep_and_however_long_the_names(swept_path: Path, length: int, depth: int) -> None:
    root = swept_path / "root"
    root.mkdir()
    for first in "abc":
        nest(root, (first, *["n" * length] * depth))
    remove_tree(root)
    assert not list(swept_path.iterdir())


def test_folders_that_were_locked_are_removed_by_an_ordinary_user(users_folder: Path) -> None:
    locked = users_folder / "root" / "locked"
    (locked / "inside").mkdir(parents=True)
    (locked / "inside" / "file").touch()
    for folder, mode in ((locked / "inside", 0o000), (locked, 0o100), (users_folder / "root", 0o500)):
        folder.chmod(mode)
    remove_tree(users_folder / "root")
    assert not list(users_folder.iterdir())


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """What no removal may reach, nor change the mode of."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "precious").touch()
    path.chmod(0o755)
    yield path
    assert (path / "precious").exists()
    assert path.stat().st_mode & 0o777 == 0o755


def test_links_are_removed_and_not_followed(tmp_path: Path, outside: Path) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "link").symlink_to(outside)
    (root / "d" / "link").symlink_to(outside)
    (root / "dangling").symlink_to("nowhere")
    remove_tree(root)
    (tmp_path / "link").symlink_to(outside)
    remove_tree(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    enter = removal._enter

    def late(name: str, parent: int | None = None) -> int:
        if name == "d":
            (root / "d").rmdir()
            (root / "d").symlink_to(outside)
        return enter(name, parent)

    monkeypatch.setattr(removal, "_enter", late)
    with pytest.raises(OSError, match=r"Not a directory|symbolic links"):
        remove_tree(root)


def test_a_folder_that_is_moved_out_meanwhile_leads_nowhere_else(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    unlink_files = removal._unlink_files

    def late(folder: int) -> list[str]:
        found = unlink_files(folder)
        if not found:
            (root / "d").rename(outside / "d")
        return found

    monkeypatch.setattr(removal, "_unlink_files", late)
    with pytest.raises(OSError, match="was moved"):
        remove_tree(root)
    assert (outside / "d").is_dir()


def test_what_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").touch()

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "unlink", refused)
    with pytest.raises(OSError, match="not permitted"):
        remove_tree(root)


def test_nothing_and_a_file(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")
    (tmp_path / "file").touch()
    remove_tree(tmp_path / "file")
    assert not list(tmp_path.iterdir())
