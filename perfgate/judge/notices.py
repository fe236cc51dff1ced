"""What a reader should be told besides the verdict: other outputs, a loss in one kind of prompt, absent metrics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfgate import records as r
from perfgate.judge.evidence import Evidence, Launch, RunFacts
from perfgate.judge.metrics import JudgedMetric
from perfgate.judge.verdict import was_cancelled
from perfgate.text import count

MOST_RUNS_TOLD = 3  # the latest
CONFINED_SHARE = 0.5  # a kind counts as hit alone when the others lost less than this share of its loss
MOST_NOTICES = 6  # of the probe; a hostile head could warn of thousands of things
MOST_TEXT = 300


def notices_of(
    evidence: Evidence, judged: Sequence[JudgedMetric], outputs: Mapping[str, ComparedOutputs]
) -> tuple[r.Notice, ...]:
    run = evidence.run
    compared = () if run.plan.calibration else run.plan.recipes
    return (
        *_cancelled(run),
        *_failures(run),
        *_passing_failures(run),
        *(r.Notice(code="condition", text=note) for note in run.plan.notes),
        *_earlier_pairs(evidence),
        *_evidence_notices(evidence),
        *_differing_outputs(outputs),
        *(notice for recipe in compared for notice in confined_losses(run, recipe)),
        *_absent_metrics(evidence, judged),
        *_judges_warnings(run, judged),
    )


def _cancelled(run: RunFacts) -> tuple[r.Notice, ...]:
    stops = [fault.text for fault in run.faults if fault.code == r.STOPPED_FAULT and was_cancelled(fault.text)]
    return tuple(r.Notice(code="cancelled", text=f"The run was {text}.") for text in stops[:1])


def _passing_failures(run: RunFacts) -> tuple[r.Notice, ...]:
    """Launches that failed by their side's own doing and served when repeated: no fault, but no secret either."""
    ends = [launch.end for launch in run.launches.values() if launch.end and launch.end.pair > 0]
    lasting = {fault.side for fault in run.faults}
    notices = []
    for side in r.Side:
        failed = [end for end in ends if end.side is side and not end.valid and end.blame in (None, r.Blame.SIDE)]
        if failed and side not in lasting:
            other = next(one for one in r.Side if one is not side)
            counts = {one: sum(end.side is one for end in ends) for one in r.Side}
            others = sum(end.side is other and not end.valid for end in ends)
            crashed = "crashed" if all(end.code == "server_died" for end in failed) else "failed"
            reason = failed[0].reasons[0] if failed[0].reasons else "its log gives no reason"
            notices.append(
                r.Notice(
                    code="failed_in_passing",
                    text=f"{side.value} {crashed} {_times(len(failed))} in {counts[side]} launches,"
                    f" {other.value} {_times(others)}: {reason}",
                    data={"side": side.value, "failed": len(failed), "launches": counts[side], "other": others},
                )
            )
    return tuple(notices)


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _failures(run: RunFacts) -> tuple[r.Notice, ...]:
    """The last useful lines of what failed."""
    builds = [("build_log", build.reason, build.lines) for build in run.builds.values() if not build.ok]
    faults = [(f.code, f.text, f.lines or _lines_of(run, f.launch)) for f in run.faults]
    return tuple(
        r.Notice(code=code, text=text, data={"lines": list(lines)}) for code, text, lines in (*builds, *faults) if lines
    )


def _lines_of(run: RunFacts, launch: str | None) -> tuple[str, ...]:
    found = run.launches.get(launch or "")
    return found.end.lines if found and found.end else ()


def _differing_outputs(outputs: Mapping[str, ComparedOutputs]) -> tuple[r.Notice, ...]:
    return tuple(
        r.Notice(
            code="outputs_differ",
            text=f"{recipe}: head answers {count.differ} of {count.compared} prompts with other tokens than base,"
            " at temperature 0.",
            data={"recipe": recipe, "prompts": count.differ, "compared": count.compared},
        )
        for recipe, count in outputs.items()
        if count.differ
    )


