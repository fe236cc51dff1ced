"""The NVML stand-in in this process. Without a scene it is a machine whose driver is not loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import nvml


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = nvml.build(tmp_path_factory.mktemp("nvml"))
    nvml.load(library)
    return library


@pytest.fixture
def play(nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[nvml.Scene], None]:
    """Plays a scene from now on; call it again to move on."""
    path = tmp_path / "scene"
    monkeypatch.setenv("NVML_SCENE", str(path))

    def change(scene: nvml.Scene) -> None:
        scene.write(path)

    return change
