"""The answer of a bisect for people, for machines, and as a log that `git bisect replay` takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from perfgate import records as r
from perfgate.blame.bisect.evidence import Seen, posterior
from perfgate.blame.bisect.loop import Bisected
from perfgate.blame.bisect.search import Kind, Line, SearchFinding
from perfgate.errors import Exit

SCHEMA = "perfgate.bisect/1"
SHORT = 12


def exit_code(found: Bisected) -> Exit:
    """0: everything that was found has a name and is confirmed; 3: a range, or no difference."""
    told = [one for one in found.findings if one.kind is not Kind.SMALL]
    return Exit.OK if told and all(one.kind is Kind.NAMED for one in told) else Exit.INCONCLUSIVE


def sentences(found: Bisected) -> Iterator[str]:
    for one in found.findings:
        yield _sentence(one, found)
    if found.stopped:
        yield f"It ended at {found.stopped}."
    if found.broken:
        skipped = ", ".join(found.line[at].commit.sha[:SHORT] for at in sorted(found.broken))
        yield f"Skipped, because they do not build or serve: {skipped}."
    commits = f"{len(found.line) - 1} commits that can change how SGLang serves"
    yield f"{found.launches} launches in {found.minutes:.0f} minutes, {commits}."


def _sentence(one: SearchFinding, found: Bisected) -> str:
    what = f"{r.METRICS[found.asked.metric].label} of {found.asked.recipe}"
    good, bad = found.line[0].commit, found.line[-1].commit
    error = f"{100 * found.rules.alpha:g} %"
    match one.kind:
        case Kind.NAMED:
            commit = found.line[one.newer].commit
            side = "slower" if (one.slowdown or 0) > 0 else "faster"
            return (
                f"{commit.sha} {commit.title}: {what} {change(one.slowdown, found)}, measured against its parent"
                f" (error {error}). The commits around it are as fast as their ends: this one made it {side}."
            )
        case Kind.RANGE:
            first, last = found.line[min(one.older + 1, one.newer)].commit, found.line[one.newer].commit
            number = one.newer - one.older
            held = f" with {100 * one.probability:.0f} %" if one.probability is not None else ""
            cost = f" Naming one would take about {one.pairs_to_narrow} pairs more." if one.pairs_to_narrow else ""
            return (
                f"One of the {number} commits from {first.sha[:SHORT]} to {last.sha[:SHORT]}{held}:"
                f" {what} {change(one.slowdown, found)}. No single one is named.{cost}"
            )
        case Kind.SAME:
            return (
                f"{good.sha[:SHORT]} and {bad.sha[:SHORT]} do not differ in {what}: {change(one.slowdown, found)},"
                f" less than {100 * -math.expm1(-found.rules.budget):.0f} % with 95 %. There is no commit to look for."
            )
        case Kind.UNDECIDED:
            ends = f"{good.sha[:SHORT]} and {bad.sha[:SHORT]}"
            return f"Whether {ends} differ in {what} cannot be told on this box: too much noise."
        case Kind.SMALL:
            first, last = found.line[one.older].commit, found.line[one.newer].commit
            return f"Between {first.sha[:SHORT]} and {last.sha[:SHORT]} there is no further step worth naming."
        case Kind.STUCK:
            return "It could not be measured."


def change(slowdown: float | None, found: Bisected) -> str:
    """−36 %, in the metric's own direction."""
    if slowdown is None:
        return "not measured"
    better = r.METRICS[found.asked.metric].better
    share = 100 * math.expm1(-slowdown if better is r.Better.HIGHER else slowdown)
    return f"{share:+.1f} %".replace("-", "−")


def as_data(found: Bisected) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "recipe": found.asked.recipe,
        "metric": found.asked.metric,
        "good": found.line[0].commit.sha,
        "bad": found.line[-1].commit.sha,
        "alpha": found.rules.alpha,
        "commits": [{**asdict(one.commit), "alike": list(one.alike)} for one in found.line],
        "suspicion": {found.line[at].commit.sha: weight for at, weight in found.weight.items()},
        "steps": [
            {
                "older": found.line[one.step.older].commit.sha,
                "newer": found.line[one.step.newer].commit.sha,
                "why": one.step.why.value,
                "slowdown": one.slowdown,
                "broken": None if one.broken is None else found.line[one.broken].commit.sha,
            }
            for one in found.measured
        ],
        "probability": probabilities(found),
        "findings": [
            {
                "kind": one.kind.name.lower(),
                "after": found.line[one.older].commit.sha,
                "commit": found.line[one.newer].commit.sha,
                "slowdown": one.slowdown,
                "probability": one.probability,
                "pairs_to_narrow": one.pairs_to_narrow,
            }
            for one in found.findings
        ],
        "sentences": list(sentences(found)),
        "minutes": found.minutes,
        "launches": found.launches,
        "stopped": found.stopped or None,
        "exit_code": int(exit_code(found)),
    }


def probabilities(found: Bisected) -> dict[str, float]:
    """Of each commit, that it alone is the step; what is missing to 1 is more than one step."""
    last = len(found.line) - 1
    line = Line(last, found.broken, found.weight)
    seen = [
        Seen(m.step.older, m.step.newer, m.slowdown, m.step.within) for m in found.measured if m.slowdown is not None
    ]
    places = line.places(0, last)
    if not any((one.older, one.newer) == (0, last) for one in seen):
        return {}
    now = posterior(places, seen, line.prior(places), found.rules.noise)
    return {found.line[at].commit.sha: p for at, p in now.single.items()}


def git_bisect_log(found: Bisected) -> str:
    """What a person would have answered. `git bisect replay` takes it; a range ends without a name."""
    levels = answers(found)
    lines = ["git bisect start"]
    named = next((one for one in found.findings if one.kind is Kind.NAMED and (one.slowdown or 0) > 0), None)
    if named is not None:  # the log tells one step: what lies beyond its parent and itself follows from them
        levels = {at: slow for at, slow in levels.items() if slow == (at >= named.newer)}
        levels |= {named.older: False, named.newer: True}
    for at, slow in sorted(levels.items(), key=lambda item: (item[0] not in (0, len(found.line) - 1), item[0])):
        commit = found.line[at].commit
        word = "bad" if slow else "good"
        lines += [f"# {word}: [{commit.sha}] {commit.title}", f"git bisect {word} {commit.sha}"]
    for at in sorted(found.broken):
        lines.append(f"git bisect skip {found.line[at].commit.sha}")
    if named is not None:
        commit = found.line[named.newer].commit
        lines.append(f"# first bad commit: [{commit.sha}] {commit.title}")
    return "\n".join(lines) + "\n"


def answers(found: Bisected) -> dict[int, bool]:
    """Measured positions: whether they are as slow as bad, by half of the difference."""
    last = len(found.line) - 1
    ends = [
        one.slowdown
        for one in found.measured
        if (one.step.older, one.step.newer) == (0, last) and one.slowdown is not None
    ]
    half = sum(ends) / len(ends) / 2 if ends else 0.0
    told: dict[int, list[float]] = {}
    for one in found.measured:
        if one.slowdown is None:
            continue
        if one.step.older == 0:
            told.setdefault(one.step.newer, []).append(one.slowdown)
        elif one.step.newer == last:
            told.setdefault(one.step.older, []).append(2 * half - one.slowdown)
    answers = {at: sum(values) / len(values) > half for at, values in told.items()}
    return answers | {0: False, last: True}
