"""The decomposition of each recipe's loss, from its launches, as the result tells it."""

from __future__ import annotations

from collections.abc import Sequence

from perfgate import records as r
from perfgate.judge.decompose import ACCEPT, PLAIN_PHASES, SPECULATIVE_PHASES, Split, decompose, read_recipes
from perfgate.judge.evidence import JudgedMetric, Launch, RunFacts, counted_pairs, prior_of
from perfgate.judge.values import Decision


def decompositions(
    run: RunFacts, judged: Sequence[JudgedMetric], earlier: Sequence[RunFacts] = ()
) -> tuple[r.Decomposition, ...]:
    """One for each recipe with pairs, at its first concurrency."""
    tok_s = {
        one.plan.recipe: one
        for one in judged
        if one.plan.metric == "tok_s" and one.plan.concurrency == run.recipe(one.plan.recipe).concurrencies[0]
    }
    reading = _reading(run, tok_s)
    found = (_decomposition(run, one, earlier, reading) for one in tok_s.values())
    return tuple(one for one in found if one is not None)


def _decomposition(
    run: RunFacts, judged: JudgedMetric, earlier: Sequence[RunFacts], reading: str
) -> r.Decomposition | None:
    if judged.decision is None:
        return None
    plan = judged.plan
    pairs = [
        tuple(_medians(launch, plan.concurrency) for launch in one.sides_of(pair))
        for one, pair in counted_pairs(run, earlier, plan.recipe)
    ]
    split = decompose([(base, head) for base, head in pairs], judged.decision.slowdown, prior_of(plan))
    if split is None:
        return None
    sentence = f"{plan.recipe} {split.sentence}."
    tells = run.recipe(plan.recipe).speculative and judged.decision.low > 0
    return r.Decomposition(
        recipe=plan.recipe,
        concurrency=plan.concurrency,
        total=split.slowdown,
        parts=_parts(split),
        sentence=f"{sentence} {reading}" if tells and reading else sentence,
    )


def _medians(launch: Launch, concurrency: int) -> dict[str, float | None]:
    names = ("tok_s", "cycle_ms", ACCEPT, *SPECULATIVE_PHASES, *PLAIN_PHASES)
    return {name: launch.value(name, concurrency) for name in names}


def _parts(split: Split) -> tuple[r.Part, ...]:
    return tuple(
        r.Part(
            phase=share.name,
            slowdown=share.slowdown,
            low=share.low,
            high=share.high,
            base_ms=share.base if share.name != ACCEPT else None,
            head_ms=share.head if share.name != ACCEPT else None,
        )
        for share in split.shares
    )


def _reading(run: RunFacts, tok_s: dict[str, JudgedMetric]) -> str:
    """What plain decoding and speculation say together; the first recipe of each kind speaks for it."""
    plain, speculative = (_first(run, tok_s, speculative=kind) for kind in (False, True))
    return read_recipes(plain, speculative).sentence if plain and speculative else ""


def _first(run: RunFacts, tok_s: dict[str, JudgedMetric], *, speculative: bool) -> Decision | None:
    names = [plan.name for plan in run.plan.recipes if plan.speculative is speculative]
    return next((tok_s[name].decision for name in names if name in tok_s), None)
