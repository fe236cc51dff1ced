"""Where HEAD was, at any moment: a checkout's reflog, and how far it can be trusted.

A reflog expires, loses what is unreachable sooner than the rest, is not always kept, and is written by a clock that may
be set. Its entries form a chain: each names the commit before. Where the chain is broken, something happened that is
no longer on record.
"""

from __future__ import annotations

import re
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfgate.source.git import Git, GitFailed, find_git_dir
from perfgate.text import visible

_LINE = re.compile(
    rb"^(?P<old>[0-9a-f]{40,64}) (?P<new>[0-9a-f]{40,64}) [^\t]*?"
    rb"(?P<time>\d{1,11}) (?P<zone>[+-]\d{4})(?:\t(?P<message>.*))?$"
)
_WHAT = re.compile(r"[\w-]+(?: \((?:amend|initial|merge|start|finish|pick|continue|abort)\))?")
_MAX_REFLOG = 64 * 2**20
_SHOWN_SUBJECTS = 40
FORGETS_AFTER_S = 30 * 86400.0
"""Git's own default of gc.reflogExpireUnreachable."""


@dataclass(frozen=True)
class Move:
    """One entry of a reflog: when HEAD came to be at `new`."""

    time: float  # seconds since 1970
    zone: int  # of the clock that wrote it, seconds east
    old: str | None  # None: there was no commit before
    new: str
    message: str = ""

    @property
    def what(self) -> str:
        """pull, checkout, commit (amend), rebase …"""
        found = _WHAT.match(self.message)
        return found[0] if found else "unnamed move"


@dataclass(frozen=True)
class History:
    """One checkout. `head` is where it is now; since `whole_since`, nothing was dropped from the middle."""

    path: str
    moves: tuple[Move, ...]
    head: str | None
    whole_since: float

    def heads(self, low: float, high: float) -> frozenset[str | None]:
        """All that HEAD may have been between two moments. None among them: something that is not on record."""
        if not self.moves:
            return frozenset({None})
        found: set[str | None] = set()
        if low < self.moves[0].time:
            found |= {None} if self.moves[0].old is None else {self.moves[0].old, None}
        for index, move in enumerate(self.moves):
            following = self.moves[index + 1] if index + 1 < len(self.moves) else None
            end = following.time if following else float("inf")
            if end < move.time:  # the clock was set back
                if low <= move.time and end <= high:
                    found |= {move.new, None}
                continue
            if move.time <= high and low < end:
                found.add(move.new)
                after = following.old if following else self.head
                if after != move.new:
                    found |= {after, None}
        return frozenset(found)

    def moves_between(self, low: float, high: float) -> tuple[Move, ...]:
        return tuple(move for move in self.moves if low < move.time <= high and move.old != move.new)

    @property
    def begins(self) -> float | None:
        """When the first thing on record happened, if the checkout was made then and nothing is missing before."""
        return self.moves[0].time if self.moves and self.moves[0].old is None else None


def parse_reflog(raw: bytes) -> tuple[Move, ...]:
    """The entries of a reflog file, oldest first. Lines that are none are left out."""
    found = (_LINE.match(line) for line in raw.split(b"\n"))
    return tuple(_move(line) for line in found if line is not None)


def _move(line: re.Match[bytes]) -> Move:
    zone = line["zone"].decode("ascii")
    seconds = 3600 * int(zone[1:3]) + 60 * int(zone[3:])
    old = line["old"].decode("ascii")
    return Move(
        time=float(line["time"]),
        zone=-seconds if zone[0] == "-" else seconds,
        old=old if old.strip("0") else None,
        new=line["new"].decode("ascii"),
        message=visible((line["message"] or b"").decode("utf-8", "replace"), 200),
    )


