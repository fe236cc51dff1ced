"""The copy that leaves the box: nothing of the machine in it, and the same verdict."""

from __future__ import annotations

import dataclasses
import getpass
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfgate import records as r
from perfgate.host import public
from perfgate.records.files import FACTS_FILE, RESULT_FILE, fact_to_line, read_facts, read_result
from perfgate.run.conclude import conclude
from perfgate.run.public import MOST_LOG, PUBLIC_FOLDER, write_public

STORY = Path(__file__).parents[2] / "fixtures" / "run-story"
PRIVATE = {
    "user": "alice",
    "host": "gpu-box-17",
    "address": "10.20.30.40",
    "uuid": "GPU-5d9d1a2b-0c1d-4e5f-8a9b-0123456789ab",
    "password": "hunter2",
    "key": "sk-123",
    "ipv6": "2001:db8:1:2::5",
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The story on a box of alice's, whose proxy has a password."""
    monkeypatch.setattr(getpass, "getuser", lambda: PRIVATE["user"])
    monkeypatch.setattr(platform, "node", lambda: PRIVATE["host"])
    public._pattern.cache_clear()
    given = {
        "HTTP_PROXY": "http://x:hunter2@10.20.30.40:3128",
        "NCCL_PROTO": "LL",
        "SGLANG_API_KEY": PRIVATE["key"],
        "SGLANG_ODD": "a\u2028b",  # ends a line for some readers, not for JSON
    }
    lines = []
    for fact in read_facts(STORY):
        if isinstance(fact, r.LaunchBegin):
            argv = ("/home/alice/env/bin/python", "-m", "sglang.launch_server")
            home, tree = f"/home/alice/state/homes/{fact.side}", f"/home/alice/state/trees/{fact.side}"
            own = {"HOME": home, "TVM_FFI_CACHE_DIR": f"{home}/tvm", "PYTHONPATH": f"/home/alice/probe:{tree}"}
            fact = dataclasses.replace(fact, given={**fact.given, **given, **own}, argv=argv)
        if isinstance(fact, r.Proof):
            versions = {**fact.versions, "sglang_path": f"/home/alice/state/trees/{fact.side}/python/sglang"}
            fact = dataclasses.replace(fact, versions=versions)
        if isinstance(fact, r.LaunchEnd):
            fact = dataclasses.replace(
                fact, lines=(" ".join(PRIVATE[name] for name in ("user", "host", "address", "ipv6", "uuid")),)
            )
        if isinstance(fact, r.Build):
            fact = dataclasses.replace(fact, versions={**fact.versions, "curand": "10.3.9.90"})
        lines.append(fact_to_line(fact))
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    (folder / FACTS_FILE).write_text("".join(lines))
    (folder / "logs" / "eagle3-p01-head-a1.log").write_text(f"serving on {PRIVATE['host']}\nas alice\n")
    conclude(folder)
    yield folder
    public._pattern.cache_clear()


def test_nothing_that_names_the_machine_is_in_the_copy(run: Path) -> None:
    folder = write_public(run)
    assert folder == run / PUBLIC_FOLDER
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {FACTS_FILE, RESULT_FILE, "index.html", "eagle3-p01-head-a1.log"}
    for path in files:
        text = path.read_text()
        assert [name for name, value in PRIVATE.items() if value in text] == [], path
    assert any(value in (run / FACTS_FILE).read_text() for value in PRIVATE.values())


def test_the_copy_is_judged_the_same(run: Path, tmp_path: Path) -> None:
    shown = read_result(write_public(run))
    again = tmp_path / "downloaded"
    shutil.copytree(run / PUBLIC_FOLDER, again)
    judged = conclude(again)
    assert judged == shown
    assert (judged.verdict, judged.reason) == (read_result(run).verdict, read_result(run).reason)


@pytest.mark.parametrize("host", ["gpu", "regression", "tok_s", "head", "a1", "p01", "eagle3", "sgl-project"])
def test_a_box_with_an_unlucky_name_is_judged_all_the_same(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(platform, "node", lambda: host)
    public._pattern.cache_clear()
    again = tmp_path / "downloaded"
    shutil.copytree(write_public(run), again)
    judged, kept = conclude(again), read_result(run)
    assert (judged.verdict, judged.pr, judged.run_id) == (kept.verdict, kept.pr, kept.run_id)
    assert [launch.id for launch in judged.launches] == [launch.id for launch in kept.launches]


def test_what_a_comparison_shows_stays_readable(run: Path) -> None:
    facts = read_facts(write_public(run))
    begin = next(fact for fact in facts if isinstance(fact, r.LaunchBegin))
    assert begin.given["NCCL_PROTO"] == "LL"
    assert begin.given["HTTP_PROXY"].startswith("#")
    assert begin.given["PYTHONPATH"].count(":") == 1
    assert begin.given["TVM_FFI_CACHE_DIR"] == f"{begin.given['HOME']}/tvm"
    assert begin.given["SGLANG_API_KEY"].startswith("sha256:")
    build = next(fact for fact in facts if isinstance(fact, r.Build))
    assert build.versions["curand"] == "10.3.9.90"


def test_a_run_that_was_cut_off_is_copied_as_far_as_it_goes(run: Path) -> None:
    (run / RESULT_FILE).unlink()
    facts = (run / FACTS_FILE).read_text()
    (run / FACTS_FILE).write_text(facts + '{"v":1,"kind":"plan","id":"al')
    folder = write_public(run)
    assert (folder / FACTS_FILE).read_text().count("\n") == facts.count("\n")
    assert not (folder / RESULT_FILE).exists()


def test_other_names_are_hashed_too_and_the_copy_is_made_anew(run: Path) -> None:
    (run / "logs" / "more.log").write_text("started as perfgate-pr\n")
    assert "perfgate-pr" in (write_public(run) / "logs" / "more.log").read_text()
    (run / "logs" / "more.log").rename(run / "logs" / "other.log")
    folder = write_public(run, frozenset({"perfgate-pr"}))
    assert "perfgate-pr" not in (folder / "logs" / "other.log").read_text()
    assert not (folder / "logs" / "more.log").exists()


def test_of_a_very_long_log_both_ends_are_kept(run: Path) -> None:
    line = "x" * 1023 + "\n"
    with (run / "logs" / "long.log").open("w") as file:
        file.write("begin\n")
        file.writelines(line for _ in range(2 * MOST_LOG // 1024))
        file.write("end\n")
    copy = write_public(run) / "logs" / "long.log"
    text = copy.read_text()
    assert copy.stat().st_size < MOST_LOG + 1024
    assert text.startswith("begin\n")
    assert text.endswith("end\n")
    assert "the middle is left out" in text


def test_evidence_goes_with_it(run: Path) -> None:
    kept = run / "evidence" / "before"
    kept.mkdir(parents=True)
    shutil.copy(run / FACTS_FILE, kept / FACTS_FILE)
    copy = write_public(run) / "evidence" / "before" / FACTS_FILE
    assert "alice" not in copy.read_text()
    assert len(read_facts(copy.parent)) == len(read_facts(run))
