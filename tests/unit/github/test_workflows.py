"""What must hold of the workflow files, read as data, and what their linters say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perfgate.commands.init import GATE, WORKFLOW
from tests.e2e.hub.runners import jobs_of
from tests.unit.github.workflows import ACTION, PERFGATE, ROOT, SHA, caller, read

BIN = Path(sys.executable).parent


@pytest.fixture(params=[False, True], ids=["public", "private"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A repository with the workflows that `perfgate init` writes."""
    made = caller(private=request.param)
    for path, text in ((WORKFLOW, made.workflow()), (GATE, made.gate())):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.fixture
def gate(written: Path) -> Path:
    return written / GATE


@pytest.fixture(params=["gate", "action"])
def shown(request: pytest.FixtureRequest, gate: Path) -> Path:
    return gate if request.param == "gate" else ACTION


def steps(path: Path) -> Iterator[dict[str, Any]]:
    data = read(path)
    for job in data.get("jobs", {}).values():
        yield from job.get("steps", [])
    yield from data.get("runs", {}).get("steps", [])


def test_the_box_is_within_reach_of_the_job_that_measures(written: Path) -> None:
    """GitHub's rule, walked through the files as written: for a repository whose owner is not perfgate's."""
    files = {str(path): (written / path).read_text() for path in (WORKFLOW, GATE)}
    found = {job.name: job for job in jobs_of("sgl-project/sglang", files, str(WORKFLOW), {})}
    assert "inputs.runs-on" in found["measure"].on
    assert all(job.gets_runner for job in found.values())


def test_a_gate_in_another_owners_repository_would_not_get_the_box(written: Path) -> None:
    """As it was once: the rule is not one that cannot fail."""
    called = f"{PERFGATE}/.github/workflows/gate.yml@{SHA}"
    text = (written / WORKFLOW).read_text().replace(f"./{GATE}", called)
    assert called in text
    found = jobs_of("sgl-project/sglang", {str(WORKFLOW): text}, str(WORKFLOW), {called: (written / GATE).read_text()})
    assert [job.name for job in found if not job.gets_runner] == ["measure"]


