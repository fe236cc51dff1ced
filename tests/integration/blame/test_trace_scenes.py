"""`perfgate trace` on real git at set dates: what it says, and that it is never surer than it can be.

Each scene plays a past and says, for each log, what is true: the commit that HEAD was at, and the certainty that is
right. `sure` where the truth cannot be otherwise; `likely` where one clock or file that may be wrong would turn it
around; `not known` where the past is lost.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from perfgate.blame.trace.placing import Certainty
from perfgate.commands.trace import show, trace
from tests.integration.blame.stage import PULLED, Stage

SURE, LIKELY, UNKNOWN = Certainty.SURE, Certainty.LIKELY, Certainty.UNKNOWN
Said = list[tuple[Path, str | None, Certainty]]
Scene = Callable[[Stage], Said]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stage") / "built"
    Stage(folder).build()
    return folder


@pytest.fixture
def stage(built: Path, tmp_path: Path) -> Stage:
    made = Stage(tmp_path / "stage")
    shutil.copytree(built, made.folder, symlinks=True)
    made.git(PULLED, "remote", "set-url", "origin", str(made.upstream))
    return made


@pytest.fixture(autouse=True)
def _machine_in_central_europe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")


def lines(stage: Stage, *logs: Path) -> str:
    said: list[str] = []
    zone, now = asked()
    show(trace(stage.checkout, logs, zone, now=now), said.append)
    return "\n".join(said)


GOOD = ("2026-02-25T16:42:00", "2026-02-25T17:21:00")
BAD = ("2026-02-25T19:52:00", "2026-02-25T20:20:00")
ASKED: dict[str, str] = {}  # when, and with which --zone, a scene's logs are traced; default: two weeks later


def asked() -> tuple[str | None, float]:
    return ASKED.get("zone"), datetime.fromisoformat(ASKED.get("now", "2026-03-10T12:00:00+0100")).timestamp()


# ---------------------------------------------------------------------------------------------------- the scenes


def the_story(s: Stage) -> Said:
    old = s.head()
    new = s.pull()
    return [(s.log("good.log", *GOOD), old, SURE), (s.log("bad.log", *BAD, tok_s=60), new, SURE)]


def stamps_with_the_rank(s: Stage) -> Said:
    old = s.head()
    s.pull()
    return [(s.log("good.log", *GOOD, stamps="rank"), old, SURE)]


def copied_without_their_mtimes(s: Stage) -> Said:
    old = s.head()
    new = s.pull()
    return [
        (s.log("good.log", *GOOD, mtime="2026-03-02T10:11:12+0100"), old, LIKELY),
        (s.log("bad.log", *BAD, mtime="2026-03-02T10:11:12+0100"), new, LIKELY),
    ]


def copied_but_a_day_from_every_move(s: Stage) -> Said:
    old = s.head()
    s.pull()
    return [(s.log("early.log", "2026-02-22T10:00:00", "2026-02-22T11:00:00", mtime=None), old, SURE)]


def clock_in_greenwich_by_its_mtime(s: Stage) -> Said:
    """17:10 in a container is 18:10 on the box: after the pull, although it reads as before."""
    s.head()
    new = s.pull()
    return [(s.log("c.log", "2026-02-25T17:10:00", "2026-02-25T17:40:00", zone="+0000"), new, SURE)]


def clock_in_greenwich_and_copied(s: Stage) -> Said:
    """Nothing shows the zone: what it reads as is likely, and here it is wrong. So it must not be sure."""
    old = s.head()
    s.pull()
    return [(s.log("c.log", "2026-02-25T17:10:00", "2026-02-25T17:40:00", zone="+0000", mtime=None), old, LIKELY)]


def clock_in_greenwich_as_docker_says(s: Stage) -> Said:
    s.head()
    new = s.pull()
    return [(s.log("c.log", "2026-02-25T17:10:00", "2026-02-25T17:40:00", stamps="docker", mtime=None), new, SURE)]


def clock_in_california_with_zone(s: Stage) -> Said:
    old = s.head()
    s.pull()
    return [
        (
            s.log("c.log", "2026-02-25T08:00:00", "2026-02-25T08:30:00", zone="-0800", stamps="zoned", mtime=None),
            old,
            SURE,
        )
    ]


def clock_in_another_zone_that_nobody_uses_here(s: Stage) -> Said:
    """Its mtime is its own, but a copy at a full hour's distance would look the same: likely by the box's clock."""
    new = s.pull()
    return [(s.log("c.log", "2026-02-26T02:00:00", "2026-02-26T03:00:00", zone="+0900"), new, LIKELY)]


def the_person_gives_the_zone(s: Stage) -> Said:
    ASKED["zone"] = "UTC"
    new = s.pull()
    return [(s.log("c.log", "2026-02-25T17:10:00", "2026-02-25T17:40:00", mtime=None), new, SURE)]


def the_given_zone_contradicts_the_mtime(s: Stage) -> Said:
    """Given as New York's, 16:42 would be 22:42 here; but the file was last written at 17:21."""
    ASKED["zone"] = "America/New_York"
    new = s.pull()
    return [(s.log("c.log", *GOOD), new, LIKELY)]


