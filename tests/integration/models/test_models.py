"""`perfgate models fetch` and `verify` through the command line, against a hub on this machine."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .hub import SIGNATURE, Hub, Repository, git_blob, running, sha256

TARGET, DRAFT = "acme/target", "acme/draft"
REVISION, OTHER = "1a" * 20, "2b" * 20
TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz"
WEIGHTS = random.Random(1).randbytes(300_000)
INDEX = b'{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'
TARGET_FILES = {
    "config.json": b'{"model_type": "llama"}\n',
    "model.safetensors.index.json": INDEX,
    "model-1.safetensors": WEIGHTS,
    "model-2.safetensors": WEIGHTS[::-1],
    "notes/README.md": b"# A target\n",
}
DRAFT_FILES = {"config.json": b"{}\n", "model.safetensors": WEIGHTS[:5000]}


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    errors: str

    @property
    def line(self) -> str:
        """The one line of a failure."""
        lines = self.errors.strip().splitlines()
        assert len(lines) == 1, self.errors
        return lines[0]


@dataclass
class Box:
    """A box with its files, and the command as somebody types it on it."""

    place: Path
    hub: Hub
    models: dict[str, Path] = field(default_factory=dict)
    revision: str | None = REVISION
    hf_home: Path | None = None

    @property
    def home(self) -> Path:
        return self.hf_home or self.place / "hf"

    @property
    def snapshot(self) -> Path:
        return self.home / "hub" / "models--acme--target" / "snapshots" / REVISION

    def run(self, command: str, **variables: str) -> Said:
        config, box = self.place / "perfgate.yml", self.place / "box.yml"
        revision = f", revision: '{self.revision}'" if self.revision else ""
        config.write_text(
            f"recipes:\n  baseline: {{model: {TARGET}{revision}}}\n"
            f"  eagle3: {{draft: {DRAFT}, draft_revision: '{REVISION}'}}\n"
        )
        models = "".join(f"  {name}: {folder}\n" for name, folder in self.models.items())
        box.write_text(
            f"name: testbox\nhf_home: {self.home}\nstate_dir: {self.place}/state\n"
            + (f"models:\n{models}" if models else "")
        )
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.place / "nobody"),
            "HF_ENDPOINT": self.hub.url,
            "HF_HUB_DOWNLOAD_TIMEOUT": "5",
            **variables,
        }
        done = subprocess.run(
            [sys.executable, "-m", "perfgate", "models", command, "--config", str(config), "--box", str(box)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = Said(done.returncode, done.stdout, done.stderr)
        for secret in (*variables.values(), SIGNATURE):
            assert not secret.startswith(("hf_", "Sig")) or secret not in said.out + said.errors
        return said


def on_the_hub() -> dict[str, Repository]:
    return {TARGET: Repository(REVISION, dict(TARGET_FILES)), DRAFT: Repository(REVISION, dict(DRAFT_FILES))}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with running(on_the_hub()) as hub:
        yield Box(tmp_path, hub)


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An HF_HOME with both models, to copy."""
    with running(on_the_hub()) as hub:
        box = Box(tmp_path_factory.mktemp("fetched"), hub)
        said = box.run("fetch")
    assert said.code == 0, said
    return box.home


@pytest.fixture
def full(box: Box, fetched: Path) -> Box:
    """A box that has fetched its models."""
    shutil.copytree(fetched, box.home, symlinks=True)
    return box


def damage(link: Path) -> None:
    """Turns one bit of a file, as a disk does it."""
    blob = link.resolve()
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


# ------------------------------------------------------------------------------------------------ what works


def test_fetch_puts_every_file_where_servers_look_for_it_and_says_so(box: Box) -> None:
    said = box.run("fetch")
    assert (said.code, said.errors) == (0, "")
    assert f"{TARGET} at 1a1a1a1a1a1a: whole, 5 files checked against their hash" in said.out
    assert f"{DRAFT} at 1a1a1a1a1a1a: whole, 2 files" in said.out
    found = {str(path.relative_to(box.snapshot)): path.read_bytes() for path in box.snapshot.rglob("*.*")}
    assert found == TARGET_FILES
    assert box.run("verify").code == 0


def test_what_is_there_is_not_fetched_again(full: Box) -> None:
    said = full.run("fetch")
    assert said.code == 0
    assert not any("acme" in one.path for one in full.hub.asked)


