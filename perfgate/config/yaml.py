"""YAML as configuration needs it: plain values, the line of each, and every surprise of the language refused.

ruamel.yaml reads the file by YAML 1.2. What readers of YAML 1.1 take for something else (on, 1:30, 017, 1_000) is
refused where it stands unquoted, since a person who writes it cannot know what a reader makes of it. Anchors, tags and
merge keys are refused: a configuration needs none of them, and they are how small files become huge.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
)
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.reader import ReaderError

from perfgate.config.model import KeyPath, Source

MAX_BYTES = 128 * 1024
MAX_DEPTH = 16
MAX_NODES = 20_000

Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]


@dataclass(frozen=True)
class Problem:
    """One thing a person has to mend."""

    path: KeyPath
    reason: str
    line: int | None = None
    nearest: str = ""


@dataclass
class Document:
    """What a file says, where it says it, and what is wrong with it."""

    source: Source
    value: dict[str, Value] = field(default_factory=dict)
    texts: dict[KeyPath, str] = field(default_factory=dict)  # plain scalars as they are written
    problems: list[Problem] = field(default_factory=list)


class Unreadable(Exception):
    """The file is no YAML of the kind that is read here; nothing else can be said of it."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        self.problem = Problem((), reason, line)
        super().__init__(reason)


def read(text: bytes, name: str, as_written: Callable[[KeyPath], bool]) -> Document:
    """The document in a file. Scalars for which `as_written` holds stay the texts they are. Raises Unreadable."""
    if len(text) > MAX_BYTES:
        raise Unreadable(f"{len(text):,} bytes: at most {MAX_BYTES:,} are read")
    try:
        return _Reader(text.decode("utf-8-sig"), name, as_written).document()
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8: save it as UTF-8", text.count(b"\n", 0, error.start) + 1) from error
    except ReaderError as error:
        line = text.decode("utf-8-sig").count("\n", 0, error.position) + 1
        raise Unreadable(f"a control character (U+{int(error.character):04X})", line) from error
    except MarkedYAMLError as error:
        problem = error.problem or error.context or "it cannot be parsed"
        reason = "a tab: YAML is indented with spaces" if "'\\t'" in problem else f"not YAML: {problem}"
        mark = error.problem_mark or error.context_mark
        raise Unreadable(reason, mark.line + 1 if mark else None) from error


class _Reader:
    """Events to values. A wrong value is written down and left out, so that all that is wrong is told at once."""

    def __init__(self, text: str, name: str, as_written: Callable[[KeyPath], bool]) -> None:
        self._events = YAML(typ="safe", pure=True).parse(text)
        self._lines: dict[KeyPath, int] = {(): 1}
        self._document = Document(Source(name, self._lines))
        self._as_written = as_written
        self._depth = self._nodes = 0

    def document(self) -> Document:
        """An empty file says nothing, and that is fine."""
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                self._file()
        return self._document

    def _file(self) -> None:
        if self._nodes:
            raise Unreadable("a second document (`---`): only one is read", self._line)
        start = self._next()
        if isinstance(start, MappingStartEvent):
            self._document.value = self._mapping(())
        elif not (isinstance(start, ScalarEvent) and start.value == "" and start.style is None):
            line = self._line
            while not isinstance(self._next(), DocumentEndEvent):
                pass  # what is wrong further on with the YAML itself comes first
            raise Unreadable("the file must hold keys with values (`version: 1`)", line)

    def _next(self) -> Event:
        """The next event; what no configuration needs ends the reading, and no file costs more than its size."""
        event: Event = next(self._events)
        self._line = event.start_mark.line + 1
        if isinstance(event, AliasEvent) or getattr(event, "anchor", None):
            reason = "anchors and aliases are not read: write it out, or let a recipe `extends` another"
            raise Unreadable(reason, self._line)
        if tag := getattr(event, "tag", None):
            raise Unreadable(f"the tag {str(tag).replace('tag:yaml.org,2002:', '!!')} is not read", self._line)
        self._nodes += isinstance(event, ScalarEvent | CollectionStartEvent)
        self._depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if self._depth > MAX_DEPTH:
            raise Unreadable(f"more than {MAX_DEPTH} levels deep", self._line)
        if self._nodes > MAX_NODES:
            raise Unreadable(f"more than {MAX_NODES:,} values", self._line)
        return event

    def _mapping(self, path: KeyPath) -> dict[str, Value]:
        made: dict[str, Value] = {}
        while not isinstance(event := self._next(), MappingEndEvent):
            if not isinstance(event, ScalarEvent):
                raise Unreadable("a key must be a word", self._line)
            key, line, here = str(event.value), self._line, (*path, str(event.value))
            if key == "<<" and event.style is None:
                raise Unreadable("merge keys (<<) are not read: let a recipe `extends` another", line)
            if key in made:
                self._wrong(here, f"given twice, first in line {self._lines[here]}")
            self._lines[here] = line
            made[key] = self._value(self._next(), here)
        return made

    def _value(self, event: Event, path: KeyPath) -> Value:
        self._lines.setdefault(path, self._line)
        if isinstance(event, MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, ScalarEvent):
            return self._scalar(event, path)
        made: list[Value] = []
        while not isinstance(item := self._next(), SequenceEndEvent):
            made.append(self._value(item, (*path, len(made))))
        return made

    def _scalar(self, event: ScalarEvent, path: KeyPath) -> Value:
        text = str(event.value)
        if event.style is not None:
            return text
        self._document.texts[path] = text
        if self._as_written(path):
            return text or None
        try:
            return plain_value(text)
        except ValueError as error:
            self._wrong(path, str(error))
            return None

    def _wrong(self, path: KeyPath, reason: str) -> None:
        self._document.problems.append(Problem(path, reason, self._line))


_AMBIGUOUS = (
    (re.compile(r"y|n|yes|no|on|off", re.I), "YAML readers disagree on a bare {}: write true or false, or quote it"),
    (
        re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"),
        "YAML readers take {} for a number to base 60: write a plain number, or quote it",
    ),
    (re.compile(r"[-+]?0[0-7_]+"), "YAML readers disagree on {} (octal or not): drop the zero, or quote it"),
    (re.compile(r"[-+]?(0b[01_]+|0o[0-7_]+)"), "YAML readers disagree on {}: write a decimal number, or quote it"),
    (re.compile(r"[-+]?[0-9][0-9_]*_[0-9_.]*"), "YAML readers disagree on {}: leave out the underscores, or quote it"),
)
_YAML_12 = YAML(typ="safe", pure=True)
_MADE_OF_TEXT = tuple(f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float"))  # no dates
LONGEST_NUMBER = 64


def plain_value(text: str) -> Value:
    """An unquoted scalar by YAML 1.2. ValueError: it means different things to different readers, or nothing."""
    for pattern, reason in _AMBIGUOUS:
        if pattern.fullmatch(text):
            raise ValueError(reason.format(text))
    tag = _YAML_12.resolver.resolve(ScalarNode, text, (True, False))
    if str(tag) not in _MADE_OF_TEXT or len(text) > LONGEST_NUMBER:
        return text
    value: Value = _YAML_12.constructor.construct_object(ScalarNode(tag, text))
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{text} is no number that can be meant here")
    return value
