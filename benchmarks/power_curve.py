"""Draws docs/power.svg and prints its table: what the judge says at which true slowdown, and what it costs.

python benchmarks/power_curve.py [--runs 1000]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from perfgate.judge import NoisePrior, Policy, PowerRow, power

PICTURE = Path(__file__).parents[1] / "docs" / "power.svg"
SDS = (0.003, 0.01, 0.02)
SLOWDOWNS = tuple(step / 400 for step in range(41))  # 0 to 10 %
IN_TABLE = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.10)
WIDTH, HEIGHT, LEFT, TOP, GAP = 240, 170, 46, 34, 44
COLOURS = {"pass": "#2e7d32", "regression": "#c62828", "inconclusive": "#8a8a8a"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    tables = {sd: power(Policy(), NoisePrior(sd, 10), SLOWDOWNS, runs=runs, seed=1) for sd in SDS}
    PICTURE.write_text(picture(tables))
    print("| true slowdown | " + " | ".join(f"pair SD {100 * sd:g} %" for sd in SDS) + " |")
    print("|---|" + "---|" * len(SDS))
    for slowdown in IN_TABLE:
        cells = [_cell(next(row for row in tables[sd] if row.slowdown == slowdown)) for sd in SDS]
        print(f"| {100 * slowdown:g} % | " + " | ".join(cells) + " |")


def _cell(row: PowerRow) -> str:
    return f"{_share(row.passed)} / {_share(row.regression)} · {row.launches:.1f}"


def _share(share: float) -> str:
    return f"{100 * share:.0f}" if share in (0.0, 1.0) else f"{min(max(100 * share, 0.1), 99.9):.3g}"


def picture(tables: dict[float, tuple[PowerRow, ...]]) -> str:
    """Three panels beside each other, one per noise; readable on light and on dark ground."""
    total = LEFT + len(tables) * (WIDTH + GAP)
    panels = [
        _panel(LEFT + number * (WIDTH + GAP), f"pair SD {100 * sd:g} %", rows, first=number == 0)
        for number, (sd, rows) in enumerate(tables.items())
    ]
    legend = "".join(
        f'<rect x="{LEFT + 150 * number}" y="{TOP + HEIGHT + 42}" width="12" height="3" fill="{colour}"/>'
        f'<text x="{LEFT + 18 + 150 * number}" y="{TOP + HEIGHT + 47}">{name}</text>'
        for number, (name, colour) in enumerate(COLOURS.items())
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {TOP + HEIGHT + 60}" role="img"'
        ' font-family="system-ui, sans-serif" font-size="11">'
        "<title>Share of verdicts over the true slowdown, for three noises of a pair</title>"
        f'<rect width="100%" height="100%" fill="#ffffff"/><g fill="#333333">{"".join(panels)}{legend}</g></svg>\n'
    )


def _panel(left: float, title: str, rows: Sequence[PowerRow], *, first: bool) -> str:
    def x(slowdown: float) -> float:
        return left + WIDTH * slowdown / 0.10

    def y(share: float) -> float:
        return TOP + HEIGHT * (1 - share)

    shares = {
        "pass": [row.passed for row in rows],
        "regression": [row.regression for row in rows],
        "inconclusive": [row.inconclusive for row in rows],
    }
    lines = "".join(
        f'<polyline fill="none" stroke="{COLOURS[name]}" stroke-width="2" points="'
        + " ".join(f"{x(row.slowdown):.1f},{y(share):.1f}" for row, share in zip(rows, values, strict=True))
        + '"/>'
        for name, values in shares.items()
    )
    ticks = "".join(
        f'<text x="{x(per_cent / 100):.1f}" y="{TOP + HEIGHT + 15}" text-anchor="middle">{per_cent} %</text>'
        for per_cent in (0, 3, 5, 10)
    )
    levels = "".join(
        f'<line x1="{left}" x2="{left + WIDTH}" y1="{y(share)}" y2="{y(share)}" stroke="#dddddd"/>'
        + (f'<text x="{left - 6}" y="{y(share) + 4}" text-anchor="end">{share:.0%}</text>' if first else "")
        for share in (0.0, 0.5, 1.0)
    )
    budget = (
        f'<line x1="{x(0.03)}" x2="{x(0.03)}" y1="{TOP}" y2="{TOP + HEIGHT}" stroke="#999999" stroke-dasharray="3 3"/>'
    )
    under = f'<text x="{left + WIDTH / 2}" y="{TOP + HEIGHT + 29}" text-anchor="middle">true slowdown</text>'
    head = f'<text x="{left + WIDTH / 2}" y="{TOP - 12}" text-anchor="middle" font-weight="600">{title}</text>'
    return levels + budget + lines + ticks + under + head


if __name__ == "__main__":
    main()
