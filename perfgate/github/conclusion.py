"""From a verdict to what GitHub's check says: the only place for it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from perfgate.records import Result, Side, Verdict

Conclusion = Literal["success", "failure", "neutral", "cancelled"]
MAX_CHECK_TEXT = 65_535  # characters of a check run's summary

TITLES = {
    Verdict.PASS: "Serving is not slower",
    Verdict.REGRESSION: "Serving is slower",
    Verdict.INCONCLUSIVE: "Undecided",
    Verdict.ENVIRONMENT: "The box was not the same for both sides",
    Verdict.SKIPPED: "Nothing to measure",
    Verdict.BUILD_FAILED: "Build failed",
    Verdict.BENCH_FAILED: "Measuring failed",
}


@dataclass(frozen=True)
class Outcome:
    """What came of a request: a result, or why there is none."""

    verdict: Verdict
    reason: str  # one sentence; may hold strangers' text
    result: Result | None = None
    cancelled: bool = False

    @property
    def failed_side(self) -> Side | None:
        return self.result.failed_side if self.result else None

    @property
    def word(self) -> str:
        return "cancelled" if self.cancelled else str(self.verdict)

    @property
    def title(self) -> str:
        if self.cancelled:
            return "Cancelled"
        who = f" on {self.failed_side}" if self.failed_side and self.verdict not in (Verdict.REGRESSION,) else ""
        return TITLES[self.verdict] + who


def outcome_of(result: Result) -> Outcome:
    return Outcome(result.verdict, result.reason, result)


def conclude(outcome: Outcome, fail_on: Collection[str] = ()) -> Conclusion:
    """`failure`: the change made serving slower, or its head cannot be built or served while base can.

    What perfgate could not find out is `neutral`, which a required check lets pass, unless `fail_on` names it.
    """
    if outcome.cancelled:
        return "cancelled"
    verdict = outcome.verdict
    if verdict in (Verdict.PASS, Verdict.SKIPPED):
        return "success"
    head_failed = verdict in (Verdict.BUILD_FAILED, Verdict.BENCH_FAILED) and outcome.failed_side is Side.HEAD
    return "failure" if verdict is Verdict.REGRESSION or head_failed or verdict in fail_on else "neutral"
