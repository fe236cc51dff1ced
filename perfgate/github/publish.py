"""`perfgate publish`: the last job. Says on the pull request what the box measured.

The artifact is a stranger's until it has been validated; number and SHAs are checked against what was authorised, and
the head is read again. Comment, conclusion and summary are made here from the numbers, never taken from the artifact.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfgate.github import words
from perfgate.github.artifact import ArtifactError, ArtifactMissing, read_artifact
from perfgate.github.conclusion import Conclusion, Outcome, conclude, outcome_of
from perfgate.github.request import Request
from perfgate.github.say import Desk
from perfgate.github.settle import settle, subject_of
from perfgate.records import Verdict
from perfgate.text import visible

JobResult = Literal["success", "failure", "cancelled", "skipped"]
"""What GitHub says of the measure job."""

MAX_SUMMARY_TEXT = 900_000  # characters; GitHub drops a summary over 1 MiB


@dataclass(frozen=True)
class Measured:
    """What is known of the measure job. `reason` and `artifact` come from the box: a stranger's."""

    result: JobResult
    artifact: Path
    reason: str = ""


def publish(desk: Desk, request: Request, measured: Measured) -> Conclusion:
    """Sets check and comment, writes job summary and outputs. Done again it changes nothing."""
    outcome = read_outcome(request, measured)
    conclusion: Conclusion
    if request.pr is None:
        conclusion, url = conclude(outcome, request.fail_on), ""
        text = _text_alone(desk, request, outcome)
    else:
        current = desk.client.pull(request.pr).head
        sticky = desk.find_sticky(request.pr, request.sticky)
        settled = settle(desk, subject_of(request, request.pr), outcome, sticky, current)
        conclusion, url, text = settled.conclusion, settled.comment_url, settled.text(MAX_SUMMARY_TEXT)
    desk.job.write_summary(text)
    for name, value in (("verdict", outcome.word), ("conclusion", conclusion), ("comment-url", url)):
        desk.job.write_output(name, value)
    return conclusion


def read_outcome(request: Request, measured: Measured) -> Outcome:
    """What came of it. Whatever is wrong with the artifact is an outcome too, not an error of this job."""
    if measured.result == "cancelled":
        return Outcome(Verdict.ENVIRONMENT, "The measurement was cancelled.", cancelled=True)
    try:
        return outcome_of(read_artifact(measured.artifact, request))
    except ArtifactMissing as error:
        why = "The runner was lost or its job ended early" if measured.result == "failure" else "Nothing was measured"
        return Outcome(Verdict.ENVIRONMENT, f"{why}: {visible(measured.reason, 300) or error.what}.")
    except ArtifactError as error:
        return Outcome(Verdict.ENVIRONMENT, f"What the box sent back cannot be used: {error.what}.")


def _text_alone(desk: Desk, request: Request, outcome: Outcome) -> str:
    if outcome.result is not None:
        return desk.report(outcome.result, MAX_SUMMARY_TEXT)
    return words.without_numbers(outcome.title, request.head, outcome.reason, desk.job.run_url)
