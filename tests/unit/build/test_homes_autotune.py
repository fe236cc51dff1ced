from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from perfgate.build import BuiltSide, autotune
from perfgate.build.autotune import capture_seed, find_seed, mode_for, plant_seed, remove_results, results_hash
from perfgate.build.homes import Home, home_for, mark_warm, read_home
from perfgate.config.model import Caches
from perfgate.errors import PerfgateError
from perfgate.records import Side
from perfgate.source.diff import classify
from perfgate.store.folders import Store
from perfgate.store.removal import remove_tree
from perfgate.store.strangers import content_of, copy_files
from tests.nesting import TOO_DEEP, TOO_LONG, nest

RESULTS = ".cache/sglang/flashinfer/autotune/0.7.2/sm120/key"


def _side(tmp_path: Path, side: Side, tree: str, key: str) -> BuiltSide:
    return BuiltSide(side=side, key=key * 40, python=Path("/python"), tree=tmp_path / (tree * 40), path_entries=())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "state", Caches())


def _home(store: Store, tmp_path: Path, tree: str = "a") -> Home:
    return home_for(store, _side(tmp_path, Side.BASE, tree, "c"))


def test_each_tree_and_environment_has_its_own_home(store: Store, tmp_path: Path) -> None:
    homes = {
        home_for(store, _side(tmp_path, side, tree, key)).path
        for side, tree, key in (
            (Side.BASE, "a", "c"),
            (Side.HEAD, "b", "c"),
            (Side.HEAD, "b", "d"),
            (Side.HEAD, "a", "c"),
        )
    }
    assert len(homes) == 3  # the same tree in the same environment is the same code


def test_every_cache_goes_into_the_home(store: Store, tmp_path: Path) -> None:
    home = _home(store, tmp_path)
    assert all(value.startswith(str(home.path)) for value in home.variables.values())
    assert {"HOME", "SGLANG_CACHE_DIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"} <= set(home.variables)


def test_a_home_is_cold_for_a_recipe_until_it_has_served_it(store: Store, tmp_path: Path) -> None:
    home = _home(store, tmp_path)
    assert home.cold_for("eagle3")
    mark_warm(home, "eagle3")
    assert mark_warm(home, "eagle3").launches == {"eagle3": 2}
    assert not _home(store, tmp_path).cold_for("eagle3")
    assert _home(store, tmp_path).cold_for("baseline")
    remove_tree(home.path)
    assert _home(store, tmp_path).cold_for("eagle3")


def _leave_nothing(_: Path) -> None:
    pass


def _leave_a_pipe(path: Path) -> None:
    os.mkfifo(path)


def _leave_a_link(path: Path) -> None:
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("leave", [_leave_nothing, Path.touch, _leave_a_pipe, _leave_a_link, Path.mkdir])
def test_whatever_lies_in_the_place_of_a_temporary_folder(
    store: Store, tmp_path: Path, leave: Callable[[Path], None]
) -> None:
    tmp = _home(store, tmp_path).path / "tmp"
    remove_tree(tmp)
    leave(tmp)
    _home(store, tmp_path)
    assert tmp.is_dir()
    assert not tmp.is_symlink()


def test_a_temporary_folder_that_was_locked_is_open_again(store: Store, tmp_path: Path) -> None:
    tmp = _home(store, tmp_path).path / "tmp"
    tmp.chmod(0)
    _home(store, tmp_path)
    assert tmp.stat().st_mode & 0o777 == 0o700


def test_content_is_names_and_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "d").mkdir(parents=True)
        (tmp_path / name / "d" / "x").write_text("abc")
    assert content_of(tmp_path / "one") == content_of(tmp_path / "two")
    os.utime(tmp_path / "one" / "d" / "x", (1, 1))
    assert content_of(tmp_path / "one") == content_of(tmp_path / "two")
    (tmp_path / "two" / "d" / "x").write_text("abd")
    assert content_of(tmp_path / "one").hash != content_of(tmp_path / "two").hash
    (tmp_path / "two" / "d" / "x").rename(tmp_path / "two" / "d" / "y")
    assert content_of(tmp_path / "one").hash != content_of(tmp_path / "two").hash


