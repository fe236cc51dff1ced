"""Who may do what. Pure decisions from what GitHub said; nobody's word about themselves counts."""

from __future__ import annotations

from dataclasses import dataclass

from perfgate.config.model import GithubRules

LEVELS = ("none", "read", "triage", "write", "maintain", "admin")


@dataclass(frozen=True)
class Person:
    """Somebody as an event names them. The number is the identity; a login can change hands."""

    login: str
    id: int
    bot: bool = False


GHOST = Person("ghost", 0)


def level_of(permission: str, role: str | None) -> str:
    """The level in LEVELS. GitHub's `permission` folds maintain into write and triage into read; `role_name` does not.

    A role of an organisation's own making is worth the permission it is built on.
    """
    if role in LEVELS:
        return str(role)
    return permission if permission in LEVELS else "none"


def at_least(level: str, needed: str) -> bool:
    return LEVELS.index(level) >= LEVELS.index(needed)


def may(command: str, level: str, rules: GithubRules, *, author_of_own_branch: bool = False) -> bool:
    """Whether a command of somebody of this level is allowed. `help` is everybody's.

    `author_of_own_branch`: the pull request is this person's own and comes from no fork; enough for `rerun`.
    """
    if command == "help":
        return True
    if command == "rerun" and author_of_own_branch:
        return True
    return at_least(level, needed(command, rules))


def needed(command: str, rules: GithubRules) -> str:
    return str(getattr(rules.who, command))
