"""The tree of a commit as files, exactly as git has them.

Made from `ls-tree` and `cat-file --batch` alone. Against `git worktree`: nothing is registered in the repository, so
nothing can be left behind there. Against `git archive` and `checkout-index`: no attribute is looked at, so neither
line endings, `ident`, `export-subst`, encodings, LFS nor a smudge filter changes a byte; each blob's hash is checked.
Links are made as they are (perfgate itself never reads through them), submodules become empty folders, as in a clone
without `--recurse-submodules`.
"""

# Names are bytes here: strangers choose them, in any encoding.
# ruff: noqa: PTH102, PTH103, PTH118, PTH120, PTH211
from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from perfgate.errors import PerfgateError
from perfgate.source.git import Git, GitFailed
from perfgate.store.strangers import create

MAX_FILES = 300_000
MAX_BYTES = 8 * 2**30
_MAX_NAME = 3072  # Linux takes 4096, with the folder that the tree lies in
_MAX_PART = 255
_MAX_LINK = 4095
_MAX_DEPTH = 200  # far more, and walking through them exhausts Python's stack

_FILE, _LINK, _SUBMODULE = "100", "120", "160"


class OddTree(PerfgateError):
    """A tree that nobody could check out, or that is too large: the commit's fault, not the box's."""


@dataclass(frozen=True)
class TreeEntry:
    mode: str  # of git, e.g. "100755"
    oid: str
    size: int
    path: bytes

    @property
    def kind(self) -> str:
        return self.mode[:3]


def list_tree(git: Git, tree: str) -> list[TreeEntry]:
    """All files, links and submodules of a tree. Bounded: a small tree object can name more files than a disk holds."""
    entries: list[TreeEntry] = []
    size = 0
    with git.stream("ls-tree", "-r", "-z", "-l", "--full-tree", tree) as output:
        for record in _records(output):
            entry = _parse(record)
            size += entry.size
            entries.append(entry)
            if len(entries) > MAX_FILES or size > MAX_BYTES:
                raise OddTree(f"the tree is larger than {MAX_FILES} files or {MAX_BYTES // 2**30} GiB", where=tree[:12])
    return entries


def _records(output: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while block := output.read(1 << 20):
        *whole, rest = (rest + block).split(b"\0")
        yield from whole


def _parse(record: bytes) -> TreeEntry:
    head, _, path = record.partition(b"\t")
    mode, _kind, oid, size = head.decode("ascii").split()
    return TreeEntry(mode, oid, 0 if size == "-" else int(size), path)


def check_names(entries: Iterable[TreeEntry]) -> None:
    """Refuses names that git itself would never check out: they lead out of the tree, or into a link."""
    leaves: set[bytes] = set()
    folders: set[bytes] = set()
    for entry in entries:
        parts = entry.path.split(b"/")
        forbidden = {b"", b".", b".."} & set(parts) or any(part.lower() == b".git" for part in parts)
        too_long = len(entry.path) > _MAX_NAME or any(len(part) > _MAX_PART for part in parts)
        if forbidden or too_long or len(parts) > _MAX_DEPTH or b"\0" in entry.path or entry.path in leaves:
            raise _hostile(entry.path)
        leaves.add(entry.path)
        folders.update(b"/".join(parts[:depth]) for depth in range(1, len(parts)))
    for path in leaves & folders:
        raise _hostile(path)


def _hostile(path: bytes) -> OddTree:
    shown = path[:80].decode("ascii", "backslashreplace")
    return OddTree(f"a file name that no checkout may have: {shown!r}", remedy="git fsck names the commit")


def extract(git: Git, tree: str, into: Path) -> None:
    """Writes a tree's files into a new folder `into`."""
    try:
        entries = list_tree(git, tree)
        check_names(entries)
        root = os.fsencode(into)
        os.mkdir(root, 0o755)
        _make_folders(root, entries)
        with_content = [entry for entry in entries if entry.kind in (_FILE, _LINK)]
        for entry, content in zip(with_content, _contents(git, with_content), strict=True):
            _write(os.path.join(root, entry.path), entry, content)
    except GitFailed as error:
        raise PerfgateError(
            f"git cannot read the tree: {error.line}",
            where=tree[:12],
            remedy="`git fsck`; a partial clone has to be completed first: `git fetch --refetch --no-filter`",
        ) from error


def _make_folders(root: bytes, entries: Sequence[TreeEntry]) -> None:
    made: set[bytes] = set()
    for entry in entries:
        folder = entry.path if entry.kind == _SUBMODULE else os.path.dirname(entry.path)
        if folder and folder not in made:
            os.makedirs(os.path.join(root, folder), 0o755, exist_ok=True)
            made.add(folder)


def _contents(git: Git, entries: Sequence[TreeEntry]) -> Iterator[bytes]:
    """The blobs of entries in order, each checked against its name."""
    with tempfile.TemporaryFile() as wanted:
        wanted.write(b"".join(entry.oid.encode() + b"\n" for entry in entries))
        wanted.seek(0)
        with git.stream("cat-file", "--batch", stdin=wanted) as output:
            for entry in entries:
                yield _blob(output, entry)


def _blob(output: IO[bytes], entry: TreeEntry) -> bytes:
    head = output.readline()
    words = head.split()
    if len(words) != 3 or words[1] != b"blob":
        raise GitFailed(1, f"object {entry.oid} is missing")
    content = output.read(int(words[2]))
    output.read(1)
    if object_hash("blob", content, len(entry.oid)) != entry.oid:
        raise GitFailed(1, f"object {entry.oid} is damaged")
    return content


def object_hash(kind: str, content: bytes, length: int) -> str:
    """Git's name of an object: SHA-1 (40 digits) or SHA-256 (64) of its header and content."""
    algorithm = hashlib.sha256 if length == 64 else hashlib.sha1
    return algorithm(f"{kind} {len(content)}\0".encode() + content).hexdigest()


def _write(path: bytes, entry: TreeEntry, content: bytes) -> None:
    if entry.kind == _LINK:
        if not content or b"\0" in content or len(content) > _MAX_LINK:
            raise _hostile(entry.path)
        os.symlink(content, path)
        return
    with create(path, executable=entry.mode.endswith("755")) as stream:
        stream.write(content)
