"""The result of a run, from its facts and what the box says of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from perfgate import records as r
from perfgate.judge.calibration import calibration_verdict, false_alarms
from perfgate.judge.decompose import ACCEPT, PLAIN_PHASES, SPECULATIVE_PHASES, decompose, read_recipes
from perfgate.judge.evidence import Evidence, Launch, RunFacts
from perfgate.judge.metrics import JudgedMetric, gated, judge_metrics, lacking, prior_of
from perfgate.judge.notices import compared_outputs, notices_of, probe_notices
from perfgate.judge.suspects import nothing_touches, suspects_of
from perfgate.judge.values import Decision
from perfgate.judge.verdict import Disturbance, Faults, GateVerdict, RunFailure, combine

INTERVAL_LEVEL = 0.95


@dataclass(frozen=True)
class Conditions:
    """What the box says of a run: how the two sides differed, and whether it moved."""

    environment: r.Environment = field(default_factory=r.Environment)
    disturbances: tuple[Disturbance, ...] = ()
    canary: tuple[r.CanaryResult, ...] = ()
    notices: tuple[r.Notice, ...] = ()


def judge_run(evidence: Evidence, conditions: Conditions | None = None, skipped: str | None = None) -> r.Result:
    """The whole result of the run that the evidence is of."""
    conditions, run = conditions or Conditions(), evidence.run
    plan, judged = run.plan, judge_metrics(evidence)
    faults = faults_of(run, conditions.disturbances, skipped)
    verdict = calibration_verdict(run, judged, faults) if plan.calibration else combine(gated(judged), faults)
    outputs = compared_outputs((*evidence.earlier, run))
    metrics = tuple(_metric(one, measured=bool(evidence.pairs(one.plan.recipe))) for one in judged)
    parts = () if plan.calibration else decompositions(evidence, judged)
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
            *notices_of(evidence, judged, outputs),
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
    verdict = combine(gated(judge_metrics(Evidence(run))), Faults(environment=tuple(disturbances)))
    return verdict.verdict is r.Verdict.ENVIRONMENT


def faults_of(run: RunFacts, disturbances: Sequence[Disturbance] = (), skipped: str | None = None) -> Faults:
    """Faults as the verdict counts them. A launch that failed once and then served left no fault behind."""
    builds = [build for build in run.builds.values() if not build.ok]
    return Faults(
        skipped=skipped,
        build=tuple(RunFailure(build.reason, build.side if build.blame is r.Blame.SIDE else None) for build in builds),
        environment=(*(Disturbance(f.text) for f in run.faults if f.code == r.DOCTOR_FAULT), *disturbances),
        bench=tuple(
            RunFailure(f.text, f.side if f.blame is r.Blame.SIDE else None)
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


def _metric(one: JudgedMetric, *, measured: bool) -> r.Metric:
    """`measured`: whether its recipe has a pair."""
    plan, decision, kind = one.plan, one.decision, one.kind
    absent = r.MetricVerdict.ABSENT if measured else r.MetricVerdict.CONTINUE
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
        verdict=one.state or absent,
        effect=r.Effect.SAME if exact else decision.effect if decision else r.Effect.UNKNOWN,
        pairs=decision.pairs if decision else 0,
    )


def _is_one_value(one: JudgedMetric) -> bool:
    """A count at temperature 0 that came out the same in every launch has no scatter that would have to be assumed."""
    values = {value for pair in one.pairs for value in (*pair.base, *pair.head)}
    return len(one.pairs) > 1 and len(values) == 1


def _base_value(one: JudgedMetric) -> float:
    """Geometric mean of base's launch values, of the pairs that the estimate stands on."""
    return math.exp(statistics.fmean(math.log(statistics.median(pair.base)) for pair in one.believed))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def decompositions(evidence: Evidence, judged: Sequence[JudgedMetric]) -> tuple[r.Decomposition, ...]:
    """Of each recipe's loss, from its launches: one for each recipe with pairs, at its first concurrency."""
    run = evidence.run
    tok_s = {
        one.plan.recipe: one
        for one in judged
        if one.plan.metric == "tok_s" and one.plan.concurrency == run.recipe(one.plan.recipe).concurrencies[0]
    }
    reading = _reading(run, tok_s)
    found = (_decomposition(evidence, one, reading) for one in tok_s.values())
    return tuple(one for one in found if one is not None)


