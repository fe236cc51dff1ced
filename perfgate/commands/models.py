"""Targets and drafts at pinned revisions, in the box's HF_HOME: fetched once, proven before they are trusted.

The only part of perfgate that ever sees a hub token (HF_TOKEN, or the login of the hub's own tools). Servers run
offline and are never given one. What the box keeps in folders of its own is looked at, never touched.

The hub's library compares sizes only. Its cache files every file under the hash of its content, so both commands hash
what is there: SHA-256 for large files, git's blob hash for the others.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, get_cached_repo_tree, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from perfgate import __version__
from perfgate.config.model import Resolved
from perfgate.errors import Exit, PerfgateError

SHA256 = re.compile(r"[0-9a-f]{64}")
GIT_BLOB = re.compile(r"[0-9a-f]{40}")
URL = re.compile(r"(?P<scheme>https?://)(?:[^/\s?@'\"]*@)?(?P<rest>[^\s?'\"]*)(?:\?[^\s'\"]*)?")
SECRET = re.compile(r"(Bearer\s+)[^'\"]+|hf_[^\s'\"]+")
WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})
BLOCK = 1 << 22
READERS = 8  # files hashed at a time: one alone is slower than the disk
MOST_TEXT = 200
TRY_AGAIN = "try again: what is there already is kept"
FETCH = "perfgate models fetch"
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


@dataclass(frozen=True)
class Pinned:
    """A model of the hub at a full commit, and the cache it belongs into."""

    name: str
    revision: str
    cache: Path

    @property
    def label(self) -> str:
        return f"{self.name} at {self.revision[:12]}"


def wanted_models(resolved: Resolved) -> tuple[Wanted, ...]:
    """Targets and drafts of all recipes, each once."""
    found: dict[Wanted, None] = {}
    for recipe in resolved.recipes:
        for name, revision in ((recipe.model, recipe.revision), (recipe.draft, recipe.draft_revision)):
            if name is not None:
                folder = resolved.box.models.get(name)
                found[Wanted(name, revision, Path(folder) if folder else None)] = None
    return tuple(found)


def fetch(resolved: Resolved, say: Say) -> None:
    """Puts what is missing or damaged into HF_HOME, and proves all of it. Raises ModelError with the next step.

    A pin that is missing is a PerfgateError before anything is fetched.
    """
    wanted = wanted_models(resolved)
    pinned = [_pinned(model, resolved) for model in wanted if model.folder is None]
    for model in wanted:
        if model.folder is not None:
            say(f"{model.name}: in a folder of the box, left alone")
    _go_online()
    for one in pinned:
        say(f"{one.label}: fetching what is missing")
        folder = _downloaded(one)
        for path in _damaged(folder):
            say(f"{one.label}: {path.relative_to(folder)} is damaged, fetched again")
            _download_again(one, path.relative_to(folder))
            if not _is_whole(path):
                raise _is_damaged(one.name, path.relative_to(folder), TRY_AGAIN)
        _check_complete(one.name, folder, "choose another revision: the hub has no more of this one")
        say(f"{one.label}: {_proven(folder)}")


def verify(resolved: Resolved, say: Say) -> None:
    """Checks that every model is there, whole, and that files have the hash they are filed under. Changes nothing."""
    for model in wanted_models(resolved):
        if model.folder is not None:
            _check(model.name, model.folder, "mend that folder, or `models` in the box's file")
            say(f"{model.name}: {_proven(model.folder)}")
        else:
            one = _pinned(model, resolved)
            folder = _snapshot(one)
            _check(model.name, folder, FETCH)
            say(f"{one.label}: {_proven(folder)}{_if_not_listed(one)}")


def _pinned(model: Wanted, resolved: Resolved) -> Pinned:
    """Raises PerfgateError where configuration leaves open what belongs where."""
    if model.revision is None:
        raise PerfgateError(
            "no revision is given: two runs might load two models",
            where=model.name,
            remedy="set revision (draft_revision) to the model's full commit in perfgate.yml",
        )
    if resolved.box.hf_home is None:
        raise PerfgateError("the box has no hf_home", where=resolved.box.name, remedy="set hf_home in the box's file")
    return Pinned(model.name, model.revision, Path(resolved.box.hf_home) / "hub")


# ------------------------------------------------------------------------------------------------ the hub


def _go_online() -> None:
    """HF_HUB_OFFLINE in the environment is meant for servers; and failures are told by us, in one line."""
    constants.HF_HUB_OFFLINE = False
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings spell out URLs with their signatures
    if not sys.stderr.isatty():
        disable_progress_bars()


def _downloaded(model: Pinned) -> Path:
    try:
        folder = snapshot_download(
            model.name,
            revision=model.revision,
            cache_dir=model.cache,
            library_name="perfgate",
            library_version=__version__,
        )
    except Exception as error:  # of its HTTP client and of Xet, too: they have nothing in common
        raise _refused(model, error) from error
    if _listed(model) is None:  # an older cache's folder, which it takes for whole when the hub does not answer
        raise ModelError("the hub does not say which files it has", where=model.name, remedy="try again")
    return Path(folder)


def _download_again(model: Pinned, file: Path) -> None:
    try:
        hf_hub_download(
            model.name, file.as_posix(), revision=model.revision, cache_dir=model.cache, force_download=True
        )
    except Exception as error:
        raise _refused(model, error) from error


def _snapshot(model: Pinned) -> Path:
    """Where the model lies in HF_HOME. Raises ModelError, with the name of a file that is missing."""
    try:
        found = snapshot_download(model.name, revision=model.revision, cache_dir=model.cache, local_files_only=True)
    except IncompleteSnapshotError as error:
        folder = Path(error.snapshot_path)
        missing = [name for name in _listed(model) or () if not (folder / name).is_file()]
        raise _missing(model.name, missing, FETCH) from error
    except (LocalEntryNotFoundError, OSError, ValueError) as error:
        raise ModelError(f"revision {model.revision[:12]} is not in HF_HOME", where=model.name, remedy=FETCH) from error
    return Path(found)


def _listed(model: Pinned) -> list[str] | None:
    """The files that the hub has at this revision, as it said when they were fetched; None: it was never asked."""
    try:
        tree = get_cached_repo_tree(model.name, revision=model.revision, cache_dir=model.cache)
    except CachedRepoTreeNotFoundError:
        return None
    return [file.path for file in tree]


def _if_not_listed(model: Pinned) -> str:
    if _listed(model) is not None:
        return ""
    return " (whether more belong to it is not on record: `perfgate models fetch` asks the hub)"


def _refused(model: Pinned, error: Exception) -> ModelError:
    """The library's error in one line of ours."""
    if isinstance(error, LocalEntryNotFoundError | ValueError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what kept it from the hub, not that the cache is no help either
    what, remedy = _told(error)
    return ModelError(what, where=model.label, remedy=remedy)


def _told(error: Exception) -> tuple[str, str]:
    """What went wrong, and the next step."""
    match error:
        case GatedRepoError():
            return "the hub gives it only to who accepts its terms", "accept them on the hub, and set HF_TOKEN"
        case RevisionNotFoundError():
            return "the hub has no such revision of it", "correct its revision in perfgate.yml"
        case RemoteEntryNotFoundError():
            return "the hub does not have a file that it lists", TRY_AGAIN
        case RepositoryNotFoundError():
            return "the hub knows no such model, or keeps it from us", "check its name; a private one needs HF_TOKEN"
        case HfHubHTTPError() if error.response.status_code in (401, 403):
            return f"the hub refuses ({error.response.status_code})", "set HF_TOKEN to a token that may read it"
        case HfHubHTTPError():
            return f"the hub answers with status {error.response.status_code}", TRY_AGAIN
        case OSError() if error.strerror:
            where = f" ({error.filename})" if error.filename else ""
            return f"{error.strerror}{where}", "hf_home must be yours to write, and have space left"
        case _:
            return f"cannot be fetched: {harmless(f'{type(error).__name__}: {error}')}", TRY_AGAIN


def harmless(text: str) -> str:
    """The first line of a library's words, without a token, the name and password of a mirror or a signature."""
    line = (text.strip().splitlines() or [""])[0]
    line = URL.sub(r"\g<scheme>\g<rest>", SECRET.sub(r"\1…", line))
    return line if len(line) <= MOST_TEXT else line[: MOST_TEXT - 1] + "…"


# ------------------------------------------------------------------------------------------------ proof


def _check(name: str, folder: Path, remedy: str) -> None:
    """Raises ModelError where a model is not whole."""
    _check_complete(name, folder, remedy)
    for path in _damaged(folder):
        raise _is_damaged(name, path.relative_to(folder), remedy)


def _check_complete(name: str, folder: Path, remedy: str) -> None:
    if not (folder / "config.json").is_file():
        raise ModelError(f"no config.json in {folder}", where=name, remedy=remedy)
    dangling = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink() and not path.exists()}
    absent = sorted(dangling | {file for file in _shards(name, folder, remedy) if not (folder / file).is_file()})
    if absent:
        raise _missing(name, absent, remedy)
    if not any(path.suffix in WEIGHTS for path in folder.rglob("*")):
        raise ModelError(f"no weights in {folder}", where=name, remedy=remedy)


