"""`perfgate bisect` as a user types it, on the stand-in: real git, builds, launches and facts."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perfgate import records as r
from perfgate.records.files import read_facts
from tests.integration.gate.harness import Done, World, acting, finished, started
from tests.standin import Behaviour
from tests.standin.repository import commit_all, git, write_behaviour

pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("bisect")]

FAST, SLOW = acting(), acting(verify_ms=9.0)


class Hunt:
    """A world whose branch has one commit per behaviour; position 0 is its base."""

    def __init__(self, root: Path, behaviours: Mapping[int, Behaviour], length: int) -> None:
        self.world = World(root, base=FAST, head=FAST)
        repository = self.world.repository
        self.shas = [repository.base, repository.head]
        behaviour = FAST
        for number in range(1, length + 1):
            behaviour = behaviours.get(number, behaviour)
            write_behaviour(repository.path, behaviour, number + 10)
            sha = commit_all(repository.path, f"Change number {number}", number + 10)
            if number == 1:
                self.shas = [repository.base]
            self.shas.append(sha)
        self.out = root / "run"

    def arguments(self, *more: str) -> list[str | Path]:
        world = self.world
        where: list[str | Path] = ["--repo", world.repository.path, "--good", self.shas[0], "--bad", self.shas[-1]]
        files: list[str | Path] = ["--config", world.config_file, "--box", world.box_file, "--out", self.out]
        return ["bisect", *where, *files, *more]

    def start(self, *more: str) -> subprocess.Popen[str]:
        return started(*self.arguments(*more), home=self.world.home)

    def bisect(self, *more: str) -> Done:
        with self.start(*more) as process:
            return finished(process)

    def answer(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads((self.out / "answer.json").read_text())
        return body

    def launched(self) -> list[str]:
        """Every launch that was begun and whose pair counts, by its step."""
        found = []
        for facts in sorted(self.out.glob("steps/*/try*/facts.jsonl")):
            for fact in read_facts(facts.parent):
                if isinstance(fact, r.LaunchEnd) and fact.valid and fact.pair > 0:
                    found.append(f"{facts.parent.relative_to(self.out)}/{fact.recipe}/p{fact.pair}/{fact.side}")
        return found


def test_a_culprit_is_named_confirmed_and_replayed(tmp_path: Path) -> None:
    hunt = Hunt(tmp_path / "world", {5: SLOW}, 7)
    path = hunt.world.repository.path
    done = hunt.bisect()
    assert done.code == 0, done.err
    assert hunt.shas[5] in done.out
    assert "measured against its parent" in done.out
    answer = hunt.answer()
    (found,) = answer["findings"]
    assert (found["kind"], found["commit"], found["after"]) == ("named", hunt.shas[5], hunt.shas[4])
    assert {step["why"] for step in answer["steps"]} == {"do the ends differ", "search", "confirm"}
    git(path, "bisect", "replay", str(hunt.out / "git-bisect.log"))
    assert git(path, "rev-parse", "refs/bisect/bad").strip() == hunt.shas[5]
    git(path, "bisect", "reset")
    again = hunt.bisect("--resume", "--json")  # an answered one is told again, nothing is launched
    assert again.code == 0
    assert json.loads(again.out)["findings"] == answer["findings"]
    assert json.loads(again.out)["launches"] == answer["launches"]
    hunt.world.check_all_ended(30.0)


def test_no_difference_names_nobody(tmp_path: Path) -> None:
    hunt = Hunt(tmp_path / "world", {}, 3)
    done = hunt.bisect()
    assert done.code == 3, done.err
    assert "do not differ" in done.out
    assert [one["kind"] for one in hunt.answer()["findings"]] == ["same"]


def test_commits_that_do_not_serve_are_skipped_and_docs_share_their_parents_result(tmp_path: Path) -> None:
    hunt = Hunt(tmp_path / "world", {2: acting(crash="load"), 3: FAST, 4: SLOW}, 5)
    world = hunt.world
    docs = world.commit({"docs/more.md": "More words.\n"}, "Docs")
    hunt.shas.append(docs)
    done = hunt.bisect()
    assert done.code == 0, done.err
    answer = hunt.answer()
    (found,) = answer["findings"]
    assert found["commit"] == hunt.shas[4]
    assert answer["commits"][-1]["alike"] == [docs]
    assert docs not in {side for step in answer["steps"] for side in (step["older"], step["newer"])}


@pytest.mark.slow
def test_killed_at_ten_moments_it_goes_on_and_repeats_no_launch(tmp_path: Path) -> None:
    hunt = Hunt(tmp_path / "world", {3: SLOW}, 7)
    rng = random.Random(7)
    kills = 0
    done: Done | None = None
    known: list[str] = []
    while done is None:
        with hunt.start(*(("--resume",) if hunt.out.exists() else ())) as process:
            if kills < 10:
                time.sleep(rng.uniform(2.0, 12.0))
                if process.poll() is None:
                    os.kill(process.pid, signal.SIGKILL)
                    process.communicate()
                    kills += 1
                    hunt.world.check_all_ended(60.0)
                    now = hunt.launched()
                    assert now[: len(known)] == known or set(known) <= set(now)
                    known = now
                    continue
            done = finished(process)
    assert done.code == 0, done.err
    assert kills >= 5
    assert hunt.answer()["findings"][0]["commit"] == hunt.shas[3]
    launched = hunt.launched()
    assert len(launched) == len(set(launched))  # no pair's side was launched validly twice


def test_what_cannot_be_asked_is_one_line(tmp_path: Path) -> None:
    hunt = Hunt(tmp_path / "world", {}, 1)
    path = hunt.world.repository.path
    for more, said in (
        (["--good", hunt.shas[0], "--bad", hunt.shas[0]], "same commit"),
        (["--good", hunt.shas[1], "--bad", hunt.shas[0]], "does not come after"),
        (["--good", "nowhere", "--bad", hunt.shas[1]], "no commit is called"),
        (["--good", hunt.shas[0], "--bad", hunt.shas[1], "--recipe", "other"], "no recipe 'other'"),
    ):
        files = ["--config", hunt.world.config_file, "--box", hunt.world.box_file]
        done = hunt.world.perfgate("bisect", "--repo", path, *files, *more)
        assert done.code == 2
        assert said in done.one_line()
