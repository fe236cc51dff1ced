"""The prompts that a recipe's client sends: always the same ones in the same order, kinds taking turns, each behind a
few words of its own (`Prompt.marked`).

The built-in ones are of our own writing, one file per kind. A box may bring its own: a JSONL file with one
`{"id": …, "kind": …, "text": …}` a line.
"""

from __future__ import annotations

import hashlib
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
MARK_LENGTH = 12  # words, of 64: 72 bits
MARK_WORDS = """
    amber anchor apple arrow autumn badge basin beach bell birch bottle bridge bronze cabin candle canyon castle cedar
    circle cliff cloud copper coral cotton crane delta desert dove eagle ember falcon fern field flame forest garden
    glass granite harbor hazel island ivory jade lake lantern lemon maple marble meadow mirror moss north ocean olive
    orchard paper pearl pebble pine plum prairie quartz rain river
""".split()  # noqa: SIM905 (to be read)


@dataclass(frozen=True)
class Prompt:
    id: str
    kind: str
    text: str

    def marked(self, asking: str) -> str:
        """Its text as it is sent for this `asking`: behind a line of words that no other asking has.

        The prompts are public and always the same, so a server could know their answers. `asking` names all that tells
        one request from another but the side, so base and head are asked the same.
        """
        drawn = hashlib.sha256(f"{asking}/{self.id}".encode()).digest()
        words = " ".join(MARK_WORDS[byte % len(MARK_WORDS)] for byte in drawn[:MARK_LENGTH])
        return f"{words}\n\n{self.text}"


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
