"""The judge: did head make serving slower, by how much, and how sure are we?

What it believes:

- **The unit of replication is the launch.** Samples within a launch agree to a few per mille while launches of the
  same build differ by per cents, so samples are never pooled across launches. A launch is one number, a base and a
  head launch next to each other are one pair, and only the differences of pairs are counted.
- **There are three answers, and "not known" is one of them.** A commit is slower, or its slowdown is below the budget,
  or more pairs are needed; a verdict without proof is not given in either direction.
- **Launches are minutes of eight GPUs.** The judge looks after each pair and stops as soon as it is sure. What repeated
  looks do to its errors is simulated (docs/judge.md), never assumed.
- **Noise has a memory.** The box's ledger says how much pairs differ that should not; where it is silent or wrong the
  judge notices and takes more pairs.
- **Odd pairs have explanations, and explanations have prices.** A bad launch, a drifting box, a noise that has
  changed: each is allowed, each costs, and a verdict stands only if it survives the cheapest way to explain it away.
- **Numbers carry their doubts.** A decision holds an interval, what could have been detected, and its warnings as data.

    judge = Judge(Policy(budget=0.03), NoisePrior(sd=0.01, df=10), better=Better.HIGHER)
    decision = judge.add(base=[88.1, 88.4], head=[82.7, 82.9], first=Side.BASE)
    decision.state, decision.slowdown, decision.low, decision.high

Slowdowns are differences of logarithms, + = head is slower. Everything is a pure function of small immutable values.

Three storeys, each of which knows only those before it:

- **statistics**, numbers in and numbers out: `values`, `noise`, `explain`, `caveats`, `sequential` (the judge of one
  metric), `power` (what can be detected at which cost, samples a launch), `decompose` (which phase a loss comes from);
- **evidence**, the records of runs in: `evidence` (which pairs answer the question), `metrics` (each of them judged);
- **result**, a record out: `verdict` (of the gate, and what to measure next), `calibration`, `notices`, `result`.
"""

from perfgate.judge.decompose import Reading, Share, Split, Where, decompose, read_recipes
from perfgate.judge.metrics import JudgedMetric
from perfgate.judge.noise import learn
from perfgate.judge.power import PowerRow, detected_from, expected_pairs, power
from perfgate.judge.sequential import Judge, decide, replay
from perfgate.judge.values import Decision, Drift, JudgeInputError, NoisePrior, PairSamples, Policy
from perfgate.judge.verdict import (
    Disturbance,
    Faults,
    GateVerdict,
    NextStep,
    RecipeProgress,
    RunFailure,
    combine,
    describe,
    next_step,
)

__all__ = [
    "Decision",
    "Disturbance",
    "Drift",
    "Faults",
    "GateVerdict",
    "Judge",
    "JudgeInputError",
    "JudgedMetric",
    "NextStep",
    "NoisePrior",
    "PairSamples",
    "Policy",
    "PowerRow",
    "Reading",
    "RecipeProgress",
    "RunFailure",
    "Share",
    "Split",
    "Where",
    "combine",
    "decide",
    "decompose",
    "describe",
    "detected_from",
    "expected_pairs",
    "learn",
    "next_step",
    "power",
    "read_recipes",
    "replay",
]
