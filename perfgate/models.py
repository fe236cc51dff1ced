"""Targets and drafts at pinned revisions, in the box's HF_HOME: fetched once, verified before they are trusted.

The only part of perfgate that ever sees a hub token (HF_TOKEN, or the login of the hub's own tools). Servers run
offline and are never given one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

from perfgate.config import Resolved
from perfgate.errors import Exit, PerfgateError

REVISION = re.compile(r"[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
_BLOCK = 1 << 22
Say = Callable[[str], None]


class ModelError(PerfgateError):
    """A model that is not there, or not what it should be."""

    exit_code = Exit.CANNOT


@dataclass(frozen=True)
class Wanted:
    """One model of some recipe. `folder`: where the box keeps it itself; else it belongs into HF_HOME."""

    name: str
    revision: str | None
    folder: Path | None


def wanted_models(resolved: Resolved) -> tuple[Wanted, ...]:
    """Targets and drafts of all recipes, each once."""
    found: dict[Wanted, None] = {}
    for recipe in resolved.recipes:
        named = ((recipe.model, recipe.revision), (recipe.draft, recipe.draft_revision))
        for name, revision in named:
            if name is not None:
                folder = resolved.box.models.get(name, name if name.startswith("/") else None)
                found[Wanted(name, revision, Path(folder) if folder else None)] = None
    return tuple(found)


def fetch(resolved: Resolved, say: Say) -> None:
    """Puts what is missing into HF_HOME. What the box keeps in folders of its own is left alone."""
    for model in wanted_models(resolved):
        if model.folder is not None:
            say(f"{model.name}: in a folder of the box, not fetched")
            continue
        revision, cache = _pinned(model), _cache(resolved)
        say(f"{model.name} at {revision[:12]}: fetching what is missing")
        try:
            path = snapshot_download(model.name, revision=revision, cache_dir=cache)
        except RepositoryNotFoundError as error:
            raise ModelError(
                "the hub knows no such model, or keeps it from us",
                where=model.name,
                remedy="set HF_TOKEN for this command",
            ) from error
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
            raise ModelError(
                f"cannot be fetched: {_first_line(error)}", where=model.name, remedy="try again"
            ) from error
        say(f"{model.name}: {path}")


def verify(resolved: Resolved, say: Say) -> None:
    """Checks that every model is there, whole, and that large files have the hash they are filed under."""
    for model in wanted_models(resolved):
        folder = model.folder or _snapshot(model, resolved)
        if not (folder / "config.json").is_file():
            raise ModelError("no config.json there", where=f"{model.name} ({folder})", remedy=_remedy(model))
        checked = sum(1 for _ in _checked_files(model, folder))
        say(f"{model.name}: fine, {checked} files of weights have their hash" if checked else f"{model.name}: there")


def _snapshot(model: Wanted, resolved: Resolved) -> Path:
    try:
        path = snapshot_download(model.name, revision=_pinned(model), cache_dir=_cache(resolved), local_files_only=True)
    except (LocalEntryNotFoundError, OSError) as error:
        raise ModelError("not in HF_HOME, or not whole", where=model.name, remedy=_remedy(model)) from error
    return Path(path)


def _checked_files(model: Wanted, folder: Path) -> Iterator[Path]:
    """Large files, once they are proven: the hub's cache files them under their SHA-256."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.exists():
            raise ModelError("a file is missing", where=f"{model.name}: {path.name}", remedy=_remedy(model))
        blob = path.resolve().name
        if path.is_file() and SHA256.fullmatch(blob):
            if _sha256(path) != blob:
                raise ModelError("a file is damaged", where=f"{model.name}: {path.name}", remedy=_remedy(model))
            yield path


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _pinned(model: Wanted) -> str:
    if model.revision is None or not REVISION.fullmatch(model.revision):
        raise ModelError(
            "no full revision is given: two runs might load two models",
            where=model.name,
            remedy="set revision (draft_revision) to the model's full commit in perfgate.yml",
        )
    return model.revision


def _cache(resolved: Resolved) -> Path:
    if resolved.box.hf_home is None:
        raise ModelError("the box has no hf_home", where=resolved.box.name, remedy="set hf_home in the box's file")
    return Path(resolved.box.hf_home) / "hub"


def _remedy(model: Wanted) -> str:
    return "perfgate models fetch" if model.folder is None else "correct `models` in the box's file"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
