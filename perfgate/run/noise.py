"""What the ledger tells a plan, and what a run tells the ledger.

The noise of a metric belongs to how it is measured: recipe with flags and variables, workload, autotune and the box as
it is. Under another of these it is foreign noise, which the ledger names and leaves out.

Taught by calibrations and by runs between merged commits, on a steady box. Unmerged pull requests are recorded, and
never learned from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from perfgate import records as r
from perfgate.conditions import assess_environment
from perfgate.errors import PerfgateError
from perfgate.judge.evidence import Evidence, RunFacts
from perfgate.judge.metrics import JudgedMetric, judge_metrics
from perfgate.judge.power import LaunchCost, planned_samples
from perfgate.judge.values import NoisePrior
from perfgate.records.files import short_hash
from perfgate.run.ledger import KnownNoise, Ledger, LedgerKey, LedgerPair, PairKind
from perfgate.source.repository import Repository

# ------------------------------------------------------------------------------------------------ the ledger tells


@dataclass(frozen=True)
class Memory:
    """What the ledger knows of the metrics of a plan, in the plan's order."""

    known: tuple[KnownNoise, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Each kind once, with the most pairs that it concerns."""
        told: dict[str, tuple[int, str]] = {}
        for warning in (warning for known in self.known for warning in known.warnings):
            pairs = warning.data.get("pairs")
            size = pairs if isinstance(pairs, int) else 0
            told[warning.code] = max(told.get(warning.code, (-1, "")), (size, warning.text))
        return tuple(text for _, text in told.values())


def recall(plan: r.Plan, ledger: Ledger, fingerprint: str) -> Memory:
    """`fingerprint`: of the box as it is now."""
    return Memory(tuple(ledger.prior(key_of(plan, metric, fingerprint)) for metric in plan.metrics))


def with_planned_samples(
    plan: r.Plan, memory: Memory, costs: Mapping[str, LaunchCost], undecided: Collection[str]
) -> r.Plan:
    """The plan with the cheapest number of samples for each of the recipes whose number nobody has decided.

    costs: recipe → what its launches took on this box. A recipe whose noise or cost is not known stays as it is.
    """
    recipes = tuple(
        _with_samples(one, plan, memory, costs[one.name]) if one.name in undecided and one.name in costs else one
        for one in plan.recipes
    )
    return replace(plan, recipes=recipes)


def _with_samples(recipe: r.RecipePlan, plan: r.Plan, memory: Memory, cost: LaunchCost) -> r.RecipePlan:
    """As many as the gated metric asks for that needs most."""
    wanted = [
        planned_samples(cost, known.spread, metric.budget)
        for metric, known in zip(plan.metrics, memory.known, strict=True)
        if metric.recipe == recipe.name and metric.gated and known.spread is not None
    ]
    return replace(recipe, samples=max(wanted)) if wanted else recipe


def with_known_noise(plan: r.Plan, memory: Memory) -> r.Plan:
    """The plan with the ledger's priors where it has any; why it has none stands where nothing else is assumed."""
    samples = {recipe.name: recipe.samples for recipe in plan.recipes}
    metrics = (
        _with_noise(metric, known, samples[metric.recipe])
        for metric, known in zip(plan.metrics, memory.known, strict=True)
    )
    return replace(plan, metrics=tuple(metrics))


def _with_noise(metric: r.MetricPlan, known: KnownNoise, samples: int) -> r.MetricPlan:
    prior = prior_at(known, samples)
    if prior is None:
        return metric if metric.prior_sd else replace(metric, prior_from=known.how)
    return replace(
        metric,
        prior_sd=prior.sd,
        prior_df=prior.df,
        prior_bad=prior.bad,
        prior_far=prior.far,
        prior_order=prior.order,
        prior_order_variance=prior.order_variance,
        prior_from=known.how,
    )


def prior_at(known: KnownNoise, samples: int) -> NoisePrior | None:
    """The noise of launches of so many samples: where the ledger's launches had more, their samples hid some of it."""
    prior, spread = known.prior, known.spread
    if prior is None or spread is None or known.samples is None or samples >= known.samples:
        return prior
    hidden = 2 * spread.sample**2 * (1 / samples - 1 / known.samples)
    return replace(prior, sd=math.sqrt(prior.sd**2 + hidden))


def key_of(plan: r.Plan, metric: r.MetricPlan, fingerprint: str) -> LedgerKey:
    recipe = next(recipe for recipe in plan.recipes if recipe.name == metric.recipe)
    autotune = plan.autotune.partition(" ")[0]  # the mode; which seed it was does not matter
    conditions = [fingerprint, plan.profile, autotune, dict(recipe.flags), dict(recipe.environment)]
    return LedgerKey(
        recipe=metric.recipe,
        metric=metric.metric,
        concurrency=metric.concurrency,
        workload=recipe.workload,
        box=plan.box,
        fingerprint=short_hash(json.dumps(conditions, sort_keys=True, default=str)),
    )


# ------------------------------------------------------------------------------------------------ a run tells


def remember(run: RunFacts, ledger: Ledger, kind: PairKind, say: Callable[[str], None]) -> None:
    """One row for each pair and metric of the run; none of a run that would teach the wrong thing, and that is said."""
    why = None if kind is PairKind.PULL_REQUEST else why_not_learned(run)
    if why is not None:
        say(f"the ledger learns nothing from this run: {why}")
        return
    judged = judge_metrics(Evidence(run))
    rows = [row for one in judged for row in _rows(run, one, kind)]
    for warning in ledger.record(rows):
        say(warning.text)
    left_out = sum(_repeated(run, pair) for pair in run.pairs)
    if left_out and kind is not PairKind.PULL_REQUEST:
        say(f"{left_out} of {len(run.pairs)} pairs are not learned from: one of their launches had to be repeated")


def why_not_learned(run: RunFacts) -> str | None:
    """In words, where noise that this run shows is not the box's at its best."""
    disturbed = [one.text for one in assess_environment(run).disturbances if one.alone]
    failed = [fault.text for fault in run.faults if fault.code != r.STOPPED_FAULT]
    found = [*disturbed, *failed]
    return found[0] if found else None


def kind_of(plan: r.Plan, repository: Repository, base_branch: str | None) -> PairKind:
    """What the two sides are to each other. `base_branch` None: the repository's default branch."""
    if plan.pr is not None:
        return PairKind.PULL_REQUEST
    if plan.base.tree == plan.head.tree:
        return PairKind.SAME
    merged = _are_merged(repository, base_branch, (plan.base.sha, plan.head.sha))
    return PairKind.BASE_BRANCH if merged else PairKind.PULL_REQUEST


def _are_merged(repository: Repository, base_branch: str | None, commits: Sequence[str]) -> bool:
    try:
        tip = repository.resolve(base_branch or repository.default_branch())
        return all(repository.merge_base(sha, tip.sha).sha == sha for sha in commits)
    except PerfgateError:
        return False  # not known to be merged


def _rows(run: RunFacts, one: JudgedMetric, kind: PairKind) -> Iterator[LedgerPair]:
    if not one.pairs:
        return
    key = key_of(run.plan, one.plan, run.fingerprint)
    for fact, pair in zip(run.pairs_of(one.plan.recipe), one.pairs, strict=True):
        if not _repeated(run, fact):
            where = (run.plan.run_id, fact.pair)
            yield LedgerPair.of(key, kind, where, datetime.fromisoformat(fact.t), pair, one.kind.better)


def _repeated(run: RunFacts, pair: r.Pair) -> bool:
    """A launch of it failed at first: something was wrong, and its two launches are no neighbours."""
    ends = (launch.end for launch in run.launches.values() if launch.end and run.is_current(launch))
    return any((end.recipe, end.pair, end.valid) == (pair.recipe, pair.pair, False) for end in ends)
