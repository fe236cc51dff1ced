"""What a tree's Rust workspace pins for the one extension module that servers load, read from strangers' files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

WORKSPACE_LOCK = "rust/Cargo.lock"
WORKSPACE_MANIFEST = "rust/Cargo.toml"
TREE_CORE_PACKAGES = ("sglang-radix-tree", "sglang-mem-cache", "mem_cache")


def same_for_tree_core(base: bytes | None, head: bytes | None) -> bool:
    """Whether two Cargo.lock files name the same packages for the tree core. False where that cannot be known."""
    if base is None or head is None:
        return False
    before, after = _closure(base), _closure(head)
    return before is not None and before == after


def _closure(lock: bytes) -> frozenset[str] | None:
    """The tree core and all that it needs, each with version and checksum; None where it cannot be read.

    Empty where the lock names no tree core: then nothing in it is served.
    """
    try:
        packages = tomllib.loads(lock.decode()).get("package", [])
        by_name: dict[str, list[Mapping[str, Any]]] = {}
        for package in packages:
            by_name.setdefault(package["name"], []).append(package)
        waiting = [name for name in TREE_CORE_PACKAGES if name in by_name]
        seen: set[str] = set()
        found: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for package in by_name.get(name, []):  # all versions of a name: more than needed, never less
                found.add(f"{name} {package['version']} {package.get('checksum', '')} {package.get('source', '')}")
                waiting += [str(needed).split(" ", 1)[0] for needed in package.get("dependencies", [])]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return frozenset(found)


def same_but_members(base: bytes | None, head: bytes | None) -> bool:
    """Whether two workspace manifests differ in nothing but the list of their crates, or not at all."""
    if base is None or head is None:
        return False
    try:
        documents = [tomllib.loads(content.decode()) for content in (base, head)]
        for document in documents:
            for key in ("members", "default-members", "exclude"):
                document.get("workspace", {}).pop(key, None)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return False
    return documents[0] == documents[1]
