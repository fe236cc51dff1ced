"""A git repository: commits, their relation, their files and trees."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfgate.errors import PerfgateError
from perfgate.records import Commit, Touched
from perfgate.source.git import Git, GitFailed, find_git_dir
from perfgate.source.trees import OddTree, extract
from perfgate.store.entries import Hold, Made, made_once
from perfgate.text import visible

MAX_FILE_BYTES = 4 * 2**20
MAX_TOUCHED = 100
"""Commits whose paths are written down with a run."""
MAX_TOUCHED_PATHS = 60
"""Of one commit; a change of more files is everybody's suspect anyway."""
"""Of a file that perfgate itself reads (configuration, pyproject.toml)."""

_MAX_TITLE = 200
_FULL_SHA = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_DEFAULT_BRANCHES = ("main", "master")


@dataclass(frozen=True)
class Worktree:
    """The files of a commit's tree, read-only, shared by all commits with the same tree."""

    path: Path
    tree: str
    cached: bool
    hold: Hold  # released: it may be evicted


class Repository:
    """Reads a checkout or a bare repository; writes nothing into it, registers nothing in it, fetches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._git = Git(find_git_dir(path))

    def __str__(self) -> str:
        return str(self.path)

    # -------------------------------------------------------------------------------------------- commits

    def resolve(self, ref: str) -> Commit:
        """The commit that a branch, tag, SHA or expression names now; from here on only its full SHA is used."""
        try:
            sha = self._text("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        except GitFailed as error:
            raise self._unknown(ref) from error
        if not _FULL_SHA.fullmatch(sha):
            raise self._unknown(ref)
        return parse_commit(sha, self._git.run("cat-file", "commit", sha))

    def _unknown(self, ref: str) -> PerfgateError:
        shown = visible(ref, 100)
        if not ref.strip():
            return PerfgateError("an empty name is no commit", where=str(self), remedy="name a branch, tag or SHA")
        if re.fullmatch(r"[0-9a-fA-F]{7,64}", ref):
            remedy = f"git -C {self.path} fetch origin {shown}"
        elif near := self._near(ref):
            remedy = f"did you mean {' or '.join(near)}?"
        else:
            remedy = f"git -C {self.path} fetch origin"
        return PerfgateError(f"no commit is called {shown!r} here", where=str(self), remedy=remedy)

    def _near(self, ref: str) -> list[str]:
        """Names that the writer may have meant: the same branch of a remote first."""
        names = [visible(name, 100) for name in self._ref_names()]
        same = [name for name in names if name.endswith("/" + ref)]
        return (same + [name for name in difflib.get_close_matches(ref, names, n=3) if name not in same])[:3]

    def _ref_names(self) -> list[str]:
        try:
            listed = self._git.run("for-each-ref", "--format=%(refname:short)", "--count=20000")
        except GitFailed:
            return []
        return listed.decode("utf-8", "replace").split()

    def default_branch(self) -> str:
        """The branch that pull requests most likely go to, as a full name of git's.

        Origin's HEAD where it leads somewhere, else main or master, remote before local; of a bare repository its HEAD.
        """
        bare = ("HEAD",) if self._is_bare() else ()
        for pointer in ("refs/remotes/origin/HEAD", *bare):
            with suppress(GitFailed):
                name = self._text("symbolic-ref", "--quiet", pointer)
                if self._exists(name):  # the branch may have been renamed or removed since
                    return name
        for name in (f"{place}/{one}" for place in ("refs/remotes/origin", "refs/heads") for one in _DEFAULT_BRANCHES):
            if self._exists(name):
                return name
        raise PerfgateError("no default branch is known here", where=str(self), remedy="name the base with --base")

    def _is_bare(self) -> bool:
        try:
            return self._text("rev-parse", "--is-bare-repository") == "true"
        except GitFailed:
            return False

    def _exists(self, ref: str) -> bool:
        try:
            return bool(self._text("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"))
        except GitFailed:
            return False

    def also_a_branch(self, ref: str) -> str:
        """In words, that a name is a tag's and another commit's branch's as well: git takes the tag. Empty if not."""
        places = [f"refs/tags/{ref}", f"refs/heads/{ref}", f"refs/remotes/origin/{ref}"]
        if not self._exists(places[0]):
            return ""
        tag = self.resolve(places[0])
        for branch in places[1:]:
            if self._exists(branch) and (other := self.resolve(branch)).sha != tag.sha:
                shown = visible(ref, 100)
                return (
                    f"{shown} is a tag ({tag.sha[:12]}) and a branch ({other.sha[:12]}): git takes the tag;"
                    f" name the branch as {visible(branch, 120)}"
                )
        return ""

    def contains(self, branch: str, sha: str) -> bool:
        """Whether a commit is the other or one of its ancestors. Both are full SHAs."""
        try:
            self._git.run("merge-base", "--is-ancestor", sha, branch)
        except GitFailed as error:
            if error.code != 1:
                raise self._broken(error) from error
            return False
        return True

    def merge_base(self, a: str, b: str) -> Commit:
        """The last common ancestor of two full SHAs. With several, git's first choice, as on GitHub."""
        try:
            found = self._text("merge-base", "--end-of-options", a, b)
        except GitFailed as error:
            if error.code != 1:
                raise self._broken(error) from error
            raise self._no_merge_base(a, b) from error
        return self.resolve(found)

    def _no_merge_base(self, a: str, b: str) -> PerfgateError:
        if self._text("rev-parse", "--is-shallow-repository") == "true":
            return PerfgateError(
                f"the clone is shallow and ends before the merge base of {a[:12]} and {b[:12]}",
                where=str(self),
                remedy=f"git -C {self.path} fetch --unshallow (actions/checkout: fetch-depth: 0)",
            )
        return PerfgateError(
            f"{a[:12]} and {b[:12]} have unrelated histories: there is no merge base",
            where=str(self),
            remedy="name the commit to compare with: --base",
        )

    # ---------------------------------------------------------------------------------------------- files

    def read_file(self, sha: str, path: str) -> bytes | None:
        """A regular file of a commit; None where there is none."""
        try:
            listed = self._git.run("ls-tree", "-z", "-l", "--full-tree", "--end-of-options", sha, path)
        except GitFailed as error:
            raise self._broken(error) from error
        head, _, name = listed.rstrip(b"\0").partition(b"\t")
        if not head.startswith(b"100") or name != path.encode():
            return None
        _mode, _kind, oid, size = head.decode("ascii").split()
        if int(size) > MAX_FILE_BYTES:
            raise OddTree(f"{path} has {int(size)} bytes, too many to read", where=sha[:12])
        try:
            return self._git.run("cat-file", "blob", oid)
        except GitFailed as error:
            raise self._broken(error) from error

    def read_both(self, base: str, head: str, path: str) -> tuple[bytes | None, bytes | None]:
        return self.read_file(base, path), self.read_file(head, path)

    def object_at(self, sha: str, path: str) -> str | None:
        """Git's hash of a file or folder of a commit: equal hashes, equal content."""
        try:
            listed = self._git.run("ls-tree", "-z", "--full-tree", "--end-of-options", sha, path.rstrip("/"))
        except GitFailed as error:
            raise self._broken(error) from error
        head, _, name = listed.rstrip(b"\0").partition(b"\t")
        return head.split()[2].decode("ascii") if name == path.rstrip("/").encode() else None

    def names_in(self, sha: str, folder: str) -> tuple[str, ...]:
        """Names of what lies in a folder of a commit; none where there is no such folder."""
        try:
            listed = self._git.run("ls-tree", "-z", "--name-only", "--full-tree", "--end-of-options", sha, f"{folder}/")
        except GitFailed as error:
            raise self._broken(error) from error
        names = (name.decode("utf-8", "surrogateescape") for name in listed.split(b"\0") if name)
        return tuple(name.rpartition("/")[2] for name in names)

    def changed_paths(self, base: str, head: str) -> tuple[str, ...]:
        """Paths that differ between two commits, sorted; a renamed file counts under both names."""
        try:
            output = self._git.run(
                *("diff-tree", "-r", "-z", "--name-only", "--no-renames", "--no-ext-diff", "--no-textconv"),
                *("--ignore-submodules=none", "--end-of-options", base, head),
            )
        except GitFailed as error:
            raise self._broken(error) from error
        names = (name.decode("utf-8", "backslashreplace") for name in output.split(b"\0") if name)
        return tuple(sorted(names))

    def history(self, good: str, bad: str, *, first_parent: bool = True) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The commits of `bad` that `good` has not, oldest first, each with its parents."""
        follow = ("--first-parent",) if first_parent else ()
        try:
            listed = self._git.run(
                "rev-list", "--reverse", "--topo-order", "--parents", *follow, "--end-of-options", f"{good}..{bad}"
            )
        except GitFailed as error:
            raise self._broken(error) from error
        return tuple((one[0], tuple(one[1:])) for one in (line.split() for line in listed.decode("ascii").splitlines()))

    def touched_between(self, base: str, head: str) -> tuple[Touched, ...]:
        """What each commit between two changed, newest first; of merges the branch's own. Empty where they are many."""
        commits = self.history(base, head, first_parent=False)
        own = [(sha, parents[0]) for sha, parents in commits if len(parents) == 1]
        if len(commits) > MAX_TOUCHED:
            return ()
        return tuple(
            Touched(sha=sha, title=self.resolve(sha).title, paths=self.changed_paths(parent, sha)[:MAX_TOUCHED_PATHS])
            for sha, parent in reversed(own)
        )

    def check_sglang(self, sha: str) -> None:
        """Refuses a commit whose tree is not laid out like SGLang's."""
        wanted = {"python/sglang": b"tree", "python/pyproject.toml": b"blob"}
        try:
            listed = self._git.run("ls-tree", "-z", "--full-tree", "--end-of-options", sha, *wanted)
        except GitFailed as error:
            raise self._broken(error) from error
        found = {
            line.partition(b"\t")[2].decode("utf-8", "replace"): line.split(b" ", 2)[1]
            for line in listed.split(b"\0")
            if line
        }
        missing = [path for path, kind in wanted.items() if found.get(path) != kind]
        if missing:
            raise PerfgateError(
                f"commit {sha[:12]} is no SGLang tree: it has no {' and no '.join(missing)}",
                where=str(self),
                remedy="give a checkout of SGLang or of a fork of it as --repo",
            )

    # ---------------------------------------------------------------------------------------------- trees

    def worktree(
        self, commit: Commit, where: Path, *, variant: str = "", finish: Callable[[Path, Path], None] | None = None
    ) -> Worktree:
        """The files of a commit below the folder `where`, read-only and named by their tree's hash.

        `finish(place, path)` may add to what lies in `place` before it becomes `path`; `variant` then names the result.
        """
        name = f"{commit.tree}-{variant}" if variant else commit.tree

        def make(place: Path, _: Hold) -> Mapping[str, Any]:
            extract(self._git, commit.tree, place)
            if finish is not None:
                finish(place, where / name)
            return {"tree": commit.tree}

        try:
            made: Made = made_once(where / name, make)
        except OSError as error:
            what = f"the files of {commit.sha[:12]} cannot be written: {error.strerror}"
            raise PerfgateError(what, where=str(where), remedy="free some space") from error
        return Worktree(made.path, commit.tree, made.cached, made.hold)

    def _is_partial(self) -> bool:
        """Whether git left objects out when it cloned (`--filter`), to fetch them when they are asked for."""
        try:
            return bool(self._git.run("config", "--get-regexp", r"^(extensions\.partialclone|remote\..*\.promisor)$"))
        except GitFailed:
            return False

    def _incomplete(self) -> PerfgateError:
        return PerfgateError(
            "the clone is partial (--filter): it has not all files of these commits, and perfgate fetches nothing",
            where=str(self),
            remedy=f"git -C {self.path} fetch --refetch --no-filter",
        )

    def _text(self, *arguments: str) -> str:
        return self._git.run(*arguments).decode("utf-8", "replace").strip()

    def _broken(self, error: GitFailed) -> PerfgateError:
        if error.lacks_objects and self._is_partial():
            return self._incomplete()
        first = visible(error.line, 200)
        return PerfgateError(f"git: {first}", where=str(self), remedy="git fsck")


