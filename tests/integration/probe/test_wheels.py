"""The target table against eleven pinned releases, as published. Fetches their wheels once (some 140 MB)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import uv

from perfgate.probe.layout import check_tree, read_layout
from tests.unit.probe.standin import RELEASES, layout_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """A release and where it is unpacked: below PERFGATE_WHEELS, so that CI can keep them, or in a new directory."""
    kept = os.environ.get("PERFGATE_WHEELS")
    root = Path(kept) if kept else request.getfixturevalue("tmp_path_factory").mktemp("wheels")
    target = root / f"sglang-{request.param}"
    if not target.is_dir():
        partial = root / f"partial-{request.param}"
        wanted = ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_35", "--only-binary", ":all:"]
        subprocess.run(
            [uv.find_uv_bin(), "pip", "install", "--no-deps", *wanted, "--target", partial, f"sglang=={request.param}"],
            check=True,
            capture_output=True,
        )
        partial.rename(target)
    return request.param, target


def test_every_row_is_in_its_place(release: tuple[str, Path]) -> None:
    assert check_tree(release[1]) == []


def test_the_recorded_layout_is_the_published_one(release: tuple[str, Path]) -> None:
    assert read_layout(release[1]) == layout_of(release[0])
