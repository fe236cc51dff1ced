"""The prompts that a recipe's client sends: always the same ones in the same order, kinds taking turns.

The built-in ones are of our own writing, one file per kind. A box may bring its own: a JSONL file with one
`{"id": …, "kind": …, "text": …}` a line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Any

from perfgate.config.model import Workload
from perfgate.errors import PerfgateError

KINDS = ("code", "chat", "maths", "summary", "json")
MAX_TEXT = 200_000  # characters of one prompt


@dataclass(frozen=True)
class Prompt:
    id: str
    kind: str
    text: str


def prompts_for(workload: Workload) -> tuple[Prompt, ...]:
    """The prompt set of a workload, in the order of asking. Raises PerfgateError for a file that cannot be used."""
    if workload.prompts != "builtin":
        return _interleaved(_from_file(Path(workload.prompts)))
    chosen = [prompt for kind in KINDS for prompt in builtin(kind)[: workload.prompts_per_kind]]
    return _interleaved(chosen)


def builtin(kind: str) -> tuple[Prompt, ...]:
    """All built-in prompts of a kind."""
    text = (resources.files(__name__) / f"{kind}.jsonl").read_text(encoding="utf-8")
    return tuple(_prompts(text, f"built-in prompts of kind {kind}"))


def _interleaved(prompts: Iterable[Prompt]) -> tuple[Prompt, ...]:
    """One of each kind, then the next of each kind, …"""
    kinds: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.kind, []).append(prompt)
    return tuple(prompt for turn in zip_longest(*kinds.values()) for prompt in turn if prompt is not None)


def _from_file(path: Path) -> Sequence[Prompt]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PerfgateError(f"the prompts cannot be read: {error}", where=str(path)) from error
    prompts = list(_prompts(text, str(path)))
    if not prompts:
        raise PerfgateError("holds no prompts", where=str(path), remedy="one {id, kind, text} a line")
    ids = [prompt.id for prompt in prompts]
    if twice := next((one for one in ids if ids.count(one) > 1), None):
        raise PerfgateError(f"two prompts are called {twice!r}", where=str(path))
    return prompts


def _prompts(text: str, where: str) -> Iterator[Prompt]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield _prompt(line, f"{where}:{number}")


def _prompt(line: str, where: str) -> Prompt:
    try:
        body: Any = json.loads(line)
    except ValueError as error:
        raise PerfgateError("not a JSON line", where=where) from error
    if not isinstance(body, dict) or set(body) != {"id", "kind", "text"}:
        raise PerfgateError("a prompt has exactly the keys id, kind and text", where=where)
    values = [body["id"], body["kind"], body["text"]]
    if not all(isinstance(value, str) and value.strip() for value in values):
        raise PerfgateError("id, kind and text have to be texts, and not empty", where=where)
    if len(body["text"]) > MAX_TEXT:
        raise PerfgateError(f"a prompt of more than {MAX_TEXT} characters", where=where)
    return Prompt(*values)
