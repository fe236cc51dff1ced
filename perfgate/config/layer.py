"""One file → one layer of configuration, and everything that is wrong with it in words a person can act on."""

from __future__ import annotations

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
    return _visible(text.removeprefix(": "))


def _visible(text: str) -> str:
    """A file may come from a stranger: what a terminal would act on is shown instead, and no line is endless."""
    shown = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
    return shown if len(shown) <= 400 else shown[:399] + "…"


def load_layer(text: bytes, name: str) -> Config:
    """A file of perfgate.yml's shape, checked alone. Raises ConfigError with all that is wrong."""
    config, document = _read(text, name, Config)
    _raise_if(document.source, check_layer(config))
    return config


def is_box_layer(text: bytes) -> bool:
    """Whether a file has keys that only the box's file has, and none that only a perfgate.yml has."""
    try:
        value = read(text, "", _is_variable).value
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
        document = read(text, name, _is_variable)
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


def _is_variable(path: KeyPath) -> bool:
    """Values of environment variables are taken as they are written: 1, on and 0x10 mean those letters."""
    return len(path) > 1 and path[-2] in ("env", "nccl") and path[0] in ("env", "nccl", "recipes")


def explain(error: ValidationError, model: type[BaseModel], document: Document) -> Iterator[Problem]:
    """One problem for each value that is wrong, in words of a configuration."""
    told: set[KeyPath] = set()
    for detail in error.errors():
        path = _written_path(detail["loc"], document.value)
        if path not in told:
            told.add(path)
            yield _explain_one(detail, path, model, document)


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


def _explain_one(detail: ErrorDetails, path: KeyPath, model: type[BaseModel], document: Document) -> Problem:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(path, model)
    if kind == "missing":
        return Problem((*path, str(detail["loc"][-1])), "is missing")
    if detail["loc"][-1] == "[key]":
        return _bad_key(path)
    if kind == "literal_error":
        choices = _choices(str(context["expected"]))
        like = nearest(str(detail["input"]), choices)
        return Problem(path, f"must be {_one_of(choices)}, not {_shown(detail['input'])}", nearest=like)
    return Problem(path, _reason(detail, path, document))


def _unknown_key(path: KeyPath, model: type[BaseModel]) -> Problem:
    here = model_at(model, path[:-1])
    key = str(path[-1])
    fields = list(here.model_fields) if here else []
    like = nearest(key, fields)
    if not like and (place := _home_of(key, model)):
        return Problem(path, f"unknown key here; it belongs in {place}")
    hint = "" if like or not fields else f"; known are {', '.join(fields)}"
    return Problem(path, f"unknown key{hint}", nearest=like)


def _home_of(key: str, model: type[BaseModel]) -> str:
    """Where a key that is unknown here would be known."""
    for name, inner in _models_within(model):
        if key in inner.model_fields:
            return name
    return ""


def _models_within(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    for name, info in model.model_fields.items():
        inner = inner_model(info.annotation)
        if inner is not None:
            place = f"{path}{name}" if not is_mapping(info.annotation) else f"{path}{name}.NAME"
            yield place, inner
            yield from _models_within(inner, f"{place}.")


def model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | None:
    """The model that says which keys a mapping at this place may hold."""
    here: Any = model
    for step in path:
        if isinstance(here, type) and issubclass(here, BaseModel):
            info = here.model_fields.get(str(step))
            here = unwrapped(info.annotation) if info else None
        else:
            here = unwrapped(typing.get_args(here)[-1]) if is_mapping(here) else None
    return here if isinstance(here, type) and issubclass(here, BaseModel) else None


def unwrapped(annotation: Any) -> Any:
    """Without Annotated and without the None of an optional."""
    if typing.get_origin(annotation) is Annotated:
        return unwrapped(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [one for one in typing.get_args(annotation) if one is not type(None)]
        return unwrapped(members[0]) if len(members) == 1 else annotation
    return annotation


def is_mapping(annotation: Any) -> bool:
    return typing.get_origin(unwrapped(annotation)) is dict


def inner_model(annotation: Any) -> type[BaseModel] | None:
    plain = unwrapped(annotation)
    if is_mapping(plain):
        plain = unwrapped(typing.get_args(plain)[-1])
    return plain if isinstance(plain, type) and issubclass(plain, BaseModel) else None


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


def _choices(expected: str) -> list[str]:
    """ "'auto', 'wheel' or 'local'" → the three words."""
    return [word.strip(" '") for word in expected.replace(" or ", ",").split(",")]


def _one_of(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list ([1, 8])",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "finite_number": "a number",
}
LIMITS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
    "too_short": ("min_length", "a list of at least"),
    "too_long": ("max_length", "a list of at most"),
}
PATTERNS = {
    "python": "like 3.12",
    "run_as": "the name of a user",
    "prompts": "`builtin` or the absolute path of a file on the box",
    "model": "a hub id (organisation/name) or a name in the box file's `models`",
    "draft": "a hub id (organisation/name) or a name in the box file's `models`",
    "revision": "a full commit of 40 hexadecimal digits, small letters",
    "draft_revision": "a full commit of 40 hexadecimal digits, small letters",
    "name": "1 to 40 letters, digits, dots, dashes or underscores",
}
FOLDERS = frozenset({"state_dir", "hf_home", "lock", "models", "tools", "wheels"})


def _reason(detail: ErrorDetails, path: KeyPath, document: Document) -> str:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    key = next((step for step in reversed(path) if isinstance(step, str)), "")
    if "flags" in path[2:3] and kind != "string_pattern_mismatch":
        return f"must be true, a number, text or a list of texts, not {_shown(value)}; write JSON in quotes"
    if value is None:
        return "is empty: give it a value, or leave the key out"
    if kind in WANTED:
        quote = ": quote it" if kind == "string_type" and path in document.texts else ""
        percent = " (0.03, or 3 %)" if key in ("budget", "alpha", "beta") else ""
        word = " or auto" if key == "samples" else ""
        return f"must be {WANTED[kind]}{percent}{word}, not {_as_given(path, value, document)}{quote}"
    if kind in LIMITS:
        name, words = LIMITS[kind]
        percent = " (0.03, or 3 %)" if key in ("budget", "alpha", "beta") else ""
        word = ", or auto" if key == "samples" else ""
        given = str(len(value)) if isinstance(value, list) else _as_given(path, value, document)
        return f"must be {words} {context[name]:g}{percent}{word}, not {given}"
    if kind in ("string_pattern_mismatch", "string_too_long"):
        parent = str(path[-2]) if len(path) > 1 else ""
        folder = key in FOLDERS or parent in FOLDERS
        wanted = "an absolute path" if folder else PATTERNS.get(key, "printable text of a sensible length")
        return f"must be {wanted}, not {_shown(value)}"
    return f"{detail['msg'][:1].lower()}{detail['msg'][1:]}"


def _as_given(path: KeyPath, value: object, document: Document) -> str:
    """A number as it is written, text in quotes."""
    return document.texts[path] if path in document.texts and not isinstance(value, str) else _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return repr(text if len(text) <= 60 else text[:59] + "…")
