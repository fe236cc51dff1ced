"""What stands in for a library that SGLang imports everywhere and, in the cpu profile, never runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Open(type):
    """Lets a class stand for anything: a type to inherit from or annotate with, a namespace, a decorator."""

    def __getattr__(cls, name: str) -> type[Placeholder]:
        return placeholder(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        decorated = args[0] if len(args) == 1 and not kwargs else None
        return decorated if callable(decorated) else cls


class Placeholder(metaclass=_Open):
    """A name of the missing library, without its meaning."""


def placeholder(name: str) -> type[Placeholder]:
    """A fresh stand-in for `name`. Serves as a package's module-level `__getattr__`."""
    if name.startswith("__"):  # what Python itself asks of modules and classes; pretending would mislead it
        raise AttributeError(name)
    made: type[Placeholder] = type.__call__(_Open, name, (Placeholder,), {})
    return made


class _Submodule(ModuleType):
    def __getattr__(self, name: str) -> type[Placeholder]:
        return placeholder(name)


class _Submodules:
    """Finds every module below one package, so that importing it by its full name works."""

    def __init__(self, package: str) -> None:
        self.prefix = package + "."

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith(self.prefix) else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Submodule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def pretend_submodules(package: str) -> None:
    """From now on `import package.anything` succeeds. Real modules of the package go first."""
    sys.meta_path.append(_Submodules(package))
