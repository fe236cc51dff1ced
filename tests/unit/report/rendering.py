"""Renders Markdown and looks for what is active in it, by Markdown or by the filters that GitHub runs afterwards.

Two renderers: GitHub's own (cmark-gfm), and markdown-it as the second opinion.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

import cmarkgfm
from cmarkgfm.cmark import Options
from markdown_it import MarkdownIt

MARKDOWN_IT = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
QUIET = {"p", "br", "hr", "em", "strong", "s", "code", "pre", "ul", "ol", "li", "span", "blockquote"}
QUIET |= {"table", "thead", "tbody", "tr", "th", "td", "details", "summary", "h1", "h2", "h3", "h4"}
GITHUB_LOOKS_FOR = {
    "mention": re.compile(r"@[A-Za-z0-9]"),
    "reference": re.compile(r"#\w|\bGH-\d", re.IGNORECASE),
    "address": re.compile(r"://|\bwww\.\w", re.IGNORECASE),
    "emoji": re.compile(r":[\w+-]+:"),
    "commit": re.compile(r"(?<![\w/.-])[0-9a-f]{7,40}(?![\w/.-])"),
    "formula": re.compile(r"\$\S.*\S\$"),
}


class Page(HTMLParser):
    """What a rendered text is made of."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.comments: list[str] = []
        self.texts: list[str] = []  # text nodes outside code
        self.text = ""
        self.rows = 0
        self._open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.rows += tag == "tr"
        if tag not in ("br", "hr", "img", "input"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def handle_data(self, data: str) -> None:
        self.text += data
        if not {"code", "pre"} & set(self._open):
            self.texts.append(data)


def page(markdown: str) -> Page:
    """As GitHub renders it."""
    return Page(
        cmarkgfm.github_flavored_markdown_to_html(markdown, Options.CMARK_OPT_UNSAFE | Options.CMARK_OPT_FOOTNOTES)
    )


def active(markdown: str, *, links: bool = False) -> list[str]:
    """Everything in a rendered text that does something; addresses in links of our own are allowed by `links`."""
    return [*_active_in(page(markdown), links), *_active_in(Page(MARKDOWN_IT.render(markdown)), links)]


def _active_in(seen: Page, links: bool) -> list[str]:
    found = [f"comment {comment!r}" for comment in seen.comments]
    for tag, attributes in seen.elements:
        if links and tag == "a" and set(attributes) == {"href"}:
            continue
        allowed = {"code": {"class"}, "pre": {"lang"}, "th": {"style", "align"}, "td": {"style", "align"}}.get(
            tag, set()
        )
        if tag not in QUIET or set(attributes) - allowed:
            found.append(f"<{tag} {attributes}>")
    for text in seen.texts:
        found += [f"{name} in {text!r}" for name, pattern in GITHUB_LOOKS_FOR.items() if pattern.search(text)]
    return found


def hidden_characters(text: str) -> list[str]:
    """Characters of a text that a reader cannot see, other than our own word joiner."""
    return [character for character in text if not character.isprintable() and character not in "\n\u2060\u00a0"]
