"""Packages into one environment, by uv, at pinned versions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uv

from perfgate.errors import Exit, PerfgateError

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)
_IMPORT_TIMEOUT_S = 600  # 20 s on two idle cores
WITHOUT_TRITON = Path(__file__).parent / "locks" / "without-triton.txt"  # a stand-in takes its place


class InstallError(PerfgateError):
    """The environment cannot be made: the machine's or the network's fault, never a commit's."""

    exit_code = Exit.CANNOT


@dataclass(frozen=True)
class TorchSource:
    """A place that a package may come from."""

    name: str
    options: tuple[str, ...] = ("--no-deps",)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Installer:
    """uv, for one Python environment."""

    python: Path
    lock: int | None = None
    """An open lock that children inherit: should perfgate be killed, it stays taken until they have ended, too."""

    @classmethod
    def create(cls, venv: Path, request: str, lock: int | None = None) -> Installer:
        """A new environment. Relocatable, because it is made under another name than it will have."""
        installer = cls(venv / "bin" / "python", lock)
        what = f"no environment of Python {request}"
        installer._uv("venv", "--relocatable", "--python", request, str(venv), what=what)
        return installer

    def locked(self, lock: Path, *, target: Path | None = None) -> None:
        """Exactly the wheels of a lock file, by hash; with `target` unpacked there instead."""
        where = ("--target", str(target)) if target else ()
        arguments = ("--no-deps", "--require-hashes", "-r", str(lock), *where)
        self._install(*arguments, what=f"{lock.stem} cannot be installed")

    def torch(self, version: str, sources: Sequence[TorchSource], say: Callable[[str], None]) -> TorchSource:
        """PyTorch, from the first source that has it; that source. By version alone: which of its builds is right,
        and so the hash, depends on the source."""
        refused: list[str] = []
        for source in sources:
            say(f"  PyTorch {version} from {source.name}")
            try:
                self._install(*source.options, f"torch=={version}", what=source.name, variables=source.variables)
            except InstallError as error:
                refused.append(str(error))
            else:
                return source
        raise InstallError(
            f"no PyTorch {version} for this machine: {'; '.join(refused)}",
            remedy="put its wheel into a folder and name that folder in PIP_FIND_LINKS",
        )

    def _install(self, *arguments: str, what: str, variables: Mapping[str, str] | None = None) -> None:
        # Copied, not linked: uv's cache is not ours alone, and whoever links a file of it changes the file's times,
        # which the store would take for tampering.
        options = ("--python", str(self.python), "--no-build", "--link-mode", "copy")
        self._uv("pip", "install", *options, *arguments, what=what, variables=variables)

    def site(self) -> Path:
        return Path(self._ask("import sysconfig; print(sysconfig.get_path('purelib'))"))

    def versions(self) -> dict[str, str]:
        """Python and every package, as installed."""
        listed = self._uv("pip", "list", "--format", "json", "--python", str(self.python), what="packages unreadable")
        packages = {entry["name"]: entry["version"] for entry in json.loads(listed)}
        return {"python": self._ask("import platform; print(platform.python_version())")} | packages

    def _ask(self, code: str) -> str:
        command = [str(self.python), "-I", "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    def import_once(self, modules: Sequence[str], *, paths: Sequence[Path], variables: Mapping[str, str]) -> None:
        """Import modules, so that a fault shows now and their bytecode is compiled."""
        with tempfile.TemporaryDirectory() as home:
            allowed = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
            own = {"HOME": home, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": ""}
            try:
                done = subprocess.run(
                    [str(self.python), "-c", f"import {', '.join(modules)}"],
                    env={**allowed, **variables, **own},
                    cwd=home,
                    pass_fds=self._inherited,
                    capture_output=True,
                    text=True,
                    timeout=_IMPORT_TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise InstallError(f"importing the server took over {_IMPORT_TIMEOUT_S} s") from error
        if done.returncode:
            raise InstallError(f"the server cannot be imported: {_last_line(done.stderr)}")

    def _uv(self, *arguments: str, what: str, variables: Mapping[str, str] | None = None) -> str:
        """Runs uv; what it printed. Its last words become the error."""
        done = subprocess.run(
            [uv.find_uv_bin(), "--quiet", *arguments],
            env={**os.environ, **(variables or {})},
            pass_fds=self._inherited,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            remedy = "see whether the package index is reachable"
            raise InstallError(f"{what}: {_last_line(done.stderr)}", remedy=remedy)
        return done.stdout

    @property
    def _inherited(self) -> tuple[int, ...]:
        return () if self.lock is None else (self.lock,)


def torch_sources(environment: Mapping[str, str]) -> tuple[TorchSource, ...]:
    """Where a CPU build of PyTorch may be found, the nearest first."""
    folders = environment.get("UV_FIND_LINKS") or environment.get("PIP_FIND_LINKS") or ""
    links = {"UV_FIND_LINKS": folders.replace(" ", ",")}  # pip parts them by spaces, uv by commas
    near = (TorchSource("a folder of wheels", ("--no-deps", "--no-index"), links),)
    far = (
        TorchSource("PyTorch's index of CPU builds", ("--no-deps", "--torch-backend", "cpu")),
        TorchSource(
            "the package index, where it may be a CUDA build of several GB", ("--override", str(WITHOUT_TRITON))
        ),
    )
    return (near if folders else ()) + far


def locked_packages(lock: Path) -> dict[str, str]:
    """Name → version of every package in a lock file, whatever platform it is for."""
    return dict(_PIN.findall(lock.read_text()))


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
