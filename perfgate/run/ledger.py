"""The box's memory of noise: one row per pair ever measured on it, in SQLite.

The judge wants to know by how much two launches of the same code differ here. That is learned from A/A pairs and from
runs between commits of the base branch, never from unmerged pull requests: their authors would teach the box to
tolerate them. Rows of pull requests are kept for the record only.

Nothing here may stop a run. A ledger that is locked, corrupted, unreadable or from a newer perfgate gives a warning and
"nothing known", and the judge then works without a prior.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import groupby
from pathlib import Path

from perfgate.judge.noise import learn, learn_order
from perfgate.judge.power import Spread, sample_variance, spread_of
from perfgate.judge.sequential import difference_of
from perfgate.judge.values import JudgeInputError, NoisePrior, PairSamples
from perfgate.records import Better, Notice, Side

LEDGER_FILE = "ledger.sqlite3"
VERSION = 2
OLDEST = timedelta(days=90)  # drivers, firmware and dust change a box
LATEST_PAIRS = 200
ENOUGH_PAIRS = 5  # fewer say less than the judge's own guess
DF_AT_MOST = 40.0  # even a long memory may be wrong about today
LOCKED_FOR_S = 5.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS pairs (
    time TEXT NOT NULL,
    kind TEXT NOT NULL,
    run TEXT NOT NULL,
    number INTEGER NOT NULL,
    recipe TEXT NOT NULL,
    metric TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    workload TEXT NOT NULL,
    box TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    difference REAL NOT NULL,
    sample_variance REAL,
    samples REAL,
    base_first INTEGER,
    PRIMARY KEY (run, recipe, metric, concurrency, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_key ON pairs (recipe, metric, concurrency, workload, box, time);
"""


class PairKind(StrEnum):
    """What the two sides of a pair were."""

    SAME = "same"  # A/A: the same commit twice
    BASE_BRANCH = "base_branch"  # two commits of the base branch
    PULL_REQUEST = "pull_request"  # unmerged code: never learned from


LEARNED_FROM = (PairKind.SAME, PairKind.BASE_BRANCH)


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """What noise belongs to. `fingerprint`: hash of the parts that matter: GPUs, driver, NCCL and its variables."""

    recipe: str
    metric: str
    concurrency: int
    workload: str
    box: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class LedgerPair:
    """One pair: its difference in log units, + = head is slower.

    sample_variance: of log samples within its launches, None where they had one each; samples: mean count a launch.
    """

    key: LedgerKey
    kind: PairKind
    run: str
    number: int
    time: datetime
    difference: float
    sample_variance: float | None = None
    samples: float = 1.0
    base_first: bool | None = None

    @classmethod
    def of(
        cls, key: LedgerKey, kind: PairKind, where: tuple[str, int], time: datetime, pair: PairSamples, better: Better
    ) -> LedgerPair:
        """A pair as the judge saw it; `where`: its run and number."""
        launches = (pair.base, pair.head)
        return cls(
            key=key,
            kind=kind,
            run=where[0],
            number=where[1],
            time=time,
            difference=difference_of(pair, better).slowdown,
            sample_variance=sample_variance(launches),
            samples=(len(pair.base) + len(pair.head)) / 2,
            base_first=None if pair.first is None else pair.first is Side.BASE,
        )


@dataclass(frozen=True, slots=True)
class KnownNoise:
    """What the ledger knows of one key. `prior` None: nothing; `how` says why, or what it stands on, in words."""

    prior: NoisePrior | None
    how: str
    pairs: int = 0
    spread: Spread | None = None  # between launches and between samples, to plan samples with
    samples: float | None = None  # mean count a launch in these pairs; None with `spread`
    warnings: tuple[Notice, ...] = ()