def no_date_and_its_own_mtime(s: Stage) -> Said:
    old = s.head()
    s.pull()
    return [(s.log("n.log", *GOOD, stamps="none"), old, LIKELY)]


def no_date_and_copied(s: Stage) -> Said:
    s.head()
    new = s.pull()
    return [(s.log("n.log", *GOOD, stamps="none", mtime="2026-03-01T10:00:00+0100"), new, LIKELY)]


def bench_serving_results(s: Stage) -> Said:
    old = s.head()
    s.pull()
    path = s.folder / "sglang_0225_100_512_512.jsonl"
    path.write_text('{"backend": "sglang", "output_throughput": 89.1, "accept_length": 2.95, "max_concurrency": 1}\n')
    seconds = datetime.fromisoformat("2026-02-25T17:00:00+0100").timestamp()
    os.utime(path, (seconds, seconds))
    return [(path, old, LIKELY)]


def reflog_expired(s: Stage) -> Said:
    s.head()
    s.pull()
    s.git(PULLED, "reflog", "expire", "--expire=2026-02-25T18:00:00+0100", "HEAD")
    s.commit("2026-03-01T10:00:00+0100", "Local", {"x": "1"})
    return [(s.log("good.log", *GOOD), None, UNKNOWN)]


def reflog_expired_but_the_log_is_younger(s: Stage) -> Said:
    s.pull()
    local = s.commit("2026-02-25T18:30:00+0100", "Local", {"x": "1"})
    s.git(PULLED, "reflog", "expire", "--expire=2026-02-25T18:00:00+0100", "HEAD")
    return [(s.log("bad.log", *BAD), local, SURE)]


def reflog_wholly_expired_and_collected(s: Stage) -> Said:
    s.pull()
    s.git(PULLED, "reflog", "expire", "--expire=now", "--all")
    s.git(PULLED, "gc", "-q", "--prune=now")
    return [(s.log("good.log", *GOOD), None, UNKNOWN)]


def collected_but_the_reflog_is_whole(s: Stage) -> Said:
    old = s.head()
    new = s.pull()
    s.git(PULLED, "-c", "gc.reflogExpire=never", "-c", "gc.reflogExpireUnreachable=never", "gc", "-q")
    return [(s.log("good.log", *GOOD), old, SURE), (s.log("bad.log", *BAD), new, SURE)]


def unreachable_entries_are_lost_from_the_middle(s: Stage) -> Said:
    """Entries of a thrown-away branch expire sooner. The trial ran on the branch, and nothing shows it: not sure."""
    old = s.head()
    s.git("2026-02-22T10:00:00+0100", "checkout", "-q", "-b", "trial")
    s.commit("2026-02-22T11:00:00+0100", "A trial", {"python/sglang/srt/a.py": "2\n"})
    s.git("2026-02-24T10:00:00+0100", "checkout", "-q", "main")
    s.git("2026-02-24T10:00:00+0100", "branch", "-q", "-D", "trial")
    s.git(PULLED, "reflog", "expire", "--expire=never", "--expire-unreachable=now", "HEAD")
    ASKED["now"] = "2026-04-10T12:00:00+0100"
    return [(s.log("trial.log", "2026-02-23T10:00:00", "2026-02-23T11:00:00"), old, LIKELY)]


