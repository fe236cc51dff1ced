"""The ledger: learns from the right pairs, tells what it left out, and never stops a run."""

from __future__ import annotations

import multiprocessing
import random
import sqlite3
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate.judge import JudgeInputError, PairSamples
from perfgate.run.ledger import DF_AT_MOST, LEDGER_FILE, Ledger, LedgerKey, LedgerPair, PairKind, contrasts

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
KEY = LedgerKey("eagle3", "tok_s", 1, "workload", "box", "fingerprint")


def rows(
    count: int,
    sd: float = 0.01,
    kind: PairKind = PairKind.SAME,
    run: str = "run",
    key: LedgerKey = KEY,
    days: float = 1.0,
    shift: float = 0.0,
) -> list[LedgerPair]:
    draw = random.Random(f"{run} {count}")
    time = NOW - timedelta(days=days)
    return [
        LedgerPair(key, kind, run, number, time + timedelta(minutes=number), draw.gauss(shift, sd))
        for number in range(count)
    ]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "state" / LEDGER_FILE)


def test_an_empty_ledger_knows_nothing_and_is_not_made_by_asking(ledger: Ledger) -> None:
    known = ledger.prior(KEY, NOW)
    assert (known.prior, known.how, known.warnings) == (None, "the ledger is empty", ())
    assert not ledger.path.parent.exists()


def test_what_was_recorded_comes_back_as_a_prior(ledger: Ledger) -> None:
    assert ledger.record(rows(30)) == ()
    known = ledger.prior(KEY, NOW)
    assert known.prior is not None
    assert known.prior.sd == pytest.approx(0.01, rel=0.3)
    assert known.prior.df == 30
    assert known.how == "ledger, 30 pairs since 2026-11-29"


def test_a_pair_recorded_twice_counts_once(ledger: Ledger) -> None:
    ledger.record(rows(10))
    ledger.record(rows(10))
    assert ledger.prior(KEY, NOW).pairs == 10


def test_pull_requests_teach_nothing(ledger: Ledger) -> None:
    ledger.record(rows(20, sd=0.2, kind=PairKind.PULL_REQUEST))
    known = ledger.prior(KEY, NOW)
    assert known.prior is None
    assert "no pairs of the same code" in known.how
    ledger.record(rows(20, run="other"))
    assert ledger.prior(KEY, NOW).prior == Ledger.prior(ledger, KEY, NOW).prior
    learned = ledger.prior(KEY, NOW).prior
    assert learned is not None
    assert learned.sd < 0.02


def test_a_change_of_the_base_branch_is_not_noise(ledger: Ledger) -> None:
    for number in range(8):
        ledger.record(rows(5, kind=PairKind.BASE_BRANCH, run=f"run {number}", shift=0.05 * number))
    known = ledger.prior(KEY, NOW)
    assert known.prior is not None
    assert known.prior.sd == pytest.approx(0.01, rel=0.4)
    assert known.prior.df == 32  # one of each run went into its own change


def test_few_pairs_are_not_enough(ledger: Ledger) -> None:
    ledger.record(rows(4))
    known = ledger.prior(KEY, NOW)
    assert known.prior is None
    assert known.how == "the ledger holds 4 pairs of the same code, 5 are needed"


@pytest.mark.parametrize("field", ["recipe", "metric", "workload", "box"])
def test_other_keys_are_other_noise(ledger: Ledger, field: str) -> None:
    ledger.record(rows(20))
    known = ledger.prior(replace(KEY, **{field: "other"}), NOW)  # type: ignore[arg-type]
    assert (known.prior, known.warnings) == (None, ())


def test_foreign_and_old_noise_is_told_and_not_used(ledger: Ledger) -> None:
    ledger.record(rows(20, key=replace(KEY, fingerprint="old driver")))
    ledger.record(rows(7, run="long ago", days=200))
    known = ledger.prior(KEY, NOW)
    assert known.prior is None
    assert [(warning.code, warning.data["pairs"]) for warning in known.warnings] == [
        ("ledger_old", 7),
        ("ledger_foreign", 20),
    ]


def test_a_long_memory_is_not_certainty(ledger: Ledger) -> None:
    ledger.record(rows(150))
    known = ledger.prior(KEY, NOW)
    assert known.prior is not None
    assert known.prior.df == DF_AT_MOST


def test_bad_launches_are_learned(ledger: Ledger) -> None:
    pairs = rows(20, sd=0.004)
    pairs[3] = replace(pairs[3], difference=0.06)
    pairs[11] = replace(pairs[11], difference=-0.06)
    ledger.record(pairs)
    prior = ledger.prior(KEY, NOW).prior
    assert prior is not None
    assert prior.sd < 0.006
    assert prior.bad > 0.05


