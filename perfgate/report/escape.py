"""Text of strangers, made harmless for Markdown and HTML.

Commit titles, branch and file names, log lines, recipe names and every text of a result that came as an artifact are a
stranger's. Two things can go wrong: characters that a reader cannot see (direction marks, zero width, control
characters) make a text look like another one, and markup becomes active (links, images, mentions that notify people,
references that link issues, HTML, code fences that swallow what follows).

What is invisible is shown (see `text.visible`). For Markdown, markup characters are escaped; where GitHub looks for a
pattern in the text itself, after Markdown (mentions, references, addresses, emoji codes), a word joiner breaks it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from urllib.parse import quote, urlsplit

from perfgate.text import visible

JOINER = "\u2060"  # word joiner: nothing to see, no line break, and no longer the pattern that GitHub looks for

MOST_TICKS = 8

_LONG_RUN = re.compile(rf"`{{{MOST_TICKS + 1},}}")
_PLAIN = re.compile(r"[ -~]*")


class Md(str):
    """Markdown that may be put into a document as it is. Made by this module and by templates, never from input."""

    __slots__ = ()


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
