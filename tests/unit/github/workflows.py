"""The workflow files, and how the one for private repositories is made from the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
GATE = ROOT / ".github" / "workflows" / "gate.yml"
PRIVATE = GATE.with_name("gate-private.yml")
ACTION = ROOT / "action.yml"

_CHANGES = (
    (
        "# `gate-private.yml` is this file for private repositories; the only difference is that measure may read the "
        "repository.\nname: perfgate gate\n",
        "# This is gate.yml for private repositories, made from it by `python -m tests.unit.github.workflows`. The\n"
        "# only difference: it holds a token that may read this repository. git alone gets it, and it is not kept.\n"
        "name: perfgate gate (private)\n",
    ),
    (
        "      cancel-in-progress: true\n    permissions: {}\n    outputs:\n",
        "      cancel-in-progress: true\n    permissions:\n      contents: read # the commits\n    outputs:\n",
    ),
    (
        "          box: ${{ inputs.box }}\n",
        "          box: ${{ inputs.box }}\n          fetch-token: ${{ github.token }}\n",
    ),
)


def private(gate: str) -> str:
    for old, new in _CHANGES:
        assert gate.count(old) == 1, old
        gate = gate.replace(old, new)
    return gate


def read(path: Path) -> dict[Any, Any]:
    data = yaml.safe_load(path.read_text())
    assert isinstance(data, dict)
    return data


if __name__ == "__main__":
    PRIVATE.write_text(private(GATE.read_text()))
