"""Git repositories to try the gate on: laid out like upstream's, made of released wheels.

    LICENSE
    python/pyproject.toml      written from the wheel's metadata, since wheels hold none
    python/sglang/…            the wheel's sources, without compiled libraries

`main` is the base, a branch named after the change the head. The commits depend on the wheel and the change alone:
their SHAs are the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

from perfgate.cpu.changes import EDITS, Change
from perfgate.cpu.environment import CpuEnvironment, ReleaseTree
from perfgate.errors import PerfgateError
from perfgate.source.git import Git

_AUTHOR = "perfgate demo <demo@perfgate.invalid>"
_EPOCH = 1_793_577_600  # of the first commit; the second is an hour younger
_NOT_SOURCE = (".so", ".pyc")  # upstream's tree holds no compiled libraries either; plain serving needs none
_BASE_BRANCH = "main"

Files = Mapping[str, bytes]
"""By path in the repository."""


@dataclass(frozen=True)
class DemoRepository:
    path: Path
    base_sha: str
    head_sha: str
    base_ref: str
    head_ref: str


@dataclass(frozen=True)
class _Head:
    """What the second commit makes of the first."""

    branch: str
    message: str
    files: Files
    replaces_all: bool = False


def make_repository(environment: CpuEnvironment, change: Change, where: Path) -> DemoRepository:
    """At `where`, which must not hold anything else: base is the release, head one change to it.

    The same repository is found again, not made again.
    """
    base = release_files(environment.wheel_tree)
    edit = EDITS[change]
    path = f"python/{edit.path}"
    if path not in base:
        raise PerfgateError(f"SGLang {environment.versions['sglang']} has no {edit.path}")
    edited = {path: edit.apply(base[path].decode()).encode()}
    head = _Head(f"demo-{change}", f"{edit.subject}\n\n{edit.body}\n", edited)
    return _repository(where, _released(environment.versions["sglang"]), base, head)


def make_release_repository(base: ReleaseTree, head: ReleaseTree, where: Path) -> DemoRepository:
    """The same with two releases as base and head."""
    second = _Head(f"release-{head.release}", _released(head.release), release_files(head.path), replaces_all=True)
    return _repository(where, _released(base.release), release_files(base.path), second)


def _released(release: str) -> str:
    return f"SGLang {release}\n\nThe sources in its wheel.\n"


# ------------------------------------------------------------------------------------------------ files


def release_files(tree: Path) -> dict[str, bytes]:
    """The repository's files, from an unpacked wheel."""
    metadata = _metadata(tree)
    files = {f"python/{path.relative_to(tree)}": path.read_bytes() for path in _sources(tree / "sglang")}
    files["python/pyproject.toml"] = _pyproject(metadata).encode()
    files["LICENSE"] = _license(tree)
    return files


def _sources(package: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(folder) / name for name in names if not name.endswith(_NOT_SOURCE))


def _metadata(tree: Path) -> Message:
    return HeaderParser().parsestr(_info(tree, "METADATA").read_text())


def _license(tree: Path) -> bytes:
    return _info(tree, "licenses/LICENSE").read_bytes()


def _info(tree: Path, name: str) -> Path:
    found = sorted(tree.glob(f"sglang-*.dist-info/{name}"))
    if len(found) != 1:
        raise PerfgateError("not an unpacked wheel of sglang", where=str(tree))
    return found[0]


def _pyproject(metadata: Message) -> str:
    """Name, Python and dependencies, as upstream's file has them; without the optional ones."""
    requirements = [text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text]
    lines = [
        "[build-system]",
        'requires = ["setuptools>=61.0", "wheel"]',
        'build-backend = "setuptools.build_meta"',
        "",
        "[project]",
        'name = "sglang"',
        f"version = {json.dumps(metadata['Version'])}",
        f"requires-python = {json.dumps(metadata['Requires-Python'])}",
        "dependencies = [",
        *(f"  {json.dumps(text)}," for text in requirements),
        "]",
        "",
    ]
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------ commits


