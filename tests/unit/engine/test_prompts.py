"""The prompt sets: ours, and a box's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfgate.config.model import Workload
from perfgate.engine.prompts import KINDS, MARK_LENGTH, builtin, prompts_for
from perfgate.errors import PerfgateError


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_enough_prompts_of_fit_size(kind: str) -> None:
    prompts = builtin(kind)
    assert len(prompts) >= 8
    assert all(prompt.kind == kind for prompt in prompts)
    assert all(30 <= len(prompt.text.split()) <= 300 for prompt in prompts)


def test_no_prompt_and_no_beginning_of_one_stands_twice() -> None:
    """A shared beginning would be served from the prefix cache."""
    prompts = [prompt for kind in KINDS for prompt in builtin(kind)]
    assert len({prompt.id for prompt in prompts}) == len({prompt.text[:24] for prompt in prompts}) == len(prompts)


def test_kinds_take_turns_and_the_order_is_always_the_same() -> None:
    prompts = prompts_for(Workload(prompts_per_kind=2))
    assert [prompt.id for prompt in prompts] == [f"{kind}-{number:02d}" for number in (1, 2) for kind in KINDS]


def test_more_than_there_are_means_all() -> None:
    assert len(prompts_for(Workload(prompts_per_kind=64))) == sum(len(builtin(kind)) for kind in KINDS)


def test_a_file_of_the_box(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "b", "kind": "x", "text": "two"}\n\n{"id": "a", "kind": "y", "text": "one"}\n')
    assert [prompt.text for prompt in prompts_for(Workload(prompts=str(path)))] == ["two", "one"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no prompts"),
        ("{\n", "prompts.jsonl:1: not a JSON line"),
        ('{"id": "a", "kind": "x"}\n', "exactly the keys"),
        ('["a"]\n', "exactly the keys"),
        ('{"id": "a", "kind": "x", "text": "t", "more": 1}\n', "exactly the keys"),
        ('{"id": 1, "kind": "x", "text": "t"}\n', "have to be texts"),
        ('{"id": "a", "kind": "x", "text": "  "}\n', "not empty"),
        ('{"id": "a", "kind": "x", "text": "t"}\n' * 2, "two prompts are called 'a'"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(PerfgateError, match=r"prompts\.jsonl") as caught:
        prompts_for(Workload(prompts=str(path)))
    assert reason in str(caught.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(PerfgateError, match="cannot be read"):
        prompts_for(Workload(prompts=str(tmp_path / "none.jsonl")))


def test_a_prompt_is_marked_the_same_for_the_same_asking_only() -> None:
    first, second = builtin("code")[:2]
    texts = [prompt.marked(asking) for prompt in (first, second) for asking in ("7/eagle3/1/1/s0", "7/eagle3/1/1/s1")]
    assert len({text.partition("\n\n")[0] for text in texts}) == 4
    assert first.marked("7/eagle3/1/1/s0") == texts[0]
    mark, _, text = texts[0].partition("\n\n")
    assert text == first.text
    assert len(mark.split()) == MARK_LENGTH
