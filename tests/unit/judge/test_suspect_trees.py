"""The table of suspects against the trees of real releases, from their wheels. Needs a package index."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from perfgate.judge.suspect_table import is_unknown, row_of

RELEASES = ("0.5.3", "0.5.6", "0.5.8", "0.5.9", "0.5.10", "0.5.12", "0.5.15", "0.5.18", "0.5.20", "0.5.22", "0.5.23")


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_every_file_that_serves_is_known(release: str, tmp_path: Path) -> None:
    wanted = [f"sglang=={release}", "--no-deps", "--only-binary", ":all:", "--python-version", "3.12"]
    download = [sys.executable, "-m", "pip", "download", "-q", "-d", str(tmp_path), *wanted]
    subprocess.run(download, check=True, capture_output=True, timeout=250)
    (wheel,) = tmp_path.glob("*.whl")
    names = [f"python/{name}" for name in zipfile.ZipFile(wheel).namelist() if name.startswith("sglang/")]
    assert [name for name in names if is_unknown(name)] == []
    areas = {row.area for name in names if (row := row_of(name)) is not None}
    assert {"the speculative worker", "acceptance of drafts", "FlashInfer attention", "the scheduler"} <= areas
