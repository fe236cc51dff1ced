"""Which phase a loss comes from.

    tok/s = accept length / cycle,   cycle = draft + verify + draft-extend + rest

so the slowdown of tok/s is −Δln(accept length) + Δln(cycle), and the logarithm of the cycle is split over its phases
by the logarithmic mean L(a, b) = (a − b)/ln(a/b) (LMDI, Ang, Energy Policy 33 (2005) 867–871):

    Δln(cycle) = Σ (phase_head − phase_base) / L(cycle_head, cycle_base)

This is exact: the parts add up to the slowdown without a remainder, whatever the order in which they are taken.
A phase that was not measured in each launch is not guessed: it is in the rest. Plain decoding has no accept length,
and its cycle is decode + rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from perfgate.judge.noise import LOOSE_DF, LOOSE_SD
from perfgate.judge.values import Decision, JudgeInputError, NoisePrior
from perfgate.records import MetricVerdict

Medians = Mapping[str, float | None]
"""Medians of one launch by name: tok_s, accept_length, cycle_ms and phases in ms. None or missing: not measured."""

SPECULATIVE_PHASES = ("verify_ms", "draft_ms", "draft_extend_ms")
PLAIN_PHASES = ("decode_ms",)
ACCEPT, REST = "accept_length", "rest"
INTERVAL_ERROR = 0.05
NAMES = {
    "verify_ms": "verify",
    "draft_ms": "draft",
    "draft_extend_ms": "draft-extend",
    "decode_ms": "decode",
    ACCEPT: "accept length",
    REST: "rest",
}


@dataclass(frozen=True, slots=True)
class Share:
    """What one part adds to the slowdown of tok/s (log units, + = makes head slower), with a 95 % interval.

    base, head: means over launches, in ms or tokens; None for the rest of a cycle whose phases are not known.
    """

    name: str
    slowdown: float
    low: float
    high: float
    base: float | None
    head: float | None

    @property
    def sure(self) -> bool:
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, slots=True)
class Split:
    """The slowdown of tok/s and its parts, which add up to it, the largest first."""

    slowdown: float
    shares: tuple[Share, ...]
    sentence: str


def decompose(
    pairs: Sequence[tuple[Medians, Medians]], slowdown: float | None = None, prior: NoisePrior | None = None
) -> Split | None:
    """Split the slowdown of tok/s over (base, head) launches. None where tok/s was not measured in each.

    slowdown: the judge's estimate, which the parts then add up to; the rest takes what pairs alone say otherwise.
    prior: noise of a pair's tok/s; a part is taken to be no noisier.
    """
    launches = [launch for pair in pairs for launch in pair]
    if not pairs or not all(_measured(launch, "tok_s") for launch in launches):
        return None
    phases = [
        phase for phase in (*SPECULATIVE_PHASES, *PLAIN_PHASES) if all(_measured(launch, phase) for launch in launches)
    ]
    accepts = all(_measured(launch, ACCEPT) for launch in launches)
    per_pair = [_split_pair(base, head, phases, accepts) for base, head in pairs]
    mean_total = math.fsum(sum(parts.values()) for parts in per_pair) / len(pairs)
    total = mean_total if slowdown is None else slowdown
    shares = [
        _share(name, pairs, [parts[name] for parts in per_pair], prior, total - mean_total) for name in per_pair[0]
    ]
    ordered = tuple(sorted(shares, key=lambda share: -abs(share.slowdown)))
    return Split(total, ordered, _sentence(total, ordered))


def _split_pair(base: Medians, head: Medians, phases: Sequence[str], accepts: bool) -> dict[str, float]:
    """The parts of one pair's slowdown of tok/s; they add up to it exactly."""
    total = math.log(_number(base, "tok_s") / _number(head, "tok_s"))
    parts = {ACCEPT: math.log(_number(base, ACCEPT) / _number(head, ACCEPT))} if accepts else {}
    cycles = [_cycle(launch, accepts) for launch in (base, head)]
    mean = logarithmic_mean(cycles[1], cycles[0])
    parts |= {phase: (_number(head, phase) - _number(base, phase)) / mean for phase in phases}
    parts[REST] = total - sum(parts.values())
    return parts


def logarithmic_mean(a: float, b: float) -> float:
    """(a − b)/ln(a/b), and its limit a where they are equal."""
    ratio = math.log(a / b)
    return (a - b) / ratio if abs(ratio) > 1e-9 else (a + b) / 2


def _cycle(launch: Medians, accepts: bool) -> float:
    """Milliseconds of one cycle: as measured, else as tok/s and accept length imply at one request at a time."""
    if _measured(launch, "cycle_ms"):
        return _number(launch, "cycle_ms")
    return 1000.0 * (_number(launch, ACCEPT) if accepts else 1.0) / _number(launch, "tok_s")


