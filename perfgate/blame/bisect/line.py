"""The commits between good and bad as a line of positions: each has code of its own, in the order of history.

A commit whose change cannot be served (docs, tests, CI) shares its parent's position, and its result.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfgate import records as r
from perfgate.errors import PerfgateError
from perfgate.run.plan import compare_commits
from perfgate.source.repository import Repository


@dataclass(frozen=True)
class Position:
    """A commit, and those after it that serve the same. `paths`: what it changed against the position before."""

    commit: r.Commit
    paths: tuple[str, ...] = ()
    pins: bool = False  # what is installed changes with it
    alike: tuple[str, ...] = ()


def positions(
    repository: Repository,
    good: str,
    bad: str,
    *,
    first_parent: bool = True,
    ignore: tuple[str, ...] = (),
    cpu_serves: bool = False,
) -> tuple[Position, ...]:
    """From good, which is position 0, to bad. PerfgateError where bad does not come after good."""
    good_commit, bad_commit = repository.resolve(good), repository.resolve(bad)
    if good_commit.sha == bad_commit.sha:
        raise PerfgateError("good and bad are the same commit", where=str(repository), remedy="name two commits")
    if repository.merge_base(good_commit.sha, bad_commit.sha).sha != good_commit.sha:
        raise PerfgateError(
            f"{bad_commit.sha[:12]} does not come after {good_commit.sha[:12]}",
            where=str(repository),
            remedy="take their merge base as --good, or see with `perfgate gate` whether it is the slow one",
        )
    history = repository.history(good_commit.sha, bad_commit.sha, first_parent=first_parent)
    line = [Position(good_commit)]
    for sha, _ in history:
        before = line[-1]
        commit = repository.resolve(sha)
        between = compare_commits(repository, before.commit, commit, ignore, cpu_serves=cpu_serves)
        if between.diff.nothing:
            line[-1] = Position(before.commit, before.paths, before.pins, (*before.alike, sha))
        else:
            line.append(Position(commit, repository.changed_paths(before.commit.sha, sha), bool(between.diff.pins)))
    if len(line) == 1:
        raise PerfgateError(
            f"nothing between {good_commit.sha[:12]} and {bad_commit.sha[:12]} can change how SGLang serves",
            where=str(repository),
            remedy="look at the environment, the packages and the box",
        )
    return tuple(line)
