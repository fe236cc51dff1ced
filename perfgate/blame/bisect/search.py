"""What to measure next, and when there is an answer: a pure function of what was measured.

    1  the ends          do they differ at all?                                   else: no difference
    2  the search        the pair that tells most per GPU minute; one end of it is known, so drift names nobody
    3  the confirmation  the likeliest commit against its parent, from when it is as likely as not
    4  more than one     a level between the ends or beyond them: the line is split there, both parts are searched

Errors: a third of alpha each for "the ends differ", for the search and for the confirmation; a name needs all three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from perfgate.blame.bisect.evidence import Estimate, PairNoise, Posterior, Seen, estimate, posterior

CONFIRM_FROM = 0.4
"""From this probability on, a commit against its parent tells as much as another cut, and confirms as well."""
DOUBT_FROM = 0.3
SPLIT_FROM = 0.8
LEFTOVER = 0.02
"""Error in "this commit alone is more than half of it": two equal culprits must not pass as one."""
RANGE = 0.95
LEAST_PAIRS = 2
PART = 0.25
"""Of the whole difference: a step smaller than this is not looked for in a part of the line."""
ENDS_PAIRS = 8
BETA = 0.05
UNIFORM = 0.5
"""Share of the prior that no suspicion can take away."""


class Why(StrEnum):
    ENDS = "do the ends differ"
    CUT = "search"
    CONFIRM = "confirm"


@dataclass(frozen=True)
class Step:
    """Measure one pair of these two positions."""

    older: int
    newer: int
    why: Why
    within: tuple[int, int]


class Kind(StrEnum):
    NAMED = "named"  # and confirmed against its parent
    RANGE = "range"
    SAME = "no difference"
    UNDECIDED = "undecided"  # whether the ends differ is not known
    SMALL = "too small"  # a part of the line with less than a quarter of the difference
    STUCK = "cannot be measured"


@dataclass(frozen=True)
class SearchFinding:
    """About the commits after position `older` up to `newer`. `slowdown`: log, + = slower, - = a gain."""

    kind: Kind
    older: int
    newer: int
    slowdown: float | None = None
    probability: float | None = None
    pairs_to_narrow: int | None = None


@dataclass(frozen=True)
class SplitSearch:
    """More than one step: what lies before and after `at` is searched apart. `found`: the step at it, if it is one."""

    at: tuple[int, int]
    difference: float
    found: SearchFinding | None = None


@dataclass(frozen=True)
class Rules:
    """What is looked for, how sure, and at which cost."""

    budget: float = 0.03
    alpha: float = 0.01
    noise: PairNoise = field(default_factory=lambda: PairNoise(0.02, 3.0))
    most_pairs: int = 60


@dataclass(frozen=True)
class Line:
    """Positions 0 (good) … n (bad). `broken`: could not be built or served. `weight`: suspicion, for 1 … n."""

    length: int  # n
    broken: frozenset[int] = frozenset()
    weight: Mapping[int, float] = field(default_factory=dict)
    cost: Mapping[int, float] = field(
        default_factory=dict
    )  # of a launch at a position, 1 is one that is built and warm

    def places(self, low: int, high: int) -> list[int]:
        return [at for at in range(low, high + 1) if at not in self.broken]

    def prior(self, places: Sequence[int]) -> dict[int, float]:
        """Suspicion, tempered: half of it is spread evenly."""
        commits = places[-1] - places[0]
        total = math.fsum(self.weight.get(at, 0.0) for at in range(places[0] + 1, places[-1] + 1))
        found: dict[int, float] = {}
        for before, at in pairwise(places):
            share = math.fsum(self.weight.get(one, 0.0) for one in range(before + 1, at + 1)) / total if total else 0.0
            even = (at - before) / commits
            found[at] = UNIFORM * even + (1 - UNIFORM) * share if total else even
        return found


def next_step(line: Line, seen: Sequence[Seen], rules: Rules) -> Step | tuple[SearchFinding, ...]:
    """The next pair, or all that was found. Largest difference first."""
    waiting = [(0, line.length)]
    findings: list[SearchFinding] = []
    whole: float | None = None
    spent = len(seen) >= rules.most_pairs
    while waiting:
        part = waiting.pop(0)
        outcome = _examine(line, part, seen, rules, whole, spent)
        if isinstance(outcome, Step):
            return outcome
        if isinstance(outcome, SearchFinding):
            findings.append(outcome)
        else:
            whole = outcome.difference if whole is None else whole
            findings += [outcome.found] if outcome.found else []
            parts = ((part[0], outcome.at[0]), (outcome.at[1], part[1]))
            waiting += [one for one in parts if one[0] < one[1]]
    return tuple(sorted(findings, key=lambda one: -abs(one.slowdown or 0.0)))


def _examine(
    line: Line, part: tuple[int, int], seen: Sequence[Seen], rules: Rules, whole: float | None, spent: bool
) -> Step | SearchFinding | SplitSearch:
    """One part of the line: a step, a finding, or where more than one step splits it."""
    low, high = part
    here = [one for one in seen if low <= one.older and one.newer <= high and _holds(one.within, part)]
    ends = estimate([one.slowdown for one in here if (one.older, one.newer) == part], rules.noise)
    least = rules.budget if whole is None else PART * abs(whole)
    decided = _differs(ends, least, rules, first=whole is None)
    if decided is None:
        if spent or ends.pairs >= ENDS_PAIRS:
            return SearchFinding(
                Kind.UNDECIDED if whole is None else Kind.RANGE, low, high, ends.mean if ends.pairs else None
            )
        return Step(low, high, Why.ENDS, part)
    if not decided:
        return SearchFinding(Kind.SAME if whole is None else Kind.SMALL, low, high, ends.mean)
    places = line.places(low, high)
    now = posterior(places, here, line.prior(places), rules.noise)
    best = now.best
    before = places[places.index(best) - 1]
    sign = math.copysign(1.0, now.difference)
    against_parent = estimate(
        [sign * one.slowdown for one in here if (one.older, one.newer) == (before, best)], rules.noise
    )
    alone = now.single[best] / math.fsum(now.single.values())
    kind = Kind.NAMED if best - before == 1 else Kind.RANGE
    if _is_a_step(against_parent, rules):
        whole_of_it = against_parent.against(abs(now.difference) / 2, above=False) >= math.log(1 / LEFTOVER)
        if whole_of_it and alone >= 1 - rules.alpha / 3 and now.several < DOUBT_FROM:
            return SearchFinding(kind, before, best, sign * against_parent.mean, alone)
        if not whole_of_it and against_parent.against(abs(now.difference), above=True) >= math.log(1 / BETA):
            found = SearchFinding(kind, before, best, sign * against_parent.mean, 1 - rules.alpha / 3)
            return SplitSearch((before, best), now.difference, found)
    middle = _odd_one(places, now)
    if now.several >= SPLIT_FROM and middle is not None:
        return SplitSearch((middle, middle), now.difference)
    if spent:
        return _range(places, now)
    if now.several >= DOUBT_FROM and middle is not None:
        return Step(low, middle, Why.CUT, part) if len(here) % 2 else Step(middle, high, Why.CUT, part)
    if alone >= CONFIRM_FROM or len(places) == 2:
        return Step(before, best, Why.CONFIRM, part)
    return _cut(line, places, now, part)


def _holds(within: tuple[int, int], part: tuple[int, int]) -> bool:
    """Whether a pair was measured for this part or for one that it is a part of: never for a part of it."""
    return within[0] <= part[0] and part[1] <= within[1]


def _differs(ends: Estimate, least: float, rules: Rules, *, first: bool) -> bool | None:
    """None: not decided. In a part of the line a gain is a difference as well."""
    sure = math.log(3 / rules.alpha)
    slower = ends.against(0.0, above=False) >= sure and ends.mean >= least
    faster = ends.against(0.0, above=True) >= sure and -ends.mean >= least
    if ends.pairs >= LEAST_PAIRS and (slower or (faster and not first)):
        return True
    doubt = math.log(1 / BETA)
    none = ends.against(least, above=True) >= doubt and (first or ends.against(-least, above=False) >= doubt)
    return False if none and ends.pairs >= LEAST_PAIRS else None


def _is_a_step(against_parent: Estimate, rules: Rules) -> bool:
    """A commit against its parent, in pairs of their own: surely more than nothing."""
    sure = math.log(3 / rules.alpha)
    return against_parent.pairs >= LEAST_PAIRS and against_parent.against(0.0, above=False) >= sure


def _odd_one(places: Sequence[int], now: Posterior) -> int | None:
    """The measured position whose level is furthest from both ends' levels."""
    inner = [at for at in now.levels if at in places[1:-1]]
    if not inner:
        return None
    return max(inner, key=lambda at: min(abs(now.levels[at]), abs(now.levels[at] - now.difference)))


