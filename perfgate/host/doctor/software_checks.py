"""What is wrong around the box: NCCL settings, the lock, isolation, build tools, models, the canary's environment."""

from __future__ import annotations

import grp
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from perfgate.config.check import nccl_notes
from perfgate.config.model import BoxFile, ResolvedRecipe
from perfgate.config.places import BOX_PATH
from perfgate.errors import PerfgateError
from perfgate.host import sandbox, trial
from perfgate.host.lock import current_holder
from perfgate.host.nccl_paths import missing_files, nccl_files, stray_settings
from perfgate.host.public import public
from perfgate.records import Check

NEEDED_TOOLS = ("git", "uv")
KERNEL_TOOLS = ("nvcc", "c++")
RUST_TOOLS = ("cargo", "cc")
PACKAGES = {
    "nvcc": "the CUDA toolkit",
    "c++": "g++",
    "cc": "gcc",
}
TOLD = 6
POWERFUL_GROUPS = frozenset({"docker", "lxd", "incus", "libvirt", "libvirt-qemu", "kvm", "disk", "sudo", "wheel"})


def nccl_checks(
    given: Mapping[str, str], gpus: int, run_as: str | None, environment: Mapping[str, str] | None = None
) -> Iterator[Check]:
    """The tuning that servers get, and settings on the box that they do not get or get unseen."""
    users = [run_as] if run_as else []
    strays = stray_settings(given, environment, nccl_files(environment, users))
    for stray in strays[:TOLD]:
        yield Check(
            name="nccl",
            status="warn",
            text=public(str(stray)),
            why="a lost tuning looks exactly like a regression, and an unseen one like a fast box",
            remedy=f"put {stray.name} under `nccl:` in the box file"
            + (f", and take it out of {stray.where}" if stray.file else ""),
        )
    slips = [*nccl_notes(given), *missing_files(given)]
    for slip in slips[:TOLD]:
        yield Check(
            name="nccl",
            status="warn",
            text=public(slip),
            why="NCCL says nothing of it, and the tuning is lost",
            remedy="correct it under `nccl:` in the box file or perfgate.yml",
        )
    if strays or slips:
        return
    if given:
        told = ", ".join(f"{name}={value}" for name, value in sorted(given.items()))
        yield Check(name="nccl", status="ok", text=public(f"{len(given)} variables for every rank: {told}"))
    elif gpus > 1:
        yield Check(name="nccl", status="ok", text="no variables configured, none found on the box")


def box_file_check(box: BoxFile) -> Iterator[Check]:
    """Without its own file a box is measured without its tuning."""
    if not box.is_written:
        yield Check(
            name="box file",
            status="warn",
            text=f"none at {BOX_PATH}: the defaults hold, and servers get no NCCL tuning",
            why="what is measured is not how this box serves",
            remedy="sudo -E perfgate init --box",
        )


def lock_check(box: BoxFile, *, ours: bool) -> Iterator[Check]:
    if ours:
        return
    path = Path(box.lock or f"{box.state_dir}/box.lock")
    try:
        holder = current_holder(path)
    except PerfgateError as error:
        yield Check(name="lock", status="fail", text=error.what, why="one gate at a time", remedy=error.remedy or "")
        return
    if holder is not None:
        yield Check(
            name="lock",
            status="warn",
            text=f"the box is in use by {public(str(holder))}",
            why="what is seen here is not a box at rest",
            remedy="wait until it ends",
        )


def isolation_check(box: BoxFile) -> Check:
    """What `isolation` in the box file asks for, tried."""
    if box.isolation != "auto":
        return trial.available(sandbox.Isolation(box.isolation), run_as=box.run_as)
    tried = []
    for kind in (sandbox.Isolation.BUBBLEWRAP, sandbox.Isolation.USER):
        check = trial.available(kind, run_as=box.run_as)
        if check.status == "ok":
            return check
        tried.append(check)
    return tried[-1] if box.run_as else tried[0]  # what the box file meant


def group_checks(confinement: sandbox.Confinement, groups: Iterable[str] | None = None) -> Iterator[Check]:
    """Bubblewrap started by an ordinary user keeps that user's groups, and some of them are as good as root."""
    if confinement.kind is sandbox.Isolation.NONE or confinement.uid is not None:
        return  # nobody's groups, or no confinement to get out of
    found = sorted(set(_own_groups() if groups is None else groups) & POWERFUL_GROUPS)
    if found:
        yield Check(
            name="groups",
            status="fail",
            text=f"perfgate's user is in the group {', '.join(found)}, and PR code keeps it in the sandbox",
            why="whoever may talk to that service's socket can become root",
            remedy="; ".join(f"sudo gpasswd -d $USER {name}" for name in found) + "; log in anew",
        )


