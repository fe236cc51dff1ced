"""Environments for both sides, and the private HOMEs that their servers get.

In: a commit, the rules of perfgate.yml and of the box. Out: a `BuiltSide`, all that the launcher has to know of a
build, however it was made (by uv on the GPU box, or fixed by the cpu profile); or `BuildFailed`: why, and whose fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfgate.records import Side

__all__ = ["BuiltSide"]


@dataclass(frozen=True, kw_only=True)
class BuiltSide:
    side: Side
    key: str  # address by content of the environment
    python: Path  # interpreter of the environment
    tree: Path  # worktree of the commit
    path_entries: tuple[Path, ...]  # for PYTHONPATH, in order, after the probe's
    environment: Mapping[str, str] = field(default_factory=dict)  # variables the build itself needs at run time
    versions: Mapping[str, str] = field(default_factory=dict)
    readable: tuple[Path, ...] = ()  # what PR code must be able to read besides the interpreter and the tree
    cached: bool = False
    seconds: float = 0.0
    log: Path | None = None
