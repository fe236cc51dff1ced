"""One file → one layer of configuration, and everything that is wrong with it in words a person can act on."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from perfgate.config.check import check_layer, check_nccl, check_variables, nearest
from perfgate.config.model import BoxFile, Config, KeyPath, Source
from perfgate.config.yaml import Document, Problem, Unreadable, read
from perfgate.errors import PerfgateError
from perfgate.records import METRICS
from perfgate.text import visible

M = TypeVar("M", Config, BoxFile)


class ConfigError(PerfgateError):
    """Everything that is wrong with a configuration, one line each."""

    MOST = 40

    def __init__(self, source: Source, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        self.lines = tuple(_line_of(source, problem) for problem in problems)
        super().__init__("\n".join(self.lines))

    def __str__(self) -> str:
        more = len(self.lines) - self.MOST
        return "\n".join((*self.lines[: self.MOST], *([f"… and {more} more"] if more > 0 else ())))


def _line_of(source: Source, problem: Problem) -> str:
    """ "perfgate.yml:7: limits.max_pairz: unknown key → did you mean max_pairs?" """
    line = problem.line or (source.line(problem.path) if problem.path else None)
    where = source.name + (f":{line}" if line else "")
    key = ".".join(map(str, problem.path))
    nearest = f" → did you mean {problem.nearest}?" if problem.nearest else ""
    text = f"{where}: {key}: {problem.reason}{nearest}" if key else f"{where}: {problem.reason}{nearest}"
    return visible(text.removeprefix(": "), 400)  # a file may come from a stranger


def load_layer(text: bytes, name: str) -> Config:
    """A file of perfgate.yml's shape, checked alone. Raises ConfigError with all that is wrong."""
    config, document = _read(text, name, Config)
    _raise_if(document.source, check_layer(config))
    return config


def is_box_layer(text: bytes) -> bool:
    """Whether a file has keys that only the box's file has, and none that only a perfgate.yml has."""
    try:
        value = read(text, "", _is_word).value
    except Unreadable:
        return False
    keys = set(value) if isinstance(value, dict) else set()
    box, other = set(BoxFile.model_fields), set(Config.model_fields)
    return bool(keys & (box - other)) and not keys & (other - box)


def load_box_layer(text: bytes, name: str) -> BoxFile:
    """The box's file. Raises ConfigError with all that is wrong."""
    box, document = _read(text, name, BoxFile)
    wrong = [*check_variables(box.env, ("env",), box=True), *check_nccl(box.nccl, ("nccl",))]
    if box.run_as == "root":
        wrong.append(Problem(("run_as",), "must be a user without privileges: code of pull requests runs as it"))
    _raise_if(document.source, wrong)
    return box


def _raise_if(source: Source, problems: Iterable[Problem]) -> None:
    if found := tuple(problems):
        raise ConfigError(source, found)


def _read(text: bytes, name: str, model: type[M]) -> tuple[M, Document]:
    try:
        document = read(text, name, _is_word)
    except Unreadable as error:
        raise ConfigError(Source(name), [error.problem]) from error
    problems = list(document.problems)
    try:
        config = model.model_validate(document.value, strict=True)
    except ValidationError as error:
        known = {problem.path for problem in problems}
        problems += [problem for problem in explain(error, model, document) if problem.path not in known]
    if problems:
        raise ConfigError(document.source, sorted(problems, key=lambda one: _line_in(document, one)))
    config._source = document.source
    return config, document


def _line_in(document: Document, problem: Problem) -> int:
    return problem.line or document.source.line(problem.path) or 0


def _is_word(path: KeyPath) -> bool:
    """Values that are taken as they are written: of environment variables (1, on and 0x10 mean those letters), and
    where `off` is one of the words that may stand there.
    """
    if path[:2] in (("environment", "rules"), ("github", "auto"), ("caches", "autotune")):
        return True
    return len(path) > 1 and path[-2] in ("env", "nccl") and path[0] in ("env", "nccl", "recipes")


def explain(error: ValidationError, model: type[BaseModel], document: Document) -> Iterator[Problem]:
    """One problem for each value that is wrong."""
    at: dict[KeyPath, list[ErrorDetails]] = {}
    for detail in error.errors():
        at.setdefault(_written_path(detail["loc"], document.value), []).append(detail)
    for path, details in at.items():
        yield _explain_one(path, details, model, document)


def _written_path(loc: tuple[int | str, ...], value: Any) -> KeyPath:
    """Pydantic's place without the steps that are its own (members of unions, "[key]")."""
    path: list[int | str] = []
    for step in loc:
        inside = step in value if isinstance(value, dict) else isinstance(value, list) and step in range(len(value))
        if not inside:
            break
        value = value[step]
        path.append(step)
    return tuple(path)


