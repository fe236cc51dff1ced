"""What NCCL itself reported of its ranks, compared between the launches of a pair.

The variables may be the same and the way not: P2P refused on one side means shared memory, fewer channels and the loss
of a third of the speed, and nothing given shows it. The reports come out of the servers' own processes, so a difference
is an explanation that stands beside the verdict, and never excuses a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from perfgate.conditions.fingerprint import Cause, Finding, Fingerprint


@dataclass(frozen=True)
class _Way:
    """How one rank reaches the others."""

    channels: int | None
    links: tuple[str, ...]
    refused: tuple[str, ...]

    def __str__(self) -> str:
        channels = f"{self.channels} channels" if self.channels is not None else "an unknown number of channels"
        through = f" through {', '.join(self.links)}" if self.links else ""
        refused = f", refusing {', '.join(self.refused)}" if self.refused else ""
        return f"{channels}{through}{refused}"


def compare_reports(base: Fingerprint, head: Fingerprint) -> Iterator[Finding]:
    """Nothing where either side's NCCL left no report."""
    one, other = _ways(base.nccl), _ways(head.nccl)
    common = sorted(one.keys() & other.keys())
    if not common:
        return
    different: dict[tuple[_Way, _Way], list[int]] = {}
    for rank in common:
        if one[rank] != other[rank]:
            different.setdefault((one[rank], other[rank]), []).append(rank)
    for (a, b), ranks in different.items():
        yield Finding(
            what="NCCL's way",
            cause=Cause.EXPLAINED,
            sentence=f"NCCL of head{_of(ranks, common)} reports {b}, of base {a}",
            base=str(a),
            head=str(b),
            told="nccl_reports_differ",
        )
    if len(one) != len(other):
        yield Finding(
            what="NCCL's ranks",
            cause=Cause.EXPLAINED,
            sentence=f"NCCL reports {len(other)} ranks for head, {len(one)} for base",
            base=str(len(one)),
            head=str(len(other)),
            told="nccl_reports_differ",
        )
    elif not different:
        ways = ", ".join(dict.fromkeys(str(one[rank]) for rank in common))
        yield Finding(what="NCCL's way", cause=Cause.SAME, sentence=f"NCCL reports the same on both sides: {ways}")


def _ways(report: Mapping[str, Any]) -> dict[int, _Way]:
    return {
        int(rank["rank"]): _Way(
            rank.get("coll_channels"),
            tuple(sorted(rank.get("links") or ())),
            tuple(f"{name}={value}" for name, value in sorted((rank.get("invalid") or {}).items())),
        )
        for rank in report.get("ranks", ())
        if rank.get("rank") is not None
    }


def _of(ranks: list[int], common: list[int]) -> str:
    if len(ranks) == len(common):
        return ""
    return f" rank {ranks[0]}" if len(ranks) == 1 else f" ranks {', '.join(map(str, ranks))}"
