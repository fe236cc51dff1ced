"""A small world to build in: a repository laid out like SGLang's, an index in a folder, and packages made by hand.

Nothing here needs a network: wheels are zip files, and packages that have to be built bring their own build back end.
"""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfgate.build.environment import Builder
from perfgate.config.model import BoxFile, BuildRules, Caches
from perfgate.source.repository import Repository
from perfgate.store.folders import Store
from tests.standin.repository import Behaviour, commit_change, make_history

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHON_FOLDER = Path(sys.base_prefix) / "bin"


def pyproject(*dependencies: str, more: str = "") -> str:
    return f"[project]\nname = 'sglang'\nversion = '0'\ndependencies = {list(dependencies)!r}\n{more}"


def make_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str] | None = None, requires: tuple[str, ...] = ()
) -> Path:
    """A wheel whose module `name` says its version."""
    contents = {f"{name}.py": f"VERSION = {version!r}\n", **(files or {})}
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    contents[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    contents[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in contents.items())
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


BACKEND = '''
"""A build back end of a few lines: runs a hook, compiles a C file if there is one, and zips a wheel."""
import os, subprocess, sys, zipfile
NAME, VERSION, PACKAGE, SO = {name!r}, {version!r}, {package!r}, {so!r}
def leave_trace(path):
    try:
        open(path, "w").close()
    except OSError:
        pass
def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    {hook}
    wheel = f"{{NAME.replace('-', '_')}}-{{VERSION}}-py3-none-any.whl"
    info = f"{{NAME.replace('-', '_')}}-{{VERSION}}.dist-info"
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w") as archive:
        archive.writestr(f"{{PACKAGE}}/__init__.py", f"VERSION = {{VERSION!r}}\\n")
        if SO:
            subprocess.run(["cc", "-shared", "-fPIC", "-o", "built.so", "source.c"], check=True)
            archive.write("built.so", f"{{PACKAGE}}/{{SO}}")
        archive.writestr(f"{{info}}/METADATA", f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n")
        archive.writestr(f"{{info}}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{{info}}/RECORD", "")
    return wheel
'''
BUILD_SYSTEM = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"


def backend(name: str, version: str, package: str, *, so: str = "", hook: str = "pass") -> str:
    return BACKEND.format(name=name, version=version, package=package, so=so, hook=hook)


def make_sdist(folder: Path, name: str, version: str, hook: str = "pass") -> Path:
    """A source distribution that has to be built, running `hook`."""
    top = f"{name}-{version}"
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": f"{BUILD_SYSTEM}[project]\nname = '{name}'\nversion = '{version}'\n",
        "backend.py": backend(name, version, name, hook=hook),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{top}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            member = tarfile.TarInfo(f"{top}/{file}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


@dataclass
class Lab:
    """`root/sglang` is the repository, `root/index` the index, `root/state` perfgate's."""

    root: Path
    box: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.index.mkdir(parents=True, exist_ok=True)
        if not self.source.exists():
            make_history(self.source, [Behaviour()])

    @property
    def source(self) -> Path:
        return self.root / "sglang"

    @property
    def index(self) -> Path:
        return self.root / "index"

    def commit(self, *dependencies: str, files: Mapping[str, str | None] | None = None, more: str = "") -> str:
        changes = {"python/pyproject.toml": pyproject(*dependencies, more=more), **(files or {})}
        return commit_change(self.source, changes)

    def store(self, **limits: float) -> Store:
        return Store(self.root / "state", Caches.model_validate({"min_free_gb": 0, **limits}))

    def builder(self, store: Store, rules: Mapping[str, Any] | None = None, **more: Any) -> Builder:
        surroundings = {"UV_FIND_LINKS": str(self.index), "UV_OFFLINE": "1", "UV_PYTHON_DOWNLOADS": "never"}
        tools = {"python": str(PYTHON_FOLDER), **self.box.get("tools", {})}
        options: dict[str, Any] = {
            "repository": Repository(self.source),
            "store": store,
            "rules": BuildRules.model_validate({"python": PYTHON, **(rules or {})}),
            "box": BoxFile.model_validate({**self.box, "tools": tools}),
            "surroundings": surroundings,
            "room_gb": 0.0,
            **more,
        }
        return Builder(**options)


def run_python(python: Path, path_entries: tuple[Path, ...], code: str) -> str:
    """What the environment's Python prints, with the PYTHONPATH of a server."""
    done = subprocess.run(
        [python, "-c", code],
        env={"PYTHONPATH": ":".join(map(str, path_entries)), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
