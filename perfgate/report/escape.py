"""Text of strangers, made harmless for Markdown, HTML and terminals.

Commit titles, branch and file names, log lines, recipe names and every text of a result that came as an artifact are a
stranger's. Two things can go wrong: characters that a reader cannot see (direction marks, zero width, control
characters) make a text look like another one, and markup becomes active (links, images, mentions that notify people,
references that link issues, HTML, code fences that swallow what follows).

What is invisible is shown as ⟨U+202E⟩. For Markdown, markup characters are escaped; where GitHub looks for a pattern in
the text itself, after Markdown (mentions, references, addresses, emoji codes), a word joiner breaks the pattern.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from urllib.parse import quote, urlsplit

JOINER = "\u2060"  # word joiner: nothing to see, no line break, and no longer the pattern that GitHub looks for
MARKS_IN_A_ROW = 2  # combining marks on one letter; more of them climb over the neighbouring lines
INVISIBLE_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
EMOJI_STYLE = "\ufe0f"
NO_BREAK = "\u00a0"

MOST_TICKS = 8

_LONG_RUN = re.compile(rf"`{{{MOST_TICKS + 1},}}")
_ANSI = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\^_])")
_SPACES = re.compile(rf"[^\S{NO_BREAK}]+")
_PLAIN = re.compile(r"[ -~]*")


class Md(str):
    """Markdown that may be put into a document as it is. Made by this module and by templates, never from input."""

    __slots__ = ()


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
        if category == "Zs" and character != NO_BREAK:
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


_MARKUP = re.compile(r"[\\`*{}\[\]<>!|~&^#]|_(?![A-Za-z0-9])|(?<![A-Za-z0-9])_")  # inside a word _ is only itself
_AT_THE_START = re.compile(r"^([-+](?=\s|$)|[-=](?=[-=\s]*$)|\d{1,9}(?=[.)](\s|$)))")
_PATTERNS = (
    re.compile(r"(@)(?=\w)"),  # mentions, mail addresses, owner/repository@commit
    re.compile(r"(#)(?=\w)"),  # issues and pull requests
    re.compile(r"\b(GH-)(?=\d)", re.IGNORECASE),
    re.compile(r"(:)(?=//)"),  # addresses
    re.compile(r"\b(www)(?=\.)", re.IGNORECASE),
    re.compile(r"(:)(?=[\w+-]+:)"),  # emoji codes
)
_CODE = re.compile(r"`(?! *`)([^`|]+)`|(?<![\w/.-])([0-9a-f]{7,40})(?![\w/.-])")  # a span in backticks, or a commit


def plain(text: str, limit: int | None = 600) -> Md:
    """A stranger's text as running Markdown text, in or outside a table: it looks like itself and does nothing.

    What stands in backticks, and commits (GitHub would link them), become code.
    """
    shown = visible(text, limit)
    pieces: list[str] = []
    end = 0
    for match in _CODE.finditer(shown):
        pieces += (_escaped(shown[end : match.start()]), code(match[1] or match[2]))
        end = match.end()
    pieces.append(_escaped(shown[end:]))
    return Md(_AT_THE_START.sub(_behind_a_joiner, "".join(pieces)))


def _escaped(text: str) -> str:
    for pattern in _PATTERNS:
        text = pattern.sub(r"\1" + JOINER, text)
    return _MARKUP.sub(r"\\\g<0>", text).replace("$", "<span>$</span>")


def _behind_a_joiner(start: re.Match[str]) -> str:
    """No list, heading or rule begins where the first character is a joiner."""
    return JOINER + start[0]


def code(text: str, limit: int = 160) -> Md:
    """A stranger's text as a code span, outside a table. GitHub makes nothing active in code."""
    shown = _unmarked(visible(text, limit))
    if not shown.strip():
        return Md("`(empty)`")
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    ticks = "`" * (longest + 1)
    pad = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return Md(f"{ticks}{pad}{shown}{pad}{ticks}")


def cell_code(text: str, limit: int = 80) -> Md:
    """As `code`, for a cell of a table."""
    return Md(code(text, limit).replace("|", "\\|"))


def fence(lines: Iterable[str], most: int = 40, width: int = 240) -> Md:
    """The last lines of a log as a code block of its own."""
    kept = list(lines)[-most:]
    shown = [_unmarked(visible(line, width, keep_spaces=True)) for text in kept for line in text.split("\n")][-most:]
    longest = max((len(run) for line in shown for run in re.findall(r"`+", line)), default=0)
    ticks = "`" * max(longest + 1, 3)
    return Md("\n".join((f"{ticks}text", *shown, ticks)))


def _unmarked(text: str) -> str:
    """What even code must not hold: markers that tools look for in the raw text (`<!-- … -->`), and backticks without
    end, since GitHub's parser knows no delimiter of more than 80 and would take the code for ordinary text.
    """
    text = text.replace("<!--", f"<{JOINER}!--").replace("-->", f"--{JOINER}>")
    return _LONG_RUN.sub(lambda run: JOINER.join(textwrap.wrap(run[0], MOST_TICKS)), text)


def link(label: Md, url: str | None) -> Md:
    """A link where the address is one of the web, else the label alone."""
    checked = web_address(url)
    return Md(f"[{label}]({checked})") if checked else label


def web_address(url: str | None) -> str | None:
    """The address, quoted for Markdown and HTML, or None where it is no plain address of the web."""
    if not url or len(url) > 2000 or not _PLAIN.fullmatch(url) or " " in url:
        return None
    try:
        parts = urlsplit(url)
        safe = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        _ = parts.port
    except ValueError:
        return None
    return quote(url, safe="/:?#=&%~+,;@-._!") if safe and "\\" not in parts.netloc else None


def words(items: Sequence[str], most: int = 3) -> str:
    """ "a, b, c and 2 more" """
    shown = list(items[:most])
    rest = len(items) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {rest} more"
    return " and ".join((", ".join(shown[:-1]), shown[-1])) if len(shown) > 1 else "".join(shown)
