"""Folders change hands while somebody swaps what is in them."""

from __future__ import annotations

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from perfgate.host.handover import hand_over, take_back
from perfgate.host.sandbox import Confinement, Isolation

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand something over")

SECOND = Confinement(kind=Isolation.USER, uid=65_000, gid=65_000)


def flip(trap: Path, aside: Path, secrets: Path) -> None:
    while True:
        trap.rename(aside)
        trap.symlink_to(secrets)
        trap.unlink()
        aside.rename(trap)


def test_a_link_that_is_swapped_in_meanwhile_gives_nothing_away(tmp_path: Path) -> None:
    home, secrets = tmp_path / "home", tmp_path / "secrets"
    (home / "trap").mkdir(parents=True)
    secrets.mkdir()
    for name in ("one", "two"):
        (secrets / name).write_text("secret")
    other = multiprocessing.get_context("fork").Process(target=flip, args=(home / "trap", home / "aside", secrets))
    other.start()
    try:
        for _ in range(3000):
            try:
                hand_over([home], SECOND)
            except OSError:
                continue  # moved while we were in it: told, and nothing is given
    finally:
        other.kill()
        other.join()
    assert {path.stat().st_uid for path in (secrets, *secrets.iterdir())} == {0}


def test_a_file_that_has_another_name_is_not_given_away(tmp_path: Path) -> None:
    """Where the kernel lets everybody link to any file (fs.protected_hardlinks=0)."""
    home, secret = tmp_path / "home", tmp_path / "secret"
    home.mkdir()
    secret.write_text("secret")
    os.link(secret, home / "mine")
    (home / "other").touch()
    hand_over([home], SECOND)
    assert (secret.stat().st_uid, (home / "other").stat().st_uid) == (0, SECOND.uid)


def test_what_is_taken_back_is_closed_until_it_is_handed_over_again(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    hand_over([home], SECOND)
    take_back([home, tmp_path / "not there"], SECOND)
    about = home.stat()
    assert (about.st_uid, stat.S_IMODE(about.st_mode)) == (0, 0o700)
    hand_over([home], SECOND)
    assert home.stat().st_uid == SECOND.uid