class Checkouts:
    """A repository's checkouts, the one that was asked for first; reads, and changes nothing."""

    def __init__(self, repo: Path, now: float) -> None:
        self.git_dir = find_git_dir(repo)
        common = self.git_dir / "commondir"
        self.common = (self.git_dir / _first_line(common)).resolve() if common.is_file() else self.git_dir
        self._git = Git(self.git_dir)
        self._now = now
        self._reachable: dict[str, bool] = {}

    def histories(self) -> tuple[History, ...]:
        dirs = [self.common, *sorted(path.parent for path in self.common.glob("worktrees/*/HEAD"))]
        others = [path for path in dirs if path.resolve() != self.git_dir.resolve()]
        return tuple(self._history(path) for path in (self.git_dir, *others) if self._has_files(path))

    def _has_files(self, git_dir: Path) -> bool:
        """Whether a checkout belongs to it: a bare repository has worktrees only."""
        if git_dir != self.common:
            return True
        return git_dir.name == ".git" or not (self.common / "worktrees").is_dir()

    def _history(self, git_dir: Path) -> History:
        log = git_dir / "logs" / "HEAD"
        try:
            with log.open("rb") as file:
                moves = parse_reflog(file.read(_MAX_REFLOG))
        except OSError:
            moves = ()
        return History(str(_work_tree(git_dir)), moves, self._head(git_dir), self._whole_since(moves))

    def _whole_since(self, moves: Sequence[Move]) -> float:
        """An entry that git would have dropped, and that is still there, vouches for all that came after it."""
        oldest_kept = next((move.time for move in moves if self._is_unreachable(move)), float("inf"))
        return min(oldest_kept, self._now - self._forgets_after())

    def _is_unreachable(self, move: Move) -> bool:
        for sha in (move.new, move.old):
            if sha is not None and sha not in self._reachable:
                try:
                    held = self._git.run("for-each-ref", "--count=1", f"--contains={sha}", "--format=held")
                except GitFailed:  # its object is gone
                    held = b""
                self._reachable[sha] = bool(held.strip())
        return not all(self._reachable[sha] for sha in (move.new, move.old) if sha is not None)

    def _forgets_after(self) -> float:
        """gc.reflogExpireUnreachable of the repository, in seconds."""
        try:
            raw = self._git.run("config", "--type=expiry-date", "--get", "gc.reflogExpireUnreachable")
            return max(0.0, clock.time() - float(raw))
        except (GitFailed, ValueError):
            return FORGETS_AFTER_S

    def _head(self, git_dir: Path) -> str | None:
        try:
            return Git(git_dir).run("rev-parse", "--verify", "--end-of-options", "HEAD").decode("ascii").strip()
        except GitFailed:
            return None

    # ------------------------------------------------------------------------------------------------ commits

    def subject(self, sha: str) -> str | None:
        """The first line of a commit's message; None where its object is gone."""
        try:
            raw = self._git.run("log", "-1", "--no-show-signature", "--format=%s", "--end-of-options", sha)
        except GitFailed:
            return None
        return visible(raw.decode("utf-8", "replace"), 100)

    def between(self, old: str, new: str) -> tuple[int, tuple[tuple[str, str], ...]] | None:
        """How many commits a move brought, and the newest of them; None where that is no longer known."""
        try:
            count = int(self._git.run("rev-list", "--count", "--end-of-options", f"{old}..{new}"))
            raw = self._git.run(
                "log",
                f"-{_SHOWN_SUBJECTS}",
                "--no-show-signature",
                "--format=%H %s",
                "--end-of-options",
                f"{old}..{new}",
            )
        except (GitFailed, ValueError):
            return None
        lines = raw.decode("utf-8", "replace").splitlines()
        return count, tuple((line[:40], visible(line[41:], 100)) for line in lines)

    def served_tree(self, sha: str) -> str | None:
        """Git's hash of the Python package at a commit: equal hashes serve alike."""
        try:
            return self._git.run("rev-parse", "--verify", "--end-of-options", f"{sha}:python").decode("ascii").strip()
        except GitFailed:
            return None

    def named(self, text: str) -> str | None:
        """The commit that a version, an image's tag or a short hash names; None where it names none of these."""
        for candidate in _candidates(text):
            try:
                found = self._git.run("rev-parse", "--verify", "--quiet", "--end-of-options", f"{candidate}^{{commit}}")
            except GitFailed:
                continue
            return found.decode("ascii").strip()
        return None

    def files(self, sha: str, folder: str) -> dict[str, str]:
        """Path and blob of the regular files below a folder of a commit; empty where that is no longer known."""
        try:
            raw = self._git.run("ls-tree", "-r", "-z", "--full-tree", "--end-of-options", sha, folder)
        except GitFailed:
            return {}
        entries = (entry.partition(b"\t") for entry in raw.split(b"\0") if entry.startswith(b"100"))
        return {name.decode("utf-8", "surrogateescape"): head.split()[2].decode("ascii") for head, _, name in entries}


def _candidates(text: str) -> Sequence[str]:
    """0.5.9.dev12+gabcdef012 → abcdef012; 0.5.9 and v0.5.9-cu129 → v0.5.9; nightly-dev-20260225-bba2fc4a → bba2fc4a."""
    if found := re.search(r"\+g([0-9a-f]{7,40})\b", text):
        return (found[1],)
    if found := re.match(r"v?(\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)(?![\w.])", text):
        return (f"refs/tags/v{found[1]}",)
    return tuple(
        word
        for word in re.split(r"[^0-9a-z]", text)
        if re.fullmatch(r"[0-9a-f]{7,40}", word) and re.search("[a-f]", word)
    )


def _work_tree(git_dir: Path) -> Path:
    pointer = git_dir / "gitdir"
    if pointer.is_file():
        return Path(_first_line(pointer)).parent
    return git_dir.parent if git_dir.name == ".git" else git_dir


def _first_line(path: Path) -> str:
    return path.read_bytes()[:4096].decode("utf-8", "surrogateescape").strip()
