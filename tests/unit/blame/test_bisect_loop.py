"""The loop of a bisect on real git, through the command, with runs that are written instead of measured.

What a run leaves, a plan and a result, is all that the loop reads; servers are in tests/integration/blame.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from perfgate import records as r
from perfgate.blame.bisect import told
from perfgate.blame.bisect.line import positions
from perfgate.blame.bisect.loop import Bisected, Loop
from perfgate.blame.bisect.page import comment, page
from perfgate.blame.bisect.search import Kind, Rules
from perfgate.blame.bisect.steps import Asked, CannotMeasure, Interrupted
from perfgate.errors import Exit, PerfgateError
from perfgate.records.files import FactsWriter, read_result, write_result
from perfgate.run.gate import GateOutcome
from perfgate.run.plan import GateRequest
from perfgate.run.progress import Progress
from perfgate.source.repository import Repository
from tests.fixtures.make_run_story import plan as story_plan
from tests.standin.repository import Behaviour, commit_all, commit_change, git, make_history

STORY = read_result(Path("tests/fixtures/run-story"))


class Box:
    """Plays `run_gate`: writes a step's plan and result from what each commit is said to cost."""

    def __init__(self, slow: dict[str, float], sd: float = 0.01) -> None:
        self.slow = slow  # sha → log slowdown against the first
        self.sd = sd
        self.rng = random.Random(3)
        self.pairs: list[tuple[str, str]] = []
        self.bad: set[str] = set()
        self.disturbed = 0
        self.alike: set[tuple[str, str]] = set()
        self.stop_after: int | None = None

    def __call__(self, request: GateRequest, progress: Progress) -> GateOutcome:
        assert request.exact
        assert request.max_pairs == 1
        assert request.out is not None
        assert request.base is not None
        if self.stop_after is not None and len(self.pairs) >= self.stop_after:
            return GateOutcome(request.out, None, Exit.INTERRUPTED)
        base, head = request.base, request.head
        plan = replace(
            story_plan(), base=r.Commit(sha=base, tree="1" * 40), head=r.Commit(sha=head, tree="2" * 40), exact=True
        )
        request.out.mkdir(parents=True, exist_ok=True)
        writer = FactsWriter(request.out)
        writer.append(plan)
        writer.close()
        write_result(request.out, self._result(base, head))
        return GateOutcome(request.out, read_result(request.out), Exit.OK)

    def _result(self, base: str, head: str) -> r.Result:
        common = replace(STORY, cost=r.Cost(launches=2, gpu_minutes=None, wall_s=120.0), launches=())
        broken = next((side for side, sha in ((r.Side.BASE, base), (r.Side.HEAD, head)) if sha in self.bad), None)
        if broken is not None:
            return replace(common, verdict=r.Verdict.BUILD_FAILED, failed_side=broken, reason="it does not build")
        if (base, head) in self.alike:
            return replace(common, verdict=r.Verdict.SKIPPED, cost=r.Cost(launches=0, gpu_minutes=None, wall_s=1.0))
        if self.disturbed:
            self.disturbed -= 1
            return replace(common, verdict=r.Verdict.ENVIRONMENT, reason="the box moved")
        self.pairs.append((base, head))
        launches = tuple(
            r.LaunchResult(
                id=f"eagle3/p01/{side.value}/a1",
                position=position,
                valid=True,
                values={
                    "tok_s@1": 90 * math.exp(-self.slow[sha] + self.rng.gauss(0, self.sd / 1.4)),
                    "verify_ms@1": 19 * math.exp(self.slow[sha]),
                    "draft_ms@1": 2.0,
                },
            )
            for position, (side, sha) in enumerate(((r.Side.BASE, base), (r.Side.HEAD, head)), 1)
        )
        return replace(common, verdict=r.Verdict.INCONCLUSIVE, launches=launches)