def parse_commit(sha: str, raw: bytes) -> Commit:
    """A commit from its own bytes. Title and date are a stranger's: cut, without control characters, or empty."""
    head, _, message = raw.partition(b"\n\n")
    fields: dict[str, bytes] = {}
    for line in head.split(b"\n"):
        name, _, value = line.partition(b" ")
        fields.setdefault(name.decode("ascii", "replace"), value)
    tree = fields.get("tree", b"").decode("ascii", "replace")
    if not _FULL_SHA.fullmatch(tree):
        raise PerfgateError(f"commit {sha[:12]} is damaged: it names no tree", remedy="git fsck")
    text = _decoded(message, fields.get("encoding", b"utf-8"))
    paragraph = text.strip().split("\n\n", 1)[0]
    return Commit(sha=sha, tree=tree, title=visible(paragraph, _MAX_TITLE), date=_date(fields.get("committer", b"")))


def _decoded(text: bytes, encoding: bytes) -> str:
    try:
        return text.decode(encoding.decode("ascii"), "replace")
    except (LookupError, ValueError, UnicodeDecodeError):
        return text.decode("utf-8", "replace")


def _date(committer: bytes) -> str:
    """Commit time in UTC, RFC 3339; empty where it makes no sense."""
    match = re.search(rb"> (-?\d{1,15}) [+-]\d{4}$", committer)
    try:
        return datetime.fromtimestamp(int(match[1]), UTC).isoformat().replace("+00:00", "Z") if match else ""
    except (ValueError, OverflowError, OSError):
        return ""
