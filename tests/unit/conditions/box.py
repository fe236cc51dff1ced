"""Facts of runs on a made-up box: two sides that ran with the same, and every way in which they may not have."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from perfgate import records as r
from perfgate.conditions import assess_environment
from perfgate.judge.evidence import RunFacts
from perfgate.judge.result import Conditions
from tests.unit.run.builders import a_plan

NCCL = {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS", "NCCL_MIN_NCHANNELS": "8"}
SET_BY_SGLANG = {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
PROBE = "/state/runs/1/probe/path"
GPU: Mapping[str, Any] = {
    "lost": False,
    "sm_clock_mhz": 2320,
    "sm_clock_min_mhz": 2310,
    "temperature_c": 36,
    "power_w": 231.0,
    "power_limit_w": 600.0,
    "pcie": "Gen5 x16",
    "pcie_gen": 5,
    "pcie_width": 16,
    "throttle": [],
    "thermal_ms": 0.0,
}
SYSTEM: Mapping[str, Any] = {
    "wall_s": 30.0,
    "cpus": 128,
    "main_wait_s": 0.02,
    "others_cpu_s": 3.0,
    "steal_s": 0.0,
    "throttled_s": None,
}


@dataclass(frozen=True)
class LaunchBox:
    """What one launch ran with. `rank` changes the proof of single ranks."""

    side: r.Side
    pair: int
    given: Mapping[str, str]
    at_start: Mapping[str, str] | None  # as its processes say
    effective: Mapping[str, str] | None
    found: Mapping[str, str] | None = None  # as perfgate's own process says; None: like `at_start`
    readable: bool = True  # whether that one could say anything
    rank: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    ranks: int = 8
    sitecustomize: tuple[str, ...] = (f"{PROBE}/sitecustomize.py",)
    nccl: tuple[str, str] = ("2.27.5", "1abbc2c0b1d0")
    versions: Mapping[str, str] = field(default_factory=lambda: {"torch": "2.9.1", "cuda": "12.8", "sglang": "x"})
    worker: str | None = "sglang.srt.speculative.eagle_worker_v2.EAGLEWorkerV2"
    build: str = "env-5f2e"
    boot: str = "boot1"
    gpus: tuple[Mapping[str, Any], ...] = tuple({"index": i, **GPU} for i in range(8))
    system: Mapping[str, Any] = field(default_factory=lambda: dict(SYSTEM))
    launch_system: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    after: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    log: Mapping[str, Any] = field(default_factory=lambda: {"max_total_num_tokens": 812345})
    valid: bool = True

    @property
    def tree(self) -> str:
        return f"/state/trees/{self.side.value}/python"

    def gpu(self, index: int, **changes: Any) -> LaunchBox:
        return replace(self, gpus=tuple({**gpu, **changes} if gpu["index"] == index else gpu for gpu in self.gpus))


Change = Callable[[LaunchBox], LaunchBox]


def normal(side: r.Side, pair: int) -> LaunchBox:
    home = f"/state/homes/{side.value}"
    given = {
        **NCCL,
        "HOME": home,
        "PYTHONPATH": f"{PROBE}:/state/trees/{side.value}/python",
        "SGLANG_CACHE_DIR": f"{home}/.cache/sglang",
        "PERFGATE_PROBE_LAUNCH": f"{side.value} {pair}",
        "PATH": "/state/environments/5f2e/bin:/usr/bin",
    }
    found = {name: value for name, value in given.items() if name.startswith(("NCCL_", "SGLANG_"))}
    canary = {"allreduce_32k_us": (26.1, 26.2, 26.0), "allreduce_256k_us": (58.0, 58.1, 57.9), "compute_ms": (9.7, 9.8)}
    return LaunchBox(
        side, pair, given, at_start=found, effective={**found, **SET_BY_SGLANG}, before=canary, after=canary
    )


def changed(side: r.Side, change: Change, *, pairs: tuple[int, ...] = (1, 2)) -> Change:
    """A change that befalls one side's launches only."""
    return lambda box: change(box) if box.side is side and box.pair in pairs else box


def head(change: Change) -> Change:
    return changed(r.Side.HEAD, change)