def _explain_one(path: KeyPath, details: list[ErrorDetails], model: type[BaseModel], document: Document) -> Problem:
    kind, value = details[0]["type"], details[0]["input"]
    if kind == "extra_forbidden":
        return _unknown_key(path, model)
    if kind == "missing":
        return Problem((*path, str(details[0]["loc"][-1])), "is missing")
    if details[0]["loc"][-1] == "[key]":
        return _bad_key(path)
    if value is None:
        return Problem(path, "is empty: give it a value, or leave the key out")
    if kind in ("string_pattern_mismatch", "string_too_long"):
        wanted = ["must be " + _pattern_in_words(path)]
    else:
        wanted = [_in_plain_words(detail["msg"]) for detail in details]
    said = " or ".join(dict.fromkeys((wanted[0], *(one.removeprefix("must be ") for one in wanted[1:]))))
    like = nearest(str(value), re.findall(r"'(\w+)'", said)) if kind == "literal_error" else ""
    hint = next((HINTS[str(step)] for step in path[-2:] if step in HINTS), "")
    quote = ": quote it" if kind == "string_type" and path in document.texts else ""
    given = "" if ", not " in said else f", not {_as_given(path, value, document)}"
    return Problem(path, f"{said}{hint}{given}{quote}", nearest=like)


PLAIN_WORDS = (
    ("Input should be", "must be"),
    ("a valid integer", "a whole number"),
    ("a valid dictionary", "a mapping of keys to values"),
    ("a valid boolean", "true or false"),
    ("a valid string", "text"),
    ("a valid ", "a "),
    ("greater than or equal to", "at least"),
    ("less than or equal to", "at most"),
    ("List should have", "must be a list of"),
    (" after validation", ""),
)
"""Pydantic's words → those of somebody who writes YAML."""

HINTS = {**dict.fromkeys(("budget", "alpha", "beta"), " (0.03, or 3 %)"), "flags": " (JSON in quotes)"}


def _in_plain_words(message: str) -> str:
    for theirs, plain in PLAIN_WORDS:
        message = message.replace(theirs, plain)
    return message


def _unknown_key(path: KeyPath, model: type[BaseModel]) -> Problem:
    here = model_at(model, path[:-1])
    key = str(path[-1])
    fields = list(here.model_fields) if here else []
    if like := nearest(key, fields):
        return Problem(path, "unknown key", nearest=like)
    if home := next((place for place, inner in models_within(model) if key in inner.model_fields), None):
        return Problem(path, f"unknown key here; it belongs in {home}")
    return Problem(path, f"unknown key; known are {', '.join(fields)}" if fields else "unknown key")


def models_within(model: type[BaseModel], before: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every model inside one, with its place: "recipes.NAME.workload"."""
    for name, info in model.model_fields.items():
        plain = unwrapped(info.annotation)
        is_mapping = typing.get_origin(plain) is dict
        inner = unwrapped(typing.get_args(plain)[-1]) if is_mapping else plain
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            place = f"{before}{name}{'.NAME' if is_mapping else ''}"
            yield place, inner
            yield from models_within(inner, f"{place}.")


def model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model that says which keys a mapping at this place may hold."""
    here: Any = model
    for step in path:
        if isinstance(here, type) and issubclass(here, BaseModel):
            info = here.model_fields.get(str(step))
            here = unwrapped(info.annotation) if info else None
        else:
            here = unwrapped(typing.get_args(here)[-1]) if typing.get_origin(here) is dict else None
    return here if isinstance(here, type) and issubclass(here, BaseModel) else None


def unwrapped(annotation: Any) -> Any:
    """Without Annotated and without the None of an optional."""
    if typing.get_origin(annotation) is Annotated:
        return unwrapped(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [one for one in typing.get_args(annotation) if one is not type(None)]
        return unwrapped(members[0]) if len(members) == 1 else annotation
    return annotation


def _bad_key(path: KeyPath) -> Problem:
    key, parent = str(path[-1]), path[-2] if len(path) > 1 else ""
    if parent == "metrics":
        return Problem(path, f"no such metric; known are {', '.join(METRICS)}", nearest=nearest(key, METRICS))
    if parent == "flags":
        bare = key.strip().lstrip("-")
        return Problem(path, "must be a flag's name in small letters, without the leading dashes", nearest=bare.lower())
    if parent == "nccl":
        return Problem(path, "must be an NCCL variable (NCCL_…); others stand under `env`")
    if parent == "env":
        return Problem(path, "is no name of an environment variable")
    return Problem(path, "must be a short name: a-z first, then a-z, 0-9, _ or -")


PATTERNS = {
    "python": "like 3.12",
    "run_as": "the name of a user",
    "prompts": "`builtin` or the absolute path of a file on the box",
    "name": "1 to 40 letters, digits, dots, dashes or underscores",
    **dict.fromkeys(("model", "draft"), "a hub id (organisation/name) or a name in the box file's `models`"),
    **dict.fromkeys(("revision", "draft_revision"), "a full commit of 40 hexadecimal digits, small letters"),
    **dict.fromkeys(("state_dir", "hf_home", "lock", "models", "tools", "wheels"), "an absolute path"),
}
"""What a text must be, by its key or the one around it."""


def _pattern_in_words(path: KeyPath) -> str:
    around = (PATTERNS[str(step)] for step in reversed(path[-2:]) if str(step) in PATTERNS)
    return next(around, "printable text of a sensible length")


def _as_given(path: KeyPath, value: object, document: Document) -> str:
    """A number as it is written, text in quotes."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if path in document.texts and not isinstance(value, str):
        return document.texts[path]
    text = str(value)
    return repr(text if len(text) <= 60 else text[:59] + "…")
