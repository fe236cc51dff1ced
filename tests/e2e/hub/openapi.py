"""GitHub's OpenAPI description as a judge of requests and answers, and as a maker of complete answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from openapi_schema_validator import OAS30Validator, oas30_format_checker
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT4

SPEC = Path(__file__).parents[2] / "fixtures" / "github" / "openapi-trimmed.json"
TIME = "2026-11-30T00:00:00Z"


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    parameters: Mapping[str, str]  # of the path, unquoted
    data: Mapping[str, Any]


class Description:
    def __init__(self, spec: dict[str, Any]) -> None:
        _mend(spec)
        self.spec = spec
        self._registry: Registry[Any] = Registry().with_resource("", Resource(contents=spec, specification=DRAFT4))
        self._paths = [(re.compile(_pattern(path)), path) for path in sorted(spec["paths"], key=_generality)]

    def find(self, method: str, path: str) -> Operation | None:
        """The operation of a request; None for a call that GitHub does not describe."""
        for pattern, name in self._paths:
            match = pattern.fullmatch(path)
            data = match and self.spec["paths"][name].get(method.lower())
            if match and data:
                return Operation(method, name, {key: unquote(value) for key, value in match.groupdict().items()}, data)
        return None

    def request_faults(self, operation: Operation, query: Mapping[str, str], body: object) -> list[str]:
        """What is wrong with a request: query parameters that are not described, a body of another shape."""
        described = {one["name"]: one for one in map(self.deref, operation.data.get("parameters", []))}
        faults = [f"unknown query parameter {name}" for name in query if described.get(name, {}).get("in") != "query"]
        for name, value in query.items():
            if name in described:
                faults += self._faults(described[name]["schema"], _typed(value, self.deref(described[name]["schema"])))
        wanted = operation.data.get("requestBody")
        if wanted is None:
            return [*faults, "a body where none belongs"] if body is not None else faults
        schema = wanted["content"]["application/json"]["schema"]
        faults += self._faults(schema, body)
        known = self.deref(schema).get("properties")
        if isinstance(body, dict) and known and "oneOf" not in schema:
            faults += [f"unknown field {name}" for name in body if name not in known]
        return faults

    def answer_faults(self, operation: Operation, status: int, body: object) -> list[str]:
        """What is wrong with an answer of ours. Errors common to all calls are not judged."""
        described = operation.data["responses"].get(str(status))
        if described is None:
            return [] if status in (401, 403, 404, 422, 429) or status >= 500 else [f"status {status} is not described"]
        content = self.deref(described).get("content", {})
        if "application/json" not in content:
            return [] if body is None else ["a body where none belongs"]
        return self._faults(content["application/json"]["schema"], body)

    def _faults(self, schema: Mapping[str, Any], value: object) -> list[str]:
        validator = OAS30Validator(
            {**schema, "components": self.spec["components"]}, format_checker=oas30_format_checker
        )
        return [
            f"{'/'.join(map(str, error.absolute_path))}: {error.message}"[:300]
            for error in validator.iter_errors(value)
        ]

    def deref(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        while "$ref" in schema:
            found: Any = self.spec
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            schema = found
        return dict(schema)

    def make(self, name: str, overlay: Mapping[str, Any]) -> dict[str, Any]:
        """A complete object of a named schema: what is required is filled in, `overlay` laid over it."""
        made = self._fill({"$ref": f"#/components/schemas/{name}"})
        assert isinstance(made, dict)
        return _laid_over(made, overlay)

    def _fill(self, schema: Mapping[str, Any]) -> Any:
        schema = self.deref(schema)
        if schema.get("nullable"):
            return None
        if "allOf" in schema:
            filled: dict[str, Any] = {}
            for part in schema["allOf"]:
                filled |= self._fill(part) or {}
            return filled
        for choice in ("oneOf", "anyOf"):
            if choice in schema:
                return self._fill(schema[choice][0])
        if schema.get("enum"):
            return schema["enum"][0]
        match schema.get("type"):
            case "object":
                properties = schema.get("properties", {})
                return {key: self._fill(properties.get(key, {})) for key in schema.get("required", [])}
            case "array":
                return []
            case "integer" | "number":
                return schema.get("minimum", 1)
            case "boolean":
                return False
            case "string":
                return {"date-time": TIME, "uri": "https://example.org/"}.get(schema.get("format", ""), "text")
            case _:
                return {}


@cache
def description() -> Description:
    return Description(json.loads(SPEC.read_text()))


def _mend(schema: object) -> None:
    """`nullable` with `enum` means that null is allowed too; OpenAPI 3.0 says so only in its errata."""
    if isinstance(schema, dict):
        if schema.get("nullable") and "enum" in schema and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
        for value in schema.values():
            _mend(value)
    elif isinstance(schema, list):
        for value in schema:
            _mend(value)


def _pattern(path: str) -> str:
    """{path} may hold slashes, every other parameter is one segment."""
    parts = re.split(r"\{(\w+)\}", path)
    return "".join(
        re.escape(part) if index % 2 == 0 else f"(?P<{part}>{'.+' if part == 'path' else '[^/]+'})"
        for index, part in enumerate(parts)
    )


def _generality(path: str) -> tuple[int, str]:
    return path.count("{"), path


def _typed(text: str, schema: Mapping[str, Any]) -> object:
    if schema.get("type") == "integer" and re.fullmatch(r"-?\d+", text):
        return int(text)
    return text


def _laid_over(lower: dict[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(lower)
    for key, value in upper.items():
        below = merged.get(key)
        merged[key] = _laid_over(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged
