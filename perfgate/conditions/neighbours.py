"""Did somebody else use the cores that the server needed?

From the samples' telemetry: cores that processes not ours used, and how long the server's worst main thread (the
scheduler's loop) was ready but waited for a core. Waiting that others caused is time the server lost to them:

    slowdown = −ln(1 − w)        w = waited ÷ wall, but never more than what others really used ÷ wall

The bound keeps a head that crowds its own cores from looking like a victim: what its own threads take is not others'.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfgate import records as r
from perfgate.conditions.shift import WAITING_PRIOR, Shift, judge_shift
from perfgate.judge.evidence import RunFacts
from perfgate.judge.values import PairSamples

MOST_LOST = 0.95  # of a launch's time; beyond, a logarithm says nothing


@dataclass(frozen=True)
class Neighbours:
    """Beside one launch. `lost`: share of its time that the server waited for a core because of others."""

    cores: float  # that others used, on average
    lost: float

    @property
    def slowdown(self) -> float:
        return -math.log1p(-self.lost)


@dataclass(frozen=True)
class Crowding:
    """Others beside base's and head's launches, and what it cost head more than base (log units)."""

    base: Neighbours
    head: Neighbours
    shift: Shift


def neighbours_of(run: RunFacts) -> Mapping[str, Neighbours]:
    """Of each launch with readings of the system, by its id."""
    systems: dict[str, list[Mapping[str, Any]]] = {}
    for fact in run.facts:
        if isinstance(fact, r.Telemetry) and fact.sample is not None and fact.system:
            systems.setdefault(fact.launch_id, []).append(fact.system)
    found = {name: _neighbours(samples) for name, samples in systems.items()}
    return {name: one for name, one in found.items() if one is not None}


def _neighbours(samples: list[Mapping[str, Any]]) -> Neighbours | None:
    wall = _sum(samples, "wall_s")
    others, waited = _sum(samples, "others_cpu_s"), _sum(samples, "main_wait_s")
    if not wall or others is None:
        return None
    taken = others + (_sum(samples, "throttled_s") or 0.0) + (_sum(samples, "steal_s") or 0.0)
    lost = min(waited or 0.0, taken) / wall
    return Neighbours(cores=others / wall, lost=min(max(lost, 0.0), MOST_LOST))


def _sum(samples: list[Mapping[str, Any]], name: str) -> float | None:
    values = [value for one in samples if isinstance(value := one.get(name), int | float)]
    return math.fsum(values) if len(values) == len(samples) else None


def crowding(run: RunFacts, tolerance: float, alpha: float) -> Crowding | None:
    """Over all pairs with readings on both sides. None where there is none."""
    known = neighbours_of(run)
    pairs = [pair for pair in run.pairs if pair.base in known and pair.head in known]
    if not pairs:
        return None
    judged = [
        PairSamples.of([math.exp(known[pair.base].slowdown)], [math.exp(known[pair.head].slowdown)], first=pair.first)
        for pair in pairs
    ]
    shift = judge_shift(judged, WAITING_PRIOR, tolerance, alpha)
    assert shift is not None, "there are pairs"
    return Crowding(
        base=_mean([known[pair.base] for pair in pairs]),
        head=_mean([known[pair.head] for pair in pairs]),
        shift=shift,
    )


def _mean(several: list[Neighbours]) -> Neighbours:
    return Neighbours(
        cores=statistics.fmean(one.cores for one in several), lost=statistics.fmean(one.lost for one in several)
    )
