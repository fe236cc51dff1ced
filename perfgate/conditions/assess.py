"""What the box says of a run: how the sides differed, whether it moved, and what makes the run say nothing.

One pure function over the facts. Whatever ends as `environment` is a `Disturbance` with one sentence; by DESIGN.md
that is only what was there before the code ran, or what no code does: other variables given or found at start, heat,
power brake, another link or power limit, strangers, a canary that moved, a reboot within a pair. The configuration may
turn a rule to a warning or off. What arose inside a server from the code under test stays an explanation beside the
verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from perfgate import records as r
from perfgate.conditions.fingerprint import PROVEN, Cause, Finding, Fingerprint, compare, fingerprints
from perfgate.conditions.gpus import against_launch, compare_gpus
from perfgate.conditions.nccl_reports import compare_reports
from perfgate.conditions.neighbours import crowding
from perfgate.conditions.readings import canary_results
from perfgate.conditions.shift import ALPHA, canary_readings
from perfgate.config.model import BoxRule, EnvironmentRules
from perfgate.host.public import public
from perfgate.judge.evidence import RunFacts
from perfgate.judge.result import Conditions
from perfgate.judge.verdict import Disturbance
from perfgate.text import visible

MOST_TOLD = 40  # differences of one kind; a hostile head could make thousands
MOST_TEXT = 300


def assess_environment(run: RunFacts, rules: EnvironmentRules | None = None) -> Conditions:
    """All that the box says of this run. `rules` default to those written in the plan."""
    rules = rules or EnvironmentRules.model_validate(dict(run.plan.environment))
    prints = fingerprints(run)
    findings = merged([*_of_pairs(run, prints, rules), *_of_launches(run, prints), *_of_crowding(run, rules)])
    looked_at, canary = canary_results(run, rules, _alpha(run))
    findings += looked_at
    return Conditions(
        environment=_environment(findings, rules),
        disturbances=tuple(_disturbances(findings, rules)),
        canary=canary,
        notices=(*_notices(findings, rules), *_lost_on_both(prints), *_canary_notices(run, canary)),
    )


def _alpha(run: RunFacts) -> float:
    """Of each reading in each direction: all of them together, and the waiting, share one."""
    return ALPHA / (2 * (1 + sum(1 for _ in canary_readings(run))))


# ------------------------------------------------------------------------------------------------ findings


def _of_pairs(run: RunFacts, prints: Mapping[str, Fingerprint], rules: EnvironmentRules) -> Iterator[Finding]:
    for pair in run.pairs:
        base, head = prints.get(pair.base), prints.get(pair.head)
        if base is not None and head is not None:
            yield from compare(base, head)
            yield from compare_reports(base, head)
            yield from compare_gpus(base, head, rules)


def _of_launches(run: RunFacts, prints: Mapping[str, Fingerprint]) -> Iterator[Finding]:
    """Of the last try of each launch: an earlier one that was disturbed has been repeated."""
    last: dict[tuple[str, int, r.Side], Fingerprint] = {}
    for fact in run.facts:
        if isinstance(fact, r.LaunchBegin) and fact.pair > 0:
            last[fact.recipe, fact.pair, fact.side] = prints[fact.id]
    for launch in last.values():
        yield from against_launch(launch)
        yield from _guests(run, launch)


def _guests(run: RunFacts, launch: Fingerprint) -> Iterator[Finding]:
    seen = {
        (guest["gpu"], guest["pid"], guest.get("command"))
        for fact in run.facts
        if isinstance(fact, r.Telemetry) and fact.launch_id == launch.launch
        for guest in fact.system.get("gpu_guests", ())
    }
    for gpu, pid, command in sorted(seen, key=str):
        who = f"pid {pid}, command {command}" if command else f"pid {pid}, not visible from here"
        yield Finding(
            what=f"strangers on GPU {gpu}",
            cause=Cause.UNEXPLAINED,
            sentence=f"another process ({who}) used GPU {gpu} during {launch.side.value}'s launch",
            rule="gpu_guest",
        )


def _of_crowding(run: RunFacts, rules: EnvironmentRules) -> Iterator[Finding]:
    found = crowding(run, rules.waiting, _alpha(run))
    if found is None:
        return
    base, head, shift = found.base, found.head, found.shift
    more = abs(head.cores - base.cores) >= rules.neighbour_cores
    told = (
        f"others used {head.cores:.1f} cores during head's samples and {base.cores:.1f} during base's; the server"
        f" waited for a core {100 * head.lost:.0f} % of the time for head and {100 * base.lost:.0f} % for base"
    )
    if more and (shift.moved or abs(shift.by) >= rules.waiting):
        yield Finding(
            what="neighbours",
            cause=Cause.UNEXPLAINED,
            sentence=told,
            base=f"{base.cores:.1f} cores",
            head=f"{head.cores:.1f} cores",
            rule="neighbour",
            shift=shift.by,
            alone=shift.moved,
        )
    elif more:
        yield Finding(what="neighbours", cause=Cause.EXPLAINED, sentence=f"{told}: too little to matter")
    else:
        sentence = f"others used about {max(base.cores, head.cores):.1f} cores beside either side"
        yield Finding(what="neighbours", cause=Cause.SAME, sentence=sentence)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Each thing once. What is the same in one pair and not in another is not the same."""
    kept: dict[tuple[str, Cause, str | None, str | None, BoxRule | None], Finding] = {}
    for finding in findings:
        kept.setdefault((finding.what, finding.cause, finding.base, finding.head, finding.rule), finding)
    differing = {finding.what for finding in kept.values() if finding.cause is not Cause.SAME}
    return [f for f in kept.values() if f.cause is not Cause.SAME or f.what not in differing]


