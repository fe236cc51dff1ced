"""Each planned metric, judged on all pairs that count."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from perfgate import records as r
from perfgate.judge.evidence import Evidence, MeasuredPair
from perfgate.judge.sequential import replay
from perfgate.judge.values import Decision, NoisePrior, PairSamples, Policy


@dataclass(frozen=True)
class JudgedMetric:
    """A metric, its pairs and what they say. `decision` None: absent."""

    plan: r.MetricPlan
    pairs: tuple[PairSamples, ...]
    decision: Decision | None
    missing_in: tuple[str, ...] = ()  # launches without it, where others had it

    @property
    def state(self) -> r.MetricVerdict | None:
        return self.decision.state if self.decision else None

    @property
    def believed(self) -> tuple[PairSamples, ...]:
        """The pairs that the estimate stands on: without those that a bad launch spoiled."""
        return tuple(self.pairs[number] for number in self.decision.believed) if self.decision else ()

    @property
    def kind(self) -> r.MetricKind:
        return r.METRICS[self.plan.metric]

    @property
    def name(self) -> str:
        """ "eagle3 verify ms"."""
        return f"{self.plan.recipe} {r.metric_label(self.plan.metric)}"


def judge_metrics(evidence: Evidence) -> tuple[JudgedMetric, ...]:
    """Every planned metric on all pairs of its recipe. Where a gated one is absent its fallback is gated instead."""
    judged = [_judge(evidence, plan) for plan in evidence.run.plan.metrics]
    for absent in [one for one in judged if one.plan.gated and one.decision is None and one.plan.fallback]:
        if evidence.pairs(absent.plan.recipe):  # with nothing measured yet nothing is absent either
            _gate_the_fallback(judged, absent, evidence)
    return tuple(judged)


def gated(judged: tuple[JudgedMetric, ...]) -> tuple[JudgedMetric, ...]:
    """Those that the verdict counts."""
    return tuple(one for one in judged if one.plan.gated)


def _gate_the_fallback(judged: list[JudgedMetric], absent: JudgedMetric, evidence: Evidence) -> None:
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
    in_its_place = _judge(evidence, fallback)
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
        prior_order=own.prior_order,
        prior_order_variance=own.prior_order_variance,
        prior_from=own.prior_from,
    )


def _judge(evidence: Evidence, plan: r.MetricPlan) -> JudgedMetric:
    measured = evidence.pairs(plan.recipe)
    missing = tuple(name for pair in measured for name in lacking(pair, plan))
    pairs = tuple(_samples(pair, plan) for pair in measured if not lacking(pair, plan))
    if len(pairs) * 2 < len(measured) or not pairs:  # a launch that lacks it drops its pair; most of them, the metric
        return JudgedMetric(plan, (), None, missing if pairs or len(measured) == 1 else ())
    limits = evidence.run.plan.limits
    policy = Policy(
        budget=plan.budget,
        alpha=plan.alpha,
        beta=limits.beta,
        max_pairs=len(evidence.earlier_pairs(plan.recipe)) + limits.max_pairs,
        min_pairs_to_fail=limits.min_pairs_to_fail,
    )
    return JudgedMetric(plan, pairs, replay(policy, prior_of(plan), pairs, r.METRICS[plan.metric].better), missing)


def prior_of(plan: r.MetricPlan) -> NoisePrior | None:
    """None: nothing is known of the noise."""
    if not plan.prior_sd or not plan.prior_df:
        return None
    return NoisePrior(
        plan.prior_sd, plan.prior_df, plan.prior_bad, plan.prior_far, plan.prior_order, plan.prior_order_variance
    )


def lacking(pair: MeasuredPair, plan: r.MetricPlan) -> tuple[str, ...]:
    """Its launches in which the metric is missing."""
    return tuple(one.id for one in (pair.base, pair.head) if not one.values(plan.metric, plan.concurrency))


def _samples(pair: MeasuredPair, plan: r.MetricPlan) -> PairSamples:
    base, head = (one.values(plan.metric, plan.concurrency) for one in (pair.base, pair.head))
    return PairSamples.of(base, head, pair.fact.first, pair.moved)