def _cut(line: Line, places: Sequence[int], now: Posterior, part: tuple[int, int]) -> Step:
    """The position that tells most per launch, against the end that it most likely differs from."""
    wrong = 0.5 * math.erfc(abs(now.difference) / (2 * math.sqrt(2) * now.sd))
    told = {at: _bits(now.slow_at(at), wrong) / (1 + line.cost.get(at, 1.0)) for at in places[1:-1]}
    middle = max(told, key=lambda at: told[at])
    if now.slow_at(middle) >= 0.5:
        return Step(part[0], middle, Why.CUT, part)
    return Step(middle, part[1], Why.CUT, part)


def _bits(slow: float, wrong: float) -> float:
    """What an answer that is wrong this often tells about whether a position is slow."""
    return _entropy(slow * (1 - wrong) + (1 - slow) * wrong) - _entropy(wrong)


def _entropy(p: float) -> float:
    return 0.0 if p <= 0 or p >= 1 else -p * math.log2(p) - (1 - p) * math.log2(1 - p)


def _range(places: Sequence[int], now: Posterior) -> SearchFinding:
    """The fewest commits in a row that hold the step with 95 %, and what it takes to narrow them."""
    best: tuple[int, int, float] | None = None
    for first in range(len(places) - 1):
        held = 0.0
        for last in range(first + 1, len(places)):
            held += now.single[places[last]]
            if held >= RANGE * (1 - now.several):
                size = places[last] - places[first]
                if best is None or size < best[1] - best[0]:
                    best = (places[first], places[last], held)
                break
    older, newer, held = best or (places[0], places[-1], 1.0)
    shift = abs(now.difference) / max(now.sd, 1e-9)
    each = max(1, math.ceil((4 / shift) ** 2)) if shift else 9
    pairs = each * (math.ceil(math.log2(max(2, newer - older))) + LEAST_PAIRS)
    return SearchFinding(Kind.RANGE, older, newer, now.difference, held, pairs)


def noiseless_launches(commits: int) -> int:
    """What a search without any noise takes: the ends, the cuts, the confirmation, each one pair."""
    return 2 * (2 + math.ceil(math.log2(max(2, commits))))
