"""The box's rules on real SGLang (cpu profile): variables proven in every rank, lost outside or by code, a neighbour.

Minutes each; `pytest -m "slow and sglang" tests/integration/host`, with nothing else running.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from perfgate.config.profile import Profile
from perfgate.cpu.changes import Change
from perfgate.cpu.demo import DemoRepository, make_repository
from perfgate.cpu.environment import CpuEnvironment, prepare
from perfgate.records import Proof
from perfgate.records.files import read_facts
from perfgate.run.plan import GateRequest, find_box
from tests.integration.host.interpreter import copy_interpreter, losing
from tests.integration.host.neighbours import Neighbour
from tests.standin import commit_change

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(3000)]

TUNING = {"NCCL_PROTO": "LL", "NCCL_MIN_NCHANNELS": "8"}
BOUND = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}  # a core for each rank
SCHEDULER = "python/sglang/srt/managers/scheduler.py"
FORGETS = 'import os as _os; _os.environ.pop("NCCL_PROTO", None)  # noqa: E702\n'
SLOWER = """

def _slower(run_batch):
    def later(*args, **named):
        __import__("time").sleep(0.08)
        return run_batch(*args, **named)
    return later


Scheduler.run_batch = _slower(Scheduler.run_batch)
"""
FEW = {"prompts_per_kind": 1, "output_tokens": 16, "samples": 1}  # two ranks on two cores take 75 ms for a token
CROWDED = {"prompts_per_kind": 1, "output_tokens": 32, "samples": 2, "warmup_max": 8}  # beside others, a token as much


@pytest.fixture(scope="module")
def environment() -> CpuEnvironment:
    return prepare(Path(find_box(GateRequest(repo=Path(), head="", profile=Profile.CPU)).state_dir), print)


def gate(
    repository: DemoRepository,
    where: Path,
    config: Mapping[str, Any],
    *more: str,
    python: Path | None = None,
    surroundings: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A gate on the cpu profile; its result. Another `python` gets perfgate's packages by PYTHONPATH."""
    file = where / "perfgate.yml"
    file.write_text(yaml.safe_dump({"version": 1, **config}))
    branches = ("--base", repository.base_ref, "--head", repository.head_ref)
    command = [str(python or sys.executable), "-m", "perfgate", "gate", "--profile", "cpu", "--config", str(file)]
    done = subprocess.run(
        [*command, "--repo", str(repository.path), *branches, "--out", str(where / "run"), *more],
        env={**os.environ, "NO_COLOR": "1", **(surroundings or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (where / "run" / "result.json").exists(), done.stderr
    print(done.stderr, done.stdout)
    result: dict[str, Any] = json.loads((where / "run" / "result.json").read_text())
    return result


def sentences(result: Mapping[str, Any], kind: str) -> list[str]:
    return [one["sentence"] for one in result["environment"][kind]]


def test_variables_are_proven_in_both_ranks_and_head_s_code_is_not_excused(
    environment: CpuEnvironment, tmp_path: Path
) -> None:
    """Tensor parallel over two ranks; head's scheduler drops the tuning, and is slower."""
    repository = make_repository(environment, Change.NONE, tmp_path / "sglang")
    subprocess.run(["git", "checkout", "-q", repository.head_ref], cwd=repository.path, check=True)
    text = (repository.path / SCHEDULER).read_text()
    head, future, rest = text.partition("from __future__ import annotations\n")
    changed = f"{head}{future}{FORGETS}{rest}{SLOWER}" if future else f"{FORGETS}{text}{SLOWER}"
    commit_change(repository.path, {SCHEDULER: changed}, "Tidy the scheduler")
    config = {
        "nccl": TUNING,
        "recipes": {
            "baseline": {"enabled": False},
            "eagle3": {"enabled": False},
            "tp2": {"extends": "baseline", "enabled": True, "flags": {"tp-size": 2}, "env": BOUND, "workload": FEW},
        },
        "environment": {"rules": {"neighbour": "off"}},
    }
    result = gate(repository, tmp_path, config, "--recipes", "tp2")
    assert result["verdict"] == "regression"
    assert "head's code takes NCCL_PROTO=LL away" in sentences(result, "explained")
    assert sentences(result, "unexplained") == []
    proofs = [fact for fact in read_facts(tmp_path / "run") if isinstance(fact, Proof) and fact.rank is not None]
    assert {proof.rank for proof in proofs} == {0, 1}
    for proof in proofs:
        assert proof.given.items() >= TUNING.items()
        assert proof.at_start is not None
        assert proof.at_start.items() >= TUNING.items()
        assert proof.effective is not None
        assert ("NCCL_PROTO" in proof.effective) == (proof.side.value == "base")


def test_lost_outside_both_trees_it_is_the_box_s(tmp_path: Path) -> None:
    """In the interpreter that the environment of both sides is made from."""
    python = copy_interpreter(tmp_path / "python", losing("NCCL_PROTO", "self.rotary_emb.max_position", LLAMA))
    packages = ":".join([str(Path(__file__).parents[3]), *(path for path in sys.path if "site-packages" in path)])
    surroundings = {"LD_LIBRARY_PATH": str(tmp_path / "python" / "lib"), "PYTHONPATH": packages}
    state = tmp_path / "state"
    program = "import pathlib, sys, perfgate.cpu.environment as e; e.prepare(pathlib.Path(sys.argv[1]), print)"
    subprocess.run([python, "-c", program, state], env={**os.environ, **surroundings}, check=True)
    repository = make_repository(prepare(state, print), Change.BASELINE, tmp_path / "sglang")
    box = tmp_path / "box.yml"
    box.write_text(yaml.safe_dump({"name": "laptop", "state_dir": str(state), "gpus": "none"}))
    result = gate(
        repository,
        tmp_path,
        {"nccl": TUNING, "environment": {"rules": {"neighbour": "off"}}},
        *("--recipes", "baseline", "--box", str(box)),
        python=python,
        surroundings=surroundings,
    )
    assert result["verdict"] == "environment"
    (lost,) = sentences(result, "unexplained")
    assert lost.startswith("head started without NCCL_PROTO=LL (")
    assert lost.endswith("sitecustomize.py, outside both trees)")


LLAMA = "sglang/srt/models/llama.py"


@pytest.mark.parametrize("time", range(3))
def test_a_neighbour_beside_head_is_no_regression(environment: CpuEnvironment, tmp_path: Path, time: int) -> None:
    repository = make_repository(environment, Change.NONE, tmp_path / "sglang")
    crowded = {"extends": "baseline", "workload": CROWDED}
    with Neighbour(tmp_path / "run", busy=2) as neighbour:
        result = gate(
            repository, tmp_path, {"recipes": {"crowded": crowded}}, *("--recipes", "crowded", "--max-pairs", "2")
        )
    print(f"{time}: {result['verdict']}: {result['reason']}")
    assert neighbour.worked_s > 5
    assert result["verdict"] != "regression"