def _decomposition(evidence: Evidence, judged: JudgedMetric, reading: str) -> r.Decomposition | None:
    if judged.decision is None:
        return None
    plan = judged.plan
    measured = [pair for pair in evidence.pairs(plan.recipe) if not lacking(pair, plan)]
    pairs = [
        (_medians(pair.base, plan.concurrency), _medians(pair.head, plan.concurrency))
        for pair in (measured[number] for number in judged.decision.believed)
    ]
    split = decompose(pairs, judged.decision.slowdown, prior_of(plan))
    if split is None:
        return None
    sentence = f"{plan.recipe} {split.sentence}."
    tells = evidence.run.recipe(plan.recipe).speculative and judged.decision.low > 0
    return r.Decomposition(
        recipe=plan.recipe,
        concurrency=plan.concurrency,
        total=split.slowdown,
        parts=tuple(
            r.Part(
                phase=share.name,
                slowdown=share.slowdown,
                low=share.low,
                high=share.high,
                base_ms=share.base if share.name != ACCEPT else None,
                head_ms=share.head if share.name != ACCEPT else None,
            )
            for share in split.shares
        ),
        sentence=f"{sentence} {reading}" if tells and reading else sentence,
    )


def _medians(launch: Launch, concurrency: int) -> dict[str, float | None]:
    names = ("tok_s", "cycle_ms", ACCEPT, *SPECULATIVE_PHASES, *PLAIN_PHASES)
    return {name: launch.value(name, concurrency) for name in names}


def _reading(run: RunFacts, tok_s: dict[str, JudgedMetric]) -> str:
    """What plain decoding and speculation say together; the first recipe of each kind speaks for it."""
    plain, speculative = (_first(run, tok_s, speculative=kind) for kind in (False, True))
    return read_recipes(plain, speculative).sentence if plain and speculative else ""


def _first(run: RunFacts, tok_s: dict[str, JudgedMetric], *, speculative: bool) -> Decision | None:
    names = [plan.name for plan in run.plan.recipes if plan.speculative is speculative]
    return next((tok_s[name].decision for name in names if name in tok_s), None)


def _launch_results(run: RunFacts) -> tuple[r.LaunchResult, ...]:
    paired = {name for pair in run.pairs for name in (pair.base, pair.head)}
    second = {pair.head if pair.first is r.Side.BASE else pair.base for pair in run.pairs}
    wanted = [(plan.recipe, plan.metric, plan.concurrency) for plan in run.plan.metrics]
    return tuple(
        r.LaunchResult(
            id=launch.id,
            position=(2 if launch.id in second else 1) if launch.id in paired else launch.begin.position,
            valid=launch.valid,
            values={
                f"{metric}@{concurrency}": launch.value(metric, concurrency)
                for recipe, metric, concurrency in wanted
                if launch.is_of(recipe)
            },
            paired=launch.id in paired,
        )
        for launch in run.launches.values()
        if launch.end is not None and launch.begin.pair > 0  # none to throw away
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
    of_it = [fact.mono for fact in run.facts if isinstance(fact, r.LaunchFact) and fact.launch_id == name]
    return max(of_it) - min(of_it)


def _wall_seconds(facts: Sequence[r.Fact]) -> float:
    """From the first fact to the last, without what lay between an interruption and the plan of going on."""
    times = [datetime.fromisoformat(fact.t) for fact in facts]
    went_on = [number for number, fact in enumerate(facts) if isinstance(fact, r.Plan) and number > 0]
    pauses = math.fsum((times[number] - times[number - 1]).total_seconds() for number in went_on)
    return (times[-1] - times[0]).total_seconds() - pauses
