from __future__ import annotations

import json
import os
import re
import stat
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from perfgate.github import artifact as module
from perfgate.github.artifact import ArtifactError, ArtifactMissing, read_artifact
from perfgate.github.request import Authorised
from perfgate.records import Verdict
from perfgate.records.files import read_result, result_to_json
from tests.e2e.hub.stage import STORY, story_facts

RECORDED = read_result(STORY)
REQUEST = Authorised(
    repository="sgl-project/sglang",
    run=1,
    attempt=1,
    pr=7,
    base=RECORDED.base.sha,
    base_tree=RECORDED.base.tree,
    head=RECORDED.head.sha,
    head_tree=RECORDED.head.tree,
    config="c" * 40,
    minutes=90,
)
GOOD = story_facts(REQUEST).encode()


def as_zip(path: Path, members: list[tuple[str | zipfile.ZipInfo, bytes]], how: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in members:
            archive.writestr(name, data, how)
    return path


def in_folder(folder: Path, facts: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "facts.jsonl").write_bytes(facts)
    return folder


def with_plan(change: Callable[[dict[str, Any]], Any]) -> bytes:
    """The facts with another plan."""
    first, *others = GOOD.decode().splitlines(keepends=True)
    plan = json.loads(first)
    change(plan)
    return "".join([json.dumps(plan) + "\n", *others]).encode()


@pytest.mark.parametrize("name", ["perfgate.zip", "perfgate", "x"])
def test_a_folder_a_zip_and_a_folder_with_a_zip_of_any_name(tmp_path: Path, name: str) -> None:
    """GitHub hands the archive over without a suffix, so its bytes tell what it is."""
    folder = in_folder(tmp_path / "folder", GOOD)
    made = as_zip(tmp_path / "one", [("result.json", b"x"), ("facts.jsonl", GOOD)])
    (tmp_path / "holder").mkdir()
    as_zip(tmp_path / "holder" / name, [("facts.jsonl", GOOD)])
    for place in (folder, made, tmp_path / "holder"):
        assert read_artifact(place, REQUEST).verdict is Verdict.REGRESSION


def test_the_same_verdict_as_on_the_box(tmp_path: Path) -> None:
    """But for the names of the run and of whose it is."""
    found = read_artifact(in_folder(tmp_path / "a", GOOD), REQUEST)
    assert (found.metrics, found.decomposition, found.reason) == (
        RECORDED.metrics,
        RECORDED.decomposition,
        RECORDED.reason,
    )


def test_a_result_that_came_along_is_not_looked_at(tmp_path: Path) -> None:
    forged = result_to_json(RECORDED).replace("regression", "pass").encode()
    place = as_zip(tmp_path / "a", [("result.json", forged), ("facts.jsonl", GOOD)])
    assert read_artifact(place, REQUEST).verdict is Verdict.REGRESSION


def test_earlier_evidence_is_judged_with_it(tmp_path: Path) -> None:
    """Two runs' pairs count; of a run that is not in the plan nothing is taken."""
    earlier = with_plan(lambda plan: plan.update(run_id="before-w0"))
    now = with_plan(lambda plan: plan.update(continues=["before-w0"]))
    members: list[Any] = [("facts.jsonl", now), ("evidence/before-w0/facts.jsonl", earlier)]
    both = read_artifact(as_zip(tmp_path / "a", members), REQUEST)
    one = read_artifact(as_zip(tmp_path / "b", [("facts.jsonl", GOOD), members[1]]), REQUEST)
    assert max(metric.pairs for metric in both.metrics) == 2 * max(metric.pairs for metric in one.metrics)
    assert one.metrics == RECORDED.metrics


def test_nothing_came(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "gone", tmp_path / "empty", as_zip(tmp_path / "a.zip", [("result.json", b"{}")])):
        with pytest.raises(ArtifactMissing):
            read_artifact(place, REQUEST)


def link(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


@pytest.mark.parametrize(
    "members",
    [
        [("../facts.jsonl", b"x"), ("facts.jsonl", b"x")],
        [("/etc/passwd", b"x"), ("facts.jsonl", b"x")],
        [("evidence/../../b/facts.jsonl", b"x"), ("facts.jsonl", b"x")],
        [("..\\..\\b", b"x"), ("facts.jsonl", b"x")],
        [("C:/b", b"x"), ("facts.jsonl", b"x")],
        [(link("facts.jsonl", stat.S_IFLNK | 0o777), b"/etc/passwd")],
        [(link("other", stat.S_IFLNK | 0o777), b"/etc/passwd"), ("facts.jsonl", b"x")],
        [(link("device", stat.S_IFCHR | 0o666), b""), ("facts.jsonl", b"x")],
    ],
)
def test_a_zip_that_leads_out_of_itself(tmp_path: Path, members: list[Any]) -> None:
    fixed = [(name, GOOD if name == "facts.jsonl" else data) for name, data in members]
    with pytest.raises(ArtifactError):
        read_artifact(as_zip(tmp_path / "a.zip", fixed), REQUEST)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_same_facts_twice_in_one_zip(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="twice"):
        read_artifact(as_zip(tmp_path / "a.zip", [("facts.jsonl", GOOD)] * 2), REQUEST)


def test_a_zip_bomb_is_read_no_further_than_facts_may_be_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FACTS", 1 << 20)
    bomb = as_zip(tmp_path / "a.zip", [("facts.jsonl", b" " * (module.MAX_FACTS + 1))])
    assert bomb.stat().st_size < 10_000
    with pytest.raises(ArtifactError, match="larger"):
        read_artifact(bomb, REQUEST)
    many: list[Any] = [("facts.jsonl", GOOD), *((f"evidence/r{n}/facts.jsonl", b" " * (1 << 18)) for n in range(8))]
    with pytest.raises(ArtifactError, match="larger"):
        read_artifact(as_zip(tmp_path / "b.zip", many), REQUEST)


def test_many_members(tmp_path: Path) -> None:
    members: list[Any] = [(f"{number}", b"") for number in range(module.MAX_MEMBERS)]
    with pytest.raises(ArtifactError, match="members"):
        read_artifact(as_zip(tmp_path / "a.zip", [*members, ("facts.jsonl", GOOD)]), REQUEST)


@pytest.mark.parametrize("kept", [0, 1, 40, -30, -1])
def test_a_zip_cut_short(tmp_path: Path, kept: int) -> None:
    made = as_zip(tmp_path / "a.zip", [("facts.jsonl", GOOD)])
    made.write_bytes(made.read_bytes()[:kept])
    with pytest.raises(ArtifactError):
        read_artifact(made, REQUEST)


@pytest.mark.parametrize("how", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x5A])
@pytest.mark.parametrize("where", [0, 4, 9, 60])
def test_corrupt_compression_is_one_sentence(tmp_path: Path, how: int, byte: int, where: int) -> None:
    made = as_zip(tmp_path / "a.zip", [("facts.jsonl", GOOD)], how)
    data = bytearray(made.read_bytes())
    name, extra = struct.unpack("<HH", data[26:30])
    begin = 30 + name + extra + where
    data[begin : begin + 200] = bytes([byte]) * 200
    made.write_bytes(data)
    with pytest.raises(ArtifactError) as caught:
        read_artifact(made, REQUEST)
    assert "\n" not in str(caught.value)


def test_links_and_pipes_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(GOOD)
    linked, piped, outside = tmp_path / "linked", tmp_path / "piped", tmp_path / "outside"
    for folder in (linked, piped):
        folder.mkdir()
    (linked / "facts.jsonl").symlink_to(tmp_path / "secret")
    os.mkfifo(piped / "facts.jsonl")
    in_folder(outside, GOOD)
    (outside / "evidence").mkdir()
    (outside / "evidence" / "run").symlink_to(tmp_path)
    (tmp_path / "facts.jsonl").write_bytes(GOOD)
    for folder in (linked, piped, outside):
        with pytest.raises(ArtifactError):
            read_artifact(folder, REQUEST)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        GOOD.replace(b'"v":1', b'"v":2').replace(b'"v": 1', b'"v": 2'),
        GOOD[:400],
        re.sub(rb'"decode_s":[0-9.]+', b'"decode_s":Infinity', GOOD),
        re.sub(rb'"decode_s":[0-9.]+', b'"decode_s":NaN', GOOD),
        re.sub(rb'"decode_s":[0-9.]+', b'"decode_s":1e999', GOOD),
        re.sub(rb'"decode_s":[0-9.]+', b'"decode_s":0', GOOD),
        with_plan(lambda plan: plan.update(limits=None)),
        with_plan(lambda plan: plan["metrics"][0].update(alpha=0)),
    ],
    ids=range(14),
)
def test_not_facts(tmp_path: Path, data: bytes) -> None:
    """Where something can be made of it all the same, it is no pass and no number is infinite."""
    result = None
    with suppress(ArtifactError):
        result = read_artifact(in_folder(tmp_path / "a", data), REQUEST)
    if result is not None:
        assert result.verdict is not Verdict.PASS
        assert not re.search("Infinity|NaN", result_to_json(result))


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (with_plan(lambda plan: plan["pr"].update(number=8)), "another pull request"),
        (with_plan(lambda plan: plan["pr"].update(repository="stranger/sglang")), "another pull request"),
        (with_plan(lambda plan: plan.update(pr=None)), "another pull request"),
        (with_plan(lambda plan: plan["head"].update(sha="f" * 40)), "not the commit"),
        (with_plan(lambda plan: plan["head"].update(tree="f" * 40)), "not the commit"),
        (with_plan(lambda plan: plan["base"].update(sha="f" * 40)), "not the commit"),
        (with_plan(lambda plan: plan.update(run_id="story-w2")), "another run"),  # an older one of the same commits
        (with_plan(lambda plan: plan.update(run_id="story")), "another run"),
        (with_plan(lambda plan: plan.update(config="f" * 40)), "another configuration"),
        (with_plan(lambda plan: plan.update(run_id="<!-- perfgate -->-w1")), "strange form"),
        (with_plan(lambda plan: plan.update(continues=["x y"])), "strange form"),
        (with_plan(lambda plan: plan.update(calibration=True)), "calibration"),
    ],
)
def test_facts_of_something_else(tmp_path: Path, forged: bytes, why: str) -> None:
    with pytest.raises(ArtifactError, match=why):
        read_artifact(in_folder(tmp_path / "a", forged), REQUEST)
