"""Which pairs of earlier runs count for a rerun, and which do not.

Evidence belongs to the question that was asked: the trees and builds of both sides, recipe, workload and box, not
commits. A rerun adds pairs to it, so nobody reruns until it is green.

- Another question: dropped.
- Another fingerprint (driver, NCCL, GPUs, limits …): the box is another box, so evidence starts afresh and only
  pairs with today's fingerprint count.
- Another boot: a pair lies within one boot, so its difference stands. Pairs are kept and stratified by boot, and
  the strata are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from perfgate.judge.values import Pair, Warning


@dataclass(frozen=True, slots=True)
class Question:
    """What pairs must have in common to be one body of evidence. Hashes and keys are compared, never read."""

    base_tree: str
    head_tree: str
    base_build: str
    head_build: str
    recipe: str
    workload: str
    box: str


@dataclass(frozen=True, slots=True)
class FiledPair:
    """One pair of some run, with where it comes from. `time` sorts: UTC in RFC 3339."""

    question: Question
    pair: Pair
    run: str
    number: int
    time: str
    boot: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Stratum:
    """Pairs in a row of one boot."""

    boot: str
    pairs: tuple[FiledPair, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    pair: FiledPair
    why: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a rerun stands on, in time order, and what it leaves out."""

    strata: tuple[Stratum, ...]
    dropped: tuple[Dropped, ...]
    warnings: tuple[Warning, ...]

    @property
    def pairs(self) -> tuple[Pair, ...]:
        return tuple(filed.pair for stratum in self.strata for filed in stratum.pairs)


DIFFERENCES = (
    ("base_tree", "of another tree of base"),
    ("head_tree", "of another tree of head"),
    ("base_build", "of another build of base"),
    ("head_build", "of another build of head"),
    ("recipe", "of another recipe"),
    ("workload", "under another workload"),
    ("box", "on another box"),
)


def evidence_for(
    question: Question, fingerprint: str, filed: Iterable[FiledPair], missing_runs: Sequence[str] = ()
) -> Evidence:
    """All pairs that answer `question` on the box as it is now, in time order.

    missing_runs: runs that this one continues, but whose facts are not at hand.
    """
    kept: list[FiledPair] = []
    dropped: list[Dropped] = []
    seen: set[tuple[str, str, int]] = set()
    for pair in sorted(filed, key=lambda pair: (pair.time, pair.run, pair.number)):
        key = (pair.run, pair.question.recipe, pair.number)
        why = _why_not(question, fingerprint, pair) or ("filed twice" if key in seen else None)
        if why is None:
            seen.add(key)
            kept.append(pair)
        else:
            dropped.append(Dropped(pair, why))
    strata = tuple(Stratum(boot, tuple(pairs)) for boot, pairs in groupby(kept, key=lambda pair: pair.boot))
    return Evidence(strata, tuple(dropped), (*_warnings(strata, dropped), *_missing(missing_runs)))


def _why_not(question: Question, fingerprint: str, pair: FiledPair) -> str | None:
    for name, words in DIFFERENCES:
        if getattr(pair.question, name) != getattr(question, name):
            return f"measured {words}"
    if pair.fingerprint != fingerprint:
        return "measured under another fingerprint of the box"
    return None


def _warnings(strata: Sequence[Stratum], dropped: Sequence[Dropped]) -> tuple[Warning, ...]:
    told = []
    if len({stratum.boot for stratum in strata}) > 1:
        counts = [len(stratum.pairs) for stratum in strata]
        told.append(
            Warning(
                "evidence_stratified",
                f"The box was rebooted since: evidence of {' + '.join(map(str, counts))} pairs from"
                f" {len(counts)} boots, each pair within one.",
                {"boots": len(counts), "pairs": sum(counts)},
            )
        )
    reasons = [entry.why for entry in dropped]
    for why in dict.fromkeys(reasons):
        restarted = why.endswith("fingerprint of the box")
        count = reasons.count(why)
        text = f"{count} earlier pair{'' if count == 1 else 's'} not counted: {why}."
        code = "evidence_restarted" if restarted else "evidence_dropped"
        told.append(Warning(code, text, {"pairs": count, "why": why}))
    return tuple(told)


def _missing(runs: Sequence[str]) -> tuple[Warning, ...]:
    if not runs:
        return ()
    named = ", ".join(runs)
    text = f"Facts of {len(runs)} earlier run(s) are not at hand ({named}): their pairs are not counted."
    return (Warning("evidence_missing", text, {"runs": len(runs)}),)
