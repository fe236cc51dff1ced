"""From the facts of runs to the pairs that count: what was launched, and what each pair answers.

Evidence belongs to the question that was asked: the trees and builds of both sides, recipe, workload and box, not
commits. A rerun adds pairs to it, so nobody reruns until it is green; a run that was interrupted and went on with other
builds, or on a box that is another one by now, asks anew.

- Another question: the pair does not count, and that is told.
- Another fingerprint (driver, NCCL, GPUs, limits …): the box is another box, so evidence starts afresh.
- Another boot: a pair lies within one boot, so its difference stands. That the box was rebooted is told.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from perfgate import records as r
from perfgate.records.files import short_hash

FROM_PROBE = frozenset({"verify_ms", "draft_ms", "draft_extend_ms", "decode_ms"})
"""Metrics that the probe measures; all others come from the client."""
PASSING = frozenset({"host", "boot", "uptime_s", "load1", "memory_available", "swap_used", "shm_free"})
"""What a system is at one moment: a box is the same box without it."""


@dataclass(frozen=True)
class Launch:
    """One launch with all that was measured in it, and the box as the doctor had found it."""

    begin: r.LaunchBegin
    samples: tuple[r.Sample, ...]
    phases: tuple[r.Phases, ...]
    end: r.LaunchEnd | None
    fingerprint: str = ""

    @property
    def id(self) -> str:
        return self.begin.launch_id

    @property
    def side(self) -> r.Side:
        return self.begin.side

    @property
    def valid(self) -> bool:
        return self.end is not None and self.end.valid and bool(self.samples)

    def is_of(self, recipe: str) -> bool:
        return self.begin.recipe == recipe

    def values(self, metric: str, concurrency: int) -> tuple[float, ...]:
        """The value of each sample, in order. What the probe did not measure in every sample is absent."""
        facts: Iterable[r.Sample | r.Phases] = self.phases if metric in FROM_PROBE else self.samples
        found = (getattr(fact, metric) for fact in facts if fact.concurrency == concurrency)
        values = tuple(value for value in found if value is not None and math.isfinite(value) and value > 0)
        taken = sum(sample.concurrency == concurrency for sample in self.samples)
        if metric in FROM_PROBE and len(values) < taken:
            return ()  # code under test that reports some samples only has reported none
        return values

    def value(self, metric: str, concurrency: int) -> float | None:
        values = self.values(metric, concurrency)
        return statistics.median(values) if values else None


@dataclass(frozen=True, slots=True)
class Question:
    """What pairs must have in common to be one body of evidence. Hashes and keys are compared, never read."""

    base_tree: str
    head_tree: str
    base_build: str
    head_build: str
    recipe: str
    workload: str
    served: str  # flags and variables of the servers
    box: str
    fingerprint: str


DIFFERENCES = (
    ("base_tree", "of another tree of base"),
    ("head_tree", "of another tree of head"),
    ("base_build", "of another build of base"),
    ("head_build", "of another build of head"),
    ("recipe", "of another recipe"),
    ("workload", "under another workload"),
    ("served", "with other flags or variables"),
    ("box", "on another box"),
    ("fingerprint", "under another fingerprint of the box"),
)


def why_another(asked: Question, answered: Question) -> str | None:
    """None where both are the same question; else the first thing in which they differ, in words."""
    differing = (words for name, words in DIFFERENCES if getattr(asked, name) != getattr(answered, name))
    return next((f"measured {words}" for words in differing), None)


@dataclass(frozen=True)
class MeasuredPair:
    """A pair of two valid launches, and the question that it answers."""

    run: str
    fact: r.Pair
    base: Launch
    head: Launch
    question: Question
    moved: float | None = None  # by how much the canary was slower beside head (log units); None: no canary


@dataclass(frozen=True)
class RunFacts:
    """The facts of one run, put in order."""

    plan: r.Plan
    builds: Mapping[r.Side, r.Build]
    build_keys: Mapping[r.Side, str]  # what is measured now: of the last builds that came off
    fingerprint: str  # hash of what the doctor last found a fit box to be
    launches: Mapping[str, Launch]
    faults: tuple[r.Fault, ...]
    facts: tuple[r.Fact, ...]

    @classmethod
    def of(cls, facts: Sequence[r.Fact]) -> RunFacts | None:
        """None where there is no plan: nothing was ever begun."""
        plans = [fact for fact in facts if isinstance(fact, r.Plan)]
        if not plans:
            return None
        builds = [fact for fact in facts if isinstance(fact, r.Build)]
        fit = [fact for fact in facts if isinstance(fact, r.Doctor) and fact.ok]
        launches = _launches(facts)
        launched = {one.side: one.begin.build for one in launches.values()}
        return cls(
            plan=plans[-1],
            builds={build.side: build for build in builds},
            build_keys={**launched, **{build.side: build.key for build in builds if build.ok}},
            fingerprint=fingerprint_of(fit[-1]) if fit else "",
            launches=launches,
            faults=tuple(fact for fact in facts[facts.index(plans[-1]) :] if isinstance(fact, r.Fault)),
            facts=tuple(facts),
        )

    @cached_property
    def measured(self) -> tuple[MeasuredPair, ...]:
        """Every pair of two valid launches, whatever it answers."""
        return tuple(
            MeasuredPair(
                self.plan.run_id, fact, *sides, self._question(fact.recipe, *sides), box_moved(self._canaries, fact)
            )
            for fact in self.facts
            if isinstance(fact, r.Pair)
            if all(name in self.launches and self.launches[name].valid for name in (fact.base, fact.head))
            for sides in [self.sides_of(fact)]
        )

    @cached_property
    def _canaries(self) -> Mapping[str, list[r.Canary]]:
        beside: dict[str, list[r.Canary]] = {}
        for fact in self.facts:
            if isinstance(fact, r.Canary):
                beside.setdefault(fact.launch, []).append(fact)
        return beside

    @cached_property
    def counted(self) -> tuple[MeasuredPair, ...]:
        """Those that answer what this run asks now; of two with one number the later."""
        asked = {one.fact.recipe: self.question(one.fact.recipe) for one in self.measured}
        answering = (one for one in self.measured if why_another(asked[one.fact.recipe], one.question) is None)
        return tuple({(one.fact.recipe, one.fact.pair): one for one in answering}.values())

    @property
    def pairs(self) -> tuple[r.Pair, ...]:
        return tuple(one.fact for one in self.counted)

    def pairs_of(self, recipe: str) -> tuple[r.Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.recipe == recipe)

    def recipe(self, name: str) -> r.RecipePlan:
        return next(recipe for recipe in self.plan.recipes if recipe.name == name)

    def question(self, recipe: str) -> Question:
        """What this run asks of a recipe, of the builds and on the box that it has now."""
        return self._asked(recipe, self.build_keys, self.fingerprint)

    def is_current(self, launch: Launch) -> bool:
        """Whether it was of the build and on the box that the run has now."""
        return (launch.begin.build, launch.fingerprint) == (self.build_keys.get(launch.side), self.fingerprint)

    def sides_of(self, pair: r.Pair) -> tuple[Launch, Launch]:
        """Base and head."""
        return self.launches[pair.base], self.launches[pair.head]

    def _question(self, recipe: str, base: Launch, head: Launch) -> Question:
        prints = dict.fromkeys((base.fingerprint, head.fingerprint))  # two of them answer nothing
        return self._asked(recipe, {r.Side.BASE: base.begin.build, r.Side.HEAD: head.begin.build}, " and ".join(prints))

    def _asked(self, recipe: str, builds: Mapping[r.Side, str], fingerprint: str) -> Question:
        plan = next((one for one in self.plan.recipes if one.name == recipe), None)
        served = [dict(plan.flags), dict(plan.environment)] if plan else []
        return Question(
            base_tree=self.plan.base.tree,
            head_tree=self.plan.head.tree,
            base_build=builds.get(r.Side.BASE, ""),
            head_build=builds.get(r.Side.HEAD, ""),
            recipe=recipe,
            workload=plan.workload if plan else "",
            served=json.dumps(served, sort_keys=True, default=str),
            box=self.plan.box,
            fingerprint=fingerprint,
        )


def box_moved(canaries: Mapping[str, Sequence[r.Canary]], pair: r.Pair) -> float | None:
    """By how much the canary was slower beside head (log units), by the time that moved most; None without one."""
    base, head = (_canary_times(canaries.get(name, ())) for name in (pair.base, pair.head))
    both = base.keys() & head.keys()
    return max((math.log(head[name] / base[name]) for name in both), key=abs, default=None)


def _canary_times(canaries: Iterable[r.Canary]) -> dict[str, float]:
    """Name of a time → the median of its readings. Clocks and links follow the load, and are judged elsewhere."""
    found: dict[str, list[float]] = {}
    for canary in canaries:
        for name, readings in canary.readings.items():
            if name.endswith(("_us", "_ms", "_s")) and not name.startswith("gpu"):
                found.setdefault(name, []).extend(one for one in readings if math.isfinite(one) and one > 0)
    return {name: statistics.median(readings) for name, readings in found.items() if readings}


def fingerprint_of(doctor: r.Doctor) -> str:
    """Hash of what the doctor found the box to be."""
    found = doctor.fingerprint
    system = {name: value for name, value in found.get("system", {}).items() if name not in PASSING}
    return short_hash(json.dumps({**found, "system": system}, sort_keys=True, default=str))


def _launches(facts: Sequence[r.Fact]) -> dict[str, Launch]:
    begun: dict[str, tuple[r.LaunchBegin, str]] = {}
    samples: dict[str, list[r.Sample]] = {}
    phases: dict[str, list[r.Phases]] = {}
    fingerprint = ""
    for fact in facts:
        if isinstance(fact, r.Doctor) and fact.ok:
            fingerprint = fingerprint_of(fact)
        elif isinstance(fact, r.LaunchBegin):
            begun[fact.id] = fact, fingerprint
        elif isinstance(fact, r.Sample):
            samples.setdefault(fact.launch_id, []).append(fact)
        elif isinstance(fact, r.Phases):
            phases.setdefault(fact.launch_id, []).append(fact)
    ended = {fact.id: fact for fact in facts if isinstance(fact, r.LaunchEnd)}
    return {
        name: Launch(begin, tuple(samples.get(name, ())), tuple(phases.get(name, ())), ended.get(name), found)
        for name, (begin, found) in begun.items()
    }


# ------------------------------------------------------------------------------------------------ which pairs count


@dataclass(frozen=True, slots=True)
class Dropped:
    pair: MeasuredPair
    why: str


@dataclass(frozen=True)
class Evidence:
    """What a verdict stands on: the run, and the earlier runs that it continues. Every pair is asked the same."""

    run: RunFacts
    earlier: tuple[RunFacts, ...] = ()

    def pairs(self, recipe: str) -> tuple[MeasuredPair, ...]:
        """All that count: those of earlier runs in time order, then the run's own."""
        return (*self.earlier_pairs(recipe), *_of(self.run.counted, recipe))

    def earlier_pairs(self, recipe: str) -> tuple[MeasuredPair, ...]:
        return self._sorted(recipe)[0]

    def dropped(self, recipe: str) -> tuple[Dropped, ...]:
        """Of earlier runs, then of this run from before it was interrupted."""
        own = answering(self.run.question(recipe), _of(self.run.measured, recipe))
        return (*self._sorted(recipe)[1], *own[1])

    def notices(self, recipe: str) -> tuple[r.Notice, ...]:
        """What it stands on and what it leaves out."""
        at_hand = {one.plan.run_id for one in self.earlier}
        missing = [name for name in self.run.plan.continues if name not in at_hand]
        return (
            *_rebooted(self.earlier_pairs(recipe)),
            *_left_out(self.dropped(recipe), self.run.plan.run_id),
            *_missing(missing),
        )

    def _sorted(self, recipe: str) -> tuple[tuple[MeasuredPair, ...], tuple[Dropped, ...]]:
        """Earlier runs hand on what they count themselves."""
        on_file = (pair for one in self.earlier for pair in _of(one.counted, recipe))
        return answering(self.run.question(recipe), on_file)


