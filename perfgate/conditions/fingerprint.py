"""What each launch truly ran with, and how base and head differ in it.

A `Fingerprint` is put together from the facts of one launch. `compare` looks at a base and a head launch of a pair,
thing by thing, and calls each

- *same*: nothing to tell them apart by;
- *explained*: done by the code under test, or by a pin that the pull request changes. It may explain a loss; it
  never excuses one;
- *unexplained*: the box's doing as far as anybody can tell. Its `rule` names what the configuration says of it.

Three readings of each variable decide which (see DESIGN.md, "Two truths"): what perfgate gave, what the code found at
its start, what held at the first collective. A difference that is there before the code runs is the box's; one that
arises later is the code's. Readings come from inside the code's own processes, so they are believed only as far as
that: what could not be read is not proven, and is told so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from perfgate import records as r
from perfgate.config.model import BoxRule
from perfgate.judge.evidence import RunFacts
from perfgate.probe.inside.readings import clean, shown, unhashed_secret

PROVEN = ("NCCL_", "SGLANG_", "CUDA_")  # variables that the probe reads
NOT_COMPARED = ("PERFGATE_",)  # name a launch, so can never be equal
NOT_VERSIONS = frozenset({"sglang", "sglang_path", "sgl_kernel_path"})  # differ as commits do

Variables = Mapping[str, str]


class Cause(StrEnum):
    SAME = "same"
    EXPLAINED = "explained"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that base and head ran with.

    told: code of a warning, where it is worth one although it is explained.
    shift: how far it moved the box (log units), where it has a size: it excuses only a loss that is not much larger.
    alone: it makes a run worthless without a loss to excuse, too.
    """

    what: str
    cause: Cause
    sentence: str
    base: str | None = None
    head: str | None = None
    rule: BoxRule | None = None
    told: str | None = None
    shift: float | None = None
    alone: bool = True


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank's process, or the server's main process where no rank left a proof."""

    number: int | None
    at_start: Variables | None  # as it says itself
    effective: Variables | None
    sitecustomize: tuple[str, ...]  # paths, perfgate's own first
    libraries: tuple[str, ...]  # "2.27.5 1abbc2c0"
    versions: Variables
    worker: str | None


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """A launch, as its facts tell it."""

    launch: str
    side: r.Side
    boot: str
    build: str
    given: Variables
    at_start: Variables | None  # that a process without the commit's code found there
    ranks: Mapping[str, Rank]  # by name: "rank 3", or "main"
    gpus: tuple[Mapping[str, Any], ...] = ()
    all_reduce: str | None = None
    prevented: str | None = None  # another all-reduce that failed, in the server's words
    nccl: Mapping[str, Any] = field(default_factory=dict)  # what it reported of its ranks
    from_log: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def trees(self) -> tuple[str, ...]:
        """Folders of the commit's own code on PYTHONPATH: all but the first, which is the probe's."""
        return tuple(entry for entry in self.given.get("PYTHONPATH", "").split(":")[1:] if entry)

    def plain(self, value: str) -> str:
        """A value with this side's own folders named instead of spelled out, so that two sides can be compared."""
        own = {self.given.get("HOME", ""): "$HOME", **dict.fromkeys(self.trees, "$TREE")}
        for folder in sorted(filter(None, own), key=len, reverse=True):
            value = value.replace(folder, own[folder])
        return value

    def own_code(self, path: str) -> bool:
        return any(PurePosixPath(path).is_relative_to(tree) for tree in self.trees)


def fingerprints(run: RunFacts) -> Mapping[str, Fingerprint]:
    """Every launch that was begun, by its id."""
    begun = {fact.id: fact for fact in run.facts if isinstance(fact, r.LaunchBegin)}
    ends = {fact.id: fact for fact in run.facts if isinstance(fact, r.LaunchEnd)}
    proofs: dict[str, list[r.Proof]] = {}
    telemetry: dict[str, r.Telemetry] = {}
    for fact in run.facts:
        if isinstance(fact, r.Proof):
            proofs.setdefault(fact.launch_id, []).append(fact)
        elif isinstance(fact, r.Telemetry) and (fact.sample is None or fact.launch_id not in telemetry):
            telemetry[fact.launch_id] = fact
    return {
        name: _fingerprint(begin, proofs.get(name, []), telemetry.get(name), ends.get(name))
        for name, begin in begun.items()
    }


def _readable(name: str, value: str) -> str:
    """As the probe tells of it: a secret's hash, so that it compares and is never shown."""
    return shown(name, value) if unhashed_secret(name, value) else clean(value)