def test_the_token_reaches_the_hub_and_nobody_else(box: Box) -> None:
    for repository in box.hub.repositories.values():
        repository.token = TOKEN
    said = box.run("fetch", HF_TOKEN=TOKEN)
    assert said.code == 0
    assert {one.token for one in box.hub.of("hub") if "acme" in one.path} == {TOKEN}
    assert {one.token for one in box.hub.of("storage")} == {None}
    kept = [path for path in box.place.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert kept == []


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_an_environment_that_is_set_up_for_servers_does_not_stop_it(box: Box, name: str) -> None:
    assert box.run("fetch", **{name: "1"}).code == 0


def test_folders_of_the_box_are_left_alone(box: Box) -> None:
    folder = box.place / "own"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    before = {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())}
    box.models[TARGET] = folder
    box.revision = None  # a folder has none
    said = box.run("fetch")
    assert said.code == 0
    assert f"{TARGET}: in a folder of the box, left alone" in said.out
    assert not any("target" in one.path for one in box.hub.asked)
    assert "no hash to check them by" in box.run("verify").out
    assert {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())} == before


def test_a_connection_that_breaks_off_is_taken_up_again(box: Box) -> None:
    box.hub.faults.dropped = Counter({"model-1.safetensors": 1, "config.json": 1})
    said = box.run("fetch")
    assert (said.code, said.errors) == (0, "")
    assert [box.hub.downloads(name) for name in ("model-1.safetensors", "model-2.safetensors")] == [2, 1]
    assert box.run("verify").code == 0


def test_a_download_that_was_damaged_on_its_way_is_fetched_again(box: Box) -> None:
    box.hub.faults.damaged = Counter({"model-1.safetensors": 1, "notes/README.md": 1})
    said = box.run("fetch")
    assert said.code == 0
    assert "model-1.safetensors is damaged, fetched again" in said.out
    assert "notes/README.md is damaged, fetched again" in said.out
    assert (box.snapshot / "model-1.safetensors").read_bytes() == WEIGHTS
    assert box.run("verify").code == 0


def test_fetch_mends_what_verify_found(full: Box) -> None:
    damage(full.snapshot / "model-2.safetensors")
    (full.snapshot / "config.json").resolve().unlink()
    assert full.run("fetch").code == 0
    assert [full.hub.downloads(name) for name in ("model-1.safetensors", "model-2.safetensors")] == [0, 1]
    assert full.run("verify").code == 0


def test_files_shared_by_two_models_are_found_under_their_own_hash(full: Box) -> None:
    """The hub's library may keep a large file once for all models, under a name that is not its SHA-256."""
    blob = (full.snapshot / "model-1.safetensors").resolve()
    shared = full.home / "hub" / "blobs" / "ab" / ("ab" * 32)
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    blob.symlink_to(shared)
    assert full.run("verify").code == 0
    damage(full.snapshot / "model-1.safetensors")
    assert "model-1.safetensors is damaged" in full.run("verify").line


# ------------------------------------------------------------------------------------------------ what is refused


def test_without_the_token_a_private_model_is_told_in_one_line(box: Box) -> None:
    box.hub.repositories[TARGET].token = TOKEN
    said = box.run("fetch")
    assert said.code == 4
    assert said.line.startswith(f"perfgate: {TARGET} at 1a1a1a1a1a1a: the hub knows no such model, or keeps it from us")
    assert "HF_TOKEN" in said.line


def test_a_token_that_the_hub_does_not_know(box: Box) -> None:
    box.hub.repositories[TARGET].token = TOKEN
    said = box.run("fetch", HF_TOKEN="hf_AnotherOne")
    assert said.code == 4
    assert "the hub refuses (401) → set HF_TOKEN to a token that may read it" in said.line


def test_a_token_that_no_header_can_hold_is_not_shown(box: Box) -> None:
    said = box.run("fetch", HF_TOKEN="hf_Brokén")
    assert said.code == 4
    assert "cannot be fetched" in said.line
    assert "Broken" not in said.errors


def test_terms_to_accept(box: Box) -> None:
    box.hub.repositories[TARGET].gated = True
    said = box.run("fetch", HF_TOKEN=TOKEN)
    assert said.code == 4
    assert "accepts its terms" in said.line


def test_a_model_that_is_not_there(box: Box) -> None:
    del box.hub.repositories[TARGET]
    said = box.run("fetch", HF_TOKEN=TOKEN)
    assert said.code == 4
    assert "knows no such model" in said.line


def test_a_revision_that_is_not_there(box: Box) -> None:
    box.revision = OTHER
    said = box.run("fetch")
    assert said.code == 4
    assert "the hub has no such revision of it → correct its revision in perfgate.yml" in said.line


@pytest.mark.parametrize("status", [403, 410])
def test_a_hub_that_answers_nothing_but_a_status(box: Box, status: int) -> None:
    box.hub.faults.status = status
    said = box.run("fetch", HF_TOKEN=TOKEN)
    assert said.code == 4
    assert str(status) in said.line


