"""The result of a run, from its facts and what the box says of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from perfgate import records as r
from perfgate.judge.calibrated import calibration_verdict, false_alarms
from perfgate.judge.evidence import JudgedMetric, RunFacts, judge_metrics, launch_id
from perfgate.judge.outputs import compared_outputs
from perfgate.judge.probe_notices import probe_notices
from perfgate.judge.splits import decompositions
from perfgate.judge.suspects import nothing_touches, suspects_of
from perfgate.judge.tellings import notices_of
from perfgate.judge.verdict import Disturbance, Failure, Faults, Gated, GateVerdict, combine

INTERVAL_LEVEL = 0.95


@dataclass(frozen=True)
class Conditions:
    """What the box says of a run: how the two sides differed, and whether it moved."""

    environment: r.Environment = field(default_factory=r.Environment)
    disturbances: tuple[Disturbance, ...] = ()
    canary: tuple[r.CanaryResult, ...] = ()
    notices: tuple[r.Notice, ...] = ()


def judge_run(
    run: RunFacts, conditions: Conditions | None = None, earlier: Sequence[RunFacts] = (), skipped: str | None = None
) -> r.Result:
    """The whole result. `earlier` are the runs whose evidence this one continues, in time order."""
    conditions = conditions or Conditions()
    plan = run.plan
    judged = judge_metrics(run, earlier)
    faults = faults_of(run, conditions.disturbances, skipped)
    verdict = calibration_verdict(run, judged, faults) if plan.calibration else combine(gated_of(judged), faults)
    outputs = compared_outputs((*earlier, run))
    metrics = tuple(_metric(one, (*earlier, run)) for one in judged)
    parts = () if plan.calibration else decompositions(run, judged, earlier)
    regressed = verdict.verdict is r.Verdict.REGRESSION and not plan.calibration
    suspects = suspects_of(plan, metrics, parts) if regressed else ()
    nobody = nothing_touches(plan, metrics, parts) if regressed and not suspects else None
    return r.Result(
        run_id=plan.run_id,
        box=plan.box,
        started=run.facts[0].t,  # the plan is written again when more of it is known, and when a run is resumed
        finished=run.facts[-1].t,
        verdict=verdict.verdict,
        reason=verdict.reason,
        exit_code=int(verdict.exit_code),
        failed_side=verdict.failed_side,
        base=_side(run, r.Side.BASE, plan.base),
        head=_side(run, r.Side.HEAD, plan.head),
        limits=plan.limits,
        cost=cost_of(run),
        metrics=metrics,
        launches=_launch_results(run),
        environment=conditions.environment,
        canary=conditions.canary,
        decomposition=parts,
        suspects=suspects,
        warnings=(
            *conditions.notices,
            *_tolerated(verdict),
            *probe_notices(run),
            *false_alarms(run, judged),
            *notices_of(run, judged, outputs, earlier),
            *((nobody,) if nobody else ()),
        ),
        outputs_differ=any(one.differ for one in outputs.values()) if outputs else None,
        pr=plan.pr,
        continues=plan.continues,
        calibration=plan.calibration,
        profile=plan.profile,
        perfgate=plan.perfgate,
    )


def disturbed(run: RunFacts, disturbances: Sequence[Disturbance]) -> bool:
    """Whether the box moved while the run measured, so that its pairs say nothing.

    Whatever ended the run, or kept it from going on, took nothing from the pairs that it had.
    """
    verdict = combine(gated_of(judge_metrics(run)), Faults(environment=tuple(disturbances)))
    return verdict.verdict is r.Verdict.ENVIRONMENT


def gated_of(judged: Iterable[JudgedMetric]) -> tuple[Gated, ...]:
    return tuple(
        Gated(
            recipe=one.plan.recipe,
            metric=one.plan.metric,
            decision=one.decision,
            budget=one.plan.budget,
            better="higher" if r.METRICS[one.plan.metric].better is r.Better.HIGHER else "lower",
            concurrency=one.plan.concurrency,
        )
        for one in judged
        if one.plan.gated
    )


def faults_of(run: RunFacts, disturbances: Sequence[Disturbance] = (), skipped: str | None = None) -> Faults:
    """Faults as the verdict counts them. A launch that failed once and then served left no fault behind."""
    builds = [build for build in run.builds.values() if not build.ok]
    return Faults(
        skipped=skipped,
        build=tuple(Failure(build.reason, build.side if build.blame is r.Blame.SIDE else None) for build in builds),
        environment=(*(Disturbance(f.text) for f in run.faults if f.code == r.DOCTOR_FAULT), *disturbances),
        bench=tuple(
            Failure(f.text, f.side if f.blame is r.Blame.SIDE else None)
            for f in run.faults
            if f.code not in (r.DOCTOR_FAULT, r.STOPPED_FAULT)
        ),
        stopped=next((f.text for f in run.faults if f.code == r.STOPPED_FAULT), None),
    )


def _tolerated(verdict: GateVerdict) -> tuple[r.Notice, ...]:
    return tuple(
        r.Notice(
            code="box_moved_little",
            text=f"{one.text.rstrip('.')}: too little to excuse the loss that was measured.",
            data={"shift": one.shift},
        )
        for one in verdict.tolerated
    )


def _side(run: RunFacts, side: r.Side, commit: r.Commit) -> r.SideResult:
    build = run.builds.get(side)
    return r.SideResult(sha=commit.sha, tree=commit.tree, build=build.key if build else None, title=commit.title)


def _metric(one: JudgedMetric, runs: Sequence[RunFacts]) -> r.Metric:
    plan, decision, kind = one.plan, one.decision, r.METRICS[one.plan.metric]
    base = _base_value(one) if decision else None
    turned = decision.slowdown * (-1 if kind.better is r.Better.HIGHER else 1) if decision else None
    exact = plan.metric == "accept_length" and _is_one_value(one)
    return r.Metric(
        recipe=plan.recipe,
        metric=plan.metric,
        concurrency=plan.concurrency,
        unit=kind.unit,
        better=kind.better,
        base=base,
        head=base * math.exp(turned) if base is not None and turned is not None else None,
        change=math.expm1(turned) if turned is not None else None,
        slowdown=decision.slowdown if decision else None,
        low=0.0 if exact else _finite(decision.low) if decision else None,
        high=0.0 if exact else _finite(decision.high) if decision else None,
        interval_level=INTERVAL_LEVEL,
        detectable=0.0 if exact else _finite(decision.detectable) if decision else None,
        budget=plan.budget,
        alpha=plan.alpha,
        gated=plan.gated,
        verdict=_verdict_of(one, runs),
        effect=r.Effect.SAME if exact else r.Effect(decision.effect.value) if decision else r.Effect.UNKNOWN,
        pairs=decision.pairs if decision else 0,
    )


def _is_one_value(one: JudgedMetric) -> bool:
    """A count at temperature 0 that came out the same in every launch has no scatter that would have to be assumed."""
    values = {value for pair in one.pairs for value in (*pair.base, *pair.head)}
    return len(one.pairs) > 1 and len(values) == 1


def _verdict_of(one: JudgedMetric, runs: Sequence[RunFacts]) -> r.MetricVerdict:
    if one.decision:
        return r.MetricVerdict(one.decision.state.value)
    measured = any(run.pairs_of(one.plan.recipe) for run in runs)
    return r.MetricVerdict.ABSENT if measured else r.MetricVerdict.CONTINUE


def _base_value(one: JudgedMetric) -> float:
    """Geometric mean of base's launch values."""
    return math.exp(statistics.fmean(math.log(statistics.median(pair.base)) for pair in one.pairs))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _launch_results(run: RunFacts) -> tuple[r.LaunchResult, ...]:
    paired = {name for pair in run.pairs for name in (pair.base, pair.head)}
    second = {pair.head if pair.first is r.Side.BASE else pair.base for pair in run.pairs}
    wanted = [(plan.recipe, plan.metric, plan.concurrency) for plan in run.plan.metrics]
    return tuple(
        r.LaunchResult(
            id=launch.id,
            position=(2 if launch.id in second else 1) if launch.id in paired else launch.position,
            valid=launch.valid,
            values={
                f"{metric}@{concurrency}": launch.value(metric, concurrency)
                for recipe, metric, concurrency in wanted
                if launch.is_of(recipe)
            },
            paired=launch.id in paired,
        )
        for launch in run.launches.values()
        if launch.end is not None and launch.end.pair > 0  # none to throw away
    )