def _fingerprint(
    begin: r.LaunchBegin, proofs: Sequence[r.Proof], telemetry: r.Telemetry | None, end: r.LaunchEnd | None
) -> Fingerprint:
    ranked = [proof for proof in proofs if proof.rank is not None]
    chosen = ranked or [proof for proof in proofs if proof.role == "main"]
    return Fingerprint(
        launch=begin.id,
        side=begin.side,
        boot=begin.boot,
        build=begin.build,
        given={name: _readable(name, value) for name, value in begin.given.items()},
        at_start=begin.at_start,
        ranks={f"rank {proof.rank}" if ranked else "main": _rank(proof) for proof in chosen},
        gpus=telemetry.gpus if telemetry else (),
        all_reduce=(telemetry.system.get("all_reduce") or {}).get("route") if telemetry else None,
        prevented=(telemetry.system.get("all_reduce") or {}).get("prevented") if telemetry else None,
        nccl=(telemetry.system.get("nccl") or {}) if telemetry else {},
        from_log=end.facts_from_log if end else {},
    )


def _rank(proof: r.Proof) -> Rank:
    return Rank(
        number=proof.rank,
        at_start=proof.at_start,
        effective=proof.effective,
        sitecustomize=tuple(str(link.get("path", "")) for link in proof.sitecustomize),
        libraries=tuple(f"{one.get('version') or '?'} {str(one.get('hash') or '?')[:12]}" for one in proof.nccl),
        versions=proof.versions,
        worker=proof.worker,
    )


# ------------------------------------------------------------------------------------------------ comparison


def compare(base: Fingerprint, head: Fingerprint) -> Iterator[Finding]:
    """Every finding about the two launches of one pair, the box's doing first."""
    yield from _boot(base, head)
    yield from _given(base, head)
    yield from _at_start(base, head)
    yield from _said_of_the_start(base, head)
    yield from _effective(base, head)
    yield from _libraries(base, head)
    yield from _versions(base, head)
    yield from _from_the_server(base, head)
    yield from _prevented(base, head)


def _same(what: str, sentence: str) -> Finding:
    return Finding(what=what, cause=Cause.SAME, sentence=sentence)


def _boot(base: Fingerprint, head: Fingerprint) -> Iterator[Finding]:
    if base.boot != head.boot:
        yield Finding(
            what="boot",
            cause=Cause.UNEXPLAINED,
            sentence="the box was started anew between base's launch and head's",
            base=base.boot,
            head=head.boot,
            rule="reboot",
        )


def _given(base: Fingerprint, head: Fingerprint) -> Iterator[Finding]:
    names = sorted(name for name in base.given.keys() | head.given.keys() if not name.startswith(NOT_COMPARED))
    different = [name for name in names if _plain(base, name) != _plain(head, name)]
    for name in different:
        one, other = base.given.get(name), head.given.get(name)
        own = base.build != head.build and _is_path(one) and _is_path(other)
        yield Finding(
            what=f"{name} given",
            cause=Cause.EXPLAINED if own else Cause.UNEXPLAINED,
            sentence=f"{name} names each build's own folder" if own else _gave(name, one, other),
            base=one,
            head=other,
            rule=None if own else "given",
        )
    if not different:
        yield _same("environment given", f"both sides were given the same {len(names)} variables")


def _plain(side: Fingerprint, name: str) -> str | None:
    value = side.given.get(name)
    return None if value is None else side.plain(value)


def _is_path(value: str | None) -> bool:
    return value is not None and value.startswith("/")


def _gave(name: str, base: str | None, head: str | None) -> str:
    if head is None:
        return f"head was not given {name}={base}"
    return f"head was given {name}={head}, base {'not' if base is None else f'{name}={base}'}"


def _at_start(base: Fingerprint, head: Fingerprint) -> Iterator[Finding]:
    """What a process of perfgate's own found: no code under test had a say in it."""
    if base.at_start is None or head.at_start is None:
        yield Finding(
            what="environment at start",
            cause=Cause.EXPLAINED,
            sentence="what servers find at their start could not be read for both sides: nothing is proven of it",
            told="environment_not_proven",
        )
        return
    differences = list(_started_otherwise(base, base.at_start, head, head.at_start))
    for variable, a, b in differences:
        side, did = _start(base, head, variable, a, b)
        yield Finding(
            what=f"{variable} at start",
            cause=Cause.UNEXPLAINED,
            sentence=f"{side.side.value} started {did}",
            base=a,
            head=b,
            rule="at_start",
        )
    if not differences:
        yield _same("environment at start", "both sides found the same variables at their start")


