"""The page of a run: one HTML file with everything, from the verdict down to the facts each number came from.

Self-contained: no script, no image, nothing from outside. Its own content security policy allows its one style sheet,
by hash, and nothing else, so even a text that got through the escaping could do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from markupsafe import Markup

from perfgate import records as r
from perfgate import text
from perfgate.report import plots, words
from perfgate.report.comment import Links, reproduce
from perfgate.report.escape import web_address
from perfgate.report.headline import first_sentence, headline
from perfgate.report.tables import MetricRow, interval_name, launch_tables, row_of, table_rows
from perfgate.text import NOTHING, minutes, pair_of_amounts, percent_number, visible

PROBES = frozenset({"verify_ms", "draft_ms", "draft_extend_ms", "decode_ms"})
MOST_PLOTS = 40
MOST_ROWS = 2000


def render_page(result: r.Result, facts: Sequence[r.Fact] = (), *, links: Links | None = None) -> str:
    """The whole page. Without facts it has no timeline, no samples and no log names."""
    style = _style()
    sources = sources_of(facts)
    return (
        _templates()
        .get_template("page.html.j2")
        .render(
            result=result,
            links=links or Links(),
            headline=headline(result),
            first_sentence=first_sentence(result),
            style=Markup(style),
            style_hash=base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
            level=interval_name(result),
            rows=table_rows(result)[:MOST_ROWS],
            recipes=_recipes(result, facts),
            all_rows=[_AllRow(metric, row_of(metric, result)) for metric in words.in_reading_order(result.metrics)][
                :MOST_ROWS
            ],
            launches=launch_tables(result),
            tables={table.recipe: f"launches-{number}" for number, table in enumerate(launch_tables(result))},
            sources=sources,
            anchors={launch.id: f"launch-{number}" for number, launch in enumerate(result.launches)},
            by_code=words.explained_by_code(result),
            sentences=[*words.environment_sentences(result.environment), words.canary_sentence(result)],
            seen=words.detectable_sentence(result),
            beside=[one for one in (words.ungated_losses(result), *words.outputs_sentences(result)) if one],
            stand_ins=words.stand_ins(result),
            lines=[visible(line, 400, keep_spaces=True) for line in words.failure_lines(result)][-80:],
            notices=words.notices(result),
            timeline=plots.timeline("timeline", facts),
            builds=[fact for fact in facts if isinstance(fact, r.Build)],
            reproduce=reproduce(result),
            glossary=words.GLOSSARY,
            text=text,
        )
    )


@cache
def _style() -> str:
    return files("perfgate.report").joinpath("templates/page.css").read_text(encoding="utf-8")


@cache
def _templates() -> Templates:
    templates = Templates(
        loader=PackageLoader("perfgate.report"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"commit_link": commit_link, "address": web_address}
    return templates


def _shown(value: Any) -> Any:
    """What a reader cannot see is shown; escaping for HTML comes after this."""
    return visible(value, 4000) if isinstance(value, str) and not isinstance(value, Markup) else value


def commit_link(sha: str, repository: str | None) -> str | None:
    """The address of a commit, where the repository is known and the commit is one."""
    home = web_address(repository)
    return f"{home.rstrip('/')}/commit/{sha}" if home and re.fullmatch(r"[0-9a-f]{40}", sha) else None


# ------------------------------------------------------------------------------------------------ recipes


@dataclass(frozen=True)
class _AllRow:
    metric: r.Metric
    row: MetricRow

    @property
    def origin(self) -> str:
        """Where a metric's numbers come from, in words."""
        return "probe, inside the server" if self.metric.metric in PROBES else "client, outside the server"


@dataclass(frozen=True)
class _Plot:
    caption: str
    drawing: Markup


@dataclass(frozen=True)
class _Phases:
    sentence: str
    drawing: Markup | None
    parts: tuple[tuple[str, str, str, str, str], ...]  # phase, base ms, head ms, slowdown, interval


