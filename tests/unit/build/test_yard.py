"""What is taken from a folder that strangers' code could write: files, and nothing by way of a link."""

from __future__ import annotations

import errno
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfgate.build import yard as module
from perfgate.build.failures import Refused
from perfgate.build.yard import MAX_DEPTH, Yard, create, sides_fault, take_text, take_tree, take_wheel
from perfgate.records import Blame

NAME = "a-1-py3-none-any.whl"


@contextmanager
def _refused(text: str) -> Iterator[None]:
    with pytest.raises(Refused, match=text) as error:
        yield
    assert error.value.failure.blame is Blame.SIDE


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file of the box that no step may reach."""
    path = tmp_path / "victim"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


def test_a_yard_is_never_one_that_was_there(tmp_path: Path) -> None:
    Yard.new(tmp_path / "yard")
    with pytest.raises(FileExistsError):
        Yard.new(tmp_path / "yard")


def test_a_yard_that_is_used_again_is_empty_but_for_its_cache(tmp_path: Path, victim: Path) -> None:
    yard = Yard.new(tmp_path / "yard")
    yard.cache.mkdir()
    (yard.cache / "wheel").touch()
    (yard.out / "old").touch()
    yard.source.symlink_to(tmp_path)
    for folder in (yard.path / "home", yard.path / "tmp"):
        folder.rmdir()
        folder.symlink_to(victim)
    yard.path.chmod(0o500)
    again = yard.again()
    assert sorted(str(path.relative_to(again.path)) for path in again.path.rglob("*")) == [
        "cache",
        "cache/wheel",
        "home",
        "out",
        "tmp",
    ]
    assert not [path for path in again.path.iterdir() if path.is_symlink()]


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("out"), lambda path: path.symlink_to("/")])
def test_a_cache_that_is_no_folder_is_not_used_again(tmp_path: Path, make: Callable[[Path], None]) -> None:
    yard = Yard.new(tmp_path / "yard")
    make(yard.cache)
    assert sorted(path.name for path in yard.again().path.iterdir()) == ["home", "out", "tmp"]


def test_a_new_file_is_never_written_through_a_link(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("link", "dangling"):
        with pytest.raises(FileExistsError):
            create(tmp_path / name)
    assert not (tmp_path / "nowhere").exists()


def test_a_build_leaves_one_wheel(tmp_path: Path, victim: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with _refused("0 wheels"):
        take_wheel(out, tmp_path / "a")
    _pack(out / NAME, {"a.py": b"wheel"})
    (out / "b-1-py3-none-any.whl").symlink_to(victim)
    taken = take_wheel(out, tmp_path / "b")
    assert (taken.name, _unpack(taken)) == (NAME, {"a.py": b"wheel"})
    (out / "c-1-py3-none-any.whl").write_text("another")
    with _refused("2 wheels"):
        take_wheel(out, tmp_path / "c")


def _pack(wheel: Path, files: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def _unpack(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {member.filename: archive.read(member) for member in archive.infolist()}


def test_a_wheel_is_taken_with_its_modes_and_without_its_links(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
        for name, mode in (("run", 0o100755), ("plain", 0o100600), ("link", 0o120777), ("set", 0o104755)):
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            archive.writestr(member, "/etc/passwd")
        archive.mkdir("folder")
    with zipfile.ZipFile(take_wheel(tmp_path, tmp_path / "taken")) as taken:
        modes = {member.filename: member.external_attr >> 16 for member in taken.infolist()}
    assert modes == {"run": 0o100755, "plain": 0o100600, "link": 0o100777, "set": 0o100755}


def test_a_wheel_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pack(tmp_path / NAME, {"a": bytes(600), "b": bytes(600)})
    monkeypatch.setattr(module, "MAX_UNPACKED", 1200)
    take_wheel(tmp_path, tmp_path / "fits")
    monkeypatch.setattr(module, "MAX_UNPACKED", 1199)
    with _refused("unpacks to more than"):
        take_wheel(tmp_path, tmp_path / "a")
    monkeypatch.setattr(module, "MAX_DIRECTORY", 10)
    with _refused("too many files"):
        take_wheel(tmp_path, tmp_path / "b")
    monkeypatch.setattr(module, "MAX_WHEEL", 10)
    with _refused("too large"):
        take_wheel(tmp_path, tmp_path / "c")


def test_a_wheel_that_lies_about_its_sizes_gives_what_it_says_and_no_more(tmp_path: Path) -> None:
    """uv would believe the compressed data."""
    large, small = bytes(10_000_000), bytes(10)
    _pack(tmp_path / NAME, {"a": large})
    packed = (tmp_path / NAME).read_bytes()
    for true, said in ((zlib.crc32(large), zlib.crc32(small)), (len(large), len(small))):
        assert packed.count(struct.pack("<I", true)) == 2  # before the data, and in the list at the end
        packed = packed.replace(struct.pack("<I", true), struct.pack("<I", said))
    (tmp_path / NAME).write_bytes(packed)
    assert _unpack(take_wheel(tmp_path, tmp_path / "taken")) == {"a": small}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_wheel_that_cannot_be_read_or_holds_a_file_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("no archive")
    with _refused("cannot be read: File is not a zip file"):
        take_wheel(tmp_path, tmp_path / "a")
    with zipfile.ZipFile(tmp_path / NAME, "w") as archive:
        archive.writestr("a", "1")
        archive.writestr("a", "2")
    with _refused("a file twice"):
        take_wheel(tmp_path, tmp_path / "b")


def test_holes_do_not_become_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPARSE_FROM", 2**20)
    out = tmp_path / "out"
    out.mkdir()
    with (out / NAME).open("wb") as file:
        file.write(bytes(4096))
        file.truncate(2**24)
    with _refused("mostly holes"):
        take_wheel(out, tmp_path / "taken")
    (tmp_path / "into").mkdir()
    with _refused("mostly holes"):
        take_tree(out, tmp_path / "into")
    (out / NAME).write_bytes(b"x" * 2**21)
    take_tree(out, tmp_path / "into")
    assert (tmp_path / "into" / NAME).stat().st_size == 2**21


@pytest.mark.parametrize(
    "name", ["x.whl", "a-1\n-py3-none-any.whl", "a-1-py3-none-any #.whl", "a-1-py3-none-any\n-e x.whl", "-r-1-x.whl"]
)
def test_a_wheel_whose_name_could_be_read_as_anything_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with _refused("no wheel may have"):
        take_wheel(tmp_path, tmp_path / "taken")


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
    with pytest.raises(OSError, match="full"), sides_fault("what it left cannot be taken"):
        raise OSError(errno.ENOSPC, "full")
    with _refused("what it left cannot be taken: too long"), sides_fault("what it left cannot be taken"):
        raise OSError(errno.ENAMETOOLONG, "too long")
