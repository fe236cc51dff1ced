"""The tables of a report as text cells, the same for comment, page and terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfgate.records import LaunchResult, Metric, Result, metric_label
from perfgate.report import numbers, words
from perfgate.text import SPACE, amount, decimals_for, pair_of_amounts

MOST_LAUNCHES = 100
MOST_COLUMNS = 16
MOST_TABLES = 24


@dataclass(frozen=True)
class MetricRow:
    """One metric as a row; all cells are text."""

    recipe: str
    label: str
    base: str
    head: str
    change: str
    interval: str
    budget: str
    verdict: str
    pairs: int
    gated: bool


def table_rows(result: Result) -> list[MetricRow]:
    """The first table, where anything was measured: a few rows a recipe, the recipe's name on its first."""
    if not any(metric.base is not None for metric in result.metrics):
        return []
    rows = []
    for recipe in words.recipes_of(result):
        own = [row_of(metric, result) for metric in words.main_metrics(result, recipe)]
        rows += [row if number == 0 else replace(row, recipe="") for number, row in enumerate(own)]
    return rows


def row_of(metric: Metric, result: Result) -> MetricRow:
    base, head = pair_of_amounts(metric.base, metric.head)
    return MetricRow(
        recipe=metric.recipe,
        label=words.label(metric, result),
        base=base,
        head=head,
        change=numbers.change(metric),
        interval=numbers.interval(metric) if metric.base is not None else "",
        budget=numbers.budget(metric),
        verdict=words.verdict_of(metric, result),
        pairs=metric.pairs,
        gated=metric.gated,
    )


def interval_name(result: Result) -> str:
    levels = {metric.interval_level for metric in result.metrics}
    return f"{100 * levels.pop():.3g}{SPACE}% interval" if len(levels) == 1 else "interval"


@dataclass(frozen=True)
class LaunchTable:
    """Every launch of a recipe with the value of each metric."""

    recipe: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int


def launch_tables(result: Result) -> list[LaunchTable]:
    recipes = dict.fromkeys(launch.id.split("/")[0] for launch in result.launches)
    return [_launch_table(recipe, result.launches) for recipe in recipes][:MOST_TABLES]


def _launch_table(recipe: str, launches: Sequence[LaunchResult]) -> LaunchTable:
    own = [launch for launch in launches if launch.id.split("/")[0] == recipe]
    names = sorted(dict.fromkeys(name for launch in own for name in launch.values), key=_column_order)[:MOST_COLUMNS]
    decimals = {name: decimals_for(*(launch.values.get(name) for launch in own)) for name in names}
    rows = tuple(
        (
            launch.id,
            {1: "first", 2: "second"}.get(launch.position, str(launch.position)),
            *(amount(launch.values.get(name), decimals[name]) for name in names),
            _use(launch),
        )
        for launch in own[:MOST_LAUNCHES]
    )
    return LaunchTable(recipe, tuple(_column(name) for name in names), rows, len(own) - len(rows))


def _column_order(name: str) -> tuple[int, int]:
    metric, _, concurrency = name.partition("@")
    order = words.READING_ORDER.index(metric) if metric in words.READING_ORDER else len(words.READING_ORDER)
    return (int(concurrency) if concurrency.isdecimal() and len(concurrency) < 9 else 0, order)


def _column(name: str) -> str:
    metric, _, concurrency = name.partition("@")
    return metric_label(metric) + ("" if concurrency in ("", "1") else f" @{concurrency}")


def _use(launch: LaunchResult) -> str:
    if not launch.valid:
        return "not valid"
    return "counted" if launch.paired else "without a partner, not counted"
