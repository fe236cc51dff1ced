"""One real gate on the cpu profile: real SGLang, real EAGLE-3, two real commits, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfgate.config.profile import Profile
from perfgate.cpu.changes import Change
from perfgate.cpu.demo import make_repository
from perfgate.cpu.environment import prepare
from perfgate.run.plan import GateRequest, find_box


@pytest.mark.sglang
@pytest.mark.timeout(1800)
def test_a_slower_verify_step_is_a_regression_of_eagle3(tmp_path: Path) -> None:
    state = Path(find_box(GateRequest(repo=Path(), head="", profile=Profile.CPU)).state_dir)
    repository = make_repository(prepare(state, print), Change.VERIFY, tmp_path / "sglang")
    run = tmp_path / "run"
    gate = subprocess.run(
        [
            *(sys.executable, "-m", "perfgate", "gate", "--profile", "cpu", "--recipes", "eagle3"),
            *("--repo", str(repository.path), "--base", repository.base_ref, "--head", repository.head_ref),
            *("--out", str(run)),
        ],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    assert gate.returncode == 1, gate.stderr
    result = json.loads((run / "result.json").read_text())
    assert result["verdict"] == "regression"
    assert (result["base"]["sha"], result["head"]["sha"]) == (repository.base_sha, repository.head_sha)
    metrics = {metric["metric"]: metric for metric in result["metrics"]}
    assert metrics["tok_s"]["slowdown"] > 0.3
    assert metrics["verify_ms"]["slowdown"] > 0.3
    assert metrics["verify_ms"]["base"] > metrics["draft_ms"]["base"] > 0
    assert abs(metrics["accept_length"]["slowdown"]) < 0.02  # the same drafts are accepted: only the time differs
    assert result["outputs_differ"] is False
    assert "regression" in gate.stdout.splitlines()[0]
    assert "verify" in result["decomposition"][0]["sentence"]
    assert not [path for path in run.rglob("*") if path.name.endswith(".partial")]


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_releases_are_measured_to_a_verdict(tmp_path: Path) -> None:
    """Nobody knows whether 0.5.23 is slower than 0.5.22 here; that it is found out is what has to hold."""
    demo = subprocess.run(
        [sys.executable, "-m", "perfgate", "demo", "--since", "0.5.22", "--out", str(tmp_path / "run")],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["verdict"] in ("pass", "regression", "inconclusive"), demo.stderr
    assert demo.returncode == {"pass": 0, "regression": 1, "inconclusive": 3}[result["verdict"]]
    gated = [metric for metric in result["metrics"] if metric["gated"]]
    assert {metric["recipe"] for metric in gated} == {"baseline", "eagle3"}
    assert all(metric["base"] > 0 and metric["head"] > 0 for metric in gated)
    assert "SGLang 0.5.22" in demo.stdout
