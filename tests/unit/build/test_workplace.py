"""The folder of a confined step: new for each, and left with one wheel that has the name of a wheel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfgate.build.environment import failure_of
from perfgate.build.workplace import Workplace, wheel_left
from perfgate.records import Blame
from perfgate.store.strangers import OddFiles

NAME = "a-1-py3-none-any.whl"


@contextmanager
def _refused(text: str) -> Iterator[None]:
    with pytest.raises(OddFiles, match=text) as error:
        yield
    assert failure_of(error.value).blame is Blame.SIDE


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A file of the box that no step may reach."""
    path = tmp_path / "victim"
    path.write_text("precious")
    yield path
    assert path.read_text() == "precious"


def test_a_workplace_is_never_one_that_was_there(tmp_path: Path) -> None:
    Workplace.new(tmp_path / "place")
    with pytest.raises(FileExistsError):
        Workplace.new(tmp_path / "place")


def test_a_workplace_that_is_used_again_is_empty_but_for_its_cache(tmp_path: Path, victim: Path) -> None:
    place = Workplace.new(tmp_path / "place")
    place.cache.mkdir()
    (place.cache / "wheel").touch()
    (place.out / "old").touch()
    place.source.symlink_to(tmp_path)
    for folder in (place.path / "home", place.path / "tmp"):
        folder.rmdir()
        folder.symlink_to(victim)
    place.path.chmod(0o500)
    again = place.again()
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
    place = Workplace.new(tmp_path / "place")
    make(place.cache)
    assert sorted(path.name for path in place.again().path.iterdir()) == ["home", "out", "tmp"]


def test_a_build_leaves_one_wheel(tmp_path: Path, victim: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with _refused("0 wheels"):
        wheel_left(out)
    (out / NAME).write_text("wheel")
    (out / "b-1-py3-none-any.whl").symlink_to(victim)
    assert wheel_left(out) == out / NAME
    (out / "c-1-py3-none-any.whl").write_text("another")
    with _refused("2 wheels"):
        wheel_left(out)


@pytest.mark.parametrize(
    "name", ["x.whl", "a-1\n-py3-none-any.whl", "a-1-py3-none-any #.whl", "a-1-py3-none-any\n-e x.whl", "-r-1-x.whl"]
)
def test_a_wheel_whose_name_could_be_read_as_anything_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with _refused("no wheel may have"):
        wheel_left(tmp_path)