def confined_losses(run: RunFacts, recipe: r.RecipePlan) -> tuple[r.Notice, ...]:
    """A kind of prompt that lost at least the budget while the others lost far less, in every pair.

    Fewer pairs than a regression needs have to show twice the budget.
    """
    losses = kind_losses(run, recipe.name)
    if len(losses) < 2:
        return ()
    budget = min(
        (plan.budget for plan in run.plan.metrics if (plan.recipe, plan.metric) == (recipe.name, "tok_s")), default=0.03
    )
    notices = []
    for kind, by_pair in losses.items():
        rest = statistics.median(statistics.fmean(values) for name, values in losses.items() if name != kind)
        enough = budget if len(by_pair) >= run.plan.limits.min_pairs_to_fail else 2 * budget
        if all(loss >= enough and rest < CONFINED_SHARE * loss for loss in by_pair):
            loss = -math.expm1(-statistics.fmean(by_pair))
            notices.append(
                r.Notice(
                    code="loss_confined_to_kind",
                    text=f"{recipe.name}: the loss is in the {kind} prompts: −{100 * loss:.0f} % tok/s there,"
                    f" {_signed(100 * math.expm1(-rest))} % elsewhere.",
                    data={"recipe": recipe.name, "kind": kind, "slowdown": statistics.fmean(by_pair), "rest": rest},
                )
            )
    return tuple(notices)


def _signed(percent: float) -> str:
    return f"{percent:+.0f}".replace("-", "−")


def kind_losses(run: RunFacts, recipe: str) -> dict[str, list[float]]:
    """Slowdown of tok_s (log, + = slower) of each kind of prompt, pair by pair, at the first concurrency."""
    concurrency = run.recipe(recipe).concurrencies[0]
    losses: dict[str, list[float]] = {}
    for pair in run.pairs_of(recipe):
        base, head = (_speeds_by_kind(launch, concurrency) for launch in run.sides_of(pair))
        for kind in base.keys() & head.keys():
            losses.setdefault(kind, []).append(math.log(base[kind] / head[kind]))
    return dict(sorted(losses.items()))


def _speeds_by_kind(launch: Launch, concurrency: int) -> dict[str, float]:
    speeds: dict[str, list[float]] = {}
    for sample in launch.samples:
        if sample.concurrency == concurrency:
            for kind, speed in sample.tok_s_by_kind.items():
                speeds.setdefault(kind, []).append(speed)
    return {kind: statistics.median(values) for kind, values in speeds.items() if min(values) > 0}


def _absent_metrics(evidence: Evidence, judged: Sequence[JudgedMetric]) -> tuple[r.Notice, ...]:
    notices = []
    for one in judged:
        if one.decision is not None and one.missing_in:
            lacking = ", ".join(one.missing_in[:3]) + (" …" if len(one.missing_in) > 3 else "")
            text = (
                f"{one.name} is missing in {lacking}: it is judged on the {count(len(one.pairs), 'pair')} of"
                f" {len(evidence.pairs(one.plan.recipe))} that have it."
            )
            data = {"recipe": one.plan.recipe, "metric": one.plan.metric, "missing_in": list(one.missing_in)}
            notices.append(r.Notice(code="pairs_without_metric", text=text, data=data))
        if one.plan.fallback and one.decision is None and evidence.pairs(one.plan.recipe):
            why = f"it is missing in {', '.join(one.missing_in[:3])}" if one.missing_in else "the probe found nothing"
            notices.append(
                r.Notice(
                    code="metric_absent",
                    text=f"{one.plan.recipe}: {r.metric_label(one.plan.metric)} is absent ({why}), so"
                    f" {r.metric_label(one.plan.fallback)} is judged in its place.",
                    data={"recipe": one.plan.recipe, "metric": one.plan.metric, "instead": one.plan.fallback},
                )
            )
    return tuple(notices)


def _judges_warnings(run: RunFacts, judged: Sequence[JudgedMetric]) -> tuple[r.Notice, ...]:
    """A calibration does not ask for a calibration."""
    not_told = ("no_prior", "spread_above_prior") if run.plan.calibration else ()
    return tuple(
        r.Notice(
            code=warning.code,
            text=f"{one.name}: {warning.text}",
            data={**warning.data, "recipe": one.plan.recipe, "metric": one.plan.metric},
        )
        for one in judged
        if one.decision and one.plan.gated
        for warning in one.decision.warnings
        if warning.code not in not_told
    )


def _earlier_pairs(evidence: Evidence) -> tuple[r.Notice, ...]:
    """How many pairs came from which earlier run."""
    counts = pairs_by_run(evidence)
    if not counts:
        return ()
    total = sum(sum(by_recipe.values()) for by_recipe in counts.values())
    named = [
        f"{' and '.join(f'{count} of {recipe}' for recipe, count in by_recipe.items())} from run {name}"
        for name, by_recipe in counts.items()
    ]
    more = f"; and {len(named) - MOST_RUNS_TOLD} more runs" if len(named) > MOST_RUNS_TOLD else ""
    text = f"{total} earlier pair{'' if total == 1 else 's'} counted too: {'; '.join(named[-MOST_RUNS_TOLD:])}{more}."
    return (r.Notice(code="evidence_joined", text=text, data={"pairs": total, "runs": counts}),)


