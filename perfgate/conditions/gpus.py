"""How the GPUs differed between the launches of a pair, and what spoke against a launch as it ran.

Clock and power follow load, and load follows the code, so the sides' own clocks are never held against the box; they
are told where they differ. Links, power limits, heat, power brakes, lost GPUs and strangers are the box's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from perfgate.conditions.fingerprint import Cause, Finding, Fingerprint
from perfgate.config.model import EnvironmentRules
from perfgate.host.telemetry import complaints

Gpu = Mapping[str, Any]


def compare_gpus(base: Fingerprint, head: Fingerprint, rules: EnvironmentRules) -> Iterator[Finding]:
    """Findings about the GPUs of two launches of a pair. Nothing where either has no telemetry."""
    if not base.gpus or not head.gpus:
        return
    if len(base.gpus) != len(head.gpus):
        yield Finding(
            what="GPUs",
            cause=Cause.UNEXPLAINED,
            sentence=f"head had {len(head.gpus)} GPUs, base {len(base.gpus)}",
            base=str(len(base.gpus)),
            head=str(len(head.gpus)),
            rule="gpu_count",
        )
        return
    pairs = list(zip(base.gpus, head.gpus, strict=True))
    found = [*_links(pairs), *_limits(pairs, rules.power_w)]
    yield from found
    yield from _clocks(pairs, rules.load_clock)
    yield from _capped(pairs)
    if not found and (summary := _summary(base.gpus)):
        yield Finding(what="GPUs", cause=Cause.SAME, sentence=summary)


def against_launch(launch: Fingerprint) -> Iterator[Finding]:
    """What spoke against one launch, whatever its partner did."""
    for gpu in launch.gpus:
        for rule, what in complaints(gpu):
            yield Finding(
                what=f"GPU {gpu['index']}",
                cause=Cause.UNEXPLAINED,
                sentence=f"GPU {gpu['index']} {what} during {launch.side.value}'s launch",
                rule=rule,
            )


def _links(pairs: Sequence[tuple[Gpu, Gpu]]) -> Iterator[Finding]:
    for one, other in pairs:
        if one.get("pcie") and other.get("pcie") and one["pcie"] != other["pcie"]:
            yield Finding(
                what=f"link of GPU {other['index']}",
                cause=Cause.UNEXPLAINED,
                sentence=f"GPU {other['index']}'s link ran at {other['pcie']} for head and {one['pcie']} for base",
                base=one["pcie"],
                head=other["pcie"],
                rule="link",
            )


def _limits(pairs: Sequence[tuple[Gpu, Gpu]], tolerance: float) -> Iterator[Finding]:
    for one, other in pairs:
        a, b = one.get("power_limit_w"), other.get("power_limit_w")
        if a is not None and b is not None and abs(a - b) > tolerance:
            yield Finding(
                what=f"power limit of GPU {other['index']}",
                cause=Cause.UNEXPLAINED,
                sentence=f"GPU {other['index']} was limited to {b:.0f} W for head and {a:.0f} W for base",
                base=f"{a:.0f} W",
                head=f"{b:.0f} W",
                rule="power_limit",
            )


def _clocks(pairs: Sequence[tuple[Gpu, Gpu]], tolerance: float) -> Iterator[Finding]:
    """The one GPU whose clock under the sides' own load differs most, where that is more than `tolerance`."""
    clocks = [(one.get("sm_clock_mhz"), other.get("sm_clock_mhz"), other["index"]) for one, other in pairs]
    known = [(a, b, index) for a, b, index in clocks if a and b]
    worst = max(known, key=lambda one: abs(math.log(one[1] / one[0])), default=None)
    if worst is None or abs(math.log(worst[1] / worst[0])) <= tolerance:
        return
    a, b, index = worst
    yield Finding(
        what="clock under load",
        cause=Cause.EXPLAINED,
        sentence=f"GPU {index} ran at {b:.0f} MHz under head's load and {a:.0f} MHz under base's; clocks follow load",
        base=f"{a:.0f} MHz",
        head=f"{b:.0f} MHz",
        told="clock_follows_load",
    )


def _capped(pairs: Sequence[tuple[Gpu, Gpu]]) -> Iterator[Finding]:
    """At the power limit on one side only: load does that, but somebody should know."""
    sides = [
        [gpu["index"] for gpu in gpus if "power_cap" in (gpu.get("throttle") or ())]
        for gpus in zip(*pairs, strict=True)
    ]
    if bool(sides[0]) != bool(sides[1]):
        who, gpus = ("head", sides[1]) if sides[1] else ("base", sides[0])
        yield Finding(
            what="power cap",
            cause=Cause.EXPLAINED,
            sentence=f"{len(gpus)} of {len(pairs)} GPUs met their power limit under {who}'s load only",
            told="power_cap_on_one_side",
        )


def _summary(gpus: Sequence[Gpu]) -> str:
    links = sorted({str(gpu["pcie"]) for gpu in gpus if gpu.get("pcie")})
    limits = sorted({f"{gpu['power_limit_w']:.0f} W" for gpu in gpus if gpu.get("power_limit_w") is not None})
    told = [f"links at {', '.join(links)}"] if links else []
    told += [f"limited to {', '.join(limits)}"] if limits else []
    return f"{len(gpus)} GPUs, the same on both sides{': ' + '; '.join(told) if told else ''}"
