"""Do both sides answer alike? At temperature 0 they do, unless the change alters answers or their rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfgate import records as r
from perfgate.judge.evidence import RunFacts


@dataclass(frozen=True)
class ComparedOutputs:
    """Prompts of one recipe that head answers otherwise than base, of those that could be compared."""

    differ: int
    compared: int


def compared_outputs(runs: Sequence[RunFacts]) -> dict[str, ComparedOutputs]:
    """Recipe → its prompts whose answers can be compared: those that each side answers always alike."""
    answers: dict[tuple[str, str, r.Side], set[str]] = {}
    for run in runs:
        for pair in run.pairs:
            for launch in run.sides_of(pair):
                for sample in launch.samples:
                    for request in sample.requests:
                        answers.setdefault((pair.recipe, request.prompt, launch.side), set()).add(request.output)
    stable = {key: next(iter(outputs)) for key, outputs in answers.items() if len(outputs) == 1}
    both = {(recipe, prompt) for recipe, prompt, _ in stable}
    differs: dict[str, list[bool]] = {}
    for recipe, prompt in sorted(both):
        if all((recipe, prompt, side) in stable for side in r.Side):
            base, head = (stable[recipe, prompt, side] for side in r.Side)
            differs.setdefault(recipe, []).append(base != head)
    return {recipe: ComparedOutputs(sum(ones), len(ones)) for recipe, ones in differs.items()}
