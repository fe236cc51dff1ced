"""The files of configuration: perfgate.yml, the box's own file, and what is written from the models for people."""

from __future__ import annotations

from pathlib import Path

from perfgate.config import BoxFile, Config, Resolved
from perfgate.config_layer import ConfigError, load_box_layer, load_layer
from perfgate.config_resolve import builtin, merge, metric_plans, problems_of, resolve
from perfgate.config_text import example, reference, schema
from perfgate.errors import PerfgateError

__all__ = [
    "ConfigError",
    "Resolved",
    "builtin",
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
