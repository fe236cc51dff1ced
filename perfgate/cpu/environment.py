"""The cpu profile's environment: one for every commit, fixed by the profile and not by a commit's pins.

An entry of the store, `environments/cpu-<key>`, addressed by what it is made of:

    venv/       PyTorch for the CPU, what else SGLang imports, and our stand-ins for what no registry ships or no CPU
                needs; no sglang, so that none can be imported by mistake
    model/      target and draft
    sglang/     the unpacked wheel of the release that the demo's base commit is made of
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfgate.cpu.install import Installer, InstallError, locked_packages, torch_sources
from perfgate.cpu.model import LAYERS, POSITIONS, TRAINED, write_model
from perfgate.errors import PerfgateError
from perfgate.store.entries import Hold, made_once
from perfgate.store.folders import require_free

TORCH = "2.13.0"  # what the release's own pin (2.14.1) is served with here: it has CPU builds in every source
RELEASE = "0.5.23"
RELEASES = ("0.5.22", "0.5.23")  # with identical outputs and verify counts in this environment
SUPPORTED = ((3, 11), (3, 12))
FALLBACK_PYTHON = "3.11"  # what the profile was tried on; uv finds it, or fetches it
LAYOUT = 2  # goes up when `_make` makes something else of the same things
NEEDED_GB = 4.0  # 1.3 for the environment, as much for uv's cache, and room to unpack

LOCKS = Path(__file__).parent / "locks"
SHIM = Path(__file__).parent / "shim"
_OURS = (LOCKS, SHIM, TRAINED)

# What a server imports before it answers. Importing it once proves the environment and leaves compiled bytecode.
SERVER_MODULES = (
    "sglang.launch_server",
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.models.registry",
    "sglang.srt.models.llama_eagle3",
    "sglang.srt.speculative.eagle_worker_v2",
    "anyio._backends._asyncio",
    "prometheus_client.asgi",
    "prometheus_client.multiprocess",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
# What the stand-ins and SGLang itself need to run on a CPU, whatever the recipe.
SERVER_VARIABLES: Mapping[str, str] = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # nothing to compile for; without it a cold start takes twice as long
    "OMP_NUM_THREADS": "1",  # faster and steadier than two on two cores
    "HF_HUB_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",  # to the store, a file that appears in an environment is tampering
}

Progress = Callable[[str], None]


@dataclass(frozen=True)
class CpuEnvironment:
    """A finished environment, held: not evicted while this process lives."""

    key: str
    path: Path
    python: Path
    site: Path  # its site-packages
    model_dir: Path  # with target/ and draft/
    wheel_tree: Path  # with sglang/ and its metadata, as unpacked
    versions: Mapping[str, str]
    cached: bool
    hold: Hold = field(repr=False, compare=False)

    @property
    def target(self) -> Path:
        return self.model_dir / "target"

    @property
    def draft(self) -> Path:
        return self.model_dir / "draft"


@dataclass(frozen=True)
class ReleaseTree:
    """The unpacked wheel of a release, held."""

    release: str
    path: Path
    hold: Hold = field(repr=False, compare=False)


def prepare(state_dir: Path, progress: Progress) -> CpuEnvironment:
    """The environment, made if it is not there. Two minutes the first time, a moment after that."""
    if sys.platform != "linux":
        raise InstallError(
            f"SGLang has no wheels for {sys.platform}",
            where="cpu profile",
            remedy="use Linux, in a container or a virtual machine",
        )
    key = environment_key()
    entry = state_dir / "environments" / f"cpu-{key}"
    made = made_once(entry, lambda place, held: _make(place, held, progress))
    return CpuEnvironment(
        key=key,
        path=entry,
        python=entry / "venv" / "bin" / "python",
        site=entry / made.about["site"],
        model_dir=entry / "model",
        wheel_tree=entry / "sglang",
        versions=made.about["versions"],
        cached=made.cached,
        hold=made.hold,
    )


def release_tree(state_dir: Path, release: str, environment: CpuEnvironment, progress: Progress) -> ReleaseTree:
    """The unpacked wheel of one of `RELEASES`, as pinned by its hash."""
    lock = LOCKS / f"sglang-{release}.lock"
    if not lock.exists():
        raise PerfgateError(f"no pinned release {release}", remedy=f"one of {', '.join(RELEASES)}")
    if release == RELEASE:
        return ReleaseTree(release, environment.wheel_tree, environment.hold)

    def make(place: Path, held: Hold) -> Mapping[str, Any]:
        with _told(progress, f"SGLang {release}"):
            Installer(environment.python, held.file).locked(lock, target=place)
        return {"release": release}

    name = f"sglang-{release}-{_digest(lock.read_bytes(), environment.versions['python'].encode())}"

    made = made_once(state_dir / "environments" / name, make)
    return ReleaseTree(release, made.path, made.hold)


def environment_key() -> str:
    """Changes with whatever the environment is made of."""
    parts = [
        str(path.relative_to(root)).encode() + b"\0" + path.read_bytes()
        for root in _OURS
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    ]
    recipe = f"{_python_request()[0]} {platform.machine()} torch {TORCH} layers {LAYERS} positions {POSITIONS} {LAYOUT}"
    return _digest(*parts, recipe.encode())


def _digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:16]


def _python_request() -> tuple[str, str]:
    """A name of the interpreter for the key, and what uv is asked for: the running one where it will do."""
    if sys.version_info[:2] in SUPPORTED and sys.implementation.name == "cpython":
        return f"cpython-{platform.python_version()}", sys.executable
    return FALLBACK_PYTHON, FALLBACK_PYTHON


# ------------------------------------------------------------------------------------------------ making


def _make(place: Path, held: Hold, progress: Progress) -> Mapping[str, Any]:
    require_free(place.parent, NEEDED_GB)
    began = time.monotonic()
    progress("preparing the environment of the cpu profile: once, some 400 MB to fetch")
    place.mkdir()
    installer = Installer.create(place / "venv", _python_request()[1], held.file)
    packages = LOCKS / "environment.lock"
    with _told(progress, f"{len(locked_packages(packages))} packages"):
        installer.locked(packages)
    with _told(progress, f"PyTorch {TORCH}"):
        source = installer.torch(TORCH, torch_sources(os.environ), progress)
    with _told(progress, f"SGLang {RELEASE}"):
        installer.locked(LOCKS / f"sglang-{RELEASE}.lock", target=place / "sglang")
    site = installer.site()
    shutil.copytree(SHIM, site, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    write_model(place / "model")
    with _told(progress, "importing the server once"):
        installer.import_once(SERVER_MODULES, paths=[place / "sglang"], variables=SERVER_VARIABLES)
    versions = installer.versions() | {"sglang": RELEASE}
    progress(f"environment ready after {time.monotonic() - began:.0f} s")
    return {"site": str(site.relative_to(place)), "versions": versions, "torch_from": source.name}


@contextmanager
def _told(progress: Progress, step: str) -> Iterator[None]:
    """One line for a step, when it has ended."""
    began = time.monotonic()
    yield
    progress(f"  {step}: {time.monotonic() - began:.0f} s")
