from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.github.commands import (
    MAX_LINE,
    MAX_REASON,
    Accept,
    Cancel,
    Help,
    Malformed,
    Rerun,
    Run,
    parse_command,
)


@pytest.mark.parametrize(
    ("body", "command"),
    [
        ("/perfgate run", Run()),
        ("/perfgate run 0123abc", Run("0123abc")),
        ("/perfgate run 0123ABC", Run("0123abc")),
        (f"/perfgate run {'a' * 40}", Run("a" * 40)),
        ("/perfgate  run\t0123abc  ", Run("0123abc")),
        ("/perfgate run\r\n\r\nBecause I said so.", Run()),
        ("/perfgate rerun", Rerun()),
        ("/perfgate rerun eagle3 baseline eagle3", Rerun(("eagle3", "baseline"))),
        ("/perfgate cancel\nsorry", Cancel()),
        ("/perfgate accept the kernel is more exact", Accept("the kernel is more exact")),
        ("/perfgate help", Help()),
        (" /perfgate run", Run()),
        ("   /Perfgate Run 0123abc", Run("0123abc")),
        ("/PERFGATE HELP", Help()),
    ],
)
def test_a_command(body: str, command: object) -> None:
    assert parse_command(body) == command


@pytest.mark.parametrize(
    "body",
    [
        "",
        "Nice work",
        "Nice work\n/perfgate run",  # not the first line
        "    /perfgate run",  # Markdown shows it as code
        "> /perfgate run",  # a quotation
        "`/perfgate run`",
        "/perfgaterun",
        "/perfgated run",
        "/perfgate-bot run",
        "\ufeff/perfgate run",
        "\u200b/perfgate run",
    ],
)
def test_not_for_us(body: str) -> None:
    assert parse_command(body) is None


@pytest.mark.parametrize(
    "body",
    [
        "/perfgate",
        "/perfgate measure",
        "/perfgate run 0123ab",  # six digits
        f"/perfgate run {'a' * 41}",
        "/perfgate run main",
        "/perfgate run 0123abc 0123abd",
        "/perfgate run $(id)",
        "/perfgate run 0123abc; id",
        "/perfgate run 0123аbc",  # a Cyrillic letter
        "/perfgate run\u00a00123abc",
        "/perfgate rerun Eagle3",
        "/perfgate rerun ../../etc/passwd",
        "/perfgate rerun a b c d e f g h i",
        "/perfgate cancel everything",
        "/perfgate accept",
        f"/perfgate accept {'x' * (MAX_REASON + 1)}",
        "/perfgate accept \u202eesrever",
        "/perfgate help me",
        "/perfgate\x00run",
        "/perfgate run \x1b[2J",
    ],
)
def test_malformed(body: str) -> None:
    found = parse_command(body)
    assert isinstance(found, Malformed) or (body == "/perfgate\x00run" and found is None)


@given(st.text())
def test_any_text_ends_in_one_of_three(body: str) -> None:
    found = parse_command(body)
    if not body.lstrip(" ").lower().startswith("/perfgate"):
        assert found is None


@given(st.text())
def test_whatever_follows_the_word_is_within_the_grammar_or_refused(rest: str) -> None:
    match parse_command("/perfgate " + rest):
        case Run(sha=sha):
            assert sha is None or (7 <= len(sha) <= 40 and set(sha) <= set("0123456789abcdef"))
        case Rerun(recipes=recipes):
            assert all(name.isascii() and name == name.lower() and len(name) <= 32 for name in recipes)
        case Accept(reason=reason):
            assert reason.isprintable()
            assert 0 < len(reason) <= MAX_REASON
            assert "\n" not in reason
        case Malformed(hint=hint):
            assert rest.strip() == "" or rest not in hint or len(rest) < 12  # no word of the comment comes back
        case found:
            assert found in (Cancel(), Help())


def test_a_long_line_is_not_searched() -> None:
    assert isinstance(parse_command("/perfgate accept " + "x" * MAX_LINE), Malformed)