class Hunt:
    def __init__(self, root: Path, number: int) -> None:
        self.root = root
        self.path = root / "sglang"
        made = make_history(self.path, [Behaviour(seed=n) for n in range(number + 1)])
        self.shas = list(made.commits)
        self.box = Box({})

    def slower(self, at: int, by: float) -> None:
        for sha in self.shas[at:]:
            self.box.slow[sha] = self.box.slow.get(sha, 0.0) + by

    def loop(self, minutes: float = 1000.0, **line: object) -> Loop:
        for sha in self.shas:
            self.box.slow.setdefault(sha, 0.0)
        repository = Repository(self.path)
        return Loop(
            folder=self.root / "bisect",
            request=GateRequest(repo=self.path, head=self.shas[-1], seed=1),
            line=positions(repository, self.shas[0], self.shas[-1], **line),  # type: ignore[arg-type]
            asked=Asked("eagle3", "tok_s"),
            rules=Rules(),
            minutes=minutes,
            progress=Progress(),
            run=self.box,
        )


@pytest.fixture
def hunt(tmp_path: Path) -> Callable[[int], Hunt]:
    return lambda number: Hunt(tmp_path, number)


def named(found: Bisected) -> list[str]:
    return [found.line[one.newer].commit.sha for one in found.findings if one.kind is Kind.NAMED]


def test_named_confirmed_and_replayed_by_git(hunt: Callable[[int], Hunt]) -> None:
    world = hunt(9)
    world.slower(6, 0.3)
    found = world.loop().go()
    assert named(found) == [world.shas[6]]
    assert (world.shas[5], world.shas[6]) in world.box.pairs
    assert told.exit_code(found) is Exit.OK
    log = world.root / "replay"
    log.write_text(told.git_bisect_log(found))
    said = git(world.path, "bisect", "replay", str(log))
    assert f"{world.shas[6]} is the first bad commit" in said
    data = told.as_data(found)
    assert json.loads(json.dumps(data))["findings"][0]["commit"] == world.shas[6]
    assert data["probability"][world.shas[6]] > 0.9
    assert "measured against its parent" in data["sentences"][0]
    assert comment(found).startswith(f"**Measured culprit:** `{world.shas[6]}`")
    shown = page(found)
    assert shown.count("<rect") == len(found.line)
    assert 'class="named"' in shown
    assert "<script" not in shown


def test_an_interrupted_one_goes_on_and_measures_nothing_twice(hunt: Callable[[int], Hunt]) -> None:
    world = hunt(9)
    world.slower(6, 0.3)
    stops = 0
    found = None
    while found is None:
        world.box.stop_after = stops = stops + 1
        with contextlib.suppress(Interrupted):
            found = world.loop().go()
        assert len(world.box.pairs) <= stops  # the ones before were found, not measured again
    assert named(found) == [world.shas[6]]
    assert stops > 4
    assert found.launches == 2 * len(world.box.pairs)
    steps = [json.loads(one.read_text()) for one in sorted(world.root.glob("bisect/steps/*/step.json"))]
    assert [(one["older"], one["newer"]) for one in steps] == world.box.pairs


def test_docs_share_their_parents_result_and_what_does_not_build_is_skipped(hunt: Callable[[int], Hunt]) -> None:
    world = hunt(6)
    world.slower(5, 0.3)
    world.box.bad = {world.shas[3]}
    docs = commit_change(world.path, {"docs/more.md": "Words.\n"}, "Docs")
    world.shas.append(docs)
    found = world.loop().go()
    assert named(found) == [world.shas[5]]
    assert found.line[-1].alike == (docs,)
    assert all(docs not in pair for pair in world.box.pairs)
    assert f"git bisect skip {world.shas[3]}" in told.git_bisect_log(found) or not found.broken


def test_a_culprit_behind_what_does_not_build_is_a_range(hunt: Callable[[int], Hunt]) -> None:
    world = hunt(6)
    world.slower(3, 0.3)
    world.box.bad = {world.shas[3]}
    found = world.loop().go()
    (one,) = found.findings
    assert (one.kind, one.older, one.newer) == (Kind.RANGE, 2, 4)
    assert told.exit_code(found) is Exit.INCONCLUSIVE
    assert "No single one is named" in " ".join(told.sentences(found))
    assert comment(found).startswith("**One of 2 commits,**")