def long_ago_but_an_entry_vouches(s: Stage) -> Said:
    """An entry that git would have dropped is still there: nothing was dropped since."""
    mine = s.commit("2026-02-21T09:00:00+0100", "My change", {"mine": "1"})
    s.git("2026-02-21T10:00:00+0100", "reset", "-q", "--hard", "HEAD~1")
    old = s.head()
    s.pull()
    ASKED["now"] = "2026-04-30T12:00:00+0200"
    assert mine != old
    return [(s.log("good.log", *GOOD), old, SURE)]


def long_ago_and_nothing_vouches(s: Stage) -> Said:
    old = s.head()
    s.pull()
    ASKED["now"] = "2026-04-30T12:00:00+0200"
    return [(s.log("good.log", *GOOD), old, LIKELY)]


def no_reflog_was_kept(s: Stage) -> Said:
    s.pull()
    (s.checkout / ".git" / "logs" / "HEAD").unlink()
    return [(s.log("good.log", *GOOD), None, UNKNOWN)]


def reflogs_were_switched_off_for_a_while(s: Stage) -> Said:
    """The pull was never written down; only where HEAD is now shows that something is missing."""
    s.git(PULLED, "config", "core.logAllRefUpdates", "false")
    (s.checkout / ".git" / "logs" / "HEAD").rename(s.folder / "kept")
    s.pull()
    (s.folder / "kept").rename(s.checkout / ".git" / "logs" / "HEAD")
    return [(s.log("bad.log", *BAD), None, UNKNOWN), (s.log("good.log", *GOOD), None, UNKNOWN)]


def the_checkout_is_younger_than_the_log(s: Stage) -> Said:
    return [(s.log("old.log", "2026-02-10T10:00:00", "2026-02-10T11:00:00"), None, UNKNOWN)]


def a_rebase_in_between(s: Stage) -> Said:
    s.commit("2026-02-24T09:00:00+0100", "My change", {"mine": "1"})
    mine = s.head()
    s.git(PULLED, "pull", "-q", "--rebase")
    rebased = s.head()
    return [(s.log("good.log", *GOOD), mine, SURE), (s.log("bad.log", *BAD), rebased, SURE)]


def an_amend_in_between(s: Stage) -> Said:
    mine = s.commit("2026-02-24T09:00:00+0100", "My change", {"mine": "1"})
    (s.checkout / "mine").write_text("2")
    s.git(PULLED, "commit", "-q", "-a", "--amend", "-m", "My better change")
    return [(s.log("good.log", *GOOD), mine, SURE), (s.log("bad.log", *BAD), s.head(), SURE)]


def a_reset_in_between(s: Stage) -> Said:
    old = s.head()
    new = s.pull("2026-02-25T10:00:00+0100")
    s.git(PULLED, "reset", "-q", "--hard", old)
    return [(s.log("good.log", *GOOD), new, SURE), (s.log("bad.log", *BAD), old, SURE)]


def a_checkout_of_a_tag_in_between(s: Stage) -> Said:
    new = s.pull("2026-02-25T10:00:00+0100")
    s.git(PULLED, "checkout", "-q", "v0.5.9")
    return [(s.log("good.log", *GOOD), new, SURE), (s.log("bad.log", *BAD), s.head(), SURE)]


def there_and_back_within_a_minute(s: Stage) -> Said:
    """HEAD was elsewhere for a moment, just when the server loaded its code."""
    new = s.pull("2026-02-25T10:00:00+0100")
    s.git("2026-02-25T16:41:30+0100", "checkout", "-q", "v0.5.9")
    s.git("2026-02-25T16:41:50+0100", "checkout", "-q", "main")
    return [(s.log("good.log", *GOOD), new, LIKELY)]


def the_pull_came_while_it_loaded(s: Stage) -> Said:
    old = s.head()
    s.pull("2026-02-25T16:42:40+0100")
    return [(s.log("good.log", *GOOD), old, LIKELY)]


def the_pull_came_just_before_its_first_line(s: Stage) -> Said:
    new = s.pull("2026-02-25T16:41:20+0100")
    return [(s.log("good.log", *GOOD), new, LIKELY)]