class Ledger:
    """The ledger in one file. Opens it anew for each call, so that two processes get along."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def record(self, pairs: Iterable[LedgerPair]) -> tuple[Notice, ...]:
        """Add pairs; one that is there already (same run and number) stays as it is. Warnings instead of errors."""
        rows = [_row(pair) for pair in pairs]
        try:
            with self._open(write=True) as connection:
                connection.executemany(f"INSERT OR IGNORE INTO pairs VALUES ({', '.join('?' * 14)})", rows)
        except (sqlite3.Error, OSError) as error:
            return (_unusable(self.path, error),)
        return ()

    def prior(self, key: LedgerKey, now: datetime | None = None) -> KnownNoise:
        """The noise of this key: from its latest pairs of same code, not older than 90 days."""
        now = now or datetime.now(UTC)
        try:
            with self._open(write=False) as connection:
                order = "base_first" if _knows_orders(connection) else "NULL"
                rows = connection.execute(
                    f"SELECT time, kind, run, fingerprint, difference, sample_variance, samples, {order} FROM pairs"
                    " WHERE recipe = ? AND metric = ? AND concurrency = ? AND workload = ? AND box = ?"
                    " AND kind IN (?, ?) ORDER BY time DESC, run, number LIMIT ?",
                    (*astuple(key)[:5], *LEARNED_FROM, 10 * LATEST_PAIRS),
                ).fetchall()
            found = [_Found(datetime.fromisoformat(time), PairKind(kind), *rest) for time, kind, *rest in rows]
            return _known(key, found, now)
        except FileNotFoundError:
            return KnownNoise(None, "the ledger is empty")
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            return KnownNoise(None, "the ledger cannot be read", warnings=(_unusable(self.path, error),))

    @contextmanager
    def _open(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        if write:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        elif not self.path.exists():
            raise FileNotFoundError(self.path)
        connection = sqlite3.connect(self.path, timeout=LOCKED_FOR_S, isolation_level=None)
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > VERSION:
                raise sqlite3.DatabaseError(f"written by a newer perfgate (version {version})")
            if not write:
                if version == 0:  # made, but nothing was ever committed to it
                    raise FileNotFoundError(self.path)
                yield connection
                return
            connection.execute("BEGIN IMMEDIATE")  # the version is settled before another process looks at it
            for statement in SCHEMA.split(";"):
                connection.execute(statement)
            if not _knows_orders(connection):  # written by version 1
                connection.execute("ALTER TABLE pairs ADD COLUMN base_first INTEGER")
            connection.execute(f"PRAGMA user_version = {VERSION}")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()  # what was not committed is rolled back


def _knows_orders(connection: sqlite3.Connection) -> bool:
    return any(name == "base_first" for _, name, *_ in connection.execute("PRAGMA table_info(pairs)"))


@dataclass(frozen=True, slots=True)
class _Found:
    time: datetime
    kind: PairKind
    run: str
    fingerprint: str
    difference: float
    sample_variance: float | None
    samples: float | None
    base_first: int | None = None

    @property
    def order(self) -> int:
        """+1 where base was first, −1 head, 0 not known."""
        return 0 if self.base_first is None else 1 if self.base_first else -1


def _known(key: LedgerKey, found: Sequence[_Found], now: datetime) -> KnownNoise:
    ours = [pair for pair in found if pair.fingerprint == key.fingerprint]
    fresh = [pair for pair in ours if now - pair.time <= OLDEST][:LATEST_PAIRS]
    warnings = (*_left_out(len(ours) - len(fresh), "old"), *_left_out(len(found) - len(ours), "foreign"))
    effect = learn_order([pair.difference * pair.order for pair in fresh if pair.kind is PairKind.SAME and pair.order])
    values = _noise([replace(pair, difference=pair.difference - pair.order * effect) for pair in fresh])
    if len(values) < ENOUGH_PAIRS:
        had = f"{len(fresh)} pairs of the same code" if fresh else "no pairs of the same code"
        return KnownNoise(None, f"the ledger holds {had}, {ENOUGH_PAIRS} are needed", len(fresh), warnings=warnings)
    prior = learn(values)
    assert prior is not None
    of_order = (effect, 1 / len(values)) if effect else (0.0, 0.0)
    capped = NoisePrior(prior.sd, min(prior.df, DF_AT_MOST), prior.bad, prior.far, *of_order)
    since = min(pair.time for pair in fresh).date().isoformat()
    spread, samples = _spread(capped.sd, fresh)
    return KnownNoise(capped, f"ledger, {len(fresh)} pairs since {since}", len(fresh), spread, samples, warnings)


def _spread(pair_sd: float, pairs: Sequence[_Found]) -> tuple[Spread | None, float | None]:
    """And how many samples a launch had. None where no launch had two."""
    told = [(pair.sample_variance, pair.samples or 1.0) for pair in pairs if pair.sample_variance is not None]
    if not told:
        return None, None
    variance = math.fsum(one for one, _ in told) / len(told)
    samples = math.fsum(count for _, count in told) / len(told)
    return spread_of(pair_sd, variance, samples), samples


def _noise(pairs: Sequence[_Found]) -> list[float]:
    """Differences that are noise alone: of A/A pairs as they are, of others without their run's own change."""
    values: list[float] = []
    for (_, kind), group in groupby(
        sorted(pairs, key=lambda pair: (pair.run, pair.kind)), key=lambda p: (p.run, p.kind)
    ):
        differences = [pair.difference for pair in group]
        values += differences if kind is PairKind.SAME else contrasts(differences)
    return values


def contrasts(values: Sequence[float]) -> list[float]:
    """Helmert's contrasts: n values of any mean become n − 1 independent ones of mean 0 and the same SD."""
    result = []
    total = 0.0
    for count, value in enumerate(values):
        if count:
            result.append((total - count * value) / math.sqrt(count * (count + 1)))
        total += value
    return result


def _left_out(count: int, why: str) -> tuple[Notice, ...]:
    if count == 0:
        return ()
    what = "older than 90 days" if why == "old" else "from the same box under another fingerprint"
    text = f"{count} pair{'' if count == 1 else 's'} in the ledger {what} not used: `perfgate calibrate` renews them."
    return (Notice(f"ledger_{why}", text, {"pairs": count}),)


def _unusable(path: Path, error: Exception) -> Notice:
    remedy = "try again later" if "locked" in str(error) else "move it away, and `perfgate calibrate`"
    text = (
        f"The ledger {path.name} cannot be used ({error}): noise counts as not known. {remedy[0].upper()}{remedy[1:]}."
    )
    return Notice("ledger_unusable", text, {"error": str(error)})


def _row(pair: LedgerPair) -> tuple[str | int | float | None, ...]:
    if not math.isfinite(pair.difference):
        raise JudgeInputError(f"pair {pair.number} of run {pair.run} differs by {pair.difference!r}")
    if pair.time.tzinfo is None:
        raise JudgeInputError(f"pair {pair.number} of run {pair.run} has a time without a zone")
    time = pair.time.astimezone(UTC).isoformat(timespec="microseconds")
    key = pair.key
    return (
        time,
        pair.kind,
        pair.run,
        pair.number,
        key.recipe,
        key.metric,
        key.concurrency,
        key.workload,
        key.box,
        key.fingerprint,
        pair.difference,
        pair.sample_variance,
        pair.samples,
        pair.base_first,
    )