def _repository(where: Path, message: str, files: Files, head: _Head) -> DemoRepository:
    """Two commits in a new repository, made beside its place, so that what is there is whole."""
    key = _key(message, files, head)
    known = _known(where, key)
    if known is not None:
        return known
    if where.exists() and (not where.is_dir() or any(where.iterdir())):
        raise PerfgateError("holds something else", where=str(where), remedy="name a new folder")
    making = where.with_name(f".{where.name}.{os.getpid()}.making")
    try:
        shas = _import(making, message, files, head)
        _note(making).write_text(json.dumps({"key": key, "shas": shas}))
        making.replace(where)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return DemoRepository(where, *shas, _BASE_BRANCH, head.branch)


def _key(message: str, files: Files, head: _Head) -> str:
    """Of everything that the commits are made of."""
    whole = hashlib.sha256(json.dumps([message, head.branch, head.message, head.replaces_all]).encode())
    for part in (files, head.files):
        for path, content in sorted(part.items()):
            whole.update(path.encode() + b"\0" + hashlib.sha256(content).digest())
    return whole.hexdigest()


def _note(repository: Path) -> Path:
    return repository / ".git" / "perfgate-demo.json"


def _known(where: Path, key: str) -> DemoRepository | None:
    """The repository, if it is there already and its branches are where they were."""
    try:
        note = json.loads(_note(where).read_text())
    except (OSError, ValueError):
        return None
    base_sha, head_sha = note["shas"]
    git = Git(where / ".git")
    branches = git.run("for-each-ref", "--format=%(objectname) %(refname:short)", "refs/heads").decode()
    tips = {name: sha for sha, name in (line.split() for line in branches.splitlines())}
    head_branch = next((name for name, sha in tips.items() if sha == head_sha), None)
    if note["key"] != key or tips.get(_BASE_BRANCH) != base_sha or head_branch is None:
        return None
    return DemoRepository(where, base_sha, head_sha, _BASE_BRANCH, head_branch)


def _import(path: Path, message: str, files: Files, head: _Head) -> tuple[str, str]:
    """Makes the repository; base's and head's SHA."""
    _git("init", "--quiet", f"--initial-branch={_BASE_BRANCH}", "--template=", str(path))
    git = Git(path / ".git")
    stream = b"".join((*_base(message, files), *_head(head), b"done\n"))
    # The commits' SHAs do not depend on how well they are packed; time does.
    git.run("-c", "core.compression=1", "fast-import", "--quiet", "--done", stdin=stream)
    git.run("symbolic-ref", "HEAD", f"refs/heads/{head.branch}")
    _git("-C", str(path), "checkout", "--quiet", "--force", head.branch)
    return _tip(git, _BASE_BRANCH), _tip(git, head.branch)


def _tip(git: Git, branch: str) -> str:
    return git.run("rev-parse", "--verify", f"refs/heads/{branch}").decode().strip()


def _base(message: str, files: Files) -> Iterator[bytes]:
    yield from _commit(_BASE_BRANCH, message, _EPOCH)
    yield from _contents(files)


def _head(head: _Head) -> Iterator[bytes]:
    yield from _commit(head.branch, head.message, _EPOCH + 3600)
    yield f"from refs/heads/{_BASE_BRANCH}\n".encode()
    if head.replaces_all:
        yield b"deleteall\n"
    yield from _contents(head.files)


def _commit(branch: str, message: str, when: int) -> Iterator[bytes]:
    """The beginning of a commit, in the language of `git fast-import`."""
    text = message.encode()
    yield f"commit refs/heads/{branch}\ncommitter {_AUTHOR} {when} +0000\n".encode()
    yield b"data %d\n%s\n" % (len(text), text)


def _contents(files: Files) -> Iterator[bytes]:
    for path, content in sorted(files.items()):
        yield f"M 100644 inline {path}\ndata {len(content)}\n".encode() + content + b"\n"


def _git(*arguments: str) -> None:
    """For what `Git` does not do, as it only reads: with no configuration of the user's, so no hooks or filters."""
    alone = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1", "LC_ALL": "C.UTF-8"}
    alone["PATH"] = os.environ.get("PATH", os.defpath)
    done = subprocess.run(["git", *arguments], env=alone, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PerfgateError(f"git {arguments[0]}: {done.stderr.strip()}")
