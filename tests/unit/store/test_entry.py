"""Things made once: by one of several, whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perfgate.errors import PerfgateError
from perfgate.store.entries import Hold, companion, discard, find_made, hold, made_once, protect, try_hold
from perfgate.store.removal import remove_tree
from tests.nesting import TOO_DEEP, TOO_LONG, nest


class Maker:
    def __init__(self, *, fail: bool = False) -> None:
        self.times = 0
        self.fail = fail

    def __call__(self, place: Path, _: Hold) -> Mapping[str, Any]:
        self.times += 1
        place.mkdir()
        (place / "x").write_text("content")
        (place / "link").symlink_to("x")
        (place / "d").mkdir()
        time.sleep(0.05)
        if self.fail:
            raise PerfgateError("cannot")
        return {"made": self.times}


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("in_place", [False, True])
def test_made_once_and_read_only(tmp_path: Path, in_place: bool) -> None:
    maker = Maker()
    first = made_once(tmp_path / "e", maker, in_place=in_place)
    second = made_once(tmp_path / "e", maker, in_place=in_place)
    assert (first.cached, second.cached, maker.times) == (False, True, 1)
    assert second.about["made"] == 1
    assert second.about["files"] == 1
    assert stat.S_IMODE((tmp_path / "e").stat().st_mode) == 0o555
    assert stat.S_IMODE((tmp_path / "e" / "x").stat().st_mode) == 0o444
    assert _names(tmp_path) == {"e", ".e.lock", ".e.json", ".e.files"}
    first.hold.release()
    second.hold.release()


def test_a_failure_leaves_nothing_but_the_lock(tmp_path: Path) -> None:
    with pytest.raises(PerfgateError):
        made_once(tmp_path / "e", Maker(fail=True))
    assert _names(tmp_path) == {".e.lock"}
    assert not made_once(tmp_path / "e", Maker()).cached


def test_a_maker_that_leaves_paths_too_long_to_name_leaves_nothing_either(swept_path: Path) -> None:
    def make(_: Path, held: Hold) -> Mapping[str, Any]:
        scratch = companion(held.entry, "scratch")
        scratch.mkdir()
        nest(scratch, TOO_LONG)
        raise PerfgateError("cannot")

    with pytest.raises(PerfgateError, match="cannot"):
        made_once(swept_path / "e", make)
    assert _names(swept_path) == {".e.lock"}


def test_what_is_nested_without_end_is_read_only_too(swept_path: Path) -> None:
    nest(swept_path, TOO_DEEP)
    protect(swept_path / "d")
    assert stat.S_IMODE((swept_path / "d").stat().st_mode) == 0o555
    assert stat.S_IMODE(swept_path.joinpath(*TOO_DEEP, "file").stat().st_mode) & 0o222 == 0


def _chmod(path: Path) -> None:
    path.parent.chmod(0o755)
    path.chmod(0o644)


def _write(path: Path) -> None:
    times = path.stat()
    _chmod(path)
    path.write_text("CONTENT")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    path.chmod(0o444)
    path.parent.chmod(0o555)


def _replace(path: Path) -> None:
    path.parent.chmod(0o755)
    path.unlink()
    path.write_text("content")


def _add(path: Path) -> None:
    path.parent.chmod(0o755)
    (path.parent / "new").write_text("")


@pytest.mark.parametrize("change", [_write, _replace, _add, _chmod, Path.unlink])
def test_what_was_changed_is_made_again(tmp_path: Path, change: Any) -> None:
    maker = Maker()
    made_once(tmp_path / "e", maker).hold.release()
    (tmp_path / "e").chmod(0o755)
    change(tmp_path / "e" / "x")
    assert find_made(tmp_path / "e") is None
    again = made_once(tmp_path / "e", maker)
    assert (again.cached, maker.times) == (False, 2)
    assert again.remade
    assert (again.path / "x").read_text() == "content"
    again.hold.release()


@pytest.mark.parametrize("missing", ["json", "files"])
def test_what_was_never_finished_is_made_again(tmp_path: Path, missing: str) -> None:
    maker = Maker()
    made_once(tmp_path / "e", maker).hold.release()
    companion(tmp_path / "e", missing).unlink()
    made_once(tmp_path / "e", maker).hold.release()
    assert maker.times == 2


def test_many_at_once_make_it_once(tmp_path: Path) -> None:
    maker = Maker()
    made: list[bool] = []

    def go() -> None:
        result = made_once(tmp_path / "e", maker)
        made.append(result.cached)
        result.hold.release()

    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert maker.times == 1
    assert sorted(made) == [False] + [True] * 7


def test_a_held_entry_is_not_taken_and_waiting_has_an_end(tmp_path: Path) -> None:
    entry = tmp_path / "e"
    with hold(entry, shared=True), hold(entry, shared=True):
        assert try_hold(entry, shared=False) is None
        with pytest.raises(PerfgateError, match="another perfgate"):
            hold(entry, shared=False, wait_s=0.1)
    with hold(entry, shared=False):
        assert try_hold(entry, shared=True) is None


def test_a_lock_that_was_evicted_meanwhile_is_not_trusted(tmp_path: Path) -> None:
    entry = tmp_path / "e"
    first = hold(entry, shared=False)
    companion(entry, "lock").unlink()
    with hold(entry, shared=False) as second:
        assert os.fstat(second.file).st_ino == companion(entry, "lock").stat().st_ino
    first.release()


def test_removal_follows_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("")
    inside = tmp_path / "inside"
    (inside / "d").mkdir(parents=True)
    (inside / "d" / "link").symlink_to(outside)
    (inside / "d").chmod(0o500)
    remove_tree(inside)
    (tmp_path / "l").symlink_to(outside)
    remove_tree(tmp_path / "l")
    discard(tmp_path / "nothing")
    assert (outside / "x").exists()
    assert _names(tmp_path) == {"outside"}
