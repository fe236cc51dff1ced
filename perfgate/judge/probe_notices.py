"""What the probe warns of, said once for each recipe and side. Its words come from the code under test: untrusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfgate import records as r
from perfgate.judge.evidence import RunFacts, launch_id

MOST_NOTICES = 6  # a hostile head could warn of thousands of things
MOST_TEXT = 300


def probe_notices(run: RunFacts) -> tuple[r.Notice, ...]:
    """The first warning of each kind; `data` says in how many launches of pairs it was found."""
    paired = {name for pair in run.pairs for name in (pair.base, pair.head)}
    first: dict[tuple[str, str, r.Side], Mapping[str, Any]] = {}
    launches: dict[tuple[str, str, r.Side], set[str]] = {}
    for fact in run.facts:
        if isinstance(fact, r.Phases) and launch_id(fact) in paired:
            for warning in fact.warnings:
                key = (str(warning.get("code", "")), fact.recipe, fact.side)
                first.setdefault(key, warning)
                launches.setdefault(key, set()).add(launch_id(fact))
    return tuple(_notice(key, warning, len(launches[key])) for key, warning in list(first.items())[:MOST_NOTICES])


def _notice(key: tuple[str, str, r.Side], warning: Mapping[str, Any], launches: int) -> r.Notice:
    code, recipe, side = key
    count = f" ({launches} launches)" if launches > 1 else ""
    text = f"{recipe}, {side.value}{count}: {str(warning.get('text', ''))[:MOST_TEXT]}"
    return r.Notice(code=code[:60], text=text, data={"recipe": recipe, "side": side.value, "launches": launches})