def pairs_by_run(evidence: Evidence) -> dict[str, dict[str, int]]:
    """Earlier run → recipe → how many of its pairs count for this run; oldest first."""
    counts: dict[str, dict[str, int]] = {one.plan.run_id: {} for one in evidence.earlier}
    for recipe in evidence.run.plan.recipes:
        for pair in evidence.earlier_pairs(recipe.name):
            by_recipe = counts[pair.run]
            by_recipe[recipe.name] = by_recipe.get(recipe.name, 0) + 1
    return {name: by_recipe for name, by_recipe in counts.items() if by_recipe}


def _evidence_notices(evidence: Evidence) -> tuple[r.Notice, ...]:
    """The same words for several recipes are said once."""
    notices = (notice for recipe in evidence.run.plan.recipes for notice in evidence.notices(recipe.name))
    return tuple({notice.text: notice for notice in notices}.values())


# ------------------------------------------------------------------------------------------------ what head answers


@dataclass(frozen=True)
class ComparedOutputs:
    """Prompts of one recipe that head answers otherwise than base, of those that could be compared."""

    differ: int
    compared: int


def compared_outputs(runs: Sequence[RunFacts]) -> dict[str, ComparedOutputs]:
    """Recipe → its prompts whose answers can be compared: those that each side answers always alike.

    What is measured is asked once and never again, so whether a side answers alike is seen in what is asked at every
    launch before; only then do its measured answers say something as well.
    """
    found: dict[str, ComparedOutputs] = {}
    for recipe in dict.fromkeys(pair.recipe for run in runs for pair in run.pairs):
        launches = [launch for run in runs for pair in run.pairs_of(recipe) for launch in run.sides_of(pair)]
        differs = _differs(launches)
        if differs:
            found[recipe] = ComparedOutputs(sum(differs.values()), len(differs))
    return found


def _differs(launches: Sequence[Launch]) -> dict[str, bool]:
    """Of each prompt that can be compared, whether head answers it otherwise."""
    warm: dict[str, dict[r.Side, set[str]]] = {}
    measured: dict[tuple[str, str], dict[r.Side, set[str]]] = {}  # by the prompt and what was asked
    for launch in launches:
        for prompt, output in (launch.end.outputs if launch.end else {}).items():
            warm.setdefault(prompt, {}).setdefault(launch.side, set()).add(output)
        for request in (request for sample in launch.samples for request in sample.requests):
            measured.setdefault((request.prompt, request.asked), {}).setdefault(launch.side, set()).add(request.output)
    unmarked = {prompt: sides for (prompt, asked), sides in measured.items() if not asked}  # of earlier versions
    alike = {prompt: sides for prompt, sides in {**unmarked, **warm}.items() if _both_alike(sides)}
    differs = {prompt: sides[r.Side.BASE] != sides[r.Side.HEAD] for prompt, sides in alike.items()}
    for prompt in [prompt for prompt, differ in differs.items() if not differ]:
        pairs = [s for (one, asked), s in measured.items() if one == prompt and asked and _both_alike(s)]
        others = sum(sides[r.Side.BASE] != sides[r.Side.HEAD] for sides in pairs)
        differs[prompt] = others * 2 > len(pairs)
    return differs


def _both_alike(sides: Mapping[r.Side, set[str]]) -> bool:
    return all(len(sides.get(side, ())) == 1 for side in r.Side)


# ------------------------------------------------------------------------------------------------ what the probe says


def probe_notices(run: RunFacts) -> tuple[r.Notice, ...]:
    """What the probe warns of, once for each recipe and side, in words of the code under test.

    The first warning of each kind; `data` says in how many launches of pairs it was found.
    """
    paired = {name for pair in run.pairs for name in (pair.base, pair.head)}
    first: dict[tuple[str, str, r.Side], Mapping[str, Any]] = {}
    launches: dict[tuple[str, str, r.Side], set[str]] = {}
    for fact in run.facts:
        if isinstance(fact, r.Phases) and fact.launch_id in paired:
            for warning in fact.warnings:
                key = (str(warning.get("code", "")), fact.recipe, fact.side)
                first.setdefault(key, warning)
                launches.setdefault(key, set()).add(fact.launch_id)
    return tuple(_notice(key, warning, len(launches[key])) for key, warning in list(first.items())[:MOST_NOTICES])


def _notice(key: tuple[str, str, r.Side], warning: Mapping[str, Any], launches: int) -> r.Notice:
    code, recipe, side = key
    count = f" ({launches} launches)" if launches > 1 else ""
    text = f"{recipe}, {side.value}{count}: {str(warning.get('text', ''))[:MOST_TEXT]}"
    return r.Notice(code=code[:60], text=text, data={"recipe": recipe, "side": side.value, "launches": launches})
