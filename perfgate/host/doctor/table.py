"""The doctor's findings as people read them: ✔ ▲ ✖, what is wrong, why it matters, and the command that mends it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perfgate.records import Check, Doctor

MARKS = {"ok": ("✔", "green"), "warn": ("▲", "yellow"), "fail": ("✖", "red bold")}


def show(doctor: Doctor, console: Console) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for check in doctor.checks:
        mark, style = MARKS[check.status]
        table.add_row(Text(mark, style), check.name, Text("\n").join(_lines(check)))
    console.print(table)
    console.print(Text(summary(doctor), "green" if doctor.ok else "red"))


def summary(doctor: Doctor) -> str:
    failed, warned = (sum(check.status == status for check in doctor.checks) for status in ("fail", "warn"))
    if failed:
        return f"✖ {failed} to mend before anything can be measured{f', ▲ {warned} worth a look' if warned else ''}"
    return f"✔ fit to measure{f', ▲ {warned} worth a look' if warned else ''}"


def _lines(check: Check) -> Iterator[Text]:
    yield Text(check.text)
    if check.status != "ok" and check.why:
        yield Text(check.why, "dim")
    if check.status != "ok" and check.remedy:
        yield Text(f"→ {check.remedy}", "cyan")
