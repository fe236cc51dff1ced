"""What strangers can put into the probe's directory, and what becomes of it."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate.probe import reading as probe_reading
from perfgate.probe.lines import MAX_MS
from perfgate.probe.reading import MAX_FILES, ProbeReading, read_probe

NOW = 1000.0
HEAD = {"k": "head", "v": 1, "launch": "l1", "pid": 7, "ppid": 1, "root": False, "t": 1.0, "argv": ["x"], "title": "x"}
WORKER = {"k": "worker", "worker": "W", "rank": {"tp": 0}, "device": "cpu", "gpu": None, "clock": "perf_counter"}
WORKER["moved"] = {}


def cycle(number: int, at: float, **ms: float) -> dict[str, Any]:
    spans = {phase: [None, value] for phase, value in (ms or {"cycle": 10.0, "verify": 8.0}).items()}
    return {"k": "cycle", "i": number, "t": at, "b": 1, "m": "", **spans}


def write(directory: Path, *lines: Any, name: str = "probe-7-1.jsonl") -> Path:
    path = directory / name
    path.write_bytes(b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines))
    return path


def read(directory: Path, *lines: Any) -> ProbeReading:
    write(directory, *lines)
    return read_probe(directory, now=NOW)


def test_honest_lines_are_read(tmp_path: Path) -> None:
    reading = read(tmp_path, HEAD, WORKER, cycle(0, 2.0), cycle(1, 2.02))
    (process,) = reading.processes
    assert reading.dropped == {}
    assert (process.rank, process.role, process.clock) == (0, "scheduler", "perf_counter")
    first = process.cycles[0]
    assert (first.cycle, first.verify, first.draft, first.at, first.batch) == (10.0, 8.0, None, 2.0, 1)


def test_on_cuda_device_time_counts_and_unfinished_is_absent(tmp_path: Path) -> None:
    line = {**cycle(0, 2.0), "cycle": [9.0, 0.4], "verify": [None, 0.2]}
    (process,) = read(tmp_path, HEAD, {**WORKER, "clock": "cuda_events"}, line).processes
    assert process.cycles[0].cycle == 9.0
    assert process.cycles[0].verify is None


def test_nothing_there(tmp_path: Path) -> None:
    assert read_probe(tmp_path, now=NOW) == ProbeReading(processes=(), dropped={})
    assert read_probe(tmp_path / "missing").dropped == {"directory cannot be read": 1}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"no json\n", "line malformed"),
        (b"[1, 2]\n", "line malformed"),
        (b"\xff\xfe\n", "line malformed"),
        (b'{"k":"cycle"}\n', "line malformed"),
        (b"[" * 100_000 + b"\n", "line malformed"),
        (b'{"k":"note","text":"' + b"x" * 5000 + b'"}\n', "line malformed"),
        (b'{"k":"note","text":"' + b"x" * 600_000 + b'"}\n', "line too long"),
        ({**cycle(0, 2.0), "cycle": [None, -1.0]}, "line malformed"),
        ({**cycle(0, 2.0), "cycle": [None, MAX_MS * 2]}, "line malformed"),
        ({**cycle(0, 2.0), "cycle": ["9", 9]}, "line malformed"),
        ({**cycle(0, 2.0), "b": True}, "line malformed"),
        (b'{"k":"cycle","i":0,"t":NaN,"b":1,"m":"","cycle":[null,1.0]}\n', "line malformed"),
        (b'{"k":"cycle","i":0,"t":1e999,"b":1,"m":"","cycle":[null,1.0]}\n', "line malformed"),
        (b'{"k":"cycle","i":' + b"9" * 5000 + b',"t":2,"b":1,"m":"","cycle":[null,1.0]}\n', "line malformed"),
        ({**cycle(0, 2.0), "m": "fast"}, "line malformed"),
        ({"k": "cycle", "i": 0, "t": 2.0, "b": 1, "m": ""}, "cycle impossible"),  # no phase at all
        (cycle(0, NOW + 5), "cycle impossible"),  # in the future
        (cycle(0, 0.5), "cycle impossible"),  # before the process
        (cycle(0, NOW - 0.001, cycle=500.0), "cycle impossible"),  # not over yet
        (cycle(0, 2.0, cycle=10.0, draft=6.0, verify=6.0), "cycle impossible"),  # parts exceed the whole
        (cycle(0, 2.0, verify=5.0, target=9.0), "cycle impossible"),
        (HEAD, "line too many"),  # a second head
        (WORKER, "line too many"),  # the first stands
    ],
)
def test_forged_lines_are_dropped_and_counted_alone(tmp_path: Path, line: Any, reason: str) -> None:
    reading = read(tmp_path, HEAD, WORKER, line, cycle(5, 3.0), cycle(6, 3.02))
    (process,) = reading.processes
    assert reading.dropped == {reason: 1}
    assert [entry.number for entry in process.cycles] == [5, 6]


def test_unknown_kinds_and_fields_are_ignored(tmp_path: Path) -> None:
    reading = read(tmp_path, {**HEAD, "more": 1}, {"k": "weather", "rain": True}, WORKER, {**cycle(0, 2.0), "x": 1})
    assert reading.dropped == {}
    assert len(reading.processes[0].cycles) == 1


def test_cycles_that_overlap_or_go_back_are_dropped(tmp_path: Path) -> None:
    lines = [cycle(0, 2.0), cycle(1, 2.005), cycle(0, 2.5), cycle(2, 2.02), cycle(3, 1.9)]
    reading = read(tmp_path, HEAD, WORKER, *lines)
    assert [entry.number for entry in reading.processes[0].cycles] == [0, 2]
    assert reading.dropped == {"cycle impossible": 3}


@pytest.mark.parametrize(
    "head",
    [
        {**HEAD, "v": 2},
        {**HEAD, "pid": 8},  # not the file's
        {**HEAD, "t": NOW + 1},
        {**HEAD, "launch": "x" * 600},
        cycle(0, 2.0),
        b"\n",
        b"",
    ],
)
def test_files_without_a_true_head_are_dropped_whole(tmp_path: Path, head: Any) -> None:
    reading = read(tmp_path, head, WORKER, cycle(0, 2.0))
    assert reading.processes == ()
    assert reading.dropped["file without a true head"] == 1


def test_only_plain_files_are_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    write(tmp_path, HEAD, WORKER, cycle(0, 2.0), name="secret")
    directory = tmp_path / "probe"
    directory.mkdir()
    (directory / "probe-7-1.jsonl").symlink_to(secret)
    os.mkfifo(directory / "probe-7-2.jsonl")
    (directory / "probe-7-3.jsonl").mkdir()
    (directory / "probe-7-4.txt").write_text("not ours")
    reading = read_probe(directory, now=NOW)
    assert reading.processes == ()
    assert reading.dropped == {"file cannot be opened": 1, "not a file": 2}


def test_files_lines_and_cycles_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_reading, "MAX_CYCLES", 30)
    monkeypatch.setattr(probe_reading, "MAX_FILE_BYTES", 4000)
    for number in range(MAX_FILES + 3):
        write(tmp_path, {**HEAD, "pid": number + 1}, name=f"probe-{number + 1}-1.jsonl")
    reading = read_probe(tmp_path, now=NOW)
    assert len(reading.processes) == MAX_FILES
    assert reading.dropped["file over the limit"] == 3

    alone = tmp_path / "alone"
    alone.mkdir()
    reading = read(alone, HEAD, WORKER, *(cycle(number, 2 + number / 50) for number in range(100)))
    assert len(reading.processes[0].cycles) == 30
    assert reading.dropped["cycle over the limit"] > 0
    assert reading.dropped["file too long"] == 1

    monkeypatch.setattr(probe_reading, "MAX_BYTES", 6000)
    write(alone, {**HEAD, "pid": 8}, WORKER, *(cycle(n, 2 + n / 50) for n in range(100)), name="probe-8-1.jsonl")
    first, second = read_probe(alone, now=NOW).processes
    assert (len(first.cycles), len(second.cycles)) == (30, 0)

    notes = tmp_path / "notes"
    notes.mkdir()
    reading = read(notes, HEAD, *({"k": "note", "text": "x"} for _ in range(80)))
    assert len(reading.processes[0].notes) == probe_reading.MAX_LINES_OF_A_KIND


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(
    ["cycle", "head", "start", "effective", "worker", "versions", "targets", "title", "note", "full"]
)
FORGED = st.fixed_dictionaries({"k": KINDS}, optional=dict.fromkeys(("i", "t", "b", "m", "cycle", "env"), JSON))
LINE = (
    st.binary(max_size=200)
    | JSON.map(lambda value: json.dumps(value).encode())
    | FORGED.map(lambda value: json.dumps(value).encode())
)


@given(lines=st.lists(LINE, max_size=12), ends=st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read_without_an_error(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ends: bool
) -> None:
    directory = tmp_path_factory.mktemp("any")
    body = b"\n".join(lines) + (b"\n" if ends else b"")
    write(directory, HEAD, WORKER, body)
    for entry in (entry for process in read_probe(directory, now=NOW).processes for entry in process.cycles):
        assert 1.0 <= entry.at <= NOW
        assert all(ms is None or 0 <= ms <= MAX_MS for ms in entry[4:])


NUMBER = st.floats(min_value=0, max_value=100) | st.none()


@given(
    data=st.lists(
        st.tuples(st.integers(0, 50), st.floats(0, 5), st.floats(0, 200), NUMBER, NUMBER, NUMBER, NUMBER), max_size=30
    )
)
@settings(max_examples=100, deadline=None)
def test_what_is_kept_is_possible(tmp_path_factory: pytest.TempPathFactory, data: list[Any]) -> None:
    """Kept cycles are in order, do not overlap, and their parts fit into them."""
    directory = tmp_path_factory.mktemp("possible")
    lines = []
    for number, at, whole, *parts in data:
        spans = dict(zip(("draft", "verify", "draft_extend", "target"), parts, strict=True))
        known = {phase: ms for phase, ms in spans.items() if ms is not None}
        lines.append(cycle(number, 1 + at, cycle=whole, **known))
    kept = list(read(directory, HEAD, WORKER, *lines).processes[0].cycles)
    for before, after in pairwise(kept):
        assert after.number > before.number
        assert after.at >= before.at + (before.cycle or 0) / 1000 - 0.0002
    for entry in kept:
        parts = (entry.draft or 0) + (entry.verify or 0) + (entry.draft_extend or 0)
        assert parts <= (entry.cycle or 0) * 1.05 + 0.2


def test_of_a_file_of_nothing_but_junk_little_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_reading, "MAX_MALFORMED", 100)
    reading = read(tmp_path, HEAD, *[b"junk\n"] * 5000, cycle(0, 2.0))
    assert reading.dropped == {"line malformed": 100}
    assert not reading.timed


def test_a_sparse_file_is_read_no_further_than_its_bound(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, cycle(0, 2.0))
    os.truncate(path, 1 << 40)
    reading = read_probe(tmp_path, now=NOW)
    assert len(reading.timed[0].cycles) == 1
    assert reading.dropped["file too long"] == 1