def _said_of_the_start(base: Fingerprint, head: Fingerprint) -> Iterator[Finding]:
    """What the servers' own processes say that they found: strangers' words, which explain and never excuse."""
    box = (
        set()
        if base.at_start is None or head.at_start is None
        else {found for found, _, _ in _started_otherwise(base, base.at_start, head, head.at_start)}
    )
    common = [name for name in base.ranks if name in head.ranks]
    differences: dict[tuple[str, str | None, str | None], list[str]] = {}
    for name in common:
        one, other = base.ranks[name].at_start, head.ranks[name].at_start
        if one is not None and other is not None:
            for variable, a, b in _started_otherwise(base, one, head, other):
                if variable not in box:
                    differences.setdefault((variable, a, b), []).append(name)
    for (variable, a, b), ranks in differences.items():
        side, did = _start(base, head, variable, a, b)
        where = next((f" ({path})" for path in side.ranks[ranks[0]].sitecustomize[1:]), "")
        yield Finding(
            what=f"{variable} at start, as its processes say",
            cause=Cause.EXPLAINED,
            sentence=f"{side.side.value}{_of_ranks(ranks, len(common))} says that it started {did}{where}",
            base=a,
            head=b,
            told="code_sets_variable",
        )


def _started_otherwise(
    base: Fingerprint, one: Variables, head: Fingerprint, other: Variables
) -> Iterator[tuple[str, str | None, str | None]]:
    """Differences that do not lie in what was given."""
    for variable, a, b in _different(base, one, head, other):
        if base.given.get(variable) == head.given.get(variable):
            yield variable, a, b


def _start(
    base: Fingerprint, head: Fingerprint, variable: str, a: str | None, b: str | None
) -> tuple[Fingerprint, str]:
    """The side that did not find what it was given, and what it found."""
    given = head.given.get(variable)
    side = head if b != (None if given is None else head.plain(given)) else base
    value = b if side is head else a
    did = f"without {variable}={given}" if value is None else f"with {variable}={value}"
    if value is not None and given is not None:
        did += f" instead of {given}"
    return side, did


def _different(
    base: Fingerprint, one: Variables, head: Fingerprint, other: Variables
) -> Iterator[tuple[str, str | None, str | None]]:
    for name in sorted(one.keys() | other.keys()):
        if name.startswith(PROVEN):
            a = base.plain(one[name]) if name in one else None
            b = head.plain(other[name]) if name in other else None
            if a != b:
                yield name, a, b


def _effective(base: Fingerprint, head: Fingerprint) -> Iterator[Finding]:
    """What arose inside the processes: the code's own doing."""
    common = [name for name in base.ranks if name in head.ranks]
    differences: dict[tuple[str, str | None, str | None], list[str]] = {}
    for name in common:
        one, other = base.ranks[name], head.ranks[name]
        if one.effective is None or other.effective is None:
            continue
        found = {found for found, _, _ in _different(base, one.at_start or {}, head, other.at_start or {})}
        for variable, a, b in _different(base, one.effective, head, other.effective):
            if variable not in found:
                differences.setdefault((variable, a, b), []).append(name)
    for (variable, a, b), ranks in differences.items():
        start = (head.ranks[ranks[0]].at_start or head.given).get(variable)
        yield Finding(
            what=f"{variable} in effect",
            cause=Cause.EXPLAINED,
            sentence=_code_did(variable, a, b, None if start is None else head.plain(start), ranks, len(common)),
            base=a,
            head=b,
            told="code_sets_variable",
        )
    compared = [name for name in common if base.ranks[name].effective and head.ranks[name].effective]
    if compared and not differences:
        yield _same("environment in effect", f"{_ranks(compared, len(common))} ran with the same variables")


def _code_did(variable: str, base: str | None, head: str | None, start: str | None, ranks: list[str], of: int) -> str:
    """What head's code did differently. `start`: the value before either did anything."""
    who = f"head's code{_of_ranks(ranks, of)}"
    if base == start:
        return f"{who} takes {variable}={start} away" if head is None else f"{who} sets {variable}={head}"
    if head == start:
        return f"{who} no longer {'takes ' + variable + ' away' if base is None else f'sets {variable}={base}'}"
    return f"{who} sets {variable}={head}, base's sets {base}"