def run_of(*changes: Change, pairs: int = 2, plan: Mapping[str, Any] | None = None) -> RunFacts:
    """Facts of so many pairs of one recipe, with these changes in it."""
    facts: list[r.Fact] = [replace(a_plan(**(plan or {})), t="2026-11-30T10:00:00Z")]
    for pair in range(1, pairs + 1):
        first = r.Side.BASE if pair % 2 else r.Side.HEAD
        for position, side in enumerate((first, first.other), 1):
            box = normal(side, pair)
            for change in changes:
                box = change(box)
            facts += launch_facts(box, position)
        names = {side: f"eagle3/p{pair:02d}/{side.value}/a1" for side in r.Side}
        facts.append(
            r.Pair(
                id=f"eagle3/p{pair:02d}",
                recipe="eagle3",
                pair=pair,
                base=names[r.Side.BASE],
                head=names[r.Side.HEAD],
                first=first,
            )
        )
    run = RunFacts.of(facts)
    assert run is not None
    return run


def assessed(*changes: Change, pairs: int = 2, plan: Mapping[str, Any] | None = None) -> Conditions:
    return assess_environment(run_of(*changes, pairs=pairs, plan=plan))


def launch_facts(box: LaunchBox, position: int, attempt: int = 1) -> list[r.Fact]:
    name = f"eagle3/p{box.pair:02d}/{box.side.value}/a{attempt}"
    place: dict[str, Any] = {
        "recipe": "eagle3",
        "pair": box.pair,
        "side": box.side,
        "position": position,
        "attempt": attempt,
        "boot": box.boot,
    }
    facts: list[r.Fact] = []
    if box.before:
        facts.append(r.Canary(id=f"{name}/canary/before", launch=name, when="before", readings=box.before))
    facts.append(
        r.LaunchBegin(
            id=name,
            **place,
            sha="a" * 40,
            build=box.build,
            argv=(),
            given=box.given,
            port=1,
            log="log",
            at_start=(box.found if box.found is not None else box.at_start) if box.readable else None,
        )
    )
    facts += [_proof(box, name, place, rank) for rank in range(box.ranks)]
    facts.append(_sample(name, place))
    facts.append(r.Telemetry(id=f"{name}/telemetry/s0", **place, sample=0, gpus=box.gpus, system=box.system))
    facts.append(
        r.Telemetry(id=f"{name}/telemetry/launch", **place, sample=None, gpus=box.gpus, system=box.launch_system)
    )
    facts.append(
        r.LaunchEnd(
            id=name,
            **place,
            valid=box.valid,
            reasons=() if box.valid else ("unfit",),
            log="log",
            ready_s=1.0,
            wall_s=60.0,
            facts_from_log=box.log,
        )
    )
    if box.after:
        facts.append(r.Canary(id=f"{name}/canary/after", launch=name, when="after", readings=box.after))
    return facts


def _proof(box: LaunchBox, name: str, place: Mapping[str, Any], rank: int) -> r.Proof:
    own: dict[str, Any] = {
        "at_start": box.at_start,
        "effective": box.effective,
        "sitecustomize": tuple({"path": path, "hash": "h"} for path in box.sitecustomize),
        "nccl": ({"path": "/x/libnccl.so.2", "version": box.nccl[0], "hash": box.nccl[1]},),
        "versions": box.versions,
        "worker": box.worker,
    }
    return r.Proof(
        id=name, **place, pid=4000 + rank, role="scheduler", rank=rank, given=NCCL, **{**own, **box.rank.get(rank, {})}
    )


def _sample(name: str, place: Mapping[str, Any]) -> r.Sample:
    return r.Sample(
        id=f"{name}/s0",
        **place,
        sample=0,
        concurrency=1,
        begin=0.0,
        end=30.0,
        requests=(),
        tok_s=94.0,
        ttft_ms=1.0,
        cycle_ms=10.0,
        accept_length=2.0,
    )


def sung(draw: random.Random, median: float, *, within: float, between: float = 0.0) -> Change:
    """Canary readings of a box with this noise (SDs of logs): of single readings, and of whole launches."""

    def change(box: LaunchBox) -> LaunchBox:
        level = median * math.exp(draw.gauss(0, between))
        before, after = (
            {"allreduce_32k_us": tuple(level * math.exp(draw.gauss(0, within)) for _ in range(5))} for _ in range(2)
        )
        return replace(box, before=before, after=after)

    return change