def test_what_pr_code_leaves_in_a_home_cannot_hang_or_mislead(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("1")
    os.mkfifo(home / "fifo")
    (home / "link").symlink_to(secret)
    (home / "loop").symlink_to(".")
    (home / os.fsdecode(b"\xff\n")).write_text("x")
    first = content_of(home)
    secret.write_text("2")
    assert content_of(home) == first
    copy_files(home, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == [os.fsdecode(b"\xff\n")]


# -------------------------------------------------------------------------------------------------- autotune


def _tune(home: Home, text: str) -> None:
    for rank in range(2):
        path = home.path / RESULTS / f"rank_{rank}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (home.path / ".cache" / "triton").mkdir(parents=True, exist_ok=True)
    (home.path / ".cache" / "triton" / "kernel.cubin").write_text("code")


def test_fresh_removes_results_and_nothing_else(store: Store, tmp_path: Path) -> None:
    home = _home(store, tmp_path)
    _tune(home, "drawn")
    assert remove_results(home) == 1
    assert results_hash(home.path) is None
    assert (home.path / ".cache" / "triton" / "kernel.cubin").exists()
    assert remove_results(home) == 0


def test_a_home_nested_without_end_has_results_all_the_same(swept_path: Path) -> None:
    home = _home(Store(swept_path / "state", Caches()), swept_path)
    _tune(home, "drawn")
    nest(home.path, (*TOO_DEEP, *TOO_LONG))
    assert results_hash(home.path) is not None
    assert remove_results(home) == 1
    assert results_hash(home.path) is None


def test_results_within_results_are_no_others(store: Store, tmp_path: Path) -> None:
    home = _home(store, tmp_path)
    (home.path / "flashinfer" / "autotune" / "flashinfer" / "autotune").mkdir(parents=True)
    (home.path / "autotune" / "flashinfer").mkdir(parents=True)
    assert remove_results(home) == 1
    assert (home.path / "autotune").exists()


def test_results_in_a_home_that_was_locked_are_removed_too(users_folder: Path) -> None:
    home = _home(Store(users_folder / "state", Caches()), users_folder)
    _tune(home, "drawn")
    home.path.chmod(0)
    assert remove_results(read_home(home.path)) == 1


def test_a_seed_is_the_same_for_every_launch_of_both_sides(store: Store, tmp_path: Path) -> None:
    base, head = _home(store, tmp_path, "a"), _home(store, tmp_path, "b")
    _tune(base, "base's draw")
    seed = capture_seed(store, "seed-1", base)
    _tune(base, "drawn again")
    _tune(head, "head's draw")
    (head.path / RESULTS / "rank_7.json").write_text("more")
    assert plant_seed(seed, base) == plant_seed(seed, head) == seed.hash
    assert results_hash(head.path) == results_hash(base.path) == seed.hash
    assert sorted(path.name for path in (head.path / RESULTS).iterdir()) == ["rank_0.json", "rank_1.json"]
    (head.path / RESULTS / "rank_0.json").write_text("a launch may write over its copy")
    assert (seed.path / RESULTS / "rank_0.json").read_text() == "base's draw"
    assert seed.label == f"seed {seed.hash[:12]}"


def test_a_seed_is_found_again_and_not_believed_when_changed(store: Store, tmp_path: Path) -> None:
    home = _home(store, tmp_path)
    _tune(home, "draw")
    assert find_seed(store, "seed-1") is None
    seed = capture_seed(store, "seed-1", home)
    assert find_seed(store, "seed-1") == seed
    _tune(home, "another draw")
    assert capture_seed(store, "seed-1", home) == seed
    victim = seed.path / RESULTS / "rank_0.json"
    victim.chmod(0o644)
    victim.write_text("evil")
    with pytest.raises(PerfgateError, match="seed was changed"):
        plant_seed(seed, home)
    assert find_seed(store, "seed-1") is None


def test_a_launch_that_tuned_nothing_leaves_no_seed(store: Store, tmp_path: Path) -> None:
    home = _home(store, tmp_path)
    with pytest.raises(PerfgateError, match="no autotune results"):
        capture_seed(store, "seed-1", home)
    assert find_seed(store, "seed-1") is None


def test_results_that_cannot_be_kept_are_told(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Path) -> None:
        raise OSError(errno.ENAMETOOLONG, "File name too long")

    home = _home(store, tmp_path)
    _tune(home, "draw")
    monkeypatch.setattr(autotune, "copy_files", refuse)
    with pytest.raises(PerfgateError, match=r"cannot be kept: .* too long"):
        capture_seed(store, "seed-1", home)
    assert find_seed(store, "seed-1") is None


def test_results_that_are_links_are_left_alone(store: Store, tmp_path: Path) -> None:
    home = _home(store, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x").write_text("")
    (home.path / "flashinfer").mkdir()
    (home.path / "flashinfer" / "autotune").symlink_to(elsewhere)
    assert remove_results(home) == 0
    assert (elsewhere / "x").exists()


def test_a_seed_is_not_written_through_a_link(store: Store, tmp_path: Path) -> None:
    base, head = _home(store, tmp_path, "a"), _home(store, tmp_path, "b")
    _tune(base, "draw")
    seed = capture_seed(store, "seed-1", base)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (head.path / ".cache").mkdir()
    (head.path / ".cache" / "sglang").symlink_to(elsewhere)
    plant_seed(seed, head)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("wanted", "path", "mode"),
    [
        ("fresh", "python/sglang/srt/x.py", "fresh"),
        ("seed", "python/sglang/srt/x.py", "seed"),
        ("seed", "python/sglang/srt/layers/moe/topk.py", "fresh"),
        ("seed", "python/pyproject.toml", "fresh"),
        ("off", "python/sglang/srt/layers/moe/topk.py", "off"),
    ],
)
def test_a_seed_only_where_the_diff_touches_neither_pins_nor_tuned_code(wanted: str, path: str, mode: str) -> None:
    assert mode_for(Caches.model_validate({"autotune": wanted}), classify([path])) == mode
