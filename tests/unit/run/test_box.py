"""The box for one gate alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from perfgate.engine.watchdog import Swept
from perfgate.errors import Exit
from perfgate.host.lock import BoxLock
from perfgate.run import gate
from perfgate.run.journal import Journal


def test_nothing_is_measured_beside_what_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "running").mkdir()
    monkeypatch.setattr(gate, "sweep", lambda _records: [Swept("eagle3/p01/head/a1", 2, clean=False)])
    job = SimpleNamespace(
        resolved=SimpleNamespace(box=SimpleNamespace(lock=None)),
        store=SimpleNamespace(root=tmp_path),
        commits=SimpleNamespace(head=SimpleNamespace(sha="a" * 40)),
        progress=SimpleNamespace(say=lambda _text: None),
    )
    told = "eagle3/p01/head/a1 of an earlier run does not end"
    with (
        pytest.raises(gate.LeftBehind, match=told) as caught,
        gate._box(cast(gate.GateJob, job), cast(Journal, None), wait_s=0.0),
    ):
        pytest.fail("the box was given away")
    assert caught.value.exit_code is Exit.CANNOT
    with BoxLock.acquire(tmp_path / "box.lock", "another gate", 0.0, print):
        pass  # the lock is free again