def test_no_difference(hunt: Callable[[int], Hunt]) -> None:
    world = hunt(4)
    found = world.loop().go()
    assert [one.kind for one in found.findings] == [Kind.SAME]
    assert told.exit_code(found) is Exit.INCONCLUSIVE
    assert "do not differ" in " ".join(told.sentences(found))
    assert comment(found).startswith("**No culprit:**")


def test_ends_that_serve_the_same_after_a_revert_do_not_differ(hunt: Callable[[int], Hunt]) -> None:
    world = hunt(3)
    world.box.alike = {(world.shas[0], world.shas[3])}
    found = world.loop().go()
    assert [one.kind for one in found.findings] == [Kind.SAME]
    assert found.launches == 0


def test_strangers_titles_are_only_text(hunt: Callable[[int], Hunt]) -> None:
    world = hunt(2)
    title = "<script>alert(1)</script> @everybody **bold**"
    world.shas.append(commit_change(world.path, {"python/sglang/srt/odd.py": "1\n"}, title))
    world.slower(3, 0.3)
    found = world.loop().go()
    assert named(found) == [world.shas[3]]
    assert "<script" not in page(found)
    said = comment(found)
    assert "<script>" not in said
    assert "**bold**" not in said
    assert "@everybody" not in said


def test_when_the_minutes_are_over_the_range_is_told(hunt: Callable[[int], Hunt]) -> None:
    world = hunt(12)
    world.slower(9, 0.3)
    found = world.loop(minutes=7.0).go()  # two minutes a pair
    (one,) = found.findings
    assert one.kind is Kind.RANGE
    assert one.older < 9 <= one.newer
    assert found.stopped == "the limit of 7 minutes"
    assert found.minutes <= 7.0


def test_what_the_box_spoiled_is_measured_again(hunt: Callable[[int], Hunt]) -> None:
    world = hunt(3)
    world.slower(2, 0.3)
    world.box.disturbed = 2
    assert named(world.loop().go()) == [world.shas[2]]
    other = Hunt(world.root / "other", 3)
    other.box.disturbed = 99
    with pytest.raises(CannotMeasure, match="the box moved") as error:
        other.loop().go()
    assert error.value.exit_code is Exit.CANNOT


def test_an_end_that_does_not_build_is_said(hunt: Callable[[int], Hunt]) -> None:
    world = hunt(3)
    world.box.bad = {world.shas[0]}
    with pytest.raises(PerfgateError, match="the good commit cannot be measured: it does not build"):
        world.loop().go()


def test_a_merged_branch_is_one_position_unless_all_is_asked(hunt: Callable[[int], Hunt]) -> None:
    world = hunt(2)
    git(world.path, "checkout", "-q", "-b", "side")
    inner = []
    for number in range(2):
        (world.path / "python/sglang/srt" / f"side{number}.py").write_text("1\n")
        inner.append(commit_all(world.path, f"Side {number}", 20 + number))
    git(world.path, "checkout", "-q", "change")
    git(world.path, "merge", "-q", "--no-ff", "-m", "Merge side", "side")
    world.shas.append(git(world.path, "rev-parse", "HEAD").strip())
    lines = [
        positions(Repository(world.path), world.shas[0], world.shas[-1], first_parent=one) for one in (True, False)
    ]
    assert [one.commit.sha for one in lines[0]] == world.shas
    assert {one.commit.sha for one in lines[1]} >= {*inner}


def test_another_bisects_folder_is_refused(hunt: Callable[[int], Hunt]) -> None:
    world = hunt(3)
    world.slower(2, 0.3)
    world.loop().go()
    world.shas = world.shas[:3]
    with pytest.raises(PerfgateError, match="holds a step of another bisect"):
        world.loop().go()
