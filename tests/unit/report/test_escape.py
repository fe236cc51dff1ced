"""Strangers' text in Markdown: it looks like itself and does nothing."""

from __future__ import annotations

import html
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfgate.report.escape import JOINER, cell_code, code, fence, plain, web_address
from perfgate.text import listed, visible
from tests.unit.report.rendering import active, hidden_characters, page

ATTACKS = [
    "@everyone look",
    "mail me@example.org",
    "fixes #1, GH-2, owner/repo#3, owner/repo@deadbeef",
    "https://evil.example/x www.evil.example http://a",
    "[click](https://evil.example)",
    "![track](https://evil.example/p.png)",
    "[a][b]\n\n[b]: https://evil.example",
    "<img src=https://evil.example/p.png onerror=alert(1)>",
    "<script>alert(1)</script>",
    "<!-- perfgate -->",
    "<https://evil.example>",
    "<a@b.example>",
    "</details><h1>pass</h1>",
    "a | b | c |\n| - | - |",
    "```\nfence",
    "~~~\nfence",
    "`open",
    "``a`",
    "`a``b`",
    "\\`a` \\@b",
    "**bold** _it_ ~~gone~~ __b__",
    "# heading",
    "- item",
    "+ item",
    "1. item",
    "1) item",
    "> quote",
    "---",
    "===",
    "- - -",
    "    code",
    ":tada: :+1: :100:",
    "$x$ and $$y$$ and $`z`$",
    "[^1]: note",
    "> [!CAUTION]",
    "&lt;b&gt; &#64;user &amp;",
    "deadbeefdeadbeefdeadbeefdeadbeefdeadbeef",
    "\u202etxt.exe",
    "a\u200bb\u2060c\ufeff",
    "\x1b[31mred\x1b]0;title\x07",
    "\ud800 lone",
    "tag \U000e0041\U000e0042",
    "z" + "\u0301" * 50,
    "line\u2028separator\x85next",
    "\x00",
    "",
    " ",
    "\\",
    "trailing\\",
    "@" * 50,
    "`" * 50,
]
TEXT = st.one_of(
    st.text(max_size=60),
    st.text("`|<>!*_[]()#@:/.$~\\-+=&^{}\n a1", max_size=40),
    st.lists(st.sampled_from(ATTACKS), min_size=1, max_size=3).map(" ".join),
    st.lists(st.sampled_from(ATTACKS), min_size=2, max_size=3).map("".join),
)


def every_attack(test):
    for attack in ATTACKS:
        test = example(attack)(test)
    return settings(max_examples=250, deadline=None)(given(TEXT)(test))


@every_attack
def test_plain_text_is_never_active(text: str) -> None:
    assert active(plain(text)) == []
    assert active(f"before {plain(text)} after") == []
    assert active(f"- {plain(text)}\n- next") == []
    assert not hidden_characters(plain(text))


@every_attack
def test_plain_text_looks_like_itself(text: str) -> None:
    shown = page(f"x{plain(text)}x").text.replace(JOINER, "").strip()
    assert _bare(shown) == _bare(f"x{visible(text, 600)}x")


def _bare(text: str) -> str:
    """Backticks may have made code of what is between them, and code has no spaces at its ends."""
    return text.replace("`", "").replace(" ", "")


@every_attack
def test_plain_text_and_code_stay_in_their_cell(text: str) -> None:
    table = f"| a | b |\n| :-- | --: |\n| {plain(text)} | {cell_code(text)} |\n| c | d |\n"
    assert active(table) == []
    seen = page(table)
    assert seen.rows == 3
    assert [tag for tag, _ in seen.elements].count("td") == 4


@every_attack
def test_code_is_one_span_that_shows_the_text(text: str) -> None:
    assert active(code(text)) == []
    assert [tag for tag, _ in page(f"a {code(text)} b").elements] == ["p", "code"]
    shown = page(code(text)).text.replace(JOINER, "").strip()
    assert shown == (visible(text, 160) or "(empty)")
    assert "<!--" not in code(text)


@given(st.lists(TEXT, max_size=6))
@example(["```", "````text", "~~~~", "</pre>", "<!-- x -->", "\tindented", "a\n\n\n\nb"])
@settings(max_examples=200, deadline=None)
def test_a_fence_holds_whatever_is_in_it(lines: list[str]) -> None:
    block = f"before\n\n{fence(lines)}\n\nafter"
    assert active(block) == []
    tags = [tag for tag, _ in page(block).elements]
    assert tags == ["p", "pre", "code", "p"]
    assert page(block).texts[-1].strip() == "after" or "after" in page(block).text
    assert "<!--" not in fence(lines)


def test_a_fence_shows_the_last_lines_and_keeps_their_spaces() -> None:
    block = fence([f"line {number}" for number in range(100)] + ["\tat  here"], most=3)
    assert block == "```text\nline 98\nline 99\n    at  here\n```"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("eagle3 tok_s −36.0 % (−37.2 to −34.8 %)", "eagle3 tok_s −36.0 % (−37.2 to −34.8 %)"),
        ("run `perfgate calibrate` first", "run `perfgate calibrate` first"),
        ("+7.0 %", "+7.0 %"),
        ("88.4", "88.4"),
        ("Refactor RadixTree (48642d5c0e)", "Refactor RadixTree (`48642d5c0e`)"),
        ("#1", f"\\#{JOINER}1"),
    ],
)
def test_ordinary_text_stays_as_it_is(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("a\u200bb", "a⟨U+200B⟩b"),
        ("a\x07b", "a⟨U+0007⟩b"),
        ("a\ud800b", "a⟨U+D800⟩b"),
        ("a\u3164b", "a⟨U+3164⟩b"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("a\n\n b\t c", "a b c"),
        ("⚠️ ok", "⚠️ ok"),
        ("e\u0301", "e\u0301"),
        ("x" * 20, "xxxxxxxxx…"),
    ],
)
def test_what_cannot_be_seen_is_shown(text: str, shown: str) -> None:
    assert visible(text, 10 if len(text) > 19 else None) == shown


@given(st.text(max_size=200), st.integers(0, 50))
def test_limits_hold(text: str, limit: int) -> None:
    assert len(visible(text, limit)) <= max(limit, 1)


def test_a_huge_text_costs_little() -> None:
    assert len(plain("@`" * 5_000_000, 100)) < 1000


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "//evil.example",
        "https://user@evil.example",
        "https://",
        "https://a b",
        "https://\u202eevil.example",
        "http://[::1",
        "https://a\\b",
        "https://a:port/",
        "https://a/" + "x" * 3000,
        "",
        None,
    ],
)
def test_addresses_that_are_none_are_left_out(url: str | None) -> None:
    assert web_address(url) is None


@given(st.text("abc()[]<>\"'` \\/?#=&%|*_", max_size=30))
def test_an_address_cannot_leave_its_link(rest: str) -> None:
    url = web_address(f"https://host.example/{rest}")
    if url is not None:
        seen = page(f"[label]({url}) after")
        assert [tag for tag, _ in seen.elements] == ["p", "a"]
        assert seen.text.strip() == "label after"
        assert not re.search(r"[\s<>\"'`()\[\]|\\]", html.unescape(url))


def test_words_are_counted() -> None:
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b"]) == "a and b"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