# ------------------------------------------------------------------------------------------------ told


def _environment(findings: Sequence[Finding], rules: EnvironmentRules) -> r.Environment:
    shown = [finding for finding in findings if finding.rule is None or rules.of(finding.rule) != "off"]
    return r.Environment(
        same=_differences(shown, Cause.SAME),
        explained=_differences(shown, Cause.EXPLAINED),
        unexplained=_differences(shown, Cause.UNEXPLAINED),
    )


def _differences(findings: Sequence[Finding], cause: Cause) -> tuple[r.Difference, ...]:
    return tuple(
        r.Difference(
            what=_shown(finding.what) or "",
            sentence=_shown(finding.sentence) or "",
            base=_shown(finding.base),
            head=_shown(finding.head),
        )
        for finding in [one for one in findings if one.cause is cause][:MOST_TOLD]
    )


def _shown(text: str | None) -> str | None:
    """One bounded line without names of this machine; values of variables are strangers' text."""
    return None if text is None else visible(public(text[: 4 * MOST_TEXT]), MOST_TEXT)


def _disturbances(findings: Sequence[Finding], rules: EnvironmentRules) -> Iterator[Disturbance]:
    for finding in findings:
        if finding.rule is not None and rules.of(finding.rule) == "environment":
            yield Disturbance(text=_as_sentence(finding), shift=finding.shift, alone=finding.alone)


def _notices(findings: Sequence[Finding], rules: EnvironmentRules) -> Iterator[r.Notice]:
    told = ((_code_of(finding, rules), finding) for finding in findings)
    for code, finding in islice(((code, finding) for code, finding in told if code), MOST_TOLD):
        data = {"what": _shown(finding.what), "base": _shown(finding.base), "head": _shown(finding.head)}
        yield r.Notice(code=code, text=_as_sentence(finding), data=data)


def _as_sentence(finding: Finding) -> str:
    text = f"{_shown(finding.sentence)}"
    return f"{text[:1].upper()}{text[1:]}."


def _code_of(finding: Finding, rules: EnvironmentRules) -> str | None:
    if finding.rule is not None and rules.of(finding.rule) == "warn":
        return f"box_{finding.rule}"
    return finding.told


def _lost_on_both(prints: Mapping[str, Fingerprint]) -> Iterator[r.Notice]:
    """A tuning that no server ran with compares fairly, and measures another box than was meant."""
    lost: dict[str, set[r.Side]] = {}
    for launch in prints.values():
        for name, value in launch.given.items():
            effective = [rank.effective for rank in launch.ranks.values() if rank.effective is not None]
            if name.startswith(PROVEN) and effective and all(one.get(name) != value for one in effective):
                lost.setdefault(f"{name}={launch.plain(value)}", set()).add(launch.side)
    for setting, sides in sorted(lost.items())[:MOST_TOLD]:
        if len(sides) == len(r.Side):
            text = f"{setting} was given but was in effect on neither side"
            yield r.Notice(code="setting_lost", text=f"{_shown(text)}", data={"setting": _shown(setting)})


def _canary_notices(run: RunFacts, canary: Sequence[r.CanaryResult]) -> Iterator[r.Notice]:
    if run.pairs and any(isinstance(fact, r.Canary) for fact in run.facts) and not canary:
        yield r.Notice(code="canary_silent", text="the canary gave no reading: whether the box moved is not known")
