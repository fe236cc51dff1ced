"""The box's own copy of a repository does not grow without end."""

from __future__ import annotations

import subprocess
from pathlib import Path

from perfgate.github.commits import MAX_PACKS, Origin, collect_garbage


def test_packs_of_many_fetches_become_one(tmp_path: Path) -> None:
    folder = tmp_path / "x.git"
    subprocess.run(["git", "init", "-q", "--bare", folder], check=True)

    def git(*arguments: str, given: str) -> str:
        done = subprocess.run(
            ["git", "-C", folder, *arguments], input=given, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    packs = folder / "objects" / "pack"
    for number in range(MAX_PACKS + 2):
        blob = git("hash-object", "-w", "--stdin", given=str(number))
        git("update-ref", f"refs/perfgate/{number}", blob, given="")
        git("pack-objects", "-q", str(packs / "pack"), given=blob)
    git("prune-packed", given="")
    collect_garbage(folder, Origin("https://example.org/x"))
    assert len(list(packs.glob("*.pack"))) == 1
    assert git("cat-file", "-p", "refs/perfgate/3", given="") == "3"


def test_a_repository_that_git_cannot_pack_is_used_as_it_is(tmp_path: Path) -> None:
    collect_garbage(tmp_path, Origin("https://example.org/x"))
