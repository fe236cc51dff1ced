"""What a machine is, as far as its box file wants to know: GPUs, models, NCCL variables and files, users."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfgate.config.model import BoxFile
from perfgate.host.gpu import describe_gpus
from perfgate.host.nccl import variables_in_file
from perfgate.host.nccl_paths import missing_files, nccl_files
from perfgate.host.nvml import Nvml, NvmlAbsentError

_NCCL = re.compile(r"NCCL_[A-Z0-9_]{1,120}")
_MODEL = re.compile(r"models--([A-Za-z0-9._-]+?)--([A-Za-z0-9._-]+)")
SECOND_USER = "perfgate-pr"
ABOUT_NCCL = frozenset({"NCCL_CONF_FILE", "NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"})
"""Not tuning: where variables come from, and what NCCL says. perfgate sets these itself."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    name: str
    gpus: tuple[str, ...] = ()  # names, by index
    why_no_gpus: str = ""
    hf_home: Path | None = None
    models: Mapping[str, str] = field(default_factory=dict)  # hub id → revision of the newest snapshot in hf_home
    nccl: Mapping[str, str] = field(default_factory=dict)
    nccl_files: tuple[Path, ...] = ()
    tools: Mapping[str, Path] = field(default_factory=dict)
    second_user: str | None = None
    bubblewrap: bool = False
    notes: tuple[str, ...] = ()


def survey(environment: Mapping[str, str] | None = None) -> Survey:
    own = os.environ if environment is None else environment
    gpus, why = _gpus()
    home = _hf_home(own)
    paths = nccl_files(own)
    variables = _nccl(own, paths)
    return Survey(
        name=re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname().split(".")[0])[:40] or "box",
        gpus=gpus,
        why_no_gpus=why,
        hf_home=home,
        models=_models(home) if home else {},
        nccl=variables,
        nccl_files=paths,
        tools=_tools(),
        second_user=SECOND_USER if _is_user(SECOND_USER) else None,
        bubblewrap=shutil.which("bwrap") is not None,
        notes=tuple(missing_files(variables)),
    )


def _gpus() -> tuple[tuple[str, ...], str]:
    try:
        with Nvml.open() as nvml:
            names = tuple(gpu.name or "unknown" for gpu in describe_gpus(nvml, time.monotonic()).gpus)
    except NvmlAbsentError as error:
        return (), str(error)
    return names, "" if names else "the driver lists none"


def _hf_home(environment: Mapping[str, str]) -> Path | None:
    named = environment.get("HF_HOME")
    path = Path(named) if named else Path.home() / ".cache" / "huggingface"
    try:
        return path.absolute() if (path / "hub").is_dir() else None
    except PermissionError:  # of somebody else's home
        return None


def _models(home: Path) -> dict[str, str]:
    """Hub id → revision of the newest whole snapshot."""
    found = {}
    for folder in sorted((home / "hub").glob("models--*")):
        match = _MODEL.fullmatch(folder.name)
        snapshots = sorted(folder.glob("snapshots/*/config.json"), key=lambda path: path.stat().st_mtime)
        if match and snapshots:
            found[f"{match[1]}/{match[2]}"] = snapshots[-1].parent.name
    return found


def _nccl(environment: Mapping[str, str], paths: tuple[Path, ...]) -> dict[str, str]:
    """As NCCL takes them: the environment wins over the files, an earlier file over a later one."""
    variables: dict[str, str] = {}
    for path in reversed(paths):
        variables |= {name.strip(): value.strip() for name, value in variables_in_file(path)}
    variables |= {name: value for name, value in environment.items() if name.startswith("NCCL_")}
    kept = {name: value for name, value in variables.items() if _NCCL.fullmatch(name) and name not in ABOUT_NCCL}
    return dict(sorted(kept.items()))


def _tools() -> dict[str, Path]:
    """Folders of build tools that are usually not on a service's PATH."""
    cuda = Path("/usr/local/cuda/bin")
    return {"nvcc": cuda} if (cuda / "nvcc").exists() else {}


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


# ------------------------------------------------------------------------------------------------ the file


def box_file(found: Survey, *, gpus: bool = True) -> str:
    """The box file, with a comment beside what was found and what could not be. `gpus`: whether it is to have some."""
    default = BoxFile()
    seen = f"{len(found.gpus)}× {found.gpus[0]}" if found.gpus else f"none found: {found.why_no_gpus}"
    lines = [
        "# What only this box knows; it wins over perfgate.yml. Written by `perfgate init --box`.",
        "# Readable by the runner's user, writable by root alone: pull requests' code must not change it.",
        f"name: {_text(found.name)} # public: it stands in comments",
        f"state_dir: {default.state_dir} # runs, builds, caches and the ledger; the runner's user owns it",
        f"gpus: {'required' if gpus else 'none'} # {seen}",
        f"isolation: auto # how pull requests' code is confined; {_isolation(found)}",
        f"run_as: {found.second_user}" if found.second_user else f"# run_as: {SECOND_USER}",
        _hf_line(found.hf_home),
        *(f"#   {name}: revision {revision}" for name, revision in found.models.items()),
        "models: {} # name of a model → a folder of its own, in which no revision is looked for",
        *_mapping("nccl", found.nccl, _nccl_from(found)),
        *_mapping("tools", {name: str(path) for name, path in found.tools.items()}, "put on PATH for builds"),
        *(f"# look at: {note}" for note in found.notes),
    ]
    return "\n".join(lines) + "\n"


def _hf_line(home: Path | None) -> str:
    return f"hf_home: {_text(str(home))} # servers read it, nothing else does" if home else "# hf_home: /data/models"


def _isolation(found: Survey) -> str:
    if found.bubblewrap or found.second_user:
        return "bubblewrap is here" if found.bubblewrap else f"by the user {found.second_user}"
    return "with neither bubblewrap nor a second user, as here, forks are refused"


def _nccl_from(found: Survey) -> str:
    files = ", ".join(map(str, found.nccl_files))
    return f"of every rank, on both sides; from the environment{f' and {files}' if files else ''}"


def _mapping(name: str, values: Mapping[str, str], about: str) -> list[str]:
    if not values:
        return [f"{name}: {{}} # {about}"]
    return [f"{name}: # {about}", *(f"  {_text(key)}: {_text(value)}" for key, value in values.items())]


def _text(value: str) -> str:
    """A YAML string: JSON's are YAML's, too."""
    return json.dumps(value, ensure_ascii=False)
