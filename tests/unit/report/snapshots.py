"""Golden files of what people read. PERFGATE_UPDATE_SNAPSHOTS=1 writes them anew: read the diff before committing."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parent / "snapshots"


def check(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("PERFGATE_UPDATE_SNAPSHOTS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    assert text == known, f"{path.name} has changed; PERFGATE_UPDATE_SNAPSHOTS=1 writes it anew"
