from __future__ import annotations

import pytest

from perfgate.config.model import GithubRules
from perfgate.github.client import LEVELS, level_of
from perfgate.github.decide import may


@pytest.mark.parametrize(
    ("permission", "role", "level"),
    [
        ("admin", "admin", "admin"),
        ("write", "maintain", "maintain"),
        ("write", "write", "write"),
        ("read", "triage", "triage"),
        ("read", "read", "read"),
        ("none", "none", "none"),
        ("write", "security-champion", "write"),  # an organisation's own role
        ("write", None, "write"),  # older servers
        ("superuser", None, "none"),  # a word that nobody knows
    ],
)
def test_level(permission: str, role: str | None, level: str) -> None:
    assert level_of(permission, role) == level


@pytest.mark.parametrize("command", ["run", "rerun", "cancel", "accept"])
def test_write_is_needed_unless_configured(command: str) -> None:
    allowed = [level for level in LEVELS if may(command, level, GithubRules())]
    assert allowed == ["write", "maintain", "admin"]
    strict = GithubRules.model_validate({"who": {command: "maintain"}})
    assert [level for level in LEVELS if may(command, level, strict)] == ["maintain", "admin"]


def test_authors_may_rerun_their_own_branch_and_no_more() -> None:
    for command in ("run", "cancel", "accept"):
        assert not may(command, "read", GithubRules(), author_of_own_branch=True)
    assert may("rerun", "none", GithubRules(), author_of_own_branch=True)


def test_help_is_everybodys() -> None:
    assert may("help", "none", GithubRules())
