"""Renders Markdown with a real renderer and looks for anything that is active, by Markdown or by GitHub's own filters."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from markdown_it import MarkdownIt

RENDERER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
QUIET = frozenset(
    "p br hr em strong s code pre ul ol li table thead tbody tr th td details summary h1 h2 h3 h4 span blockquote".split()
)
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
    return Page(RENDERER.render(markdown))


def active(markdown: str, *, links: bool = False) -> list[str]:
    """Everything in a rendered text that does something; addresses in links of our own are allowed by `links`."""
    seen = page(markdown)
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