def _libraries(base: Fingerprint, head: Fingerprint) -> Iterator[Finding]:
    one, other = (_joined(side, "libraries") for side in (base, head))
    if one is None or other is None:
        return
    if one == other:
        yield _same("NCCL library", f"both sides loaded NCCL {_versions_only(one)}")
    else:
        why = "as the pins of the pull request differ" if base.build != head.build else "chosen by the code itself"
        yield Finding(
            what="NCCL library",
            cause=Cause.EXPLAINED,
            sentence=f"head loaded NCCL {_versions_only(other)}, base {_versions_only(one)}, {why}",
            base=one,
            head=other,
            told="other_nccl",
        )


def _versions_only(libraries: str) -> str:
    return ", ".join(sorted({part.split()[0] for part in libraries.split(", ")}))


def _joined(side: Fingerprint, name: str) -> str | None:
    values = sorted({value for rank in side.ranks.values() for value in getattr(rank, name)})
    return ", ".join(values) or None


def _versions(base: Fingerprint, head: Fingerprint) -> Iterator[Finding]:
    one, other = ({k: v for rank in side.ranks.values() for k, v in rank.versions.items()} for side in (base, head))
    if not one or not other:
        return
    names = sorted((one.keys() | other.keys()) - NOT_VERSIONS)
    different = [name for name in names if one.get(name) != other.get(name)]
    for name in different:
        why = "a pin that the pull request changes" if base.build != head.build else "chosen by the code itself"
        yield Finding(
            what=f"version of {name}",
            cause=Cause.EXPLAINED,
            sentence=f"head runs {name} {other.get(name, 'not at all')}, base {one.get(name, 'not at all')}: {why}",
            base=one.get(name),
            head=other.get(name),
        )
    if not different:
        told = ", ".join(f"{name} {one[name]}" for name in ("torch", "cuda") if name in one)
        yield _same("versions", f"both sides ran the same {len(names)} packages{f' ({told})' if told else ''}")


def _from_the_server(base: Fingerprint, head: Fingerprint) -> Iterator[Finding]:
    """What the servers chose themselves."""
    asked: tuple[tuple[str, str, Any, Any], ...] = (
        ("TreeCore", "serves with {}", *_tree_cores(base, head)),
        ("speculative worker", "runs {}", _worker(base), _worker(head)),
        ("room for tokens", "has room for {} tokens", *(_tokens(side) for side in (base, head))),
        ("all-reduce", "reduces through {}", base.all_reduce, head.all_reduce),
    )
    for what, words, one, other in asked:
        if one is None or other is None:
            continue
        if one == other:
            yield _same(what, f"each side {words.format(one)}")
        else:
            yield Finding(
                what=what,
                cause=Cause.EXPLAINED,
                sentence=f"head {words.format(other)}, base {words.format(one)}",
                base=str(one),
                head=str(other),
                told="all_reduce_differs" if what == "all-reduce" else None,
            )


def _prevented(base: Fingerprint, head: Fingerprint) -> Iterator[Finding]:
    """The same on both sides is the box's: the comparison is fair, and measures another path than users run."""
    if base.prevented is None and head.prevented is None:
        return
    sides = [side for side in (base, head) if side.prevented is not None]
    who = "both sides" if len(sides) == len(r.Side) else sides[0].side.value
    yield Finding(
        what="all-reduce fusion",
        cause=Cause.EXPLAINED,
        sentence=f"FlashInfer's all-reduce fusion failed on {who} and is off: {sides[-1].prevented}",
        base=base.prevented,
        head=head.prevented,
        told="all_reduce_prevented",
    )


def _worker(side: Fingerprint) -> str | None:
    return next((rank.worker for rank in side.ranks.values() if rank.worker), None)


def _tree_cores(base: Fingerprint, head: Fingerprint) -> tuple[str | None, str | None]:
    """What each side's server said of its TreeCore; None for both where neither fell back from the default."""
    reasons = [side.from_log.get("python_tree_core") for side in (base, head)]
    if not any(reasons):
        return None, None
    one, other = (f"the Python TreeCore ({why})" if why else "the default TreeCore" for why in reasons)
    return one, other


def _tokens(side: Fingerprint) -> Any:
    return side.from_log.get("max_total_num_tokens")


def _of_ranks(ranks: list[str], of: int) -> str:
    """ "" for all of them, " rank 3", " ranks 1, 3"."""
    if len(ranks) == of:
        return ""
    numbers = [name.removeprefix("rank ") for name in ranks]
    return f" rank {numbers[0]}" if len(numbers) == 1 else f" ranks {', '.join(numbers)}"


def _ranks(names: list[str], of: int) -> str:
    if names == ["main"]:
        return "the main process"
    return f"all {of} ranks" if len(names) == of and of > 1 else ("the rank" if of == 1 else f"{len(names)} ranks")
