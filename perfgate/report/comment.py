"""The comment: what a maintainer reads first, rendered from a result alone.

A result may have come from a machine that ran strangers' code. Every value that a template prints is escaped unless it
is already Markdown of our own (`Md`), so forgetting to escape is not possible; addresses are checked; and whatever a
result holds, rendering ends in a text within the limit.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined

from perfgate import text
from perfgate.records import Result, SideResult
from perfgate.report import words
from perfgate.report.escape import Md, cell_code, code, fence, link, plain, web_address
from perfgate.report.headline import first_sentence, headline, next_step
from perfgate.report.tables import interval_name, launch_tables, row_of, table_rows
from perfgate.text import NOTHING, SPACE, visible

COMMENT_LIMIT = 65_536  # characters of a comment on GitHub
MOST_ROWS = 24
MOST_NOTICES = 8
MOST_DIFFERENCES = 40

DROPPED_FIRST = (
    "glossary",
    "same",
    "launches",
    "metrics",
    "explained",
    "suspects",
    "measured",
    "reproduce",
    "unexplained",
    "lines",
    "notices",
    "sentences",
)
"""Parts by how little a reader misses them; the headline, the reason and the first table stay."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """Addresses to link to; what is not an address of the web is left out."""

    page: str | None = None  # the page of the run
    run: str | None = None  # the workflow run with its log
    repository: str | None = None  # https://…/owner/name, for commits
    glossary: str | None = None  # docs/comment.md


@dataclass(frozen=True)
class Shape:
    """How much of a result is shown."""

    dropped: frozenset[str] = field(default_factory=frozenset)
    rows: int = MOST_ROWS

    def shows(self, part: str) -> bool:
        return part not in self.dropped


def render_comment(result: Result, *, links: Links | None = None, limit: int = COMMENT_LIMIT) -> str:
    """Markdown of at most `limit` characters. Never fails because of what is in the result."""
    links = links or Links()
    for shape in _shapes():
        text = _render(result, links, shape)
        if length(text) <= limit:
            return text
    return _cut(f"{_heading(result)}\n\n{plain(result.reason, 300)}\n", limit)


def length(text: str) -> int:
    """Characters as GitHub may count them: those outside Unicode's first plane as two."""
    return len(text) + sum(character > "\uffff" for character in text)


def _shapes() -> Iterable[Shape]:
    """From everything to the least."""
    for dropped in range(len(DROPPED_FIRST) + 1):
        yield Shape(frozenset(DROPPED_FIRST[:dropped]))
    for rows in (8, 2, 0):
        yield Shape(frozenset(DROPPED_FIRST), rows)


def _cut(text: str, limit: int) -> str:
    while length(text) > max(limit, 0):
        text = text[: len(text) - max(length(text) - limit, 1)]
    return text


def _render(result: Result, links: Links, shape: Shape) -> str:
    rows = table_rows(result)
    failed = words.failure_lines(result)
    blocks = {
        "lines": fence(failed) if failed else None,
        "reproduce": fence([*fetch_head(result), reproduce(result)], width=2000),
    }
    written = (
        _templates()
        .get_template("comment.md.j2")
        .render(
            result=result,
            heading=_heading(result),
            first_sentence=first_sentence(result),
            next_step=Md(step) if result.pr and (step := next_step(result)) else None,
            shape=shape,
            links=links,
            base=_commit(result.base, links),
            head=_commit(result.head, links),
            level=interval_name(result),
            rows=rows[: shape.rows],
            rows_left=len(rows) - len(rows[: shape.rows]),
            all_rows=[row_of(metric, result) for metric in words.in_reading_order(result.metrics)[: 4 * MOST_ROWS]],
            launches=launch_tables(result),
            notices=words.notices(result),
            sentences=words.paragraphs(result),
            blocks={name: _placeholder(name) if block else None for name, block in blocks.items()},
            glossary=words.GLOSSARY,
            text=text,
            most=MOST_DIFFERENCES,
            measured=bool(rows or result.launches),
            most_notices=MOST_NOTICES,
        )
    )
    written = re.sub(r"\n{3,}", "\n\n", written).strip() + "\n"
    for name, block in blocks.items():  # put in last: blank lines inside a log are the log's own
        written = written.replace(_placeholder(name), block or "")
    return written


def _placeholder(name: str) -> Md:
    """Cannot be in anyone's text: control characters never get through `visible`."""
    return Md(f"\x00{name}\x00")


@cache
def _templates() -> Templates:
    templates = Templates(
        loader=PackageLoader("perfgate.report"),
        autoescape=False,  # the output is Markdown: `finalize` escapes for it instead
        finalize=lambda value: value if isinstance(value, Md) else plain(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {
        "code": code,
        "cell_code": cell_code,
        "plain": plain,
        "bold": _bold,
        "bold_sentence": _bold_sentence,
        "one_piece": _one_piece,
    }
    templates.globals |= {"link": _link}
    return templates


def _heading(result: Result) -> Md:
    return Md(f"### {plain(str(headline(result)), None)}")


def _bold(text: str) -> Md:
    return Md(f"**{plain(text, 80)}**") if text != NOTHING else Md(text)


def _bold_sentence(text: str) -> Md:
    return Md(f"**{plain(text, 300)}**")


def _one_piece(text: str) -> Md:
    """For a cell that is not to be broken where it is short."""
    return Md(plain(text, 80).replace(" ", SPACE)) if len(text) <= 20 else plain(text, 80)


def _link(label: str, url: str | None) -> Md:
    return link(plain(label), url)


def _commit(side: SideResult, links: Links) -> Md:
    """A short commit, linked where the repository is known."""
    if not re.fullmatch(r"[0-9a-f]{40}", side.sha):
        return cell_code(side.sha, 12)
    home = web_address(links.repository)
    return link(cell_code(side.sha[:10]), f"{home.rstrip('/')}/commit/{side.sha}" if home else None)


# ------------------------------------------------------------------------------------------------ words


def fetch_head(result: Result) -> list[str]:
    """The command that brings the commits into a clone that does not have them: a fork's are in no branch of it."""
    return [f"git fetch origin pull/{result.pr.number}/head"] if result.pr else []


def reproduce(result: Result) -> str:
    """The command that measures the same two commits again; quoted, since names may be a stranger's."""
    command: list[str] = ["perfgate", "gate", "--repo", ".", "--base", result.base.sha, "--head", result.head.sha]
    if result.calibration:
        pairs = str(result.limits.max_pairs)
        command = ["perfgate", "calibrate", "--repo", ".", "--commit", result.head.sha, "--pairs", pairs]
    recipes = words.recipes_of(result)
    if recipes:
        command += ["--recipes", ",".join(recipes[:MOST_ROWS])]
    if result.profile != "gpu":
        command += ["--profile", result.profile]
    return " ".join(shlex.quote(visible(word, 400)) for word in command)
