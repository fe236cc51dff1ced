"""`perfgate doctor --trial` on a machine without a GPU: as the confined user, with the box's real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from perfgate.config import files as config_file
from perfgate.config.model import BoxFile
from perfgate.host.sandbox import Confinement
from perfgate.host.trial import choose
from perfgate.records import Check
from perfgate.run.doctor_trial import TrialSetup, try_box
from tests.integration.engine.conftest import open_to_all, own_folders
from tests.needs import require
from tests.standin import Behaviour, make_repository

CONFIG = {"version": 1, "recipes": {"baseline": {"model": "m", "flags": {"tp-size": 1}}, "eagle3": {"draft": "m"}}}


@pytest.fixture
def confinement(tmp_path: Path) -> Confinement:
    require("bubblewrap")
    open_to_all(tmp_path)
    return choose("bubblewrap", hidden=[tmp_path / "state"])


@pytest.fixture
def setup(tmp_path: Path, confinement: Confinement) -> TrialSetup:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "model-00001-of-00001.safetensors"):
        (model / name).write_text("{}")
    file = tmp_path / "perfgate.yml"
    file.write_text(yaml.safe_dump(CONFIG))
    box = BoxFile(gpus="none", models={"m": str(model)}, state_dir=str(tmp_path / "state"))
    resolved = config_file.resolve(config_file.load_file(file), box)
    tree = make_repository(tmp_path / "sglang", head=Behaviour()).path
    entries = (tree / "python", *own_folders())
    return TrialSetup(
        resolved=resolved,
        confinement=confinement,
        python=Path(sys.executable),
        path_entries=entries,
        say=lambda _: None,
    )


def named(checks: list[Check]) -> Callable[[str], Check]:
    return lambda name: next(check for check in checks if check.name == f"trial: {name}")


def test_what_works_is_told_line_by_line_and_a_server_is_started_once(setup: TrialSetup) -> None:
    require("gcc")
    check = named(list(try_box(setup, serve=True)))
    assert check("models").text == "2 files opened to their ends"
    assert "folders of a private HOME written" in check("caches").text
    assert check("C compiler").text == "a program with Python.h compiled"
    assert check("server").status == "ok", check("server")
    assert check("server").text.startswith("baseline answered after")
    assert {check(name).status for name in ("models", "caches", "C compiler")} == {"ok"}
    assert {check(name).text for name in ("torch.compile", "all-reduce")} <= {
        "not tried: no torch in this environment",
        "not tried: no torch in this environment: only the computing kernel ran",
    }


def test_a_last_shard_that_cannot_be_read(setup: TrialSetup, tmp_path: Path) -> None:
    (tmp_path / "model" / "model-00001-of-00001.safetensors").chmod(0)
    check = named(list(try_box(setup)))("models")
    assert (check.status, "model-00001-of-00001.safetensors" in check.text, bool(check.remedy)) == ("fail", True, True)


def test_a_server_that_does_not_start_is_a_line_and_hides_no_other(setup: TrialSetup, tmp_path: Path) -> None:
    tree = make_repository(tmp_path / "broken", head=Behaviour(crash="load")).path
    checks = list(try_box(replace(setup, path_entries=(tree / "python", *setup.path_entries[1:])), serve=True))
    assert named(checks)("server").status == "fail"
    assert named(checks)("models").status == "ok"


def test_without_an_environment_what_needs_one_is_told_as_not_tried(setup: TrialSetup) -> None:
    check = named(list(try_box(replace(setup, python=None), serve=True)))
    for name in ("C compiler", "torch.compile", "all-reduce", "server"):
        assert (check(name).status, "--python" in check(name).remedy) == ("warn", True)


def test_as_a_command_for_machines(setup: TrialSetup, tmp_path: Path) -> None:
    box = {"gpus": "none", "models": {"m": str(tmp_path / "model")}, "state_dir": str(tmp_path / "state")}
    (tmp_path / "box.yml").write_text(yaml.safe_dump(box))
    files = ("--config", str(tmp_path / "perfgate.yml"), "--box", str(tmp_path / "box.yml"))
    command = [sys.executable, "-m", "perfgate", "doctor", *files, "--trial", "--python", sys.executable, "--json"]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["trial: models"]["text"] == "2 files opened to their ends"
    assert "machine" in checks
