"""What the judge can detect on this box, and what that costs: by playing it, not by a formula.

Looking after each pair, bad launches and a noise that is only guessed leave no closed form that is right, so pairs are
drawn with the ledger's noise and handed to the real judge.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from perfgate.judge.noise import LOOSE_SD
from perfgate.judge.sequential import decide
from perfgate.judge.values import First, Pair, Policy, Prior, State

RUNS = 400
SLOWDOWNS = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.10)
DETECTED = 0.9  # the share from which on a slowdown counts as one that is detected


@dataclass(frozen=True, slots=True)
class PowerRow:
    """How the judge does at one true slowdown (log units). Shares in 0 to 1, pairs and launches are means.

    gpu_minutes is None where the minutes of a launch are not known.
    """

    slowdown: float
    regression: float
    passed: float
    inconclusive: float
    pairs: float
    launches: float
    gpu_minutes: float | None


def power(
    policy: Policy,
    prior: Prior | None,
    slowdowns: Sequence[float] = SLOWDOWNS,
    *,
    launch_minutes: float | None = None,
    gpus: int = 1,
    runs: int = RUNS,
    seed: int = 0,
) -> tuple[PowerRow, ...]:
    """One row per true slowdown. `launch_minutes`: wall minutes of one launch on that many GPUs.

    The same seed gives the same rows, and the same noise for each slowdown, so that a curve is smooth.
    """
    return tuple(_row(policy, prior, slowdown, launch_minutes, gpus, runs, seed) for slowdown in slowdowns)


def detected_from(rows: Sequence[PowerRow], share: float = DETECTED) -> float | None:
    """The smallest slowdown of the table from which on that share is found; None where none is."""
    found: float | None = None
    for row in sorted(rows, key=lambda row: row.slowdown, reverse=True):
        if row.regression < share:
            break
        found = row.slowdown
    return found


def expected_pairs(policy: Policy, prior: Prior | None, slowdown: float = 0.0, runs: int = 200, seed: int = 0) -> float:
    """Mean pairs until the judge has decided; for the plan that is printed before anything starts."""
    return power(policy, prior, (slowdown,), runs=runs, seed=seed)[0].pairs


def _row(
    policy: Policy,
    prior: Prior | None,
    slowdown: float,
    launch_minutes: float | None,
    gpus: int,
    runs: int,
    seed: int,
) -> PowerRow:
    generator = random.Random(seed)
    ends = [_play(policy, prior, slowdown, generator.getrandbits(64)) for _ in range(runs)]
    states = [state for state, _ in ends]
    pairs = math.fsum(count for _, count in ends) / runs
    return PowerRow(
        slowdown=slowdown,
        regression=states.count(State.REGRESSION) / runs,
        passed=states.count(State.PASS) / runs,
        inconclusive=states.count(State.INCONCLUSIVE) / runs,
        pairs=pairs,
        launches=2 * pairs,
        gpu_minutes=None if launch_minutes is None else 2 * pairs * launch_minutes * gpus,
    )


def _play(policy: Policy, prior: Prior | None, slowdown: float, seed: int) -> tuple[State, int]:
    generator = random.Random(seed)
    orders: tuple[First, First] = ("base", "head") if generator.random() < 0.5 else ("head", "base")
    pairs: list[Pair] = []
    while True:
        difference = slowdown + _noise(prior, generator)
        pairs.append(Pair((1.0,), (math.exp(difference),), orders[len(pairs) % 2]))
        decision = decide(policy, prior, pairs, "lower")
        if decision.state is not State.CONTINUE:
            return decision.state, len(pairs)


def _noise(prior: Prior | None, generator: random.Random) -> float:
    """A pair of the same code: normal, and now and then with a bad launch."""
    sd, bad, far = (prior.sd, prior.bad, prior.far or 0.0) if prior else (LOOSE_SD, 0.0, 0.0)
    off = generator.choice((-far, far)) if generator.random() < bad else 0.0
    return generator.gauss(0.0, sd) + off
