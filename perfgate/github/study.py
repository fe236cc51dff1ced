"""What a pull request changes, read from its commits by git: merge base, trees, kind of diff."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfgate.config.files import load
from perfgate.config.places import CONFIG_PATH
from perfgate.errors import PerfgateError
from perfgate.github.commits import Origin, fetch_commits, fetch_file
from perfgate.records import Commit
from perfgate.source.diff import DiffClass, classify, deciding_files
from perfgate.source.repository import Repository
from perfgate.text import visible

MAX_NOTE = 300


@dataclass(frozen=True)
class Study:
    base: Commit
    head: Commit
    diff: DiffClass
    note: str = ""  # what is wrong with head's own perfgate.yml; a stranger's words may be in it


def study(folder: Path, origin: Origin, tip: str, head: str, *, exact: bool, ignore: Sequence[str]) -> Study:
    """Compares `head` with its merge base with `tip`, or with `tip` itself if `exact`. All are full SHAs."""
    fetch_commits(folder, origin, (tip, head), blobs=False)
    repository = Repository(folder)
    base = repository.resolve(tip) if exact else repository.merge_base(tip, head)
    paths = repository.changed_paths(base.sha, head)
    contents = {}
    for path in deciding_files(paths):
        for sha in (base.sha, head):
            fetch_file(folder, origin, sha, path)
        contents[path] = repository.read_both(base.sha, head, path)
    diff = classify(paths, ignore=ignore, contents=contents)
    note = ""
    if CONFIG_PATH in paths:
        fetch_file(folder, origin, head, CONFIG_PATH)
        note = _fault_of(repository.read_file(head, CONFIG_PATH))
    return Study(base, repository.resolve(head), diff, note)


def _fault_of(config: bytes | None) -> str:
    """A changed perfgate.yml is measured with the old one; that the new one will do is all that is looked at."""
    try:
        load(config or b"", CONFIG_PATH)
    except PerfgateError as error:
        return visible(str(error), MAX_NOTE)
    return ""
