"""What a tree asks to be installed: the dependency part of its python/pyproject.toml, a stranger's file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from perfgate.errors import PerfgateError
from perfgate.text import visible

PYPROJECT = "python/pyproject.toml"
RUNTIME_EXTRA = "srt"
"""Up to 0.5.2 the server's own dependencies were in this extra."""

_MAX_BYTES = 2**20
_MAX_PINS = 1000


@dataclass(frozen=True)
class Pins:
    """`requirements` are normalised, sorted, and free of anything but names, versions, extras, markers and URLs."""

    requirements: tuple[str, ...]
    requires_python: str = ""

    def on_a_box(self) -> Mapping[str, tuple[str, ...]]:
        """By name, those that can apply to a box."""
        grouped: dict[str, tuple[str, ...]] = {}
        for text in filter(may_apply, self.requirements):
            name = canonicalize_name(Requirement(text).name)
            grouped[name] = (*grouped.get(name, ()), text)
        return grouped


@dataclass(frozen=True)
class PinChange:
    name: str
    base: str | None  # as it stands there; None: not asked for
    head: str | None

    def __str__(self) -> str:
        return f"{self.base or 'no ' + self.name} → {self.head or 'no ' + self.name}"


def read_pins(pyproject: bytes, where: str = PYPROJECT) -> Pins:
    """The pins of a pyproject.toml; PerfgateError says what is wrong with it."""
    project = _project(pyproject, where)
    extras = project.get("optional-dependencies", {})
    if not isinstance(extras, dict):
        raise PerfgateError("project.optional-dependencies is no table", where=where)
    wanted = [*_expand(project.get("dependencies", []), extras, project.get("name"), where, set())]
    if RUNTIME_EXTRA in extras:
        wanted += _expand(extras[RUNTIME_EXTRA], extras, project.get("name"), where, {RUNTIME_EXTRA})
    if len(wanted) > _MAX_PINS:
        raise PerfgateError(f"more than {_MAX_PINS} dependencies", where=where)
    requires = project.get("requires-python", "")
    return Pins(tuple(sorted(set(wanted))), visible(requires, 100) if isinstance(requires, str) else "")


def _project(pyproject: bytes, where: str) -> dict[str, Any]:
    if len(pyproject) > _MAX_BYTES:
        raise PerfgateError(f"{len(pyproject)} bytes, too many to read", where=where)
    try:
        document = tomllib.loads(pyproject.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise PerfgateError(f"not TOML: {visible(str(error), 120)}", where=where) from error
    project = document.get("project")
    if not isinstance(project, dict):
        raise PerfgateError("no [project] table", where=where)
    if "dependencies" in (project.get("dynamic") or ()):
        raise PerfgateError("its dependencies are dynamic: they cannot be read without running its code", where=where)
    return project


def _expand(listed: Any, extras: Mapping[str, Any], own_name: Any, where: str, seen: set[str]) -> Iterator[str]:
    """Requirements of a list, its references to the project's own extras replaced by what those list."""
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise PerfgateError("dependencies are no list of texts", where=where)
    for text in listed:
        requirement = _requirement(text, where)
        if canonicalize_name(requirement.name) != canonicalize_name(str(own_name)):
            yield str(requirement)
            continue
        for extra in sorted(requirement.extras - seen):
            yield from _expand(extras.get(extra, []), extras, own_name, where, seen | {extra})


def _requirement(text: str, where: str) -> Requirement:
    try:
        requirement = Requirement(text)
    except (InvalidRequirement, RecursionError) as error:
        raise PerfgateError(f"not a requirement: {visible(text, 80)!r}", where=where) from error
    if len(str(requirement).splitlines()) > 1:  # by an escape in a marker's text
        raise PerfgateError(f"not a requirement: {visible(text, 80)!r}", where=where)
    if requirement.url is not None and not requirement.url.startswith(("https://", "git+https://")):
        raise PerfgateError(f"{requirement.name} may only be had from an index or by https", where=where)
    return requirement


_VERSIONS = tuple(f"3.{minor}" for minor in range(9, 20))


def may_apply(text: str) -> bool:
    """Whether a requirement can be one of a box's: Linux on x86-64, whatever its Python."""
    marker = Requirement(text).marker
    if marker is None:
        return True
    box = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}
    try:
        return any(
            marker.evaluate({**box, "python_version": version, "python_full_version": f"{version}.0", "extra": ""})
            for version in _VERSIONS
        )
    except (UndefinedEnvironmentName, UndefinedComparison):
        return True


def pin_changes(base: Pins, head: Pins) -> tuple[PinChange, ...]:
    """What differs of what a box installs. Requirements whose markers are false on it are no difference."""
    before, after = base.on_a_box(), head.on_a_box()
    return tuple(
        PinChange(name, " and ".join(before.get(name, ())) or None, " and ".join(after.get(name, ())) or None)
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )
