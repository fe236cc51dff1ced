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

from perfgate.commands.init import Caller
from tests.unit.github.workflows import ACTION, GATE, PRIVATE, ROOT, private, read

BIN = Path(sys.executable).parent
GATES = (GATE, PRIVATE)
SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(params=[False, True], ids=["public", "private"])
def caller(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The workflow that `perfgate init` writes."""
    made = Caller.of(f"acme/perfgate@{SHA}", "self-hosted,gpu8", private=request.param)
    path = tmp_path / ".github" / "workflows" / "perfgate.yml"
    path.parent.mkdir(parents=True)
    path.write_text(made.workflow())
    return path


def steps(path: Path) -> Iterator[dict[str, Any]]:
    data = read(path)
    for job in data.get("jobs", {}).values():
        yield from job.get("steps", [])
    yield from data.get("runs", {}).get("steps", [])


def test_the_private_gate_is_the_gate() -> None:
    assert PRIVATE.read_text() == private(GATE.read_text()), "python -m tests.unit.github.workflows"


@pytest.mark.parametrize("path", [*GATES, ACTION], ids=lambda path: path.name)
def test_every_action_is_pinned_by_its_full_sha(path: Path) -> None:
    used = [step["uses"] for step in steps(path) if "uses" in step]
    assert used
    assert all(use == "./.perfgate" or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", use) for use in used)


@pytest.mark.parametrize("path", [*GATES, ACTION], ids=lambda path: path.name)
def test_no_expression_reaches_a_shell(path: Path) -> None:
    """Expressions are pasted into a script before the shell reads it; values come as variables instead."""
    scripts = [step["run"] for step in steps(path) if "run" in step]
    assert scripts
    assert not [script for script in scripts if "${{" in script]


@pytest.mark.parametrize("path", GATES, ids=lambda path: path.name)
def test_the_group_is_per_pull_request_and_behind_the_authorisation(path: Path) -> None:
    """A comment of anybody's must not be able to end a measurement, and no group may hold the whole box."""
    data = read(path)
    assert "concurrency" not in data
    grouped = {name: job["concurrency"] for name, job in data["jobs"].items() if "concurrency" in job}
    assert set(grouped) == {"measure", "cancel"}  # to cancel is to enter the group
    group = "perfgate-${{ github.repository }}-${{ needs.authorise.outputs.pr }}"
    assert all(one == {"group": group, "cancel-in-progress": True} for one in grouped.values())
    for name, condition in (("measure", "measure"), ("cancel", "cancel")):
        assert data["jobs"][name]["needs"] == "authorise"
        assert data["jobs"][name]["if"] == f"needs.authorise.outputs.{condition} == 'true'"


def test_permissions_are_exact() -> None:
    data = read(GATE)
    assert data["permissions"] == {}
    assert {name: job["permissions"] for name, job in data["jobs"].items()} == {
        "authorise": {"actions": "read", "checks": "write", "contents": "read", "pull-requests": "write"},
        "measure": {},
        "cancel": {},
        "publish": {"checks": "write", "pull-requests": "write"},
    }
    assert read(PRIVATE)["jobs"]["measure"]["permissions"] == {"contents": "read"}


@pytest.mark.parametrize("path", GATES, ids=lambda path: path.name)
def test_only_the_measure_job_runs_on_the_box_and_it_holds_no_secret(path: Path) -> None:
    jobs = read(path)["jobs"]
    on = {name: job["runs-on"] for name, job in jobs.items()}
    assert on.pop("measure") == "${{ fromJSON(inputs.runs-on) }}"
    assert set(on.values()) == {"${{ inputs.hosted }}"}
    text = str(jobs["measure"])
    assert "secrets" not in text
    tokens = re.findall(r"[\w-]*token[\w-]*': '\$\{\{ github\.token \}\}", text)
    assert tokens == (["fetch-token': '${{ github.token }}"] if path == PRIVATE else [])


@pytest.mark.parametrize("path", GATES, ids=lambda path: path.name)
def test_no_credentials_are_left_behind(path: Path) -> None:
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == 3
    for step in checkouts:
        assert step["with"]["persist-credentials"] is False
        assert step["with"]["ref"] == "${{ inputs.perfgate-ref }}"
        assert step["with"]["repository"] == "${{ inputs.perfgate-repository }}"


@pytest.mark.parametrize("path", GATES, ids=lambda path: path.name)
def test_every_job_ends_by_itself(path: Path) -> None:
    limits = {name: job["timeout-minutes"] for name, job in read(path)["jobs"].items()}
    assert limits.pop("measure") == "${{ fromJSON(needs.authorise.outputs.timeout-minutes || '360') }}"
    assert all(isinstance(minutes, int) for minutes in limits.values())


def test_inputs_and_outputs_meet() -> None:
    """What gate.yml hands to the action the action knows; what it reads of it the action gives."""
    action = read(ACTION)
    for path in GATES:
        for job in read(path)["jobs"].values():
            for step in job.get("steps", []):
                if step.get("uses") == "./.perfgate":
                    assert set(step["with"]) <= set(action["inputs"])
                    ours = re.findall(rf"steps\.{step['id']}\.outputs\.([\w-]+)", str(job))
                    assert set(ours) <= set(action["outputs"])


def test_uv_is_the_locked_one() -> None:
    (locked,) = re.findall(r"^uv==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (used,) = [step["with"]["version"] for step in steps(ACTION) if "setup-uv" in step.get("uses", "")]
    assert used == locked


def test_the_caller_is_short_and_exact(caller: Path) -> None:
    assert len(caller.read_text().splitlines()) <= 30
    data = read(caller)
    assert data["permissions"] == {}
    (job,) = data["jobs"].values()
    assert job["permissions"] == read(GATE)["jobs"]["authorise"]["permissions"]
    events = data[True]  # YAML 1.1 reads the key `on` so
    assert set(events) == {"pull_request", "issue_comment", "merge_group", "workflow_dispatch"}
    assert events["issue_comment"] == {"types": ["created"]}
    assert "paths" not in str(events)
    assert job["uses"].split("@")[1] == job["with"]["perfgate-ref"] == SHA
    assert set(job["with"]) <= set(read(GATE)[True]["workflow_call"]["inputs"])


def lint(*command: str) -> None:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        [BIN / command[0], *command[1:]], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor(caller: Path) -> None:
    lint("zizmor", "--offline", "--no-progress", "--persona", "pedantic", *map(str, (*GATES, ACTION, caller)))


def test_jactionlint(caller: Path) -> None:
    lint("jactionlint", "--strict-exit", "--shellcheck", str(BIN / "shellcheck"), *map(str, (*GATES, caller)))


def test_schemas(caller: Path) -> None:
    lint("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *map(str, (*GATES, caller)))
    lint("check-jsonschema", "--builtin-schema", "vendor.github-actions", str(ACTION))


@pytest.mark.parametrize("path", [*GATES, ACTION], ids=lambda path: path.name)
def test_every_exception_has_its_reason(path: Path) -> None:
    for line in path.read_text().splitlines():
        if "ignore[" in line:
            assert re.search(r"ignore\[[\w-]+\] \w+ \w+", line), line
