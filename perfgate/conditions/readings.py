"""The canary's readings in words: steady, moved, or too noisy to say; and which GPU it was."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping

from perfgate import records as r
from perfgate.conditions.fingerprint import Cause, Finding
from perfgate.conditions.shift import CLOCK, CanarySeries, Shift, canary_readings, judge_shift, prior_of
from perfgate.config.model import BoxRule, EnvironmentRules
from perfgate.judge.evidence import RunFacts

UNITS = {"us": "µs", "ms": "ms", "mhz": "MHz"}


def canary_results(
    run: RunFacts, rules: EnvironmentRules, alpha: float
) -> tuple[list[Finding], tuple[r.CanaryResult, ...]]:
    """Findings of what moved, and a line for each reading. `alpha` is each reading's own."""
    findings, results = [], []
    for reading in canary_readings(run):
        rule: BoxRule = "clock" if reading.name == CLOCK else "canary"
        shift = judge_shift(reading.pairs, prior_of(reading.within, reading.pairs), getattr(rules, rule), alpha)
        if shift is None:
            continue
        result = _result(reading, shift)
        results.append(result)
        if shift.moved:
            findings.append(_moved(run, reading, shift, rule, result))
    return [*findings, *_links(run)], tuple(results)


def _result(reading: CanarySeries, shift: Shift) -> r.CanaryResult:
    unit = UNITS.get(reading.name.rpartition("_")[2], "")
    numbers = f"{_named(reading.name)} {_number(reading.base)} → {_number(reading.head)} {unit}".rstrip()
    if shift.moved:
        sentence = f"the box moved: {numbers} from base's launches to head's"
    elif shift.steady:
        sentence = f"the box did not move: {numbers}"
    else:
        sentence = f"{numbers}: too few readings to say whether the box moved"
    return r.CanaryResult(
        name=reading.name,
        unit=unit,
        before=reading.base,
        after=reading.head,
        shift=shift.by,
        steady=False if shift.moved else (True if shift.steady else None),
        sentence=sentence,
    )


def _moved(run: RunFacts, reading: CanarySeries, shift: Shift, rule: BoxRule, result: r.CanaryResult) -> Finding:
    what = f"under the same load GPU {_slowest_gpu(run)}'s clock" if rule == "clock" else _named(reading.name)
    base, head = (f"{_number(value)} {result.unit}" for value in (reading.base, reading.head))
    return Finding(
        what="clock under the canary" if rule == "clock" else f"canary: {_named(reading.name)}",
        cause=Cause.UNEXPLAINED,
        sentence=f"{what} was {head} next to head's launches and {base} next to base's",
        base=base,
        head=head,
        rule=rule,
        shift=shift.by,
    )


def _named(name: str) -> str:
    if found := re.fullmatch(r"allreduce_(\d+)k_us", name):
        return f"all-reduce of {found[1]} KB"
    return {"compute_ms": "the fixed computing load", CLOCK: "the slowest GPU's clock"}.get(name, name)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}" if value < 10 else f"{value:.1f}"


def _of_gpus(run: RunFacts, what: str) -> Mapping[str, Mapping[r.Side, list[float]]]:
    """GPU → side → the canary's readings of it next to that side's launches, in pairs only."""
    sides = {name: side for pair in run.pairs for name, side in ((pair.base, r.Side.BASE), (pair.head, r.Side.HEAD))}
    found: dict[str, dict[r.Side, list[float]]] = {}
    for fact in run.facts:
        if isinstance(fact, r.Canary) and fact.launch in sides:
            for name, values in fact.readings.items():
                if (match := re.fullmatch(rf"gpu(\d+)_{what}", name)) and values:
                    of_gpu = found.setdefault(match[1], {})
                    of_gpu.setdefault(sides[fact.launch], []).append(statistics.median(values))
    return {gpu: both for gpu, both in found.items() if len(both) == len(r.Side)}


def _slowest_gpu(run: RunFacts) -> str:
    """The GPU whose clock moved most between the sides."""
    clocks = _of_gpus(run, CLOCK)

    def moved(gpu: str) -> float:
        both = clocks[gpu]
        return abs(statistics.fmean(both[r.Side.HEAD]) / statistics.fmean(both[r.Side.BASE]) - 1)

    return max(clocks, key=moved, default="?")


def _links(run: RunFacts) -> Iterator[Finding]:
    """A link that never reached the same generation beside head as beside base."""
    for gpu, both in _of_gpus(run, "pcie_gen").items():
        base, head = (f"Gen{max(both[side]):.0f}" for side in (r.Side.BASE, r.Side.HEAD))
        if base != head:
            yield Finding(
                what=f"link of GPU {gpu}",
                cause=Cause.UNEXPLAINED,
                sentence=f"GPU {gpu}'s link reached {head} next to head's launches, {base} next to base's",
                base=base,
                head=head,
                rule="link",
            )
