"""What servers read besides code: models, files that NCCL's variables name, libraries. And whether they can.

Folders of homes are hidden from confined code, and what is given may lie there, or lead there by links: a snapshot of
the hub holds nothing but links into its blobs.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perfgate.config.model import Resolved, ResolvedRecipe
from perfgate.errors import PerfgateError
from perfgate.host.sandbox import OUTER_ENVIRONMENT, Confinement, SandboxError, confine

MAX_HOPS = 16
LOOK_S = 60.0
_LOOK = 'while IFS= read -r file; do [ -r "$file" ] || printf "%s\\n" "$file"; done'


@dataclass(frozen=True)
class Given:
    """`readable`: what has to be shown in a sandbox; `files`: what a server will open."""

    readable: tuple[Path, ...]
    files: tuple[Path, ...]


def given_to(resolved: Resolved, own: Mapping[str, str]) -> Given:
    """What the servers of all recipes are given. `own`: perfgate's environment, of which they get LD_LIBRARY_PATH.

    Only what the box's owner named: values of the box file's variables, and NCCL's.
    """
    box = resolved.box
    variables = {**resolved.nccl, **box.env, "LD_LIBRARY_PATH": own.get("LD_LIBRARY_PATH", "")}
    named = named_in(variables)
    models = [model for recipe in resolved.recipes for model in _models_of(recipe, box.hf_home)]
    hub = [Path(box.hf_home)] if box.hf_home else []
    conf = [path for path in (Path.home() / ".nccl.conf",) if path.is_file()]
    files = [file for place in (*models, *(path for path in named if path.is_file())) for file in files_in(place)]
    return Given(shown((*models, *hub, *named, *conf)), tuple(dict.fromkeys(files)))


def _models_of(recipe: ResolvedRecipe, hf_home: str | None) -> Iterator[Path]:
    for model, revision in ((recipe.model_path, recipe.revision), (recipe.draft_path, recipe.draft_revision)):
        if model and model.startswith("/"):
            yield Path(model)
        elif model and hf_home:
            snapshots = Path(hf_home) / "hub" / f"models--{model.replace('/', '--')}" / "snapshots"
            yield from (snapshots / revision,) if revision else sorted(snapshots.glob("*"))


def shown(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The paths, and every place that a link on the way or inside leads to; what lies in one of them only once."""
    whole = dict.fromkeys(hop for path in paths if path.exists() for hop in _hops(path))
    found = dict(whole)
    for folder in whole:
        for link in _links_in(folder):
            found |= dict.fromkeys(hop for hop in _hops(link)[1:] if not _inside(hop, whole))
    return tuple(found)


def named_in(variables: Mapping[str, str]) -> tuple[Path, ...]:
    """Files and folders that exist and that values of variables name, alone or in a list with colons."""
    parts = (Path(part) for value in variables.values() for part in value.split(":") if part.startswith("/"))
    return tuple(dict.fromkeys(part for part in parts if part != Path("/") and part.exists()))


def files_in(path: Path) -> list[Path]:
    """Every file of a model's folder, down to the last shard, also through links."""
    if path.is_file():
        return [path]
    return [Path(folder, name) for folder, _, names in os.walk(path, followlinks=True) for name in names]


def unseen(files: Sequence[Path], confinement: Confinement, readable: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Those of the files that the confined user cannot read, looked at from inside."""
    if not files:
        return ()
    argv = confine(
        ["/bin/sh", "-c", _LOOK],
        {"PATH": OUTER_ENVIRONMENT["PATH"]},
        confinement=confinement,
        readable=readable,
        cwd=Path("/"),
    )
    done = subprocess.run(
        argv,
        env=OUTER_ENVIRONMENT,
        input="".join(f"{file}\n" for file in files),
        capture_output=True,
        text=True,
        timeout=LOOK_S,
    )
    if done.returncode != 0:
        raise SandboxError(f"nothing runs in it: {done.stderr.strip()[:300]}", where=f"isolation: {confinement}")
    return tuple(map(Path, done.stdout.splitlines()))


def check_seen(files: Sequence[Path], confinement: Confinement, readable: Sequence[Path]) -> None:
    """Raises PerfgateError naming the first file that the confined user cannot read."""
    hidden = unseen(files, confinement, readable)
    if hidden:
        more = f", nor {len(hidden) - 1} more" if len(hidden) > 1 else ""
        raise PerfgateError(
            f"the confined user ({confinement}) cannot read it{more}",
            where=str(hidden[0]),
            remedy=remedy_for(hidden[0]),
        )


def remedy_for(file: Path) -> str:
    return f"chmod a+r {file}, and a+x on the folders above it" if file.exists() else f"ls -l {file}: it leads nowhere"


def _hops(path: Path) -> list[Path]:
    """The path, each place that its links lead to one after the other, and where it ends."""
    found = [path]
    for _ in range(MAX_HOPS):
        if not path.is_symlink():
            break
        path = Path(os.path.normpath(path.parent / path.readlink()))
        found.append(path)
    with suppress(OSError):
        found.append(path.resolve(strict=True))
    return [hop for hop in dict.fromkeys(found) if hop.exists()] or found[:1]


def _links_in(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for here, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(here, name)
            if path.is_symlink():
                yield path


def _inside(path: Path, folders: Iterable[Path]) -> bool:
    return any(folder == path or folder in path.parents for folder in folders)