def _share(
    name: str, pairs: Sequence[tuple[Medians, Medians]], values: Sequence[float], prior: NoisePrior | None, left: float
) -> Share:
    k = len(values)
    mean = math.fsum(values) / k
    sd, df = (prior.sd, prior.df) if prior else (LOOSE_SD, LOOSE_DF)
    spread = df * sd**2 + math.fsum((value - mean) ** 2 for value in values)
    reach = math.sqrt(spread / k * math.expm1(2 * math.log(1 / INTERVAL_ERROR) / (df + k)))
    centre = mean + left if name == REST else mean
    if name == REST:
        return Share(name, centre, centre - reach, centre + reach, None, None)
    base, head = (math.fsum(_number(pair[side], name) for pair in pairs) / k for side in (0, 1))
    return Share(name, centre, centre - reach, centre + reach, base, head)


def _sentence(total: float, shares: Sequence[Share]) -> str:
    """In words: "−36.0 %: verify +53 % explains −34.6 points, accept length −1.4". The points add up to the change."""
    change = 100 * math.expm1(-total)
    sure = [share for share in shares if share.sure]
    if not sure:
        return f"{_tenths(round(10 * change))} %: no phase moved for sure"
    if abs(change) < 0.5:
        moved = ", ".join(f"{NAMES[share.name]} {_tenths(round(-1000 * share.slowdown))}" for share in sure)
        return f"{_tenths(round(10 * change))} %, in which parts moved against each other: {moved} points"
    points = dict(zip((share.name for share in shares), _points(change, total, shares), strict=True))
    first = sure[0]
    told = [
        f"{NAMES[share.name]} {_tenths(points[share.name])}"
        for share in shares
        if share is not first and points[share.name] != 0
    ]
    own = f" {100 * (first.head / first.base - 1):+.0f} %".replace("-", "−") if first.base and first.head else ""
    lead = f"{_tenths(round(10 * change))} %: {NAMES[first.name]}{own} explains {_tenths(points[first.name])} points"
    return ", ".join([lead, *told])


def _points(change: float, total: float, shares: Sequence[Share]) -> list[int]:
    """Tenths of a point of each share, rounded so that they add up to the change as it is printed.

    What rounding leaves goes to the shares that it moved most (largest remainders).
    """
    exact = [10 * change * share.slowdown / total for share in shares]
    tenths = [math.floor(one) for one in exact]
    missing = round(10 * change) - sum(tenths)
    by_remainder = sorted(range(len(exact)), key=lambda number: tenths[number] - exact[number])
    for number in by_remainder[:missing]:
        tenths[number] += 1
    return tenths


class Where(StrEnum):
    """Where in SGLang a loss sits, as far as two recipes can tell."""

    NOWHERE = "nowhere"
    ENGINE = "engine"  # plain decoding lost as much: engine or communication
    SPECULATIVE = "speculative"  # only speculation lost
    BOTH = "both"  # plain decoding lost too, speculation far more
    PLAIN = "plain"  # only plain decoding lost
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Reading:
    where: Where
    sentence: str


def read_recipes(plain: Decision | None, speculative: Decision | None) -> Reading:
    """What the tok/s of plain decoding and of speculation say together. None: not measured."""
    if plain is None or speculative is None:
        return Reading(Where.UNKNOWN, "Plain decoding and speculation were not both measured.")
    lost, speculation_lost = plain.low > 0, speculative.low > 0
    if lost and speculation_lost:
        if speculative.low > plain.high:
            text = "Plain decoding lost too, speculation far more: engine or communication, and the speculative path."
            return Reading(Where.BOTH, text)
        return Reading(Where.ENGINE, "Plain decoding lost as well: engine or communication.")
    if speculation_lost:
        if plain.state is MetricVerdict.PASS:
            return Reading(Where.SPECULATIVE, "Plain decoding did not lose: the speculative path.")
        return Reading(Where.UNKNOWN, "Speculation lost; whether plain decoding did is not decided.")
    if lost:
        if speculative.state is MetricVerdict.PASS:
            return Reading(Where.PLAIN, "Only plain decoding lost: its own path (speculation does not run it).")
        return Reading(Where.UNKNOWN, "Plain decoding lost; whether speculation did is not decided.")
    if plain.state is MetricVerdict.PASS and speculative.state is MetricVerdict.PASS:
        return Reading(Where.NOWHERE, "Neither plain decoding nor speculation lost.")
    return Reading(Where.UNKNOWN, "No loss is sure, and not all is decided.")


def _measured(launch: Medians, name: str) -> bool:
    value = launch.get(name)
    if value is None:
        return False
    if not math.isfinite(value) or value < 0 or (value == 0 and name in ("tok_s", ACCEPT, "cycle_ms")):
        raise JudgeInputError(f"{name} is {value!r}: a measured phase is finite and not below zero")
    return True


def _number(launch: Medians, name: str) -> float:
    value = launch[name]
    assert value is not None  # asked only after _measured
    return value


def _tenths(number: int) -> str:
    return f"{number / 10:+.1f}".replace("-", "−") if number else "±0.0"