@dataclass(frozen=True)
class _Recipe:
    name: str
    plots: tuple[_Plot, ...]
    phases: tuple[_Phases, ...]


def _recipes(result: r.Result, facts: Sequence[r.Fact]) -> list[_Recipe]:
    told = []
    for number, name in enumerate(words.recipes_of(result)[:MOST_PLOTS]):
        drawn = [
            _Plot(_caption(metric, result), drawing)
            for index, metric in enumerate(words.main_metrics(result, name)[:8])
            if (drawing := plots.dot_plot(f"dots-{number}-{index}", result, metric, samples_of(facts, metric)))
        ]
        phases = [
            _phases(f"phases-{number}-{index}", result, one)
            for index, one in enumerate(result.decomposition)
            if one.recipe == name
        ]
        if drawn or phases:
            told.append(_Recipe(name, tuple(drawn), tuple(phases)))
    return told


def _caption(metric: r.Metric, result: r.Result) -> str:
    arrow = "more is better" if metric.better is r.Better.HIGHER else "less is better"
    return f"{words.label(metric, result)} of every launch, {arrow}: {words.verdict_of(metric, result)}"


def _phases(name: str, result: r.Result, one: r.Decomposition) -> _Phases:
    phases = plots.phases_of(result, one)
    lengths = {phase.name: pair_of_amounts(phase.base, phase.head) for phase in phases}
    parts = tuple(
        (
            words.PHASES.get(part.phase, part.phase),
            *lengths.get(words.PHASES.get(part.phase, part.phase), (NOTHING, NOTHING)),
            _points(part.slowdown),
            f"{_points(part.low)} … {_points(part.high)}" if part.low is not None and part.high is not None else "",
        )
        for part in one.parts[:20]
    )
    total = ("together", "", "", _points(one.total), "")
    return _Phases(one.sentence, plots.phase_bars(name, one.recipe, phases), (*parts, total))


def _points(slowdown: float | None) -> str:
    """A part of the log ratio in hundredths; + makes head slower."""
    return percent_number(slowdown)


def samples_of(facts: Iterable[r.Fact], metric: r.Metric) -> dict[str, list[float]]:
    """Launch id → the metric in each of its samples."""
    kind: type[r.Sample] | type[r.Phases] = r.Phases if metric.metric in PROBES else r.Sample
    found: dict[str, list[float]] = {}
    for fact in facts:
        if isinstance(fact, kind) and fact.concurrency == metric.concurrency and fact.recipe == metric.recipe:
            value = getattr(fact, metric.metric, None)
            if isinstance(value, float | int):
                found.setdefault(fact.launch_id, []).append(float(value))
    return found


# ------------------------------------------------------------------------------------------------ sources


@dataclass(frozen=True)
class LaunchSource:
    """The facts that one launch's numbers came from."""

    sha: str
    build: str
    log: str
    ready: str
    wall: str
    facts: Mapping[str, tuple[str, ...]]  # kind → ids


def sources_of(facts: Sequence[r.Fact]) -> dict[str, LaunchSource]:
    """Launch id → where its numbers stand: commit, build, log, and the ids of its facts."""
    begun = {fact.id: fact for fact in facts if isinstance(fact, r.LaunchBegin)}
    ended = {fact.id: fact for fact in facts if isinstance(fact, r.LaunchEnd)}
    ids: dict[str, dict[str, list[str]]] = {}
    for fact in facts:
        owner = fact.launch_id if isinstance(fact, r.LaunchFact) else getattr(fact, "launch", None)
        if owner in begun and not isinstance(fact, r.LaunchBegin | r.LaunchEnd):
            ids.setdefault(owner, {}).setdefault(fact.kind, []).append(fact.id)
    return {
        name: LaunchSource(
            sha=begin.sha,
            build=begin.build,
            log=begin.log,
            ready=minutes(ended[name].ready_s if name in ended else None),
            wall=minutes(ended[name].wall_s if name in ended else None),
            facts={kind: tuple(found) for kind, found in ids.get(name, {}).items()},
        )
        for name, begin in begun.items()
    }
