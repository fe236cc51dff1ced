"""The address of an environment: a hash of all that decides what is in it. Equal keys, one environment."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FORMAT = 2
"""Of an environment; raised when perfgate makes them differently."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    requirements: tuple[str, ...]
    requires_python: str
    python: str  # asked for, e.g. "3.12"
    platform: str
    extra: tuple[str, ...] = ()
    nccl: str | None = None
    wheels: tuple[str, ...] = ()  # names and sizes of the box's own
    index: tuple[str, ...] = ()  # variables that name package indexes
    kernel: tuple[str, ...] | None = None  # git's hash of the kernel's source, where it is built here
    kernel_python: tuple[str, ...] = ()  # likewise, of Python files that are laid over the wheel's
    rust: tuple[str, ...] | None = None  # likewise
    arch: str | None = None  # and what it is built for
    tools: tuple[str, ...] = ()  # and with
    like: str | None = None  # key whose versions it keeps where its own pins allow it


def build_key(inputs: Inputs) -> str:
    body = json.dumps({"format": FORMAT, **dataclasses.asdict(inputs)}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(body.encode()).hexdigest()[:40]


def key_beside(inputs: Inputs, base_key: str | None) -> str:
    """The key of head: base's own where nothing differs, else one that names base's, whose versions it keeps."""
    alone = build_key(inputs)
    if base_key is None or alone == base_key:
        return alone
    return build_key(dataclasses.replace(inputs, like=base_key))


def this_platform() -> str:
    return f"{sysconfig.get_platform()} {' '.join(platform.libc_ver())}".strip()


def wheel_names(folders: Iterable[Path]) -> tuple[str, ...]:
    """Names and sizes of the wheels in folders: one more or another one, another key."""
    found: list[str] = []
    for folder in folders:
        with os.scandir(folder) as entries:
            found += [f"{entry.name} {entry.stat().st_size}" for entry in entries if entry.name.endswith(".whl")]
    return tuple(sorted(found))
