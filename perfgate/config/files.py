"""The files of configuration: perfgate.yml, the box's own file, and what is written from the models for people."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from perfgate.config.check import nccl_notes
from perfgate.config.layer import ConfigError, is_box_layer, load_box_layer, load_layer
from perfgate.config.model import BoxFile, Config, Resolved
from perfgate.config.resolve import builtin, merge, metric_plans, problems_of, resolve
from perfgate.config.text import example, reference, schema
from perfgate.errors import PerfgateError

__all__ = [
    "ConfigError",
    "Resolved",
    "builtin",
    "check",
    "example",
    "load",
    "load_box",
    "metric_plans",
    "reference",
    "resolve",
    "schema",
]


def load(text: bytes, name: str) -> Config:
    """A perfgate.yml, checked alone and over the built-in defaults. Models may still be missing (see `resolve`).

    `name` is what errors call the file. Raises ConfigError: one line for each thing that is wrong.
    """
    config = load_layer(text, name)
    problems = problems_of(merge((builtin(), config)), models_needed=False)
    if problems:
        raise ConfigError(config._source, problems)
    return config


def load_file(path: Path) -> Config:
    """As `load`, from a file."""
    return load(_read(path, "perfgate config --example writes one"), str(path))


def check(path: Path) -> tuple[str, ...]:
    """What looks like a slip in a perfgate.yml or a box file. Raises ConfigError where it cannot be meant.

    Which of the two it is, its keys say.
    """
    text = _read(path, "perfgate config --example writes one")
    if is_box_layer(text):
        return tuple(nccl_notes(load_box_layer(text, str(path)).nccl))
    resolved = resolve(load(text, str(path)))
    return (*resolved.notes, *_unpinned(resolved))


def _unpinned(resolved: Resolved) -> Iterator[str]:
    """Models whose bytes nothing fixes, but for a folder of the box."""
    asked = dict.fromkeys(
        pair
        for recipe in resolved.recipes
        for pair in ((recipe.model, recipe.revision), (recipe.draft, recipe.draft_revision))
    )
    for model, revision in asked:
        if model and revision is None:
            yield f"{model} has no revision: that is fine only where the box file's `models` names its folder"


def load_box(path: Path) -> BoxFile:
    """The box's file. Raises ConfigError, or PerfgateError where it cannot be read."""
    return load_box_layer(_read(path, "perfgate init --box writes one"), str(path))


def _read(path: Path, remedy: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise PerfgateError("no such file", where=str(path), remedy=remedy) from error
    except OSError as error:
        raise PerfgateError(f"cannot be read: {error.strerror}", where=str(path)) from error
