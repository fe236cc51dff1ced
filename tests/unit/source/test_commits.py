from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import PerfgateError
from perfgate.source.repository import parse_commit
from perfgate.text import visible

SHA = "1" * 40
RAW = (
    b"tree " + b"a" * 40 + b"\nparent " + b"b" * 40 + b"\nauthor A <a@x> 1 +0000\n"
    b"committer B <b@x> 1790000000 +0200\ngpgsig -----BEGIN\n tree "
    + b"c" * 40
    + b"\n\nTitle of it\nover two lines\n\nBody\n"
)


def test_a_commit() -> None:
    commit = parse_commit(SHA, RAW)
    assert commit.tree == "a" * 40
    assert commit.title == "Title of it over two lines"
    assert commit.date == "2026-09-21T14:13:20Z"


@pytest.mark.parametrize(
    ("committer", "date"),
    [
        (b"B <b> 99999999999999 +0000", ""),
        (b"B <b> x +0000", ""),
        (b"", ""),
        (b"B <b> -1 +0000", "1969-12-31T23:59:59Z"),
    ],
)
def test_dates_without_sense_are_absent(committer: bytes, date: str) -> None:
    assert parse_commit(SHA, b"tree " + b"a" * 40 + b"\ncommitter " + committer + b"\n\nT").date == date


@pytest.mark.parametrize("encoding", [b"ISO-8859-1", b"no-such", b"\xff", b"hex", b"undefined"])
def test_titles_of_any_encoding(encoding: bytes) -> None:
    title = parse_commit(SHA, b"tree " + b"a" * 40 + b"\nencoding " + encoding + b"\n\nGr\xfc\xdfe").title
    assert title.startswith("Gr")
    assert (title == "Grüße") == (encoding == b"ISO-8859-1")


@pytest.mark.parametrize("raw", [b"", b"tree x", b"parent " + b"a" * 40, b"tree " + b"A" * 40])
def test_a_damaged_commit_is_refused(raw: bytes) -> None:
    with pytest.raises(PerfgateError, match="damaged"):
        parse_commit(SHA, raw)


def test_a_title_cannot_move_the_cursor_or_turn_the_text_round() -> None:
    assert visible("a\x1b[31mb\r\n\u202ec\u200bd\0e\ud800", 50) == "ab ⟨U+202E⟩c⟨U+200B⟩d⟨U+0000⟩e⟨U+D800⟩"


@given(st.text(max_size=300), st.integers(1, 60))
def test_printable_is_one_short_line(text: str, limit: int) -> None:
    shown = visible(text, limit)
    assert len(shown) <= limit
    assert all(char in " \u00a0" or unicodedata.category(char)[0] not in "CZ" for char in shown)
    shown.encode()


@given(st.binary(max_size=200))
def test_any_commit_is_read_or_refused(raw: bytes) -> None:
    parse_commit(SHA, b"tree " + b"a" * 40 + b"\n" + raw)