def a_log_that_spans_the_pull(s: Stage) -> Said:
    old = s.head()
    s.pull()
    return [(s.log("span.log", "2026-02-25T16:42:00", "2026-02-25T19:00:00"), old, LIKELY)]


def one_file_with_a_start_on_each_side(s: Stage) -> Said:
    old = s.head()
    new = s.pull()
    s.log("both.log", *GOOD)
    path = s.log("both.log", *BAD, append=True, tok_s=60)
    return [(path, old, SURE), (path, new, SURE)]


def its_first_lines_are_cut_off(s: Stage) -> Said:
    """A rotated log: the server may have begun before the pull."""
    new = s.pull()
    return [(s.log("bad.log", *BAD, served=False), new, LIKELY)]


def two_worktrees_at_different_commits(s: Stage) -> Said:
    old = s.head()
    s.git("2026-02-21T10:00:00+0100", "worktree", "add", "-q", "--detach", str(s.folder / "second"), old)
    (s.folder / "second" / "y").write_text("1")
    s.git("2026-02-22T10:00:00+0100", "add", "-A", at=s.folder / "second")
    s.git("2026-02-22T10:00:00+0100", "commit", "-q", "-m", "There", at=s.folder / "second")
    return [(s.log("good.log", *GOOD), old, LIKELY)]


def two_worktrees_at_the_same_commit(s: Stage) -> Said:
    old = s.head()
    s.git("2026-02-21T10:00:00+0100", "worktree", "add", "-q", "--detach", str(s.folder / "second"), old)
    return [(s.log("good.log", *GOOD), old, SURE)]


def the_second_worktree_came_later(s: Stage) -> Said:
    old = s.head()
    new = s.pull()
    s.git("2026-02-26T10:00:00+0100", "worktree", "add", "-q", "--detach", str(s.folder / "second"), new)
    return [(s.log("good.log", *GOOD), old, SURE)]


def the_log_shows_its_worktree(s: Stage) -> Said:
    old = s.head()
    second = s.folder / "second"
    s.git("2026-02-21T10:00:00+0100", "worktree", "add", "-q", "--detach", str(second), old)
    s.pull("2026-02-25T10:00:00+0100")
    shown = (f"{second}/python/sglang/launch_server.py:71: UserWarning: still supported",)
    return [(s.log("good.log", *GOOD, first_lines=shown), old, SURE)]


def it_ran_from_an_installed_package(s: Stage) -> Said:
    s.pull()
    shown = ("/opt/venv/lib/python3.12/site-packages/sglang/launch_server.py:71: UserWarning: still supported",)
    return [(s.log("good.log", *GOOD, first_lines=shown), None, UNKNOWN)]


def it_ran_from_another_folder(s: Stage) -> Said:
    s.pull()
    shown = ("/sgl-workspace/sglang/python/sglang/srt/utils.py:71: UserWarning: this and that",)
    return [(s.log("good.log", *GOOD, first_lines=shown), None, UNKNOWN)]


def the_hour_that_came_twice(s: Stage) -> Said:
    """02:30 on the night of 25 October 2026 was twice; the pull was between the two."""
    old = s.head()
    new = s.pull("2026-10-25T03:00:00+0200")  # 02:00 again, by the new clock
    assert old != new
    log = s.log("n.log", "2026-10-25T02:30:00", "2026-10-25T05:00:00", zone="+0100")
    ASKED["now"] = "2026-10-28T12:00:00+0100"
    return [(log, new, LIKELY)]


def the_night_but_not_the_hour(s: Stage) -> Said:
    old = s.head()
    s.pull("2026-10-25T05:00:00+0100")
    before = s.log("b.log", "2026-10-25T00:30:00", "2026-10-25T01:30:00", zone="+0200")
    after = s.log("a.log", "2026-10-25T03:30:00", "2026-10-25T04:30:00", zone="+0100")
    ASKED["now"] = "2026-10-28T12:00:00+0100"
    return [(before, old, SURE), (after, old, SURE)]


def summer_at_the_log_and_winter_at_the_pull(s: Stage) -> Said:
    """Reflog in +01:00, log in +02:00: the same machine, half a year apart."""
    new = s.pull()
    ASKED["now"] = "2026-07-10T12:00:00+0200"
    return [(s.log("s.log", "2026-07-01T12:00:00", "2026-07-01T13:00:00", zone="+0200"), new, SURE)]


