from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from perfgate.commands import init as init_module
from perfgate.commands.init import CONFIG, GATE, WORKFLOW, Caller, init_box, init_repository, own_origin, renew_gate
from perfgate.config.files import load, load_box
from perfgate.errors import PerfgateError
from perfgate.host import survey as survey_module
from perfgate.host.survey import Survey, box_file, survey

SHA = "0123456789abcdef0123456789abcdef01234567"
CALLER = Caller.of(f"acme/perfgate@{SHA}", "self-hosted, gpu8", private=False)


def repository(folder: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def test_init_writes_three_files_and_says_what_is_next(tmp_path: Path) -> None:
    told = init_repository(repository(tmp_path), CALLER)
    data = yaml.safe_load((tmp_path / WORKFLOW).read_text())
    assert data["jobs"]["gate"]["with"]["runs-on"] == '["self-hosted", "gpu8"]'
    assert (tmp_path / GATE).read_text().count(f"ref: {SHA}") == 3
    text = (tmp_path / CONFIG).read_bytes()
    assert text.count(b"#") > 20
    load(text, "perfgate.yml")
    assert "docs/adopt.md" in told
    assert "self-hosted, gpu8" in told
    assert "perfgate config --check" in told


@pytest.mark.parametrize("there", [WORKFLOW, GATE, CONFIG])
def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path, there: Path) -> None:
    repository(tmp_path)
    (tmp_path / there).parent.mkdir(parents=True)
    (tmp_path / there).write_text("mine")
    with pytest.raises(PerfgateError, match="is there already"):
        init_repository(tmp_path, CALLER)
    assert (tmp_path / there).read_text() == "mine"
    assert not all((tmp_path / path).exists() for path in (WORKFLOW, GATE, CONFIG))


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    repository(tmp_path)
    (tmp_path / CONFIG).parent.mkdir()
    (tmp_path / CONFIG).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PerfgateError):
        init_repository(tmp_path, CALLER)
    assert not (tmp_path / "elsewhere").exists()


def test_only_at_the_top_of_a_checkout(tmp_path: Path) -> None:
    with pytest.raises(PerfgateError, match="git checkout"):
        init_repository(tmp_path, CALLER)


@pytest.mark.parametrize(
    ("perfgate", "labels"),
    [
        ("acme/perfgate@main", "gpu8"),
        ("acme/perfgate@0123abc", "gpu8"),
        ("acme@" + SHA, "gpu8"),
        (f"acme/perfgate@{SHA}", ""),
        (f"acme/perfgate@{SHA}", "gpu 8"),
        (f"acme/perfgate@{SHA}", "${{ secrets.X }}"),
    ],
)
def test_what_no_workflow_can_say(perfgate: str, labels: str) -> None:
    with pytest.raises(PerfgateError):
        Caller.of(perfgate, labels, private=False)


def test_a_wrong_commit_is_told_apart_from_none() -> None:
    with pytest.raises(PerfgateError, match="'acme/perfgate@main' is no OWNER/NAME@SHA"):
        Caller.of("acme/perfgate@main", "gpu8", private=False)


def test_a_newer_gate_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    repository(tmp_path)
    newer = Caller.of(f"acme/perfgate@{'f' * 40}", "self-hosted, gpu8", private=False)
    with pytest.raises(PerfgateError, match="not there"):
        renew_gate(tmp_path, newer)
    init_repository(tmp_path, CALLER)
    before = (tmp_path / WORKFLOW).read_text(), (tmp_path / CONFIG).read_text()
    renew_gate(tmp_path, newer)
    text = (tmp_path / GATE).read_text()
    assert (text.count("f" * 40), text.count(SHA)) == (4, 0)
    assert ((tmp_path / WORKFLOW).read_text(), (tmp_path / CONFIG).read_text()) == before


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        ("https://github.com/acme/perfgate.git", "acme/perfgate"),
        ("https://token@github.com/acme/perfgate", "acme/perfgate"),
        ("git@github.com:acme/perfgate.git", "acme/perfgate"),
        ("ssh://git@github.example.org:22/acme/perfgate.git", "acme/perfgate"),
        ("/home/alice/src/perfgate", ""),
        ("../perfgate", ""),
        ("file:///srv/git/perfgate.git", ""),
        ("C:/src/perfgate", ""),
    ],
)
def test_a_folder_has_no_owner(monkeypatch: pytest.MonkeyPatch, origin: str, name: str) -> None:
    """perfgate installed from a clone of a clone: what is left of a path is nobody's account."""

    class Installed:
        def read_text(self, _name: str) -> str:
            return '{"url": "file:///somewhere", "dir_info": {}}'

    monkeypatch.setattr(init_module, "distribution", lambda _: Installed())
    monkeypatch.setattr(init_module, "_git", lambda _, *command: origin if "get-url" in command else SHA)
    assert own_origin() == (f"{name}@{SHA}" if name else "")


