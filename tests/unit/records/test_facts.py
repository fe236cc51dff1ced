"""The files of a run: what survives a crash, what is refused, what is ignored."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate import records as r
from perfgate.errors import PerfgateError
from perfgate.judge.evidence import Evidence, RunFacts
from perfgate.judge.result import judge_run
from perfgate.records.files import (
    FACTS_FILE,
    RESULT_FILE,
    FactsWriter,
    fact_from_line,
    fact_to_line,
    read_facts,
    read_result,
    result_from_json,
    result_to_json,
    write_result,
)

from ...fixtures import make_run_story

STORY = Path(__file__).parents[2] / "fixtures" / "run-story"


def a_fault(code: str = "x", text: str = "it went wrong") -> r.Fault:
    return r.Fault(id="fault", code=code, text=text, blame=r.Blame.BOX)


def test_every_fact_of_the_golden_run_survives_the_file() -> None:
    for fact in read_facts(STORY):
        assert fact_from_line(fact_to_line(fact), "here") == fact


def test_the_golden_run_is_what_its_maker_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_run_story, "HERE", tmp_path)
    make_run_story.main()
    for name in (FACTS_FILE, RESULT_FILE):
        assert (tmp_path / name).read_text() == (STORY / name).read_text()


def test_the_result_survives_its_file(tmp_path: Path) -> None:
    run = RunFacts.of(read_facts(STORY))
    assert run is not None
    result = judge_run(Evidence(run))
    write_result(tmp_path, result)
    assert read_result(tmp_path) == result
    assert list(tmp_path.iterdir()) == [tmp_path / "result.json"]


@given(st.text(), st.text())
def test_any_text_survives(code: str, text: str) -> None:
    try:
        line = fact_to_line(a_fault(code, text))
        line.encode()
    except UnicodeEncodeError:
        return  # lone surrogates cannot be written at all
    assert line.count("\n") == 1
    assert fact_from_line(line, "here") == a_fault(code, text)


@given(st.integers(0, 400))
def test_a_tail_cut_off_anywhere_loses_only_the_last_line(cut: int) -> None:
    lines = [fact_to_line(a_fault(str(number))) for number in range(3)]
    text = "".join(lines)
    kept = text[: max(0, len(text) - cut)]
    import tempfile

    with tempfile.TemporaryDirectory() as where:
        run = Path(where)
        (run / FACTS_FILE).write_text(kept)
        whole = kept.count("\n")
        assert len(read_facts(run)) == whole
        with FactsWriter(run) as writer:
            writer.append(a_fault("after"))
        codes = [fact.code for fact in read_facts(run) if isinstance(fact, r.Fault)]
        assert codes == [str(number) for number in range(whole)] + ["after"]


def test_unknown_kinds_and_fields_are_ignored() -> None:
    body = json.loads(fact_to_line(a_fault()))
    assert fact_from_line(json.dumps({**body, "news": 1}), "here") == a_fault()
    assert fact_from_line(json.dumps({**body, "kind": "omen"}), "here") is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not a JSON line"),
        ("[]", "not a fact"),
        ('{"v": 2, "kind": "fault"}', "facts version 2"),
        ('{"kind": "fault"}', "facts version None"),
        ('{"v": 1, "kind": "fault", "id": 3}', "fault: id"),
    ],
)
def test_what_is_no_fact_is_refused_in_one_line(line: str, says: str) -> None:
    with pytest.raises(PerfgateError, match=says) as caught:
        fact_from_line(line, "facts.jsonl:7")
    assert str(caught.value).startswith("facts.jsonl:7: ")
    assert "\n" not in str(caught.value)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FactsWriter(tmp_path) as writer:
        writer.append(a_fault("first"))
        real_write = os.write

        def full(file: int, data: bytes) -> int:
            if len(data) > 20:
                return real_write(file, data[:20])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def no_space(file: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        calls = iter([full, no_space])
        monkeypatch.setattr(os, "write", lambda file, data: next(calls)(file, data))
        with pytest.raises(PerfgateError, match="No space left"):
            writer.append(a_fault("second"))
        monkeypatch.undo()
        writer.append(a_fault("third"))
    assert [fact.code for fact in read_facts(tmp_path) if isinstance(fact, r.Fault)] == ["first", "third"]


def test_only_one_writer_at_a_time(tmp_path: Path) -> None:
    with FactsWriter(tmp_path), pytest.raises(PerfgateError, match="another perfgate"):
        FactsWriter(tmp_path)


def test_a_result_with_a_number_that_is_none_keeps_null() -> None:
    run = RunFacts.of(read_facts(STORY))
    assert run is not None
    body = json.loads(result_to_json(judge_run(Evidence(run))))
    assert body["schema"] == "perfgate.result/1"
    assert body["failed_side"] is None


@pytest.mark.parametrize("change", [{"schema": "other/1"}, {"verdict": "fine"}, {"metrics": [{"recipe": 3}]}])
def test_a_forged_result_is_refused(change: dict[str, object]) -> None:
    run = RunFacts.of(read_facts(STORY))
    assert run is not None
    body = {**json.loads(result_to_json(judge_run(Evidence(run)))), **change}
    with pytest.raises(PerfgateError, match="here"):
        result_from_json(json.dumps(body), "here")


def test_a_tail_cut_within_a_character_loses_only_the_last_line(tmp_path: Path) -> None:
    lines = fact_to_line(a_fault(text="first")) + fact_to_line(a_fault(text="größer"))
    data = lines.encode()
    (tmp_path / FACTS_FILE).write_bytes(data[: data.rindex("ö".encode()) + 1])
    assert read_facts(tmp_path) == [a_fault(text="first")]


def test_a_variable_that_is_no_utf8_is_written_all_the_same(tmp_path: Path) -> None:
    with FactsWriter(tmp_path) as writer:
        writer.append(a_fault(text=os.fsdecode(b"/opt/\xff")))
    (fault,) = read_facts(tmp_path)
    assert isinstance(fault, r.Fault)
    assert fault.text == "/opt/?"
