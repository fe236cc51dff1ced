"""The judge: did head make serving slower, by how much, and how sure are we?

The unit of replication is the launch. Samples within a launch agree far better than launches do, so they are
never pooled: a launch is one number, a base and a head launch next to each other are one pair, and only the
differences of pairs are counted.
"""

from perfgate.judge.sequential import Judge, decide, replay
from perfgate.judge.values import (
    Better,
    Decision,
    Drift,
    Effect,
    First,
    JudgeInputError,
    Pair,
    Policy,
    Prior,
    State,
    Warning,
)
from perfgate.judge.verdict import (
    Disturbance,
    Failure,
    Faults,
    Gated,
    GateVerdict,
    Progress,
    Step,
    combine,
    describe,
    next_step,
)

__all__ = [
    "Better",
    "Decision",
    "Disturbance",
    "Drift",
    "Effect",
    "Failure",
    "Faults",
    "First",
    "GateVerdict",
    "Gated",
    "Judge",
    "JudgeInputError",
    "Pair",
    "Policy",
    "Prior",
    "Progress",
    "State",
    "Step",
    "Warning",
    "combine",
    "decide",
    "describe",
    "next_step",
    "replay",
]
