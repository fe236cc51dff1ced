"""How long the judge takes: one look, and fifty launches. Exits 1 above 50 ms for fifty launches.

python benchmarks/judge_speed.py
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable

from perfgate.judge import Judge, NoisePrior, PairSamples, Policy, replay

LIMIT_MS = 50.0
PRIORS = {
    "prior": NoisePrior(0.01, 10),
    "prior with bad launches": NoisePrior(0.005, 20, bad=0.15, far=0.06),
    "no prior": None,
}


def pairs_of(count: int) -> list[PairSamples]:
    draw = random.Random(1)

    def launch(slowdown: float) -> list[float]:
        level = slowdown + draw.gauss(0, 0.01)
        return [100 * math.exp(level + draw.gauss(0, 0.003)) for _ in range(8)]

    return [PairSamples.of(launch(0.0), launch(0.02), "base" if number % 2 else "head") for number in range(count)]


def best_ms(work: Callable[[], object], repeats: int = 20) -> float:
    """The fastest of some repeats: what the work takes when nothing disturbs it."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return 1000 * min(times)


def every_look(policy: Policy, prior: NoisePrior | None, pairs: list[PairSamples]) -> None:
    judge = Judge(policy, prior)
    for pair in pairs:
        judge.add(base=pair.base, head=pair.head, first=pair.first)


def main() -> int:
    policy = Policy(max_pairs=25)
    fifty_launches = pairs_of(25)
    print("| | a look at 3 pairs | at 25 pairs | 50 launches, a look after each pair |")
    print("|---|---|---|---|")
    slowest = 0.0
    for name, prior in PRIORS.items():
        few = best_ms(lambda prior=prior: replay(policy, prior, fifty_launches[:3]))  # type: ignore[misc]
        many = best_ms(lambda prior=prior: replay(policy, prior, fifty_launches))  # type: ignore[misc]
        whole = best_ms(lambda prior=prior: every_look(policy, prior, fifty_launches), 5)  # type: ignore[misc]
        slowest = max(slowest, whole)
        print(f"| {name} | {few:.2f} ms | {many:.1f} ms | {whole:.0f} ms |")
    print(f"\nLimit for 50 launches: {LIMIT_MS:.0f} ms.")
    return 1 if slowest > LIMIT_MS else 0


if __name__ == "__main__":
    sys.exit(main())
