"""Wraps the targets as their modules load: nothing of SGLang is imported earlier than it would have been.

A finder in front of `sys.meta_path` lets the others find a target's module and adds one step to its loading. Patched
is what the module's own class body holds; an inherited method is patched where it is written.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any

from .targets import BY_MODULE, COLLECTIVE, Target
from .timers import Timers

PATCHED = "patched"
INHERITED = "inherited"


class TargetFinder:
    """Finds target modules through the other finders. `loaded(module)` runs after each has loaded."""

    def __init__(self, loaded: Callable[[ModuleType], None]) -> None:
        self._loaded = loaded
        self._finding: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in BY_MODULE or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec = self._found_by_others(name, path, target)
        finally:
            self._finding.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, self._loaded)
        return spec

    def _found_by_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


class _Then(Loader):
    """A loader that does one thing more, and leaves no trace: afterwards the module shows its real loader."""

    def __init__(self, real: Any, then: Callable[[ModuleType], None]) -> None:
        self._real = real
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._real.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._then(module)


def patch(module: ModuleType, timers: Timers, after_collective: Callable[[], None]) -> dict[str, str]:
    """Wraps the module's targets. Returns what became of each row: its place → "patched", "inherited", or why not."""
    return {
        target.place: _patch(module, target, timers, after_collective) for target in BY_MODULE.get(module.__name__, ())
    }


def _patch(module: ModuleType, target: Target, timers: Timers, after_collective: Callable[[], None]) -> str:
    owner: Any = module if target.owner is None else getattr(module, target.owner, None)
    if owner is None:
        return f"no class {target.owner}"
    function = vars(owner).get(target.method)
    if function is None:
        return INHERITED if hasattr(owner, target.method) else f"no {target.method}"
    if not isinstance(function, FunctionType):
        return f"not a plain function: {type(function).__name__}"
    wrapped = (
        _followed(function, after_collective) if target.phase == COLLECTIVE else _timed(function, target.phase, timers)
    )
    setattr(owner, target.method, wrapped)
    return PATCHED


def _timed(function: FunctionType, phase: str, timers: Timers) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*args: Any, **kwargs: Any) -> Any:
        span = timers.enter(phase, args, kwargs)
        if span is None:
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            timers.leave(span)

    return timed


def _followed(function: FunctionType, then: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def followed(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        then()
        return result

    return followed
