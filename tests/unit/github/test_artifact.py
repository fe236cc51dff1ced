from __future__ import annotations

import dataclasses
import json
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest

from perfgate.github import artifact as module
from perfgate.github.artifact import ArtifactError, ArtifactMissing, read_artifact
from perfgate.github.request import Request
from perfgate.records import MetricVerdict, PullRequest, Result, Verdict
from perfgate.records.files import read_result, result_to_json
from tests.e2e.hub.stage import STORY

RECORDED = read_result(STORY)
REQUEST = Request(
    repository="sgl-project/sglang",
    run=1,
    attempt=1,
    pr=7,
    base=RECORDED.base.sha,
    base_tree=RECORDED.base.tree,
    head=RECORDED.head.sha,
    head_tree=RECORDED.head.tree,
    config=RECORDED.base.sha,
    minutes=90,
)
GOOD = dataclasses.replace(RECORDED, pr=PullRequest(repository="sgl-project/sglang", number=7))


def as_zip(path: Path, members: list[tuple[str | zipfile.ZipInfo, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def good_json() -> bytes:
    return result_to_json(GOOD).encode()


def test_a_folder_a_zip_and_a_folder_with_a_zip(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "result.json").write_bytes(good_json())
    made = as_zip(tmp_path / "one.zip", [("facts.jsonl", b""), ("result.json", good_json())])
    holder = tmp_path / "holder"
    holder.mkdir()
    as_zip(holder / "perfgate.zip", [("result.json", good_json())])
    for place in (folder, made, holder):
        assert read_artifact(place, REQUEST) == GOOD


def test_nothing_came(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "gone", tmp_path / "empty", as_zip(tmp_path / "a.zip", [("facts.jsonl", b"")])):
        with pytest.raises(ArtifactMissing):
            read_artifact(place, REQUEST)


def link(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


@pytest.mark.parametrize(
    "members",
    [
        [("../result.json", b"x"), ("result.json", b"x")],
        [("/etc/passwd", b"x"), ("result.json", b"x")],
        [("a/../../b", b"x"), ("result.json", b"x")],
        [("..\\..\\b", b"x"), ("result.json", b"x")],
        [("C:/b", b"x"), ("result.json", b"x")],
        [(link("result.json", stat.S_IFLNK | 0o777), b"/etc/passwd")],
        [(link("facts.jsonl", stat.S_IFLNK | 0o777), b"/etc/passwd"), ("result.json", b"x")],
        [(link("device", stat.S_IFCHR | 0o666), b""), ("result.json", b"x")],
    ],
)
def test_a_zip_that_leads_out_of_itself(tmp_path: Path, members: list[Any]) -> None:
    fixed = [(name, good_json() if name == "result.json" else data) for name, data in members]
    with pytest.raises(ArtifactError):
        read_artifact(as_zip(tmp_path / "a.zip", fixed), REQUEST)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_results_in_one_zip(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="more than one"):
        read_artifact(as_zip(tmp_path / "a.zip", [("result.json", good_json())] * 2), REQUEST)


def test_a_zip_bomb_is_read_no_further_than_a_result_may_be_long(tmp_path: Path) -> None:
    bomb = as_zip(tmp_path / "a.zip", [("result.json", b" " * (module.MAX_RESULT + 1))])
    assert bomb.stat().st_size < 100_000
    with pytest.raises(ArtifactError, match="larger"):
        read_artifact(bomb, REQUEST)


def test_many_members(tmp_path: Path) -> None:
    members: list[Any] = [(f"{number}", b"") for number in range(module.MAX_MEMBERS)]
    with pytest.raises(ArtifactError, match="members"):
        read_artifact(as_zip(tmp_path / "a.zip", [*members, ("result.json", good_json())]), REQUEST)


@pytest.mark.parametrize("kept", [0, 1, 40, -30, -1])
def test_a_zip_cut_short(tmp_path: Path, kept: int) -> None:
    made = as_zip(tmp_path / "a.zip", [("result.json", good_json())])
    made.write_bytes(made.read_bytes()[:kept])
    with pytest.raises(ArtifactError):
        read_artifact(made, REQUEST)


def test_links_and_pipes_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(good_json())
    linked, piped = tmp_path / "linked", tmp_path / "piped"
    for folder in (linked, piped):
        folder.mkdir()
    (linked / "result.json").symlink_to(tmp_path / "secret")
    os.mkfifo(piped / "result.json")
    for folder in (linked, piped):
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
        b'{"schema": "perfgate.result/2"}',
        good_json()[:-40],
        good_json().replace(b'"regression"', b'"innocent"'),
    ],
    ids=range(9),
)
def test_not_a_result(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "result.json").write_bytes(data)
    with pytest.raises(ArtifactError) as caught:
        read_artifact(tmp_path, REQUEST)
    assert "\n" not in str(caught.value)


def passed(result: Result) -> Result:
    metrics = tuple(
        dataclasses.replace(one, verdict=MetricVerdict.PASS) if one.gated else one for one in result.metrics
    )
    return dataclasses.replace(result, verdict=Verdict.PASS, exit_code=0, metrics=metrics)


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (dataclasses.replace(GOOD, pr=PullRequest(repository="sgl-project/sglang", number=8)), "another pull request"),
        (dataclasses.replace(GOOD, pr=PullRequest(repository="stranger/sglang", number=7)), "another pull request"),
        (dataclasses.replace(GOOD, pr=None), "another pull request"),
        (dataclasses.replace(GOOD, head=dataclasses.replace(GOOD.head, sha="f" * 40)), "not the commit"),
        (dataclasses.replace(GOOD, head=dataclasses.replace(GOOD.head, tree="f" * 40)), "not the commit"),
        (dataclasses.replace(GOOD, base=dataclasses.replace(GOOD.base, sha="f" * 40)), "not the commit"),
        (dataclasses.replace(GOOD, exit_code=0), "disagree"),
        (dataclasses.replace(GOOD, verdict=Verdict.PASS, exit_code=0), "not every gated metric"),
        (dataclasses.replace(GOOD, verdict=Verdict.PASS, exit_code=0, metrics=()), "not every gated metric"),
        (dataclasses.replace(passed(GOOD), verdict=Verdict.REGRESSION, exit_code=1), "no gated metric"),
        (dataclasses.replace(GOOD, run_id="<!-- perfgate -->"), "strange form"),
        (dataclasses.replace(GOOD, continues=("x y",)), "strange form"),
    ],
)
def test_a_result_of_something_else_or_at_odds_with_itself(tmp_path: Path, forged: Result, why: str) -> None:
    (tmp_path / "result.json").write_text(result_to_json(forged))
    with pytest.raises(ArtifactError, match=why):
        read_artifact(tmp_path, REQUEST)


def test_an_honest_pass(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(result_to_json(passed(GOOD)))
    assert read_artifact(tmp_path, REQUEST).verdict is Verdict.PASS


def test_unknown_fields_of_a_newer_perfgate_are_fine(tmp_path: Path) -> None:
    data = json.loads(good_json())
    (tmp_path / "result.json").write_text(json.dumps({**data, "more": 1}))
    assert read_artifact(tmp_path, REQUEST) == GOOD