def test_spreads_come_from_the_samples(ledger: Ledger) -> None:
    draw = random.Random(3)
    pairs = []
    for number in range(40):
        base, head = ([100 + draw.gauss(0, 1.0) + shift for _ in range(6)] for shift in (draw.gauss(0, 0.5), 0.0))
        pairs.append(LedgerPair.of(KEY, PairKind.SAME, ("run", number), NOW, PairSamples.of(base, head), "higher"))
    ledger.record(pairs)
    spread = ledger.prior(KEY, NOW).spread
    assert spread is not None
    assert spread.sample == pytest.approx(0.01, rel=0.15)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_corrupted_ledger_is_a_warning(ledger: Ledger, content: bytes) -> None:
    ledger.path.parent.mkdir()
    ledger.path.write_bytes(content)
    known = ledger.prior(KEY, NOW)
    assert known.prior is None
    assert [warning.code for warning in known.warnings] == ["ledger_unusable"]
    assert [warning.code for warning in ledger.record(rows(3))] == ["ledger_unusable"]


def test_an_empty_file_is_an_empty_ledger(ledger: Ledger) -> None:
    ledger.path.parent.mkdir()
    ledger.path.touch()
    assert ledger.prior(KEY, NOW).how == "the ledger is empty"
    assert ledger.record(rows(6)) == ()
    assert ledger.prior(KEY, NOW).pairs == 6


def test_a_ledger_cut_short_is_a_warning(ledger: Ledger) -> None:
    ledger.record(rows(500))
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[: len(whole) // 2])
    known = ledger.prior(KEY, NOW)
    assert known.prior is None or known.pairs > 0
    assert known.prior is not None or known.warnings


def test_rows_of_the_wrong_kind_are_a_warning(ledger: Ledger) -> None:
    ledger.record(rows(6))
    with sqlite3.connect(ledger.path) as connection:
        connection.execute("UPDATE pairs SET difference = 'wide', time = 'never'")
    connection.close()
    assert [warning.code for warning in ledger.prior(KEY, NOW).warnings] == ["ledger_unusable"]


def test_a_newer_ledger_is_left_alone(ledger: Ledger) -> None:
    ledger.record(rows(6))
    with sqlite3.connect(ledger.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    assert "newer perfgate" in ledger.prior(KEY, NOW).warnings[0].text
    assert "newer perfgate" in ledger.record(rows(6))[0].text


def test_a_locked_ledger_is_a_warning(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfgate.run.ledger.LOCKED_FOR_S", 0.05)
    ledger.record(rows(6))
    other = sqlite3.connect(ledger.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        assert "locked" in ledger.record(rows(6, run="second"))[0].text
        assert "Try again later" in ledger.prior(KEY, NOW).warnings[0].text
    finally:
        other.close()


def test_a_directory_in_its_place_is_a_warning(ledger: Ledger) -> None:
    ledger.path.mkdir(parents=True)
    assert ledger.record(rows(1))[0].code == "ledger_unusable"
    assert ledger.prior(KEY, NOW).warnings[0].code == "ledger_unusable"


def _write_many(path: Path, name: str) -> None:
    for number in range(20):
        assert Ledger(path).record(rows(5, run=f"{name} {number}")) == ()


def test_two_processes_write_at_once(ledger: Ledger) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(ledger.path, name)) for name in ("one", "two")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    with sqlite3.connect(ledger.path) as connection:
        assert connection.execute("SELECT count(*) FROM pairs").fetchone() == (200,)
    connection.close()


def test_numbers_that_are_none_are_refused(ledger: Ledger) -> None:
    with pytest.raises(JudgeInputError, match="differs by nan"):
        ledger.record([replace(rows(1)[0], difference=float("nan"))])
    with pytest.raises(JudgeInputError, match="without a zone"):
        ledger.record([replace(rows(1)[0], time=datetime(2026, 1, 1))])


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.floats(-5, 5))
@settings(max_examples=60)
def test_contrasts_know_nothing_of_the_mean(values: list[float], shift: float) -> None:
    plain, shifted = contrasts(values), contrasts([value + shift for value in values])
    assert len(plain) == len(values) - 1
    assert shifted == pytest.approx(plain, abs=1e-9)
    mean = sum(values) / len(values)
    assert sum(c * c for c in plain) == pytest.approx(sum((v - mean) ** 2 for v in values), abs=1e-9)