def _of(pairs: Iterable[MeasuredPair], recipe: str) -> Iterator[MeasuredPair]:
    return (pair for pair in pairs if pair.fact.recipe == recipe)


def answering(
    asked: Question, measured: Iterable[MeasuredPair]
) -> tuple[tuple[MeasuredPair, ...], tuple[Dropped, ...]]:
    """The pairs that answer this question, in time order, and the others, each with the reason."""
    kept: dict[tuple[str, str], MeasuredPair] = {}
    dropped: list[Dropped] = []
    for pair in sorted(measured, key=lambda pair: (pair.fact.t, pair.run, pair.fact.pair)):
        key = (pair.run, pair.fact.id)
        why = why_another(asked, pair.question) or ("filed twice" if key in kept else None)
        if why is None:
            kept[key] = pair
        else:
            dropped.append(Dropped(pair, why))
    return tuple(kept.values()), tuple(dropped)


def _rebooted(pairs: Sequence[MeasuredPair]) -> Iterator[r.Notice]:
    boots = [(boot, len(list(group))) for boot, group in groupby(pairs, key=lambda pair: pair.fact.boot)]
    if len({boot for boot, _ in boots}) > 1:
        counts = [count for _, count in boots]
        yield r.Notice(
            code="evidence_stratified",
            text=f"The box was rebooted since: evidence of {' + '.join(map(str, counts))} pairs from"
            f" {len(counts)} boots, each pair within one.",
            data={"boots": len(counts), "pairs": sum(counts)},
        )


def _left_out(dropped: Sequence[Dropped], run: str) -> Iterator[r.Notice]:
    reasons = [("from before the interruption" if one.pair.run == run else "earlier", one.why) for one in dropped]
    for when, why in dict.fromkeys(reasons):
        count = reasons.count((when, why))
        pairs = f"pair{'' if count == 1 else 's'}"
        which = f"earlier {pairs}" if when == "earlier" else f"{pairs} {when}"
        yield r.Notice(
            code="evidence_restarted" if why.endswith("fingerprint of the box") else "evidence_dropped",
            text=f"{count} {which} not counted: {why}.",
            data={"pairs": count, "why": why},
        )


def _missing(runs: Sequence[str]) -> Iterator[r.Notice]:
    if runs:
        text = f"Facts of {len(runs)} earlier run(s) are not at hand ({', '.join(runs)}): their pairs are not counted."
        yield r.Notice(code="evidence_missing", text=text, data={"runs": len(runs)})
