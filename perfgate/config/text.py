"""What is written from the configuration's models: JSON Schema, a commented example, the reference of the docs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from perfgate.config.layer import models_within
from perfgate.config.model import BoxFile, Config, MetricRule, Recipe
from perfgate.config.resolve import builtin
from perfgate.config.yaml import plain_value
from perfgate.records import METRICS

SHARES = frozenset({"budget", "alpha", "beta"})
PLACEHOLDERS = {
    "extends": "baseline",
    "model": "organisation/model",
    "revision": "0123456789abcdef0123456789abcdef01234567",
    "draft": "organisation/draft-model",
    "draft_revision": "0123456789abcdef0123456789abcdef01234567",
    "nccl": "nvidia-nccl-cu13==2.30.7",
    "cuda_arch": "12.0a",
    "jobs": "16",
    "prior": "{sd: 0.01, df: 10}",
}
EXAMPLE_HEAD = """\
# perfgate.yml: every key with its default. Keep `version`, the models and what you change; delete the rest.
# perfgate reads it at the tip of the base branch; the box's own file (/etc/perfgate/box.yml) wins over it.
# `perfgate config --check FILE` says what is wrong with it.
"""


def schema(model: type[BaseModel] = Config) -> dict[str, Any]:
    """JSON Schema (2020-12) of perfgate.yml, or of the box's file."""
    made = model.model_json_schema()
    _close(made)
    title = "perfgate.yml" if model is Config else "box.yml of perfgate"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": title}


def _close(part: Any) -> None:
    """Keys that match no allowed name are wrong: pydantic leaves that open."""
    if isinstance(part, dict):
        if "patternProperties" in part:
            part.setdefault("additionalProperties", False)
        for value in part.values():
            _close(value)
    elif isinstance(part, list):
        for value in part:
            _close(value)


# ------------------------------------------------------------------------------------------------ example


def example() -> str:
    """A perfgate.yml with every key, commented. It loads, and what it says are the built-in defaults."""
    return EXAMPLE_HEAD + "\n" + "\n".join(_fields(builtin(), "")) + "\n"


def _fields(model: BaseModel, indent: str) -> Iterator[str]:
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        if not indent and name != "version":
            yield ""
        if info.description:
            yield from textwrap.wrap(
                info.description, 108, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
            )
        yield from _field(name, value, indent)


def _field(name: str, value: Any, indent: str) -> Iterator[str]:
    if value is None:
        yield f"{indent}# {name}: {PLACEHOLDERS[name]}"
    elif isinstance(value, BaseModel):
        yield f"{indent}{name}:"
        yield from _fields(value, indent + "  ")
    elif name == "recipes":
        yield f"{indent}{name}:"
        yield from _recipes(value, indent + "  ")
    elif isinstance(value, dict) and value:
        yield f"{indent}{name}:"
        yield from (f"{indent}  {key}: {_flow(key, one)}" for key, one in value.items())
    else:
        yield f"{indent}{name}: {_flow(name, value)}"


def _recipes(recipes: Mapping[str, Recipe], indent: str) -> Iterator[str]:
    """The first in full; the others only with what they say themselves."""
    for number, (name, recipe) in enumerate(recipes.items()):
        yield f"{indent}{name}:"
        if number == 0:
            yield from _fields(recipe, indent + "  ")
            continue
        said = recipe.model_dump(exclude_unset=True)
        for key in said:
            yield from _field(key, said[key], indent + "  ")
        yield from _field("draft", recipe.draft, indent + "  ")


def _flow(name: str, value: Any) -> str:
    if name in SHARES:
        return f"{100 * value:g} %"
    if isinstance(value, MetricRule):
        said = value.model_dump(exclude_none=True)
        return "{" + ", ".join(f"{key}: {_flow(key, one)}" for key, one in said.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if _needs_no_quotes(value) else json.dumps(value)
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value)


def _needs_no_quotes(text: str) -> bool:
    try:
        return plain_value(text) == text and text.replace("-", "").isalnum()
    except ValueError:
        return False


# ------------------------------------------------------------------------------------------------ reference


def reference() -> str:
    """The keys of both files as Markdown tables, for docs/configuration.md."""
    parts = [_table("perfgate.yml", Config)]
    told_before = ("recipes.NAME.metrics.NAME", "recipes.NAME.metrics.NAME.prior")  # as `metrics` of all recipes
    parts += [_table(f"`{place}`", model) for place, model in models_within(Config) if place not in told_before]
    parts += ["### Metrics\n\n" + _metric_table(), _table("The box file", BoxFile)]
    return "\n".join(parts)


def _table(title: str, model: type[BaseModel]) -> str:
    parts = schema(model)
    rows = [
        f"| `{name}` | {_kind(parts['properties'][name], parts)} | {_default(model, name)} | {info.description or ''} |"
        for name, info in model.model_fields.items()
    ]
    about = (model.__doc__ or "").strip()
    head = "| key | value | default | meaning |\n| --- | --- | --- | --- |"
    return f"### {title}\n\n{about}\n\n{head}\n" + "\n".join(rows) + "\n"


def _default(model: type[BaseModel], name: str) -> str:
    info = model.model_fields[name]
    if info.is_required():
        return "must be given"
    value = info.get_default(call_default_factory=True)
    if value is None or value == {} or isinstance(value, BaseModel):
        return "–"
    return f"`{_flow(name, value)}`"


def _kind(part: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    if "$ref" in part:
        return "mapping, below"
    if "enum" in part or "const" in part:
        return ", ".join(f"`{one}`" for one in part.get("enum", [part.get("const")]))
    if "anyOf" in part:
        kinds = [_kind(one, parts) for one in part["anyOf"] if one.get("type") != "null"]
        shares = "exclusiveMaximum" in str(part) and len(kinds) == 2
        return "share, e.g. `3 %` or `0.03`" if shares else " or ".join(kinds)
    if part.get("type") in ("integer", "number"):
        return ("whole number" if part["type"] == "integer" else "number") + _range(part)
    if part.get("type") == "array":
        return f"list of {_kind(part['items'], parts).replace('whole number', 'whole numbers')}"
    return {"object": "mapping", "boolean": "`true`, `false`", "string": "text"}[str(part["type"])]


def _range(part: Mapping[str, Any]) -> str:
    low, high = part.get("minimum"), part.get("maximum")
    if low is not None and high is not None:
        return f", {low:g} to {high:g}"
    if "exclusiveMinimum" in part:
        return f", more than {part['exclusiveMinimum']:g}" + (
            f", less than {part['exclusiveMaximum']:g}" if "exclusiveMaximum" in part else ""
        )
    return f", at least {low:g}" if low is not None else ""


def _metric_table() -> str:
    rules = builtin().metrics
    rows = [
        f"| `{name}` | {kind.unit} | {kind.better.value} | {100 * rules[name].budget:g} %"
        f"{', gated' if rules[name].gated else ''} | {kind.about} |"
        for name, kind in METRICS.items()
    ]
    return (
        "| metric | unit | better | budget | what it is |\n| --- | --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )
