"""Everything perfgate says on a pull request besides the report itself. Strangers' words in it are escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from perfgate.config.model import GithubRules
from perfgate.github.access import needed
from perfgate.github.commands import USAGE
from perfgate.github.comment import Accepted, Entry
from perfgate.report.escape import plain

WORDS = {
    "queued": "⏳ queued",
    "running": "⏳ running",
    "cancelled": "⚪ cancelled",
    "pass": "✅ pass",
    "regression": "❌ regression",
    "inconclusive": "❔ inconclusive",
    "environment": "⚠️ environment",
    "build_failed": "🧱 build failed",
    "bench_failed": "🧱 measuring failed",
    "skipped": "⚪ skipped",
}


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What the box will do, as far as it is known before it starts."""

    recipes: tuple[str, ...]
    fewest_launches: int
    most_launches: int
    minutes: int  # of measuring, at most
    ends_by: datetime  # if the box is free now


def sha(full: str) -> str:
    """A commit by its first digits. GitHub makes a link of it."""
    return full[:12]


# ------------------------------------------------------------------------------------------------ replies


def usage() -> str:
    return "One command, the whole first line of a comment:\n\n" + "\n".join(f"- {line}" for line in USAGE)


def malformed(hint: str) -> str:
    return f"{hint} {usage()}"


def not_allowed(command: str, rules: GithubRules) -> str:
    return f"`{command}` needs {needed(command, rules)} permission in this repository."


def sha_needed(head: str) -> str:
    return (
        "This pull request comes from a fork, so name the head you have read: its code runs on the box. "
        f"If you have read {sha(head)}, comment:\n\n```\n/perfgate run {sha(head)}\n```"
    )


def sha_is_not_head(given: str, head: str) -> str:
    return (
        f"`{given}` is not the head any more: that is {sha(head)}. "
        f"If you have read it, comment:\n\n```\n/perfgate run {sha(head)}\n```"
    )


def unknown_recipes(unknown: Iterable[str], known: Sequence[str]) -> str:
    asked = ", ".join(f"`{name}`" for name in unknown)
    return f"There is no recipe {asked}. There is: {', '.join(f'`{name}`' for name in known)}."


def already_running(head: str, log: str) -> str:
    return f"{sha(head)} is being measured already: [live log]({log})."


def broken_config(what: str) -> str:
    return f"perfgate.yml of the base branch cannot be used: {plain(what)}"


def nothing_to_measure(reason: str) -> str:
    return f"### perfgate: nothing to measure\n\n{plain(reason)}"


def accepted(loss: Accepted) -> str:
    return f"**{loss.by}** accepts the loss of {sha(loss.head)}: {plain(loss.reason)}"


def fork_summary(number: int, head: str) -> str:
    return (
        "# perfgate\n\n"
        f"Pull request {number} comes from a fork, so nothing was measured and nothing of it was run. "
        "A maintainer who has read its head starts a measurement with the comment\n\n"
        f"```\n/perfgate run {sha(head)}\n```\n"
    )


# ------------------------------------------------------------------------------------------------ the one comment


def queued(head: str, log: str) -> str:
    return f"### perfgate: ⏳ queued\n\n{sha(head)} is accepted; its difference to the base is being read. [Log]({log})"


def running(head: str, base: str, log: str, plan: Planned) -> str:
    recipes = ", ".join(f"`{name}`" for name in plan.recipes)
    return "\n".join(
        (
            "### perfgate: ⏳ running",
            "",
            f"{sha(head)} against its merge base {sha(base)}, as soon as the box is free. [Live log]({log})",
            "",
            f"- recipes: {recipes}",
            f"- planned launches: {plan.fewest_launches} to {plan.most_launches}, "
            "a base and a head at a time, until every gated metric is decided",
            f"- expected end: {plan.ends_by:%Y-%m-%d %H:%M} UTC at the latest, if the box is free now "
            f"({plan.minutes} minutes of measuring at most, building not counted)",
        )
    )


def without_numbers(title: str, head: str, reason: str, log: str) -> str:
    """The text of a run that measured nothing."""
    return f"### perfgate: {title}\n\n{sha(head)}: {plain(reason)} [Log]({log})"


def own_config(fault: str) -> str:
    """What a pull request's own perfgate.yml would do; empty where nothing is wrong with it."""
    if not fault:
        return ""
    return "\n\n" + note(f"Measured with the base branch's perfgate.yml. This pull request's own: {plain(fault)}")


def note(text: str) -> str:
    return "> [!NOTE]\n" + "\n".join(f"> {line}" for line in text.splitlines()) + "\n"


def stale(head: str, head_now: str) -> str:
    return note(f"This is the verdict of {sha(head)}. The head is {sha(head_now)} now; that was not measured here.")


def stands(log: str) -> str:
    return (
        f"> [!WARNING]\n> On these same two trees [an earlier run]({log}) found a regression, and what follows does "
        "not overcome its evidence: the regression stands. `/perfgate rerun` adds pairs to it.\n"
    )


def earlier(entries: Sequence[Entry], accepts: Sequence[Accepted], runs_url: str) -> str:
    """What happened before, folded."""
    lines = [_row(entry, runs_url) for entry in entries]
    told = [f"- {accepted(loss)} ({loss.at:%Y-%m-%d})" for loss in accepts]
    if not lines and not told:
        return ""
    table = ["| when (UTC) | head | verdict | |", "|---|---|---|---|", *lines] if lines else []
    body = "\n".join([*table, "", *told]).strip("\n")
    return f"<details><summary>Earlier runs ({len(entries)})</summary>\n\n{body}\n\n</details>"


def _row(entry: Entry, runs_url: str) -> str:
    word = WORDS[str(entry.word)] + (" (stale)" if entry.stale else "")
    reason = plain(entry.reason, 200)
    return f"| {entry.at:%Y-%m-%d %H:%M} | {sha(entry.head)} | [{word}]({runs_url}/{entry.run}) | {reason} |"
