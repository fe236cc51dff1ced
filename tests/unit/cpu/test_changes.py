from __future__ import annotations

import pytest

from perfgate.cpu.changes import EDITS, Change, Edit
from perfgate.errors import PerfgateError

EDIT = Edit(path="a.py", anchor="x = 1\n", replacement="x = 2\n", subject="s", body="b")


def test_every_change_has_an_edit() -> None:
    assert set(EDITS) == set(Change)


def test_an_edit_changes_its_place_and_nothing_else() -> None:
    assert EDIT.apply("before\nx = 1\nafter\n") == "before\nx = 2\nafter\n"


@pytest.mark.parametrize(("text", "found"), [("x = 3\n", "nowhere"), ("x = 1\nx = 1\n", "2 times")])
def test_a_place_that_is_not_the_one_meant_is_refused(text: str, found: str) -> None:
    with pytest.raises(PerfgateError, match=rf"a\.py: the place to change is found {found}"):
        EDIT.apply(text)


@pytest.mark.parametrize("change", [change for change in Change if change is not Change.NONE])
def test_a_regression_compiles_and_changes_code(change: Change) -> None:
    edit = EDITS[change]
    before, after = (_code(edit, text) for text in (edit.anchor, edit.replacement))
    assert before != after


def test_none_changes_a_comment_alone() -> None:
    edit = EDITS[Change.NONE]
    assert edit.anchor != edit.replacement
    assert _code(edit, edit.anchor) == _code(edit, edit.replacement)


@pytest.mark.parametrize("change", list(Change))
def test_no_message_tells_what_the_change_does(change: Change) -> None:
    edit = EDITS[change]
    told = (edit.subject + edit.body).lower()
    assert not {"slow", "demo", "regress", "perfgate"} & set(told.split())
    assert len(edit.subject) <= 72


def _code(edit: Edit, text: str) -> bytes:
    """The bytecode of a piece of a function's body, so that comments do not count."""
    inner = text if text.startswith(" ") else f"    {text}"
    shallowest = min(len(line) - len(line.lstrip()) for line in inner.splitlines() if line.strip())
    body = "\n".join(f"    {line[shallowest:]}" for line in inner.splitlines())
    scope: dict[str, object] = {}
    loop = f"def piece():\n  while True:\n{body}\n    break\n"
    exec(compile(loop, edit.path, "exec"), scope)
    piece = scope["piece"]
    return piece.__code__.co_code  # type: ignore[attr-defined,no-any-return]