def _proven(folder: Path) -> str:
    """In words, how far a checked model is proven."""
    hashed = len(_hashed(folder))
    if hashed:
        return f"whole, {hashed} file{'' if hashed == 1 else 's'} checked against their hash"
    return "it is there; its files have no hash to check them by"


def _shards(name: str, folder: Path, remedy: str) -> set[str]:
    """Files that an index of weights names."""
    found: set[str] = set()
    for index in folder.glob("*.index.json"):
        try:
            found.update(map(str, json.loads(index.read_bytes())["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index.name} cannot be read", where=name, remedy=remedy) from error
    return found


def _is_damaged(name: str, file: Path, remedy: str) -> ModelError:
    return ModelError(f"{file} is damaged", where=name, remedy=remedy)


def _missing(name: str, files: Sequence[str], remedy: str) -> ModelError:
    more = f" and {len(files) - 1} more files are" if len(files) > 1 else " is"
    return ModelError(f"{files[0] if files else 'a file'}{more} missing", where=name, remedy=remedy)


def _hashed(folder: Path) -> list[Path]:
    """Files of the hub's cache: links to what is filed under its hash."""
    paths = (path for path in folder.rglob("*") if path.is_symlink() and path.is_file())
    return sorted(path for path in paths if _filed_under(path))


def _filed_under(path: Path) -> str | None:
    """The hash that a link of the hub's cache leads to. One step: what is shared by models lies under another name."""
    name = path.readlink().name
    return name if SHA256.fullmatch(name) or GIT_BLOB.fullmatch(name) else None


def _damaged(folder: Path) -> list[Path]:
    paths = _hashed(folder)
    with ThreadPoolExecutor(READERS) as readers:
        return [path for path, whole in zip(paths, readers.map(_is_whole, paths), strict=True) if not whole]


def _is_whole(path: Path) -> bool:
    filed = _filed_under(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}", where=str(path)) from error
    with file:
        digest = hashlib.sha256() if filed and SHA256.fullmatch(filed) else _git_blob(path.stat().st_size)
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest() == filed


def _git_blob(size: int) -> hashlib._Hash:
    """Git's hash of a file of this size, still to be fed with its bytes."""
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
