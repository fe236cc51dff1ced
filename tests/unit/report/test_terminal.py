"""The terminal: as readable piped, without colour and at 80 columns as with."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import HealthCheck, given, settings
from rich.cells import cell_len
from rich.console import Console

from perfgate import records as r
from perfgate.report.terminal import print_result, render_plan, render_result
from tests.unit.report import results
from tests.unit.report.hostile import RESULTS
from tests.unit.report.rendering import hidden_characters
from tests.unit.report.snapshots import check


def shown(what, width: int = 80, **options) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    what(console)
    return console.file.getvalue()


@pytest.mark.parametrize(
    "kind", ["regression", "no_probe", "build_failed_head", "inconclusive", "skipped", "within_budget"]
)
def test_a_result_at_80_columns(kind: str) -> None:
    text = shown(lambda console: print_result(results.ALL[kind](), console))
    check(f"terminal-{kind}.txt", text)
    assert all(cell_len(line) <= 80 for line in text.splitlines())
    assert "\x1b" not in text


def test_a_wide_terminal_has_a_column_for_the_budget() -> None:
    text = shown(lambda console: print_result(results.story(), console), width=120)
    check("terminal-wide.txt", text)
    assert "budgets:" not in text


def test_colour_only_helps() -> None:
    plain = shown(lambda console: print_result(results.story(), console))
    coloured = shown(
        lambda console: print_result(results.story(), console), force_terminal=True, color_system="truecolor"
    )
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = shown(lambda console: print_result(results.story(), console), force_terminal=True)
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", text)


def test_the_plan_comes_with_its_price() -> None:
    plan = next(fact for fact in results.story_facts() if isinstance(fact, r.Plan))
    text = shown(lambda console: console.print(render_plan(plan, 44.0)))
    check("terminal-plan.txt", text)
    assert "Expected: about 44\u00a0min" in text
    assert "not known yet" in shown(lambda console: console.print(render_plan(plan, None)))


@given(RESULTS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_no_result_reaches_the_terminal_unescaped(result: r.Result) -> None:
    text = shown(lambda console: console.print(render_result(result)))
    assert not hidden_characters(text)
