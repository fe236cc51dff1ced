"""The workflow files, as `perfgate init` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from perfgate.commands.init import Caller

ROOT = Path(__file__).parents[3]
ACTION = ROOT / "action.yml"
PERFGATE = "acme/perfgate"
SHA = "0123456789abcdef0123456789abcdef01234567"


def caller(*, private: bool, ref: str = SHA) -> Caller:
    return Caller.of(f"{PERFGATE}@{ref}", "self-hosted,gpu8", private=private)


def read(path: Path) -> dict[Any, Any]:
    data = yaml.safe_load(path.read_text())
    assert isinstance(data, dict)
    return data
