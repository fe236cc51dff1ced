"""A result and a plan on the terminal: colour where there is some, and as readable without it, piped, at 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfgate.records import MetricVerdict, Plan, RecipePlan, Result, Verdict, metric_label
from perfgate.report import numbers, words
from perfgate.report.headline import first_sentence, headline
from perfgate.report.tables import MetricRow, interval_name, table_rows
from perfgate.text import amount, count, listed, minutes, visible

WIDE = 100  # columns from which the budget gets a column of its own
MOST_ROWS = 60
MOST_LINES = 20
MOST_NOTICES = 12

NEW_LINE = Text("")

STYLES = {
    Verdict.PASS: "bold green",
    Verdict.SKIPPED: "bold",
    Verdict.REGRESSION: "bold red",
    Verdict.BUILD_FAILED: "bold red",
    Verdict.BENCH_FAILED: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.ENVIRONMENT: "bold yellow",
}
CELL_STYLES = (
    (words.GATED_VERDICTS[MetricVerdict.REGRESSION], "red"),
    (words.GATED_VERDICTS[MetricVerdict.INCONCLUSIVE], "yellow"),
    (words.GATED_VERDICTS[MetricVerdict.CONTINUE], "yellow"),
)


def print_result(result: Result, console: Console | None = None) -> None:
    (console or Console()).print(render_result(result))


def render_result(result: Result) -> RenderableType:
    """The verdict, the numbers and the sentences of the comment."""
    return Group(*_result_parts(result))


def _result_parts(result: Result) -> Iterator[RenderableType]:
    yield Text(str(headline(result)), style=STYLES[result.verdict])
    if first := first_sentence(result):
        yield Text(visible(first, 300), style="bold")
    yield _text(result.reason, 800)
    rows = table_rows(result)
    if rows:
        yield NEW_LINE
        yield _MetricTable(rows[:MOST_ROWS], interval_name(result))
    if len(rows) > MOST_ROWS:
        yield Text(f"{count(len(rows) - MOST_ROWS, 'more row')} in result.json", style="dim")
    for title, sentences in words.paragraphs(result):
        yield NEW_LINE
        yield Text.assemble((f"{title} ", "bold"), visible(" ".join(sentences), 1200))
    lines = words.failure_lines(result)[-MOST_LINES:]
    if lines:
        yield NEW_LINE
        yield from (Text(f"  {visible(line, 400, keep_spaces=True)}", style="dim") for line in lines)
    notices = words.notices(result)
    if notices:
        yield NEW_LINE
        yield Text("Notes", style="bold")
        yield from (_text(f"- {notice.text}", 500) for notice in notices[:MOST_NOTICES])
        if len(notices) > MOST_NOTICES:
            yield Text(f"- {count(len(notices) - MOST_NOTICES, 'more note')} in result.json")
    yield NEW_LINE
    yield _closing(result)


def _closing(result: Result) -> Text:
    gpu = result.cost.gpu_minutes
    parts = [
        f"base {visible(result.base.sha[:10])}",
        f"head {visible(result.head.sha[:10])}",
        f"box {visible(result.box, 40)}",
        count(result.cost.launches, "launch"),
        minutes(result.cost.wall_s),
        *([f"{amount(gpu, 0)} GPU minutes"] if gpu is not None else []),
        f"run {visible(result.run_id, 60)}",
    ]
    return Text(" · ".join(parts), style="dim")


class _MetricTable:
    """Rows of metrics; the budget has a column where there is room, else it stands under the table."""

    def __init__(self, rows: list[MetricRow], interval: str) -> None:
        self._rows = rows
        self._interval = interval

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", pad_edge=False)
        table.add_column("", overflow="fold", max_width=24)
        table.add_column("", no_wrap=True, overflow="ellipsis")
        for name in ("base", "head", "change", self._interval, *(["budget"] if wide else [])):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("verdict", overflow="fold")
        for row in self._rows:
            budget = [row.budget if row.gated else ""] if wide else []
            cells = [row.base, row.head, row.change, row.interval, *budget]
            table.add_row(
                Text(visible(row.recipe, 40), style="bold"),
                Text(visible(row.label, 40)),
                *(Text(cell, style="bold" if cell is row.change else "") for cell in cells),
                Text(row.verdict, style=_cell_style(row.verdict)),
            )
        yield table
        if not wide:
            budgets = dict.fromkeys(f"{row.label} {row.budget}" for row in self._rows if row.gated)
            yield Text(f"budgets: {visible(', '.join(budgets), 300)}", style="dim")


def _cell_style(verdict: str) -> str:
    if verdict in words.GATED_PASSES.values():
        return "green"
    return next((style for words_, style in CELL_STYLES if words_ == verdict), "")


def _text(text: str, limit: int) -> Text:
    return Text(visible(text, limit))


def _indented(text: str) -> RenderableType:
    return Padding(_text(text, 400), (0, 0, 0, 2), expand=False)


# ------------------------------------------------------------------------------------------------ plan


def render_plan(plan: Plan, expected_minutes: float | None) -> RenderableType:
    """What is about to be measured and what it will cost, before anything starts.

    `expected_minutes` of the box: what the caller expects until a verdict; None where nothing is known of it.
    """
    return Group(*_plan_parts(plan, expected_minutes))


def _plan_parts(plan: Plan, expected_minutes: float | None) -> Iterator[RenderableType]:
    yield Text("perfgate: what will be measured", style="bold")
    for side, commit in (("base", plan.base), ("head", plan.head)):
        yield Text.assemble(f"  {side} {visible(commit.sha[:10])} ", (visible(commit.title, 100), "dim"))
    where = [f"box {plan.box}", f"profile {plan.profile}", f"diff {plan.diff_class}"]
    where += [f"isolation {plan.isolation}"] if plan.isolation else []
    where += [f"autotune {plan.autotune}"] if plan.autotune else []
    yield _indented(", ".join(where))
    yield NEW_LINE
    yield Padding(_recipe_table(plan), (0, 0, 0, 2), expand=False)
    yield NEW_LINE
    limits = plan.limits
    expected = f"about {minutes(expected_minutes * 60)}" if expected_minutes is not None else "not known yet"
    pairs = count(limits.max_pairs, "pair")
    if plan.calibration:
        yield _indented(f"Expected: {expected}. One commit against itself: {pairs} of each recipe, all of them.")
    else:
        yield _indented(f"Expected: {expected}. At most {pairs} a recipe and {minutes(limits.minutes * 60)} in all.")
        yield _indented("Each metric is measured until it is decided, and no longer.")
    if plan.continues:
        yield _indented(f"Adds to the evidence of {listed(plan.continues)}.")
    yield from (_indented(f"Note: {note}") for note in plan.notes[:MOST_NOTICES])


def _recipe_table(plan: Plan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("recipe", "concurrency", "samples", "a launch", "gated, with its budget"):
        table.add_column(name, overflow="fold")
    for recipe in plan.recipes[:MOST_ROWS]:
        table.add_row(
            Text(visible(recipe.name, 40), style="bold"),
            Text(", ".join(map(str, recipe.concurrencies))),
            Text(str(recipe.samples)),
            Text(minutes(recipe.expected_launch_s)),
            Text(_gated(plan, recipe)),
        )
    return table


def _gated(plan: Plan, recipe: RecipePlan) -> str:
    gated = [one for one in plan.metrics if one.recipe == recipe.name and one.gated]
    budgets = [f"{metric_label(one.metric)} {numbers.budget_of(one.metric, one.budget)}" for one in gated]
    return visible(", ".join(budgets) or "nothing", 200)
