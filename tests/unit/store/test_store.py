"""The state directory: what is kept, what goes first, what is never touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from perfgate.config.model import Caches
from perfgate.errors import Exit
from perfgate.store.entries import Hold, companion, hold, made_once
from perfgate.store.folders import GB, NoSpace, Store, require_free

MB = 10**6


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def _store(root: Path, *, max_gb: float = 200.0, min_free_gb: float = 0.0) -> Store:
    return Store(root, Caches(max_gb=max_gb, min_free_gb=min_free_gb))


def _fill(store: Store, kind: str, name: str, size: int, used: float) -> Path:
    path = store.use(kind, name)
    (path / "data").write_bytes(b"x" * size)
    os.utime(companion(path, "lock"), (used, used))
    return path


@pytest.fixture
def full(tmp_path: Path) -> Store:
    """Four entries of a megabyte each, oldest first; nothing held."""
    with _store(tmp_path) as store:
        for number, kind in enumerate(("trees", "environments", "homes", "runs"), 1):
            _fill(store, kind, f"n{number}", MB, 1000.0 * number)
    return _store(tmp_path, max_gb=0.0025)


def _left(store: Store) -> list[str]:
    return [path.name for _, path in store.entries()]


def test_what_was_used_least_recently_goes_first(full: Store) -> None:
    eviction = full.evict()
    assert [(item.kind, item.name) for item in eviction.removed] == [("trees", "n1"), ("environments", "n2")]
    assert eviction.freed >= 2 * MB
    assert eviction.size <= 2.5 * MB
    assert "trees/n1, environments/n2" in str(eviction)
    assert sorted(_left(full)) == ["n3", "n4"]
    assert str(full.evict()) == "nothing was removed"


def test_what_a_run_holds_stays(full: Store) -> None:
    with hold(full.entry("trees", "n1"), shared=True):
        eviction = full.evict()
    assert [item.name for item in eviction.removed] == ["n2", "n3"]
    assert eviction.kept_in_use == 1
    assert "n1" in _left(full)


def test_using_a_thing_makes_it_young(full: Store) -> None:
    with _store(full.root) as other:
        other.use("trees", "n1")
    assert [item.name for item in full.evict().removed] == ["n2", "n3"]


def test_models_and_other_files_are_not_perfgates_to_remove(full: Store) -> None:
    for name in ("models/m", "ledger.db", "resolutions/x.txt"):
        path = full.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * MB)
    _store(full.root, max_gb=1e-9).evict()
    assert not _left(full)
    assert all((full.root / name).exists() for name in ("models/m", "ledger.db", "resolutions/x.txt"))


def test_nothing_stays_of_what_is_removed(full: Store) -> None:
    entry = full.entry("seeds", "s")
    made_once(entry, _making).hold.release()
    (full.root / "trees" / ".half.making").mkdir()
    (full.root / "trees" / ".half.making" / "x").write_text("")
    (full.root / "homes" / ".gone.lock").write_text("")
    _store(full.root, max_gb=1e-9).evict()
    left = [path for kind in ("trees", "seeds", "homes", "environments") for path in (full.root / kind).iterdir()]
    assert left == []


def _making(place: Path, _: Hold) -> dict[str, str]:
    place.mkdir()
    (place / "x").write_text("x")
    return {"a": "b"}


def test_a_cache_that_is_always_in_use_has_a_share_of_its_own(tmp_path: Path) -> None:
    with _store(tmp_path) as store:
        _fill(store, "caches", "uv", MB, 1.0)
    small = _store(tmp_path, max_gb=0.002)
    small.cap("caches", "uv", 0.9)
    assert _left(small) == ["uv"]
    small.cap("caches", "uv", 0.25)
    assert _left(small) == []
    small.cap("caches", "uv", 0.25)


def test_a_full_disk_is_told_before_anything_begins(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(100 * GB, 97 * GB, 3 * GB))
    with pytest.raises(NoSpace) as error:
        require_free(full.root / "not" / "there", 5)
    assert "3.0 GB free, 5.0 GB needed → free some space" in str(error.value)
    assert error.value.exit_code is Exit.CANNOT
    require_free(full.root, 3)


def test_room_is_made_by_eviction_where_that_helps(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(_: Path) -> _Usage:
        return _Usage(100 * GB, 0, 10 * GB if len(_left(full)) < 3 else 1 * GB)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    roomy = _store(full.root, min_free_gb=2.0)
    assert len(roomy.make_room(5).removed) == 2
    assert roomy.make_room(8).removed == ()
    with pytest.raises(NoSpace, match=r"12\.0 GB needed"):
        roomy.make_room(10)


def test_the_reserve_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(100 * GB, 0, 10 * GB))
    _store(tmp_path, min_free_gb=4).make_room(6)
    with pytest.raises(NoSpace, match=r"10\.0 GB free, 11\.0 GB needed"):
        _store(tmp_path, min_free_gb=5).make_room(6)


def _locked(entry: Path) -> None:
    """What a server may leave in its HOME: a folder that its owner cannot read."""
    (entry / "locked").mkdir()
    (entry / "locked" / "data").write_bytes(b"x" * MB)
    (entry / "locked").chmod(0)


def test_a_locked_folder_in_one_home_keeps_nobody_from_evicting(users_folder: Path) -> None:
    with _store(users_folder) as store:
        _locked(_fill(store, "homes", "locked", MB, 1.0))
        _fill(store, "homes", "other", MB, 2.0)
    assert _store(users_folder).evict().size >= 2 * MB
    small = _store(users_folder, max_gb=0.0015)
    assert [item.name for item in small.evict().removed] == ["locked"]
    assert _left(small) == ["other"]


def test_what_cannot_be_removed_is_told_and_the_next_goes(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def discard(entry: Path) -> None:
        if entry.name == "n1":
            raise OSError(39, "Directory not empty", str(entry))
        shutil.rmtree(entry)

    monkeypatch.setattr("perfgate.store.folders.discard", discard)
    eviction = full.evict()
    assert [item.name for item in eviction.removed] == ["n2", "n3"]
    (stuck,) = eviction.stuck
    assert stuck.startswith("trees/n1: ")
    assert "not empty" in stuck


def test_copies_of_repositories_are_evicted_too_but_not_while_a_job_uses_one(tmp_path: Path) -> None:
    with _store(tmp_path) as store:
        _fill(store, "repositories", "old.git", MB, 1000.0)
        _fill(store, "repositories", "used.git", MB, 2000.0)
    store = _store(tmp_path, max_gb=0.0001)
    with hold(store.entry("repositories", "used.git"), shared=True):
        assert [item.name for item in store.evict().removed] == ["old.git"]
    assert [item.name for item in store.evict().removed] == ["used.git"]
