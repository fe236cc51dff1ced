"""docs/house.md names floors, files and types that are there."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "house.md").read_text()
AT_MOST = 8  # types, from clock or event to the comment


def steps(title: str) -> list[tuple[str, str]]:
    """File and type of each row of the table below this title."""
    section = TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", section, re.MULTILINE)


@cache
def classes() -> dict[str, list[str]]:
    """Class → files that define it."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "perfgate").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT / "perfgate")))
    return found


def test_the_floors_are_those_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (one["layers"] for one in contracts if one.get("exhaustive"))
    drawn = TEXT.partition("```\n")[2].partition("```")[0]
    assert drawn.splitlines() == [line.replace(" | ", " · ") for line in layers]


@pytest.mark.parametrize("title", ["The way of one tok/s", "The way of one head SHA"])
def test_a_way_leads_through_few_types_that_are_where_it_says(title: str) -> None:
    way, there = steps(title), classes()
    assert 0 < len(way) <= AT_MOST
    assert [(file, name) for file, name in way if file not in there.get(name, ())] == []


def test_what_else_is_named_is_there() -> None:
    files = [name for name in re.findall(r"`([\w/]+\.py)`", TEXT) if not (ROOT / "perfgate" / name).is_file()]
    types = [name for name in re.findall(r"`([A-Z][a-z]\w+)`", TEXT) if name not in classes()]
    assert (files, types) == ([], [])


def test_no_class_name_means_two_things() -> None:
    assert {name: files for name, files in classes().items() if len(files) > 1} == {}