def test_every_job_checks_out_perfgate_at_one_commit(gate: Path) -> None:
    checkouts = [step["with"] for step in steps(gate) if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == 3
    assert all((one["repository"], one["ref"]) == (PERFGATE, SHA) for one in checkouts)
    assert all(one["persist-credentials"] is False for one in checkouts)


def test_every_action_is_pinned_by_its_full_sha(shown: Path) -> None:
    used = [step["uses"] for step in steps(shown) if "uses" in step]
    assert all(use == "./.perfgate" or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", use) for use in used)


def test_no_expression_reaches_a_shell(shown: Path) -> None:
    """Expressions are pasted into a script before the shell reads it; values come as variables instead."""
    scripts = [step["run"] for step in steps(shown) if "run" in step]
    assert scripts
    assert not [script for script in scripts if "${{" in script]


def test_the_group_is_per_pull_request_and_behind_the_authorisation(gate: Path) -> None:
    """A comment of anybody's must not be able to end a measurement, and no group may hold the whole box."""
    data = read(gate)
    assert "concurrency" not in data
    grouped = {name: job["concurrency"] for name, job in data["jobs"].items() if "concurrency" in job}
    assert set(grouped) == {"measure", "cancel"}  # to cancel is to enter the group
    group = "perfgate-${{ github.repository }}-${{ needs.authorise.outputs.pr }}"
    assert all(one == {"group": group, "cancel-in-progress": True} for one in grouped.values())
    for name, condition in (("measure", "measure"), ("cancel", "cancel")):
        assert data["jobs"][name]["needs"] == "authorise"
        assert data["jobs"][name]["if"] == f"needs.authorise.outputs.{condition} == 'true'"


def test_permissions_are_exact(gate: Path, request: pytest.FixtureRequest) -> None:
    data = read(gate)
    private = "private" in request.node.callspec.id
    assert data["permissions"] == {}
    assert {name: job["permissions"] for name, job in data["jobs"].items()} == {
        "authorise": {"actions": "read", "checks": "write", "contents": "read", "pull-requests": "write"},
        "measure": {"contents": "read"} if private else {},
        "cancel": {},
        "publish": {"checks": "write", "pull-requests": "write"},
    }


def test_only_the_measure_job_runs_on_the_box_and_it_holds_no_secret(
    gate: Path, request: pytest.FixtureRequest
) -> None:
    jobs = read(gate)["jobs"]
    on = {name: job["runs-on"] for name, job in jobs.items()}
    assert on.pop("measure") == "${{ fromJSON(inputs.runs-on) }}"
    assert set(on.values()) == {"${{ inputs.hosted }}"}
    text = str(jobs["measure"])
    assert "secrets" not in text
    tokens = re.findall(r"[\w-]*token[\w-]*': '\$\{\{ github\.token \}\}", text)
    assert tokens == (["fetch-token': '${{ github.token }}"] if "private" in request.node.callspec.id else [])


def test_every_job_ends_by_itself(gate: Path) -> None:
    limits = {name: job["timeout-minutes"] for name, job in read(gate)["jobs"].items()}
    assert limits.pop("measure") == "${{ fromJSON(needs.authorise.outputs.timeout-minutes || '360') }}"
    assert all(isinstance(minutes, int) for minutes in limits.values())


def test_inputs_and_outputs_meet(gate: Path) -> None:
    """What the gate hands to the action the action knows; what it reads of it the action gives."""
    action = read(ACTION)
    for job in read(gate)["jobs"].values():
        for step in job.get("steps", []):
            if step.get("uses") == "./.perfgate":
                assert set(step["with"]) <= set(action["inputs"])
                ours = re.findall(rf"steps\.{step['id']}\.outputs\.([\w-]+)", str(job))
                assert set(ours) <= set(action["outputs"])


def test_the_caller_is_short_and_exact(written: Path) -> None:
    path = written / WORKFLOW
    assert len(path.read_text().splitlines()) <= 30
    data = read(path)
    assert data["permissions"] == {}
    (job,) = data["jobs"].values()
    gate = read(written / GATE)
    assert job["permissions"] == gate["jobs"]["authorise"]["permissions"]
    events = data[True]  # YAML 1.1 reads the key `on` so
    assert set(events) == {"pull_request", "issue_comment", "merge_group", "workflow_dispatch"}
    assert events["issue_comment"] == {"types": ["created"]}
    assert {"edited", "closed"} <= set(events["pull_request"]["types"])  # another base; nothing to wait for any more
    assert "paths" not in str(events)
    assert job["uses"] == f"./{GATE}"
    assert set(job["with"]) <= set(gate[True]["workflow_call"]["inputs"])


def lint(*command: str) -> None:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        [BIN / command[0], *command[1:]], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor(written: Path) -> None:
    paths = map(str, (written / GATE, written / WORKFLOW, ACTION))
    lint("zizmor", "--offline", "--no-progress", "--persona", "pedantic", *paths)


def test_jactionlint(written: Path) -> None:
    paths = map(str, (written / GATE, written / WORKFLOW))
    lint("jactionlint", "--strict-exit", "--shellcheck", str(BIN / "shellcheck"), *paths)


def test_schemas(written: Path) -> None:
    lint(
        "check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(written / GATE), str(written / WORKFLOW)
    )
    lint("check-jsonschema", "--builtin-schema", "vendor.github-actions", str(ACTION))


def test_every_exception_has_its_reason(shown: Path) -> None:
    for line in shown.read_text().splitlines():
        if "ignore[" in line:
            assert re.search(r"ignore\[[\w-]+\] \w+ \w+", line), line


# ------------------------------------------------------------------------------------------------ the action's scripts


def script(name: str) -> str:
    (found,) = [step["run"] for step in steps(ACTION) if step.get("id") == name]
    return str(found)


def test_no_setting_of_the_runner_chooses_another_place(tmp_path: Path) -> None:
    """With every variable that could, the install goes on with the environment it made."""
    loop = script("install").split("uv=", 1)[0]
    hostile = ("UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_PROJECT_ENVIRONMENT", "PIP_TARGET", "PIP_USER", "PYTHONPATH")
    kept = ("UV_INDEX_URL", "PIP_INDEX_URL", "UV_CACHE_DIR", "PATH")
    environment = {**dict.fromkeys((*hostile, *kept[:-1]), "/usr"), "PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", "-euc", f"{loop}\nenv"], env=environment, capture_output=True, text=True, check=True)
    left = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert not left & set(hostile)
    assert set(kept) <= left


def test_uv_is_taken_by_its_own_hash() -> None:
    """And by no action of somebody else's."""
    text = script("install")
    assert "--require-hashes --no-deps" in text
    assert "--python" in text.split("uv pip install" if "uv pip install" in text else "pip install", 1)[1]
    assert not [step for step in steps(ACTION) if "uses" in step]
    (command,) = re.findall(r"awk '([^']+)'", text)
    done = subprocess.run(["awk", command, str(ROOT / "requirements.lock")], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("uv==")
    assert sum("--hash=sha256:" in line for line in lines) >= 3
    assert [line for line in lines if line[:1] not in ("", " ")] == lines[:1]


def test_the_word_that_ends_the_silence_is_masked_first() -> None:
    lines = [line.strip() for line in script("run").splitlines()]
    mask, stop = lines.index('echo "::add-mask::$word"'), lines.index('echo "::stop-commands::$word"')
    assert mask < stop
    assert "unset word" in lines[stop:]
