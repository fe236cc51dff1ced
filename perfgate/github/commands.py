"""What a comment asks for. One command, the whole first line, nothing clever.

    /perfgate run [SHA]        SHA: the head that was read; of a fork all 40 digits
    /perfgate rerun [recipe…]
    /perfgate cancel
    /perfgate accept REASON
    /perfgate help

Capitals do not matter in the first two words, nor do up to three blanks before them, as in Markdown. The text is a
stranger's: what is not exactly this grammar is `Malformed`, what does not begin with the word is nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

WORD = "/perfgate"
MAX_LINE = 500
MAX_REASON = 300
MAX_RECIPES = 8

_SHA = re.compile(r"[0-9a-f]{7,40}")
_RECIPE = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_BEGIN = re.compile(rf" {{0,3}}{WORD}(?=[ \t]|$)", re.IGNORECASE | re.ASCII)
_BLANKS = re.compile(r"[ \t]+")


@dataclass(frozen=True)
class Run:
    sha: str | None = None  # at least 7 hex digits, lower case
    name = "run"


@dataclass(frozen=True)
class Rerun:
    recipes: tuple[str, ...] = ()  # names by the grammar; whether they exist is another question
    name = "rerun"


@dataclass(frozen=True)
class Cancel:
    name = "cancel"


@dataclass(frozen=True)
class Accept:
    reason: str
    name = "accept"


@dataclass(frozen=True)
class Help:
    name = "help"


@dataclass(frozen=True)
class Malformed:
    """Meant for perfgate, but not in its language. `hint` is ours and holds no word of the comment."""

    hint: str


Command: TypeAlias = Run | Rerun | Cancel | Accept | Help

USAGE = (
    "`/perfgate run [SHA]`: measure this head. For a fork the full SHA of the head you read is required.",
    "`/perfgate rerun [recipe…]`: add pairs to the evidence of the head that was measured.",
    "`/perfgate cancel`: stop the measurement of this pull request.",
    "`/perfgate accept REASON`: accept the loss that was measured last; the check becomes neutral.",
    "`/perfgate help`: this list.",
)


def parse_command(body: str) -> Command | Malformed | None:
    """The command of a comment; None for a comment that is none of our business."""
    line = body.split("\n", 1)[0].removesuffix("\r")
    begin = _BEGIN.match(line[: len(WORD) + 4])
    if begin is None:
        return None
    if len(line) > MAX_LINE:
        return Malformed(f"The first line is longer than {MAX_LINE} characters.")
    if not line.replace("\t", " ").isprintable():
        return Malformed("The first line holds characters that cannot be seen.")
    rest = line[begin.end() :].strip(" \t")
    verb, _, arguments = _BLANKS.sub(" ", rest).partition(" ")
    return _parse(verb.lower(), arguments)


def _parse(verb: str, arguments: str) -> Command | Malformed:
    match verb:
        case "run":
            return _run(arguments)
        case "rerun":
            return _rerun(arguments)
        case "accept":
            return _accept(arguments)
        case "cancel":
            return Malformed("`cancel` takes nothing after it.") if arguments else Cancel()
        case "help":
            return Malformed("`help` takes nothing after it.") if arguments else Help()
        case "":
            return Malformed("A word is missing after `/perfgate`.")
        case _:
            return Malformed("There is no such command.")


def _run(arguments: str) -> Run | Malformed:
    if not arguments:
        return Run()
    sha = arguments.lower()
    if not _SHA.fullmatch(sha):
        return Malformed("`run` takes one commit SHA of 7 to 40 hex digits, or nothing.")
    return Run(sha)


def _rerun(arguments: str) -> Rerun | Malformed:
    recipes = tuple(dict.fromkeys(arguments.split()))
    if len(recipes) > MAX_RECIPES or not all(_RECIPE.fullmatch(name) for name in recipes):
        return Malformed("`rerun` takes names of recipes, or nothing.")
    return Rerun(recipes)


def _accept(arguments: str) -> Accept | Malformed:
    if not arguments:
        return Malformed("`accept` needs a reason: it is kept beside your name.")
    if len(arguments) > MAX_REASON:
        return Malformed(f"The reason is longer than {MAX_REASON} characters.")
    return Accept(arguments)