# ------------------------------------------------------------------------------------------------ the box


def hub_cache(home: Path) -> None:
    big, half = "models--org--big-Model.v1", "models--x--half"
    for name, revision in ((big, "a1"), (big, "b2"), (half, "")):
        folder = home / "hub" / name / "snapshots" / revision
        folder.mkdir(parents=True, exist_ok=True)
        if revision:
            (folder / "config.json").write_text("{}")


def test_a_box_as_it_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_cache(tmp_path / "hf")
    conf = tmp_path / "nccl.conf"
    conf.write_text("# tuned\nNCCL_PROTO=LL\nNCCL_MIN_NCHANNELS=4\n")
    monkeypatch.setattr(survey_module, "_gpus", lambda: (("RTX PRO 6000",) * 8, ""))
    monkeypatch.setattr(survey_module, "nccl_files", lambda environment: (conf,))
    own = {
        "HF_HOME": str(tmp_path / "hf"),
        "NCCL_MIN_NCHANNELS": "8",
        "NCCL_TOPO_FILE": str(tmp_path / "gone.xml"),
        "NCCL_DEBUG": "INFO",
        "HOME": "/root",
    }
    found = survey(own)
    assert dict(found.nccl) == {
        "NCCL_MIN_NCHANNELS": "8",  # the environment wins, as in NCCL
        "NCCL_PROTO": "LL",
        "NCCL_TOPO_FILE": str(tmp_path / "gone.xml"),
    }
    assert found.models == {"org/big-Model.v1": "b2"}
    assert any("gone.xml" in note for note in found.notes)

    path = tmp_path / "box.yml"
    path.write_text(box_file(found))
    box = load_box(path)
    assert box.gpus == "required"
    assert box.nccl == dict(found.nccl)
    assert not box.models  # a folder would hide the revision that perfgate.yml asks for
    assert "#   org/big-Model.v1: revision b2" in path.read_text()
    assert "8× RTX PRO 6000" in path.read_text()
    assert str(conf) in path.read_text()


def test_gpus_that_are_not_in_sight_are_missed_unless_the_box_is_to_have_none(tmp_path: Path) -> None:
    found, path = Survey(name="box", why_no_gpus="no driver"), tmp_path / "box.yml"
    path.write_text(box_file(found))
    assert load_box(path).gpus == "required"
    path.write_text(box_file(found, gpus=False))
    assert load_box(path).gpus == "none"


def test_a_home_that_nobody_may_look_into_holds_no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    assert survey({"HF_HOME": "/root/hf", "PATH": "/bin"}).hf_home is None


@pytest.mark.parametrize("value", ["LL # not", 'a"b', "x: y", "{}", "#", "\u00e4"])
def test_strange_values_survive_the_box_file(tmp_path: Path, value: str) -> None:
    path = tmp_path / "box.yml"
    path.write_text(box_file(Survey(name="box", nccl={"NCCL_NET": value})))
    assert load_box(path).nccl == {"NCCL_NET": value}


def test_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "etc" / "box.yml"
    told = init_box(path)
    assert load_box(path).name
    assert "perfgate calibrate" in told
    assert "minutes" in told
    with pytest.raises(PerfgateError, match="is there already"):
        init_box(path)