def test_a_file_that_the_hub_lists_and_does_not_have(box: Box) -> None:
    box.hub.repositories[TARGET].lost.add("model-2.safetensors")
    said = box.run("fetch")
    assert said.code == 4
    assert "the hub does not have a file that it lists" in said.line


def test_a_hub_that_gives_damaged_files_again_and_again(box: Box) -> None:
    box.hub.faults.damaged = Counter({"model-1.safetensors": 9})
    said = box.run("fetch")
    assert said.code == 4
    assert "model-1.safetensors is damaged" in said.line


def test_a_model_that_misses_a_part_on_the_hub(box: Box) -> None:
    del box.hub.repositories[TARGET].files["model-2.safetensors"]
    said = box.run("fetch")
    assert said.code == 4
    assert "model-2.safetensors is missing" in said.line


@pytest.mark.slow  # the library tries five times
def test_a_storage_that_ends_every_connection(box: Box) -> None:
    box.hub.faults.refused = Counter({"model-1.safetensors": 99})
    said = box.run("fetch", HF_TOKEN=TOKEN)
    assert said.code == 4
    assert "cannot be fetched" in said.line


@pytest.mark.slow  # the library waits ever longer between tries
def test_no_hub_at_all(box: Box) -> None:
    said = box.run("fetch", HF_ENDPOINT="http://somebody:hf_secret@127.0.0.1:9/hub", HF_TOKEN=TOKEN)
    assert said.code == 4
    assert "hf_secret" not in said.errors
    assert "cannot be fetched" in said.line


def test_a_folder_from_elsewhere_is_not_taken_for_whole_while_the_hub_is_silent(full: Box) -> None:
    shutil.rmtree(full.snapshot.parents[1] / "trees")
    full.hub.faults.status = 410
    said = full.run("fetch")
    assert said.code == 4
    assert "does not say which files it has" in said.line


def test_a_place_that_cannot_be_written(box: Box) -> None:
    box.hf_home = Path("/proc/nothing/hf")
    said = box.run("fetch")
    assert said.code == 4
    assert "hf_home" in said.line


def test_a_model_without_a_revision_is_refused_before_anything_is_fetched(box: Box) -> None:
    box.revision = None
    said = box.run("fetch")
    assert said.code == 2
    assert said.line.startswith(f"perfgate: {TARGET}: no revision is given")
    assert box.hub.asked == []


@pytest.mark.parametrize("revision", ["main", "1" * 39, "A" * 40])
def test_a_revision_that_is_no_full_commit_is_refused(box: Box, revision: str) -> None:
    box.revision = revision
    said = box.run("fetch")
    assert said.code == 2
    assert "revision" in said.errors
    assert box.hub.asked == []


# ------------------------------------------------------------------------------------------------ what verify finds


def test_verify_finds_a_damaged_file(full: Box) -> None:
    for name in ("model-1.safetensors", "config.json"):
        damage(full.snapshot / name)
        said = full.run("verify")
        assert said.code == 4
        assert f"{TARGET}: {name} is damaged → perfgate models fetch" in said.line
        damage(full.snapshot / name)  # the same bit: whole again
    assert full.run("verify").code == 0
    assert full.hub.asked == []


def test_verify_finds_a_missing_file(full: Box) -> None:
    (full.snapshot / "notes" / "README.md").unlink()
    said = full.run("verify")
    assert said.code == 4
    assert f"{TARGET}: notes/README.md is missing → perfgate models fetch" in said.line


def test_verify_finds_a_missing_file_in_a_cache_without_a_listing(full: Box) -> None:
    shutil.rmtree(full.snapshot.parents[1] / "trees")
    assert "whether more belong to it is not on record" in full.run("verify").out
    link = full.snapshot / "notes" / "README.md"
    link.resolve().unlink()
    assert "notes/README.md is missing" in full.run("verify").line
    link.unlink()
    (full.snapshot / "model-2.safetensors").unlink()
    assert "model-2.safetensors is missing" in full.run("verify").line


def test_verify_of_nothing(box: Box) -> None:
    said = box.run("verify")
    assert said.code == 4
    assert said.line == f"perfgate: {TARGET}: revision 1a1a1a1a1a1a is not in HF_HOME → perfgate models fetch"


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_verify_looks_into_folders_of_the_box(full: Box, missing: str) -> None:
    folder = full.place / "own"
    folder.mkdir()
    for name in {"config.json", "model.safetensors"} - {missing}:
        (folder / name).write_text("{}")
    full.models[TARGET] = folder
    said = full.run("verify")
    assert said.code == 4
    assert str(folder) in said.line


def test_the_hub_of_these_tests_names_files_as_git_does() -> None:
    """A hub that hashes wrongly would prove nothing."""
    assert git_blob(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert sha256(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
