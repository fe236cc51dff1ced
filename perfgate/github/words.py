"""Everything perfgate says on a pull request besides the report itself. Strangers' words in it are escaped here.

Each state of a pull request has a first line of its own: a shape, the commit it speaks of, what is the case, and who
has to act. Where somebody is to paste a commit it stands in full: a few digits of it do not name one, since whoever
writes the commits can make two with the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from perfgate.github.commands import USAGE
from perfgate.github.comment import Accepted, Entry
from perfgate.records import Verdict
from perfgate.report.escape import plain
from perfgate.report.headline import AUTHOR, MAINTAINER, NOBODY, OWNER, Headline, short_sha

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
    """A commit by its first digits, to read and not to paste. GitHub makes a link of it."""
    return short_sha(full)


# ------------------------------------------------------------------------------------------------ first lines


HEAD = "{head}"  # in a headline of ours: the commit it speaks of


def first_line(head: str, headline: Headline) -> str:
    return f"### {headline.symbol} perfgate: {plain(_verdict(head, headline))} – {headline.act}"


def title(head: str, headline: Headline) -> str:
    """Of a check."""
    return f"{_verdict(head, headline)} – {headline.act}"


def _verdict(head: str, headline: Headline) -> str:
    return headline.verdict.replace(HEAD, sha(head))


MEASURING = Headline("⏳", f"measuring {HEAD}", NOBODY, False)
STANDS = Headline("❌", f"an earlier regression of {HEAD} stands", AUTHOR, True)
NOTHING = Headline("⚪", f"skipped, nothing to measure in {HEAD}", NOBODY, False)
UNKNOWN_PAST = Headline("⚠️", f"{HEAD} passed, but what was found before could not be read", MAINTAINER, True)
OTHER_BASE = Headline("⚠️", f"{HEAD} was measured against another base", MAINTAINER, True)


@dataclass(frozen=True)
class NoResult:
    """Why a request ended without a result, in words of its own: what, who acts, and the next step."""

    headline: Headline
    step: str
    verdict: Verdict = Verdict.ENVIRONMENT


def _unmeasured(symbol: str, why: str, act: str, step: str) -> NoResult:
    return NoResult(Headline(symbol, f"{HEAD} was not measured: {why}", act, act != NOBODY), step)


CANCELLED = _unmeasured("⚪", "cancelled", NOBODY, "`/perfgate run` measures it after all.")
OUT_OF_TIME = _unmeasured(
    *("⌛", "the job ran out of its time", OWNER),
    "Look at the live log for what took so long; then `/perfgate rerun`, or more `limits.minutes` in perfgate.yml.",
)
RUNNER_LOST = _unmeasured(
    "🔌", "the runner was lost, or its job ended early", OWNER, "Once the runner is back, `/perfgate rerun`."
)
REFUSED = _unmeasured("⛔", "the box refused", OWNER, "Once that is mended, `/perfgate run` with the same SHA.")
NOTHING_CAME = _unmeasured(
    "📭", "the box sent no result back", OWNER, "The live log says how far it came; `/perfgate rerun`."
)
NOT_BELIEVED = _unmeasured(
    *("🚫", "what the box sent back is not believed", MAINTAINER),
    "The artifact is kept with the run. `/perfgate rerun` measures anew.",
)
COMMITS_UNREAD = _unmeasured(
    *("🔀", "it could not be compared with its base", MAINTAINER),
    "Rebase it on its base branch, or re-run the job where GitHub did not answer.",
)
NOT_CONFIGURED = _unmeasured(
    *("🔧", "perfgate.yml of the base branch cannot be used", MAINTAINER),
    "Mend it on the base branch (`perfgate config --check`), then `/perfgate run`.",
)
ENDED_EARLY = _unmeasured("🔧", "perfgate itself ended early", MAINTAINER, "The log says why. Re-run the job.")


def accepted_headline(loss: Accepted) -> Headline:
    return Headline("☑️", f"the regression of {HEAD} is accepted by {loss.by}", NOBODY, False)


def moved_headline(entry: Entry | None) -> Headline:
    """The head is another one now, and nobody measures it."""
    told = f"; what follows is of {sha(entry.head)}" if entry else ""
    return Headline("➡️", f"{HEAD} was not measured{told}", NOBODY, False)


def again_headline(entry: Entry) -> Headline:
    """The head is one that was measured before: a push went back to it."""
    symbol, _, word = WORDS[str(entry.word)].partition(" ")
    bad = entry.word in (Verdict.REGRESSION, Verdict.BUILD_FAILED, Verdict.BENCH_FAILED)
    return Headline(symbol, f"{word} of {HEAD}, as measured before", AUTHOR if bad else NOBODY, bad)


# ------------------------------------------------------------------------------------------------ replies


def usage() -> str:
    return "One command, the whole first line of a comment:\n\n" + "\n".join(f"- {line}" for line in USAGE)


def malformed(hint: str) -> str:
    return f"{hint} {usage()}"


def not_allowed(command: str, needed: str) -> str:
    return f"`{command}` needs {needed} permission in this repository."


def _run(head: str) -> str:
    return f"```\n/perfgate run {head}\n```"


def sha_needed(head: str) -> str:
    return (
        "This pull request comes from a fork, so name the head you have read, with all its 40 digits: its code runs on "
        f"the box. If you have read {sha(head)}, comment:\n\n{_run(head)}"
    )


def sha_is_not_head(given: str, head: str) -> str:
    return f"`{given}` is not the head: that is {sha(head)}. If you have read it, comment:\n\n{_run(head)}"


def newest_is_of_another_head(measured: str, head: str) -> str:
    return (
        f"The verdict that was the newest when you wrote is of {sha(measured)}, but the head is {sha(head)}. "
        "Nothing is accepted. `/perfgate run` measures the head; accept that, if you still want to."
    )


def unknown_recipes(unknown: Iterable[str], known: Sequence[str]) -> str:
    asked = ", ".join(f"`{name}`" for name in unknown)
    return f"There is no recipe {asked}. There is: {', '.join(f'`{name}`' for name in known)}."


def already_running(head: str, log: str) -> str:
    return f"{sha(head)} is being measured already: [live log]({log})."


def broken_config(what: str) -> str:
    return f"perfgate.yml of the base branch cannot be used: {plain(what)} {NOT_CONFIGURED.step}"


def went_wrong(what: str, log: str) -> str:
    return f"This could not be carried out: {plain(what)} [Log]({log}). Write the command again when that is mended."


def nothing_to_measure(reason: str) -> str:
    return f"### perfgate: nothing to measure\n\n{plain(reason)}"


def accepted(loss: Accepted) -> str:
    return f"**{loss.by}** accepts the loss of {sha(loss.head)}: {plain(loss.reason)}"


def fork_summary(number: int, head: str) -> str:
    return (
        "# perfgate\n\n"
        f"Pull request {number} comes from a fork, so nothing was measured and nothing of it was run. "
        f"A maintainer who has read its head starts a measurement with the comment\n\n{_run(head)}\n"
    )


def robot_summary(number: int, robot: str) -> str:
    return (
        "# perfgate\n\n"
        f"Pull request {number} comes from {robot}, whose workflows get a token that can only read: nothing was "
        "measured. A maintainer starts a measurement with the comment\n\n```\n/perfgate run\n```\n"
    )


# ------------------------------------------------------------------------------------------------ the one comment


def running(head: str, base: str, log: str, plan: Planned) -> str:
    recipes = ", ".join(f"`{name}`" for name in plan.recipes)
    return "\n".join(
        (
            first_line(head, MEASURING),
            "",
            f"Against its merge base {sha(base)}, as soon as the box is free. [Live log]({log})",
            "",
            f"- recipes: {recipes}",
            f"- planned launches: {plan.fewest_launches} to {plan.most_launches}, "
            "a base and a head at a time, until every gated metric is decided",
            f"- expected end: {plan.ends_by:%Y-%m-%d %H:%M} UTC at the latest, if the box is free now "
            f"({plan.minutes} minutes of measuring at most, building not counted)",
        )
    )


def without_numbers(head: str, headline: Headline, reason: str, step: str, log: str) -> str:
    """The text of a request that came to no numbers."""
    sentence = plain(reason, 600)
    return f"{first_line(head, headline)}\n\n{sentence}{' ' if sentence else ''}[Log]({log})" + (
        f"\n\n**What next.** {step}" if step else ""
    )


def own_config(fault: str) -> str:
    """What a pull request's own perfgate.yml would do."""
    return note(f"Measured with the base branch's perfgate.yml. This pull request's own: {plain(fault)}")


def note(text: str) -> str:
    return "> [!NOTE]\n" + "\n".join(f"> {line}" for line in text.splitlines()) + "\n"


def stale(head: str, head_now: str) -> str:
    return note(f"This is the verdict of {sha(head)}. The head is {sha(head_now)} now; that was not measured here.")


def stands(log: str) -> str:
    return (
        f"> [!WARNING]\n> On these same two trees [an earlier run]({log}) found a regression, and what follows does "
        "not overcome its evidence: the regression stands. `/perfgate rerun` adds pairs to it.\n"
    )


def unknown_past(what: str) -> str:
    return note(
        f"What perfgate found before could not be read ({plain(what)}), so whether a regression of the same two trees "
        "stands is not known. Re-run the job."
    )


def other_base(base: str) -> str:
    return (
        "The pull request goes to another branch now. What was measured before speaks of another base. "
        f"`/perfgate run` measures it against {plain(base)}."
    )


def report_of(entry: Entry, runs_url: str) -> str:
    """Above a report that stays while something else is the case."""
    return f"**Measured last:** {WORDS[str(entry.word)]} at {sha(entry.head)} ([log]({runs_url}/{entry.run}))"


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
