"""YAML as configuration needs it: plain values, the line of each, and every surprise of the language refused.

PyYAML reads the nodes; the values are made here, by the core schema of YAML 1.2 (true, false, numbers, null, text).
What YAML 1.1 readers take for something else (on, 1:30, 017, 1_000) is refused where it stands unquoted, since a person
who writes it cannot know what a reader makes of it. Aliases, tags and merge keys are refused: a configuration needs
none of them, and they are how small files become huge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import yaml

from perfgate.config.model import KeyPath, Source

MAX_BYTES = 128 * 1024
MAX_DEPTH = 16
MAX_NODES = 20_000
RESOLVER = yaml.resolver.Resolver()

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
    value: dict[str, Value]
    texts: dict[KeyPath, str] = field(default_factory=dict)  # plain scalars as they are written
    problems: list[Problem] = field(default_factory=list)


class Unreadable(Exception):
    """The file is no YAML of the kind that is read here; nothing else can be said of it."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        self.problem = Problem((), reason, line)
        super().__init__(reason)


def read(text: bytes, name: str, as_written: Callable[[KeyPath], bool]) -> Document:
    """The document in a file. Scalars for which `as_written` holds stay the texts they are. Raises Unreadable."""
    node = _compose(_decode(text))
    lines: dict[KeyPath, int] = {(): 1}
    document = Document(Source(name, lines), {})
    if node is None:
        return document  # an empty file says nothing, and that is fine
    if not isinstance(node, yaml.MappingNode) or not _is_untagged(node):
        raise Unreadable("the file must hold keys with values (`version: 1`)", _line(node))
    _Reader(document, lines, as_written).mapping(node, (), into=document.value)
    return document


def _decode(text: bytes) -> str:
    if len(text) > MAX_BYTES:
        raise Unreadable(f"{len(text):,} bytes: at most {MAX_BYTES:,} are read")
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8: save it as UTF-8", text.count(b"\n", 0, error.start) + 1) from error


def _compose(text: str) -> yaml.Node | None:
    try:
        _check_size(yaml.parse(text, Loader=yaml.SafeLoader))
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable(f"a control character (U+{_code(error.character):04X})", line) from error
    except yaml.MarkedYAMLError as error:
        raise Unreadable(_say(error), _marked_line(error)) from error


def _code(character: object) -> int:
    return character if isinstance(character, int) else ord(str(character)[:1] or "\0")


def _check_size(events: Iterator[yaml.Event]) -> None:
    """Walks the file once without building anything, so that no file can cost more than its size."""
    depth = nodes = documents = 0
    for event in events:
        line = event.start_mark.line + 1 if event.start_mark else None
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise Unreadable("anchors and aliases are not read: write it out, or let a recipe `extends` another", line)
        documents += isinstance(event, yaml.DocumentStartEvent)
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise Unreadable(f"more than {MAX_DEPTH} levels deep", line)
        if nodes > MAX_NODES:
            raise Unreadable(f"more than {MAX_NODES:,} values", line)
        if documents > 1:
            raise Unreadable("a second document (`---`): only one is read", line)


def _marked_line(error: yaml.MarkedYAMLError) -> int | None:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark else None


def _say(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "it cannot be parsed"
    if "'\\t'" in problem:
        return "a tab: YAML is indented with spaces"
    return f"not YAML: {problem}"


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _Reader:
    """Nodes to values. What is wrong is written down and left out, so that all of it is told at once."""

    def __init__(self, document: Document, lines: dict[KeyPath, int], as_written: Callable[[KeyPath], bool]) -> None:
        self._document = document
        self._lines = lines
        self._as_written = as_written

    def mapping(self, node: yaml.MappingNode, path: KeyPath, into: dict[str, Value]) -> dict[str, Value]:
        seen: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is None:
                continue
            if key in seen:
                self._wrong((*path, key), f"given twice, first in line {seen[key]}", _line(key_node))
                continue
            seen[key] = _line(key_node)
            self._lines[*path, key] = _line(key_node)
            into[key] = self._value(value_node, (*path, key))
        return into

    def _key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._wrong(path, "a key must be a word", _line(node))
            return None
        if node.value == "<<" and node.style is None:
            self._wrong((*path, "<<"), "merge keys are not read: let a recipe `extends` another", _line(node))
            return None
        return str(node.value)

    def _value(self, node: yaml.Node, path: KeyPath) -> Value:
        if not _is_untagged(node):
            tag = str(node.tag).replace("tag:yaml.org,2002:", "!!")
            self._wrong(path, f"the tag {tag} is not read", _line(node))
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path, {})
        if isinstance(node, yaml.SequenceNode):
            return [self._item(item, (*path, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode), "YAML has three kinds of nodes"
        return self._scalar(node, path)

    def _item(self, node: yaml.Node, path: KeyPath) -> Value:
        self._lines[path] = _line(node)
        return self._value(node, path)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Value:
        text = str(node.value)
        if node.style is not None:
            return text
        self._document.texts[path] = text
        if self._as_written(path):
            return text if text else None
        if doubt := ambiguity(text):
            self._wrong(path, doubt, _line(node))
            return None
        try:
            return plain_value(text)
        except ValueError as error:
            self._wrong(path, str(error), _line(node))
            return None

    def _wrong(self, path: KeyPath, reason: str, line: int) -> None:
        self._document.problems.append(Problem(path, reason, line))


def _is_untagged(node: yaml.Node) -> bool:
    """The composer resolves every node to a tag; one that a person wrote differs from what the resolver says."""
    if isinstance(node, yaml.ScalarNode):
        implicit = (True, False) if node.style is None else (False, True)
        return bool(node.tag == RESOLVER.resolve(yaml.ScalarNode, node.value, implicit))  # type: ignore[no-untyped-call]
    return node.tag in ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_AMBIGUOUS = (
    (re.compile(r"y|n|yes|no|on|off", re.I), "YAML readers disagree on a bare {}: write true or false, or quote it"),
    (
        re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"),
        "YAML readers take {} for a number to base 60: write a plain number, or quote it",
    ),
    (re.compile(r"[-+]?0[0-7_]+"), "YAML readers disagree on {} (octal or not): drop the zero, or quote it"),
    (re.compile(r"[-+]?(0b[01_]+|0o[0-7]+)"), "YAML readers disagree on {}: write a decimal number, or quote it"),
    (re.compile(r"[-+]?[0-9][0-9_]*_[0-9_.]*"), "YAML readers disagree on {}: leave out the underscores, or quote it"),
)


def ambiguity(text: str) -> str | None:
    """Why a plain scalar means different things to different readers of YAML; None where it does not."""
    return next((reason.format(text) for pattern, reason in _AMBIGUOUS if pattern.fullmatch(text)), None)


def plain_value(text: str) -> bool | int | float | str | None:
    """A plain scalar by the core schema of YAML 1.2. ValueError: a number that is none."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in ("true", "false") and text in (text.lower(), text.upper(), text.capitalize()):
        return text.lower() == "true"
    if re.fullmatch(r"[-+]?\.inf|\.nan", text, re.I):
        raise ValueError(f"{text} is no number that can be meant here")
    if re.fullmatch(r"0x[0-9a-fA-F]{1,32}", text):
        return int(text, 16)
    if len(text) > 64:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        number = float(text)
        if number in (float("inf"), float("-inf")):
            raise ValueError(f"{text} is too large; quote it if it is no number")
        return number
    return text
