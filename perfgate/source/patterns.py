"""Path patterns as in a .gitignore, without negation.

`*.md` (no slash): a file or folder of that name anywhere, with all below it; `docs*/**`, `python/*.txt`: from the top
of the tree; `*` stops at a slash, `**` does not; a pattern that matches a folder matches all below it.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def matches(path: str, pattern: str) -> bool:
    parts = path.split("/")
    wanted = [part for part in pattern.strip("/").split("/") if part]
    if not wanted:
        return False
    if "/" not in pattern.rstrip("/"):
        wanted = ["**", *wanted]
    return _matches(parts, wanted)


def matches_any(path: str, patterns: Iterable[str]) -> bool:
    return any(matches(path, pattern) for pattern in patterns)


def _matches(parts: list[str], wanted: list[str]) -> bool:
    """Walks the parts once, keeping all places in the pattern that fit so far: linear, whatever the pattern."""
    places = _skip_stars({0}, wanted)
    for part in parts:
        if len(wanted) in places:
            return True
        stay = {place for place in places if wanted[place] == "**"}
        move = {place + 1 for place in places if wanted[place] != "**" and fnmatchcase(part, wanted[place])}
        # `a/**` means what is below a, so a trailing ** is passed only by a part of its own
        move |= {place + 1 for place in stay if place == len(wanted) - 1}
        places = _skip_stars(stay | move, wanted)
    return len(wanted) in places


def _skip_stars(places: set[int], wanted: list[str]) -> set[int]:
    """`**` also stands for no folder at all, except at the end."""
    reached = set(places)
    for place in sorted(places):
        while place < len(wanted) - 1 and wanted[place] == "**":
            place += 1
            reached.add(place)
    return reached
