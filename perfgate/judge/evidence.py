"""From the facts of a run to what the judge counts: launches, pairs, and the values of each metric."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfgate import records as r
from perfgate.judge.rerun import Evidence, FiledPair, Question, evidence_for
from perfgate.judge.sequential import replay
from perfgate.judge.values import Better, Decision, Policy, Prior
from perfgate.judge.values import Pair as JudgedPair
from perfgate.records.files import short_hash

FROM_PROBE = frozenset({"verify_ms", "draft_ms", "draft_extend_ms", "decode_ms"})
"""Metrics that the probe measures; all others come from the client."""
PASSING = frozenset({"host", "boot", "uptime_s", "load1", "memory_available", "swap_used", "shm_free"})
"""What a system is at one moment: a box is the same box without it."""


@dataclass(frozen=True)
class Launch:
    """One launch with all that was measured in it."""

    id: str
    side: r.Side
    position: int
    samples: tuple[r.Sample, ...]
    phases: tuple[r.Phases, ...]
    end: r.LaunchEnd | None

    @property
    def valid(self) -> bool:
        return self.end is not None and self.end.valid and bool(self.samples)

    def is_of(self, recipe: str) -> bool:
        return self.id.startswith(f"{recipe}/")

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


@dataclass(frozen=True)
class RunFacts:
    """The facts of one run, put in order. Only pairs of two valid launches count."""

    plan: r.Plan
    builds: Mapping[r.Side, r.Build]
    launches: Mapping[str, Launch]
    pairs: tuple[r.Pair, ...]
    faults: tuple[r.Fault, ...]
    facts: tuple[r.Fact, ...]

    @classmethod
    def of(cls, facts: Sequence[r.Fact]) -> RunFacts | None:
        """None where there is no plan: nothing was ever begun."""
        plans = [fact for fact in facts if isinstance(fact, r.Plan)]
        if not plans:
            return None
        launches = _launches(facts)
        pairs = {
            (pair.recipe, pair.pair): pair
            for pair in facts
            if isinstance(pair, r.Pair) and all(_valid(launches, name) for name in (pair.base, pair.head))
        }
        return cls(
            plan=plans[-1],
            builds={build.side: build for build in facts if isinstance(build, r.Build)},
            launches=launches,
            pairs=tuple(pairs.values()),
            faults=tuple(fact for fact in facts[facts.index(plans[-1]) :] if isinstance(fact, r.Fault)),
            facts=tuple(facts),
        )

    def pairs_of(self, recipe: str) -> tuple[r.Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.recipe == recipe)

    def plans(self, recipe: str) -> bool:
        return any(plan.name == recipe for plan in self.plan.recipes)

    def recipe(self, name: str) -> r.RecipePlan:
        return next(recipe for recipe in self.plan.recipes if recipe.name == name)

    def question(self, recipe: str) -> Question:
        """What this run asks of a recipe: only pairs that answer the same are evidence."""
        return Question(
            base_tree=self.plan.base.tree,
            head_tree=self.plan.head.tree,
            base_build=self.builds[r.Side.BASE].key if r.Side.BASE in self.builds else "",
            head_build=self.builds[r.Side.HEAD].key if r.Side.HEAD in self.builds else "",
            recipe=recipe,
            workload=self.recipe(recipe).workload,
            box=self.plan.box,
        )

    @property
    def fingerprint(self) -> str:
        """Hash of what the doctor found the box to be."""
        found = [fact.fingerprint for fact in self.facts if isinstance(fact, r.Doctor)]
        if not found:
            return ""
        system = {name: value for name, value in found[-1].get("system", {}).items() if name not in PASSING}
        return short_hash(json.dumps({**found[-1], "system": system}, sort_keys=True, default=str))

    def sides_of(self, pair: r.Pair) -> tuple[Launch, Launch]:
        """Base and head."""
        return self.launches[pair.base], self.launches[pair.head]


def _valid(launches: Mapping[str, Launch], name: str) -> bool:
    launch = launches.get(name)
    return launch is not None and launch.valid


def _launches(facts: Sequence[r.Fact]) -> dict[str, Launch]:
    begun = {fact.id: fact for fact in facts if isinstance(fact, r.LaunchBegin)}
    ended = {fact.id: fact for fact in facts if isinstance(fact, r.LaunchEnd)}
    samples: dict[str, list[r.Sample]] = {name: [] for name in begun}
    phases: dict[str, list[r.Phases]] = {name: [] for name in begun}
    for fact in facts:
        if isinstance(fact, r.Sample):
            samples.setdefault(launch_id(fact), []).append(fact)
        elif isinstance(fact, r.Phases):
            phases.setdefault(launch_id(fact), []).append(fact)
    return {
        name: Launch(
            id=name,
            side=begin.side,
            position=begin.position,
            samples=tuple(samples[name]),
            phases=tuple(phases[name]),
            end=ended.get(name),
        )
        for name, begin in begun.items()
    }


def launch_id(fact: r.LaunchFact) -> str:
    """The launch a fact belongs to, e.g. "eagle3/p03/head/a1"."""
    return f"{fact.recipe}/p{fact.pair:02d}/{fact.side.value}/a{fact.attempt}"


@dataclass(frozen=True)
class JudgedMetric:
    """A metric, its pairs and what they say. `decision` None: absent."""

    plan: r.MetricPlan
    pairs: tuple[JudgedPair, ...]
    decision: Decision | None
    missing_in: tuple[str, ...] = ()  # launches without it, where others had it


def judge_metrics(run: RunFacts, earlier: Sequence[RunFacts] = ()) -> tuple[JudgedMetric, ...]:
    """Every planned metric on all pairs of its recipe. Where a gated one is absent its fallback is gated instead."""
    judged = [_judge_metric(run, plan, earlier) for plan in run.plan.metrics]
    for absent in [one for one in judged if one.plan.gated and one.decision is None and one.plan.fallback]:
        _gate_the_fallback(judged, absent, run, earlier)
    return tuple(judged)


def _gate_the_fallback(
    judged: list[JudgedMetric], absent: JudgedMetric, run: RunFacts, earlier: Sequence[RunFacts]
) -> None:
    if not counted_pairs(run, earlier, absent.plan.recipe):
        return  # nothing measured yet, so nothing is absent either
    assert absent.plan.fallback is not None
    fallback = dataclasses.replace(absent.plan, metric=absent.plan.fallback, fallback=None)
    judged[judged.index(absent)] = dataclasses.replace(absent, plan=dataclasses.replace(absent.plan, gated=False))
    same = [
        i
        for i, one in enumerate(judged)
        if (one.plan.recipe, one.plan.metric, one.plan.concurrency)
        == (fallback.recipe, fallback.metric, fallback.concurrency)
    ]
    if same and judged[same[0]].plan.prior_sd:
        fallback = _with_noise_of(judged[same[0]].plan, fallback)
    in_its_place = _judge_metric(run, fallback, earlier)
    if same:
        judged[same[0]] = in_its_place
    else:
        judged.append(in_its_place)


def _with_noise_of(own: r.MetricPlan, fallback: r.MetricPlan) -> r.MetricPlan:
    """Judged by the absent metric's rule, but with what is known of its own noise."""
    return dataclasses.replace(
        fallback,
        prior_sd=own.prior_sd,
        prior_df=own.prior_df,
        prior_bad=own.prior_bad,
        prior_far=own.prior_far,
        prior_from=own.prior_from,
    )


