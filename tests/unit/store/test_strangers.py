"""What is taken from a folder that strangers' code could write: files, and nothing by way of a link."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfgate.store import strangers as module
from perfgate.store.strangers import MAX_DEPTH, OddFiles, create, strangers_fault, take_text, take_tree

NAME = "a-1-py3-none-any.whl"


@contextmanager
def _refused(text: str) -> Iterator[None]:
    with pytest.raises(OddFiles, match=text):
        yield


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file of the box that no step may reach."""
    path = tmp_path / "victim"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


def test_a_new_file_is_never_written_through_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("link", "dangling"):
        with pytest.raises(FileExistsError):
            create(tmp_path / name)
    assert not (tmp_path / "nowhere").exists()


def test_holes_do_not_become_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPARSE_FROM", 2**20)
    out = tmp_path / "out"
    out.mkdir()
    with (out / NAME).open("wb") as file:
        file.write(bytes(4096))
        file.truncate(2**24)
    (tmp_path / "into").mkdir()
    with _refused("mostly holes"):
        take_tree(out, tmp_path / "into")
    (out / NAME).write_bytes(b"x" * 2**21)
    take_tree(out, tmp_path / "into")
    assert (tmp_path / "into" / NAME).stat().st_size == 2**21


def test_texts_are_taken_from_small_regular_files(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("torch==1\n")
    assert take_text(tmp_path / "text") == "torch==1\n"
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "binary").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "binary", "pipe", "missing"):
        with _refused("cannot be read|is no"):
            take_text(tmp_path / name)
    monkeypatch.setattr(module, "MAX_TEXT", 3)
    with _refused("too large"):
        take_text(tmp_path / "text")


def test_a_tree_is_taken_without_links_and_devices(tmp_path: Path, victim: Path) -> None:
    source, into = tmp_path / "source", tmp_path / "into"
    (source / "lib" / "deep").mkdir(parents=True)
    into.mkdir()
    (source / "lib" / "deep" / "x.py").write_text("x")
    (source / "run").write_text("run")
    (source / "run").chmod(0o4755)
    (source / "link").symlink_to(victim)
    (source / "folder").symlink_to(tmp_path)
    os.mkfifo(source / "pipe")
    take_tree(source, into)
    assert sorted(str(path.relative_to(into)) for path in into.rglob("*")) == [
        "lib",
        "lib/deep",
        "lib/deep/x.py",
        "run",
    ]
    assert (into / "run").stat().st_mode & 0o7777 == 0o755


def test_names_at_the_top_can_be_left_out(tmp_path: Path) -> None:
    source, into = tmp_path / "source", tmp_path / "into"
    (source / "lib").mkdir(parents=True)
    into.mkdir()
    for place in (source, source / "lib", into):
        (place / ".lock").write_text(place.name)
    take_tree(source, into, without=(".lock",))
    assert (into / ".lock").read_text() == "into"
    assert (into / "lib" / ".lock").read_text() == "lib"


def test_a_tree_is_not_laid_through_links(tmp_path: Path, victim: Path) -> None:
    source, into, elsewhere = tmp_path / "source", tmp_path / "into", tmp_path / "elsewhere"
    (source / "sglang").mkdir(parents=True)
    (source / "sglang" / "x.so").write_text("binary")
    (into / "sglang").mkdir(parents=True)
    elsewhere.mkdir()
    (into / "sglang" / "x.so").symlink_to(victim)
    for replacing in (False, True):
        with _refused("File exists"):
            take_tree(source, into, replacing=replacing)
    (into / "sglang" / "x.so").unlink()
    (into / "sglang").rmdir()
    (into / "sglang").symlink_to(elsewhere)
    with _refused("link out of the folder"):
        take_tree(source, into, replacing=True)
    assert not list(elsewhere.iterdir())


def test_a_link_within_the_folder_and_a_file_to_replace_are_fine(tmp_path: Path) -> None:
    source, into = tmp_path / "source", tmp_path / "into"
    (source / "lib64").mkdir(parents=True)
    (into / "lib").mkdir(parents=True)
    (into / "lib64").symlink_to("lib")
    (source / "lib64" / "x").write_text("new")
    (into / "lib" / "x").write_text("old")
    with _refused("File exists"):
        take_tree(source, into)
    take_tree(source, into, replacing=True)
    assert (into / "lib" / "x").read_text() == "new"


def test_a_tree_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in "abc":
        (source / name).write_text("123")
    (tmp_path / "into").mkdir()
    (tmp_path / "again").mkdir()
    monkeypatch.setattr(module, "MAX_BYTES", 8)
    with _refused("too large"):
        take_tree(source, tmp_path / "into")
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    with _refused("more than 2 files"):
        take_tree(source, tmp_path / "again")


def test_folders_nested_without_end_are_not_followed(tmp_path: Path) -> None:
    deep = tmp_path / "source"
    for _ in range(MAX_DEPTH + 2):
        deep.mkdir()
        deep /= "d"
    (tmp_path / "into").mkdir()
    with _refused("deep"):
        take_tree(tmp_path / "source", tmp_path / "into")


def test_a_full_disk_stays_the_boxs() -> None:
    with pytest.raises(OSError, match="full"), strangers_fault("what it left cannot be taken"):
        raise OSError(errno.ENOSPC, "full")
    with _refused("what it left cannot be taken: too long"), strangers_fault("what it left cannot be taken"):
        raise OSError(errno.ENAMETOOLONG, "too long")
