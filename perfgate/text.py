"""Text as people read it: the one cleaner of what strangers wrote, and the one formatter of numbers.

What a reader cannot see (direction marks, zero width, control characters) makes a text look like another one: it is
shown as ⟨U+202E⟩. What a place does with the text (Markdown, HTML, a workflow's log) is for that place to escape.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime

NOTHING = "–"  # what is absent, never 0
MINUS = "−"
SPACE = "\u00a0"  # between a number and its unit; does not break
HIGHEST = 1e12
MARKS_IN_A_ROW = 2  # combining marks on one letter; more of them climb over the neighbouring lines
INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
EMOJI_STYLE = "\ufe0f"

_ANSI = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\^_])")
_SPACES = re.compile(rf"[^\S{SPACE}]+")
_PLAIN = re.compile(r"[ -~]*")


def visible(text: str, limit: int | None = None, *, keep_spaces: bool = False) -> str:
    """One line without anything that a reader cannot see, at most `limit` characters.

    White space becomes single spaces, unless `keep_spaces` (log lines).
    """
    if limit is not None and len(text) > 4 * limit + 4:
        text = text[: 4 * limit + 4]  # long enough to know that it is too long, whatever is in it
    text = _ANSI.sub("", text)
    text = text.expandtabs(4).rstrip().replace("\n", " ") if keep_spaces else _SPACES.sub(" ", text).strip()
    if not _PLAIN.fullmatch(text):
        text = _show_hidden(text)
    if limit is not None and len(text) > limit:
        text = text[: max(limit - 1, 0)].rstrip() + "…"
    return text


def _show_hidden(text: str) -> str:
    shown: list[str] = []
    marks = 0
    for character in text:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks > MARKS_IN_A_ROW:
            continue
        if category == "Zs" and character != SPACE:
            shown.append(" ")
        elif _is_hidden(character, category):
            shown.append(f"⟨U+{ord(character):04X}⟩")
        else:
            shown.append(character)
    return "".join(shown)


def _is_hidden(character: str, category: str) -> bool:
    if (
        category == "Mn"
        and character != EMOJI_STYLE
        and ("\ufe00" <= character <= "\ufe0f" or character >= "\U000e0000")
    ):
        return True  # variation selectors, in which whole texts can hide
    return category in HIDDEN or character in INVISIBLE_LETTERS


def listed(items: Sequence[str], most: int = 3) -> str:
    """ "a, b, c and 2 more" """
    shown = list(items[:most])
    rest = len(items) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {rest} more"
    return " and ".join((", ".join(shown[:-1]), shown[-1])) if len(shown) > 1 else "".join(shown)


# ------------------------------------------------------------------------------------------------ numbers


def decimals_for(*values: float | None) -> int:
    """Decimals that give the smallest of the values four significant digits.

    Four, so that a reader who divides the printed head by the printed base gets the printed change, to its last digit
    or one beside it.
    """
    sizes = [abs(value) for value in values if value is not None and math.isfinite(value) and value != 0]
    smallest = min(sizes, default=1.0)
    return min(max(3 - math.floor(math.log10(smallest)), 0), 9)


def amount(value: float | None, decimals: int | None = None) -> str:
    """ "94.13"; "–" where there is none."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) >= HIGHEST:
        return f"{value:.3g}".replace("-", MINUS)
    text = f"{value:,.{decimals_for(value) if decimals is None else decimals}f}"
    return text.replace("-", MINUS)


def pair_of_amounts(base: float | None, head: float | None) -> tuple[str, str]:
    """Base and head with the same number of decimals, so that they can be compared digit by digit."""
    decimals = decimals_for(base, head)
    return amount(base, decimals), amount(head, decimals)


def percent(share: float | None, *, signed: bool = True) -> str:
    """ "−36.0 %" of −0.36."""
    number = percent_number(share, signed=signed)
    return number if number == NOTHING else f"{number}{SPACE}%"


def percent_number(share: float | None, *, signed: bool = True) -> str:
    if share is None or not math.isfinite(share):
        return NOTHING
    hundredths = 100 * share
    if abs(hundredths) >= 1e6:
        return f"{hundredths:{'+' if signed else ''}.2g}".replace("-", MINUS)
    text = f"{hundredths:{'+' if signed else ''},.{1 if abs(hundredths) < 1000 else 0}f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)


def minutes(seconds: float | None) -> str:
    """ "45 s", "7 min", "1 h 20 min"."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return NOTHING
    if seconds < 90:
        return f"{seconds:.0f}{SPACE}s"
    whole = round(seconds / 60)
    if whole < 90:
        return f"{whole}{SPACE}min"
    return f"{whole // 60:,}{SPACE}h {whole % 60}{SPACE}min" if whole < 60_000 else f"{whole // 60:,}{SPACE}h"


def count(number: int, thing: str) -> str:
    many = "es" if thing.endswith("ch") else "s"
    return f"{number:,} {thing}{'' if number == 1 else many}"


def moment(time: str) -> str:
    """ "2026-02-19 14:00 UTC" of an RFC 3339 time; what is none is shown as it is."""
    try:
        return datetime.fromisoformat(time).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError):
        return time