def _judge_metric(run: RunFacts, plan: r.MetricPlan, earlier: Sequence[RunFacts]) -> JudgedMetric:
    filed = filed_pairs(run, earlier, plan)
    missing = tuple(name for entry in filed for name in entry.missing)
    pairs = tuple(entry.pair for entry in filed if entry.pair is not None)
    if missing or not pairs:  # absent on one side is absent on both, for all pairs: half a metric compares nothing
        return JudgedMetric(plan, (), None, missing if pairs else ())
    own = len(run.pairs_of(plan.recipe))
    policy = Policy(
        budget=plan.budget,
        alpha=plan.alpha,
        beta=run.plan.limits.beta,
        max_pairs=len(pairs) - own + run.plan.limits.max_pairs,
        min_pairs_to_fail=run.plan.limits.min_pairs_to_fail,
    )
    better: Better = "higher" if r.METRICS[plan.metric].better is r.Better.HIGHER else "lower"
    return JudgedMetric(plan, pairs, replay(policy, prior_of(plan), pairs, better))


def prior_of(plan: r.MetricPlan) -> Prior | None:
    """None: nothing is known of the noise."""
    if not plan.prior_sd or not plan.prior_df:
        return None
    return Prior(plan.prior_sd, plan.prior_df, plan.prior_bad, plan.prior_far)


@dataclass(frozen=True)
class _Filed:
    pair: JudgedPair | None
    missing: tuple[str, ...]


def filed_pairs(run: RunFacts, earlier: Sequence[RunFacts], plan: r.MetricPlan) -> list[_Filed]:
    """The pairs of earlier runs that answer the same question on the same box, in time order, then this run's."""
    counted = counted_pairs(run, earlier, plan.recipe)
    return [_file(*one.sides_of(pair), pair, plan) for one, pair in counted]


def counted_pairs(run: RunFacts, earlier: Sequence[RunFacts], recipe: str) -> list[tuple[RunFacts, r.Pair]]:
    entries = {
        (one.plan.run_id, pair.pair): (one, pair)
        for one in earlier
        if one.plans(recipe)
        for pair in one.pairs_of(recipe)
    }
    kept = earlier_evidence(run, earlier, recipe).strata
    before = [entries[filed.run, filed.number] for stratum in kept for filed in stratum.pairs]
    return [*before, *((run, pair) for pair in run.pairs_of(recipe))]


def earlier_evidence(run: RunFacts, earlier: Sequence[RunFacts], recipe: str) -> Evidence:
    """Which pairs of earlier runs count, and which do not and why."""
    filed = [
        FiledPair(
            question=one.question(recipe),
            pair=JudgedPair((), (), None),  # values differ by metric and are looked up later
            run=one.plan.run_id,
            number=pair.pair,
            time=pair.t,
            boot=pair.boot,
            fingerprint=one.fingerprint,
        )
        for one in earlier
        if one.plans(recipe)
        for pair in one.pairs_of(recipe)
    ]
    at_hand = {one.plan.run_id for one in earlier}
    missing = [name for name in run.plan.continues if name not in at_hand]
    return evidence_for(run.question(recipe), run.fingerprint, filed, missing)


def _file(base: Launch, head: Launch, pair: r.Pair, plan: r.MetricPlan) -> _Filed:
    values = base.values(plan.metric, plan.concurrency), head.values(plan.metric, plan.concurrency)
    missing = tuple(launch.id for launch, found in zip((base, head), values, strict=True) if not found)
    return _Filed(None if missing else JudgedPair.of(*values, first=pair.first.value), missing)
