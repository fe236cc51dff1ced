"""What servers are given and where it lies, looked at from inside of the sandbox."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perfgate.errors import PerfgateError
from perfgate.host.inputs import check_seen, files_in, named_in, shown, unseen
from perfgate.host.sandbox import OUTER_ENVIRONMENT, Confinement, confine
from perfgate.host.trial import choose
from tests.integration.engine.conftest import open_to_all
from tests.needs import require


@pytest.fixture
def confinement(tmp_path: Path) -> Confinement:
    require("bubblewrap")
    open_to_all(tmp_path)
    (tmp_path / "home").mkdir(exist_ok=True)
    return choose("bubblewrap", hidden=[tmp_path / "home"])


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A snapshot of the hub below a hidden folder: links into a store of blobs beside it."""
    hub = tmp_path / "home" / "hub" / "models--a--b"
    (hub / "blobs").mkdir(parents=True)
    (hub / "snapshots" / "1").mkdir(parents=True)
    for name in ("config.json", "model-00002-of-00002.safetensors"):
        (hub / "blobs" / f"blob-{name}").write_text(name)
        (hub / "snapshots" / "1" / name).symlink_to(f"../../blobs/blob-{name}")
    return hub / "snapshots" / "1"


def test_a_snapshot_is_shown_with_the_blobs_that_it_links_to(snapshot: Path, confinement: Confinement) -> None:
    assert len(unseen(files_in(snapshot), confinement, [snapshot])) == 2  # the folder alone: links to nowhere
    assert unseen(files_in(snapshot), confinement, shown([snapshot])) == ()


def test_nothing_else_that_lies_beside_the_blobs_is_shown(snapshot: Path, confinement: Confinement) -> None:
    other = snapshot.parents[1] / "blobs" / "other"
    other.touch()
    assert unseen([other], confinement, shown([snapshot])) == (other,)


def test_a_folder_that_is_reached_by_links_is_shown_at_each_of_their_places(
    tmp_path: Path, snapshot: Path, confinement: Confinement
) -> None:
    (tmp_path / "home" / "current").symlink_to(snapshot)
    (tmp_path / "model").symlink_to(tmp_path / "home" / "current")
    model = tmp_path / "model"
    assert unseen(files_in(model), confinement, shown([model])) == ()


def test_files_that_variables_name_are_shown(tmp_path: Path, confinement: Confinement) -> None:
    for name in ("graph.xml", "lib/libx.so"):
        (tmp_path / "home" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "home" / name).touch()
    graph, library = tmp_path / "home" / "graph.xml", tmp_path / "home" / "lib"
    named = named_in({"NCCL_GRAPH_FILE": str(graph), "LD_LIBRARY_PATH": f"/nowhere:{library}", "NCCL_PROTO": "LL"})
    assert named == (graph, library)
    assert unseen([graph, library / "libx.so"], confinement) == (graph, library / "libx.so")
    assert unseen([graph, library / "libx.so"], confinement, shown(named)) == ()


def test_what_the_confined_user_cannot_read_is_named_before_a_server_starts(
    snapshot: Path, confinement: Confinement
) -> None:
    shard = snapshot / "model-00002-of-00002.safetensors"
    shard.resolve().chmod(0)
    with pytest.raises(PerfgateError, match=r"cannot read it") as error:
        check_seen(files_in(snapshot), confinement, shown([snapshot]))
    assert error.value.where == str(shard)


def test_a_device_node_that_appears_later_is_there_in_the_next_command(tmp_path: Path) -> None:
    require("bubblewrap")
    devices = tmp_path / "dev"
    devices.mkdir()
    confinement = Confinement(kind=choose("bubblewrap").kind, hidden=(tmp_path,), device_folder=devices)
    node = devices / "nvidia-uvm"

    def look() -> int:
        argv = confine(["/bin/sh", "-c", f"[ -e {node} ]"], {}, confinement=confinement, cwd=Path("/"))
        return subprocess.run(argv, env=OUTER_ENVIRONMENT, check=False).returncode

    assert look() == 1
    node.touch()
    assert look() == 0