def summer_ended_while_it_ran(s: Stage) -> Said:
    """Its stamps go back by an hour, for a reason that the calendar knows."""
    new = s.pull()
    s.log("n.log", "2026-10-24T23:30:00", "2026-10-25T02:55:00", zone="+0200")
    path = s.log("n.log", "2026-10-25T02:05:00", "2026-10-25T04:00:00", served=False, append=True)
    ASKED["now"] = "2026-10-28T12:00:00+0100"
    return [(path, new, SURE)]


def its_clock_was_set_back(s: Stage) -> Said:
    """By 90 minutes, and nobody knows which half is right; the pull lies between."""
    old = s.head()
    s.pull()
    s.log("n.log", "2026-02-25T17:30:00", "2026-02-25T18:40:00")
    path = s.log("n.log", "2026-02-25T17:10:00", "2026-02-25T17:40:00", served=False, append=True)
    return [(path, old, LIKELY)]


def the_boxes_clock_was_set_back_between_moves(s: Stage) -> Said:
    """A reflog whose times go back cannot order what lies between."""
    s.pull("2026-02-25T20:30:00+0100")
    s.git("2026-02-25T15:00:00+0100", "checkout", "-q", "v0.5.9")
    return [(s.log("good.log", *GOOD), None, UNKNOWN)]


def its_clock_is_in_the_future(s: Stage) -> Said:
    new = s.pull()
    return [(s.log("f.log", "2027-02-25T10:00:00", "2027-02-25T11:00:00"), new, LIKELY)]


def its_mtime_is_before_its_last_line(s: Stage) -> Said:
    new = s.pull()
    log = s.log("z.log", *BAD, stamps="zoned", mtime="2026-02-25T15:00:00+0100")
    return [(log, new, LIKELY)]


def an_empty_log(s: Stage) -> Said:
    s.pull()
    path = s.folder / "empty.log"
    path.write_bytes(b"")
    seconds = datetime.fromisoformat("2026-02-10T17:00:00+0100").timestamp()
    os.utime(path, (seconds, seconds))
    return [(path, None, UNKNOWN)]


def dates_that_are_none(s: Stage) -> Said:
    """The 31st of February is no date: the file's mtime is all there is."""
    new = s.pull()
    path = s.folder / "odd.log"
    path.write_text("[2026-02-31 16:42:00] server_args=ServerArgs(model_path='m')\n")
    seconds = datetime.fromisoformat("2026-02-27T17:00:00+0100").timestamp()
    os.utime(path, (seconds, seconds))
    return [(path, new, LIKELY)]


SCENES: tuple[Scene, ...] = tuple(
    value
    for value in list(globals().values())
    if callable(value) and getattr(value, "__annotations__", {}).get("return") == "Said"
)


def test_there_are_forty_scenes() -> None:
    assert len(SCENES) >= 40


@pytest.fixture(autouse=True)
def _asked_as_usual() -> None:
    ASKED.clear()


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_scene(scene: Scene, stage: Stage) -> None:
    said = scene(stage)
    logs = tuple(dict.fromkeys(path for path, _, _ in said))
    zone, now = asked()
    found = trace(stage.checkout, logs, zone, now=now)
    by_log = sorted(found.placed, key=lambda one: ([str(path) for path in logs].index(one.log.path), one.log.part))
    assert [(one.head, one.certainty) for one in by_log] == [(head, certainty) for _, head, certainty in said], lines(
        stage, *logs
    )
    assert all(one.reasons or one.certainty is SURE for one in found.placed)  # whatever is not sure says why


def test_the_story_in_words(stage: Stage) -> None:
    logs = [path for path, _, _ in the_story(stage)]
    text = lines(stage, *logs)
    assert "The 89 tok/s log (good.log) began 68 min before the pull of 7 commits: HEAD was at" in text
    assert "The 60 tok/s log (bad.log) began 122 min after the pull of 7 commits: HEAD was at" in text
    assert text.count("This is sure.") == 2
    assert "both print nccl==2.27.5" in text
    assert "Fix PCG MoE Error (#17739)" in text
