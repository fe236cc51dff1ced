"""How often a bisect is right, wrong or says a range, and what it takes: simulated launches through the real search.

    python benchmarks/bisect_rates.py [--runs 1000] [--only WORDS]

Every world draws its own ledger (eight pairs of its own noise), so what the search believes of the noise is as wrong as
it would be. A launch is one number; a pair is two, next to each other.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perfgate.blame.bisect.evidence import PairNoise, Seen
from perfgate.blame.bisect.search import Kind, Line, Rules, SearchFinding, Step, next_step, noiseless_launches

LEDGER_PAIRS = 8
Draw = Callable[[random.Random, int], float]  # a launch's noise; the number of launches so far


@dataclass(frozen=True)
class World:
    name: str
    commits: int
    steps: tuple[tuple[float, float], ...]  # share of the line, log slowdown; a share below 0: drawn anew each time
    draw: Draw
    prior: bool = False  # suspicion ranks the culprit first
    alpha: float = 0.01


def gauss(pair_sd: float) -> Draw:
    return lambda rng, _: rng.gauss(0, pair_sd / math.sqrt(2))


def bimodal(pair_sd: float, apart: float, share: float) -> Draw:
    return lambda rng, _: rng.gauss(0, pair_sd / math.sqrt(2)) + (apart if rng.random() < share else 0.0)


def drifting(pair_sd: float, a_launch: float) -> Draw:
    return lambda rng, number: rng.gauss(0, pair_sd / math.sqrt(2)) + a_launch * number


@dataclass(frozen=True)
class Played:
    findings: tuple[SearchFinding, ...]
    culprits: tuple[int, ...]
    launches: int


def play(world: World, seed: int) -> Played:
    rng = random.Random(f"{world.name}/{seed}")
    places = rng.sample(range(1, world.commits + 1), len(world.steps))
    culprits = dict(zip(places, (size for _, size in world.steps), strict=True))
    launches = 0

    def launch(at: int) -> float:
        nonlocal launches
        launches += 1
        return math.fsum(size for k, size in culprits.items() if k <= at) + world.draw(rng, launches)

    ledger = [launch(0) - launch(0) for _ in range(LEDGER_PAIRS)]
    noise = PairNoise(max(1e-4, math.sqrt(math.fsum(d * d for d in ledger) / LEDGER_PAIRS)), LEDGER_PAIRS)
    launches = 0
    weight = {at: 1.0 if at in culprits else rng.choice((0.0, 0.0, 0.2)) for at in range(1, world.commits + 1)}
    line = Line(world.commits, weight=weight if world.prior else {})
    rules = Rules(noise=noise, alpha=world.alpha)
    seen: list[Seen] = []
    while isinstance(step := next_step(line, seen, rules), Step):
        sides = [step.older, step.newer] if rng.random() < 0.5 else [step.newer, step.older]
        values = {at: launch(at) for at in sides}
        seen.append(Seen(step.older, step.newer, values[step.newer] - values[step.older], step.within))
    return Played(step, tuple(sorted(culprits)), launches)


def worlds() -> list[World]:
    found: list[World] = []
    for commits in (7, 60):
        for loss, sd in ((0.36, 0.07), (0.10, 0.02), (0.05, 0.01)):
            step = ((-1, -math.log1p(-loss)),)
            found.append(
                World(f"{commits} commits, −{100 * loss:.0f} %, SD {100 * sd:.0f} %", commits, step, gauss(sd))
            )
        step = ((-1, -math.log1p(-0.36)),)
        found.append(World(f"{commits} commits, −36 %, SD 7 %, prior right", commits, step, gauss(0.07), prior=True))
        for sd in (0.07, 0.02, 0.01):
            found.append(World(f"{commits} commits, A/A, SD {100 * sd:.0f} %", commits, (), gauss(sd)))
        for loss, sd in ((0.36, 0.07), (0.10, 0.02), (0.05, 0.01)):
            half = -math.log1p(-loss) / 2
            name = f"{commits} commits, two of −{100 * loss:.0f} %/2, SD {100 * sd:.0f} %"
            found.append(World(name, commits, ((-1, half), (-1, half)), gauss(sd)))
        gain = ((-1, 0.2), (-1, -0.1))
        found.append(World(f"{commits} commits, a loss of 20 % and a gain of 10 %, SD 2 %", commits, gain, gauss(0.02)))
        for loss in (0.36, 0.10, 0.05):
            step = ((-1, -math.log1p(-loss)),)
            name = f"{commits} commits, −{100 * loss:.0f} %, bimodal 21 % apart"
            found.append(World(name, commits, step, bimodal(0.01, 0.21, 0.5)))
            name = f"{commits} commits, −{100 * loss:.0f} %, one launch in six 9 % off"
            found.append(World(name, commits, step, bimodal(0.01, 0.09, 1 / 6)))
            name = f"{commits} commits, −{100 * loss:.0f} %, drift 0.5 % a launch"
            found.append(World(name, commits, step, drifting(0.01, 0.005)))
        found.append(World(f"{commits} commits, A/A, bimodal 21 % apart", commits, (), bimodal(0.01, 0.21, 0.5)))
    return found


def table(runs: int, only: str) -> None:
    print(f"| world ({runs} runs each) | all named | wrong name | one missed in silence | range or none |", end="")
    print(" launches, mean | × noiseless |\n|---|---|---|---|---|---|---|")
    for world in worlds():
        if only not in world.name:
            continue
        played = [play(world, seed) for seed in range(runs)]
        named = [{one.newer for one in p.findings if one.kind is Kind.NAMED} for p in played]
        right = sum(set(p.culprits) == names for p, names in zip(played, named, strict=True))
        wrong = sum(bool(names - set(p.culprits)) for p, names in zip(played, named, strict=True))
        mean = statistics.fmean(p.launches for p in played)
        ratio = mean / noiseless_launches(world.commits)
        silent = sum(
            bool(names) and bool(set(p.culprits) - names) and not any(one.kind is Kind.RANGE for one in p.findings)
            for p, names in zip(played, named, strict=True)
        )
        rest = runs - sum(bool(names) for names in named)
        shares = " | ".join(f"{100 * number / runs:.1f} %" for number in (right, wrong, silent, rest))
        print(
            f"| {world.name} | {shares} | {mean:.1f} | {ratio:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--only", default="")
    table(**vars(parser.parse_args()))
