"""The names of the server's flags in one commit of SGLang, read from its sources; nothing of it is run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from perfgate.source.repository import Repository

SOURCES = "python/sglang/srt/server_args.py"
FIELDS = "python/sglang/srt/arg_groups/fields"  # of newer releases


def server_flags(repository: Repository, sha: str) -> frozenset[str]:
    """Without dashes in front. Empty where nothing can be read: then nothing is known either."""
    paths = (SOURCES, *(f"{FIELDS}/{name}" for name in repository.names_in(sha, FIELDS) if name.endswith(".py")))
    return flags_in(text for path in paths if (text := repository.read_file(sha, path)))


def flags_in(texts: Iterable[bytes]) -> frozenset[str]:
    return frozenset(name for text in texts for name in _flags_of(text))


def _flags_of(text: bytes) -> Iterator[str]:
    """Fields of classes, and texts that look like a flag: so no name is missed, and a few too many do no harm."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("--"):
            yield node.value[2:]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id.replace("_", "-")