def cost_of(run: RunFacts) -> r.Cost:
    return r.Cost(launches=len(run.launches), gpu_minutes=gpu_minutes(run), wall_s=_wall_seconds(run.facts))


def gpu_minutes(run: RunFacts) -> float | None:
    """None where there is no GPU."""
    gpus = max((len(fact.gpus) for fact in run.facts if isinstance(fact, r.Telemetry)), default=0)
    return minutes_spent(run) * gpus if gpus else None


def minutes_spent(run: RunFacts) -> float:
    """Minutes of launches of this run, valid or not; of one that was killed, until its last fact."""
    ended = math.fsum(launch.end.wall_s for launch in run.launches.values() if launch.end)
    killed = math.fsum(_seconds_until_killed(run, name) for name, one in run.launches.items() if not one.end)
    return (ended + killed) / 60


def _seconds_until_killed(run: RunFacts, name: str) -> float:
    of_it = [fact.mono for fact in run.facts if isinstance(fact, r.LaunchFact) and launch_id(fact) == name]
    return max(of_it) - min(of_it)


def _wall_seconds(facts: Sequence[r.Fact]) -> float:
    """From the first fact to the last, without what lay between an interruption and the plan of going on."""
    times = [datetime.fromisoformat(fact.t) for fact in facts]
    went_on = [number for number, fact in enumerate(facts) if isinstance(fact, r.Plan) and number > 0]
    pauses = math.fsum((times[number] - times[number - 1]).total_seconds() for number in went_on)
    return (times[-1] - times[0]).total_seconds() - pauses