def _own_groups() -> Iterator[str]:
    for number in os.getgroups():
        with suppress(KeyError):
            yield grp.getgrgid(number).gr_name


def tool_checks(box: BoxFile, *, gpus: bool, search: str) -> Iterator[Check]:
    """git and uv always; compilers only where a diff may need them, so their lack is a warning."""
    path = ":".join([*box.tools.values(), search])
    missing = [tool for tool in NEEDED_TOOLS if not _found(tool, path)]
    if missing:
        yield Check(
            name="tools",
            status="fail",
            text=f"not found: {', '.join(missing)}",
            why="commits are read with git, environments are built with uv",
            remedy=f"sudo apt-get install git; name other folders under `tools` in the box file ({', '.join(missing)})",
        )
    if not gpus:
        if not missing:
            yield Check(name="tools", status="ok", text="git and uv")
        return
    kernel = [tool for tool in KERNEL_TOOLS if not _found(tool, path)]
    rust = [tool for tool in RUST_TOOLS if not _found(tool, path)]
    if lacking := list(dict.fromkeys((*kernel, *rust))):
        named = ", ".join(f"{tool} ({PACKAGES[tool]})" if tool in PACKAGES else tool for tool in lacking)
        whose = " and ".join(filter(None, ("kernels" if kernel else "", "rust extensions" if rust else "")))
        yield Check(
            name="build tools",
            status="warn",
            text=f"not found: {named}",
            why=f"a pull request that touches {whose} cannot be built here",
            remedy="install them, or name their folders under `tools` in the box file",
        )
    elif not missing:
        yield Check(name="tools", status="ok", text="git, uv, and all that local kernel and rust builds need")


def _found(tool: str, path: str) -> bool:
    if shutil.which(tool, path=path):
        return True
    return tool == "uv" and _packaged_uv()


def _packaged_uv() -> bool:
    """The one that perfgate depends on."""
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin()).exists()
    except (ImportError, FileNotFoundError):
        return False


def model_checks(recipes: Iterable[ResolvedRecipe], hf_home: str | None) -> Iterator[Check]:
    """Every model of every recipe, at its revision, where servers will look for it: they have no network."""
    wanted: dict[tuple[str, str, str | None], list[str]] = {}
    for recipe in recipes:
        wanted.setdefault((recipe.model, recipe.model_path, recipe.revision), []).append(recipe.name)
        if recipe.draft and recipe.draft_path:
            wanted.setdefault((recipe.draft, recipe.draft_path, recipe.draft_revision), []).append(recipe.name)
    missing = [
        (name, path, problem, users)
        for (name, path, revision), users in wanted.items()
        if (problem := model_problem(path, revision, hf_home))
    ]
    for name, path, problem, users in missing:
        yield Check(
            name="model",
            status="fail",
            text=f"{name} (for {', '.join(users)}): {problem}",
            why="servers run without network and cannot fetch it",
            remedy=_model_remedy(path, hf_home),
        )
    for name, path, revision in wanted:
        if revision and path.startswith("/"):
            yield Check(
                name="model",
                status="warn",
                text=f"revision {revision[:12]} of {name} is not looked for: the box file names a folder for it",
                why="another revision in perfgate.yml would change nothing",
                remedy=f"take {name} out of `models` in the box file, or its revision out of perfgate.yml",
            )
    if wanted and not missing:
        yield Check(name="models", status="ok", text=f"{len(wanted)} present: {', '.join(one[0] for one in wanted)}")


def _model_remedy(path: str, hf_home: str | None) -> str:
    if path.startswith("/"):
        return "mend that folder, or name another one under `models` in the box file"
    if hf_home is None:
        return "set `hf_home` in the box file and run `perfgate models fetch`, or name its folder under `models`"
    return "perfgate models fetch --config perfgate.yml"


def model_problem(path: str, revision: str | None, hf_home: str | None) -> str | None:
    """Why a server would not find this model; None where it would. `path`: a folder, or an id of the hub."""
    if path.startswith("/"):
        return None if (Path(path) / "config.json").is_file() else f"no config.json in {public(path)}"
    if hf_home is None:
        return "`hf_home` is not set in the box file"
    folder = Path(hf_home) / "hub" / f"models--{path.replace('/', '--')}" / "snapshots"
    revisions = [revision] if revision else sorted(one.name for one in folder.glob("*"))
    if any((folder / one / "config.json").is_file() for one in revisions):
        return None
    return f"not in hf_home{f' at revision {revision[:12]}' if revision else ''}"
