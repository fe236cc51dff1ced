"""Where nothing can confine a server, the demo runs all the same, and says so before anything is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfgate.commands import demo
from perfgate.cpu.changes import Change
from perfgate.host import trial
from perfgate.host.doctor.software_checks import isolation_check
from perfgate.host.sandbox import Isolation, SandboxError
from perfgate.records import Check
from perfgate.run import plan
from perfgate.run.plan import GateRequest, find_box
from perfgate.run.progress import Progress

Demo = Callable[[], tuple[list[str], list[GateRequest]]]


@pytest.fixture
def run_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    """The demo up to the gate: what was said before, and what the gate was asked for."""
    said: list[str] = []
    asked: list[GateRequest] = []
    progress = Progress()
    monkeypatch.setattr(progress, "say", said.append)
    monkeypatch.setattr(progress, "tell", said.append)
    made = SimpleNamespace(path=tmp_path, base_sha="a" * 40, head_sha="b" * 40)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(plan, "BOX_PATH", tmp_path / "box.yml")
    monkeypatch.setattr(demo, "prepare", lambda *_: said.append("building"))
    monkeypatch.setattr(demo, "make_repository", lambda *_: made)
    monkeypatch.setattr(demo, "run_gate", lambda request, _: asked.append(request))

    def run() -> tuple[list[str], list[GateRequest]]:
        demo.run(Change.VERIFY, tmp_path / "run", progress)
        return said, asked

    return run


def isolation_is(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(kind: Isolation, *, run_as: str | None = None) -> Check:
        return Check(name=f"isolation: {kind}", status=status, text="bwrap is not installed")  # type: ignore[arg-type]

    monkeypatch.setattr(trial, "available", tried)
    monkeypatch.setattr(demo, "available", tried)


def test_without_isolation_it_runs_and_says_so_first(run_demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    isolation_is("fail", monkeypatch)
    said, (request,) = run_demo()
    (note,) = [line for line in said if line.startswith("note: ")]
    assert "perfgate's own" in note
    assert "bwrap is not installed" in note
    assert said.index(note) < said.index("building")
    monkeypatch.undo()
    assert isolation_check(find_box(request)).status == "warn"  # the doctor lets it begin


def test_with_isolation_it_is_used(run_demo: Demo, monkeypatch: pytest.MonkeyPatch) -> None:
    isolation_is("ok", monkeypatch)
    said, (request,) = run_demo()
    assert not [line for line in said if line.startswith("note: ")]
    assert request.isolation is None


def test_a_box_that_wants_isolation_is_not_overruled(
    run_demo: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation_is("fail", monkeypatch)
    (tmp_path / "box.yml").write_text("isolation: bubblewrap\n")
    with pytest.raises(SandboxError, match="bwrap is not installed"):
        run_demo()
