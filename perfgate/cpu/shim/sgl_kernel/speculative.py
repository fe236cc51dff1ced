"""Imported by name when SGLang loads its n-gram speculation, which the cpu profile does not serve."""

from __future__ import annotations

from typing import NoReturn


def reconstruct_indices_from_tree_mask(*args: object, **kwargs: object) -> NoReturn:
    raise NotImplementedError("n-gram speculation is not part of the cpu profile")
