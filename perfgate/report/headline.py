"""The first lines of a report: the verdict with the commit it speaks of, who has to act, and what became of tok/s.

Plain text, as in `words`: whoever shows it escapes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfgate.records import Effect, Metric, Result, Side, Verdict, metric_label
from perfgate.report import numbers, words
from perfgate.text import SPACE, pair_of_amounts, percent, visible


@dataclass(frozen=True)
class Headline:
    """The first thing a reader sees: a shape, the verdict, and whether anyone has to act."""

    symbol: str
    verdict: str
    act: str
    must_act: bool

    def __str__(self) -> str:
        return f"{self.symbol} perfgate: {self.verdict} – {self.act}"


NOBODY = "nobody has to act"
AUTHOR = "the author has to act"
MAINTAINER = "a maintainer has to act"
OWNER = "the box's owner has to act, not the author"
OWNER_ALONE = "the box's owner has to act"

STEPS = {
    Verdict.REGRESSION: "Make it faster, or have the loss accepted: `/perfgate accept <reason>`, by anyone who may.",
    Verdict.INCONCLUSIVE: "`/perfgate rerun` adds pairs to these; nothing measured so far is lost.",
    Verdict.ENVIRONMENT: "Once the box is steady again, `/perfgate rerun` measures anew.",
}
STEPS_AFTER_FAILURE = {
    Side.HEAD: "Push a fix; or `/perfgate rerun` where the cause was not in the code.",
    Side.BASE: "Once the base branch is mended, rebase on it: `/perfgate rerun` alone measures the same base again.",
    None: "Once the box is mended, `/perfgate rerun` tries again.",
}
"""What to do next on a pull request; sentences of our own, with commands in backticks."""


def next_step(result: Result) -> str | None:
    if result.verdict is Verdict.INCONCLUSIVE and not headline(result).must_act:
        return "`/perfgate rerun` goes on where it was cancelled; nothing measured so far is lost."
    if result.verdict in (Verdict.BUILD_FAILED, Verdict.BENCH_FAILED):
        return STEPS_AFTER_FAILURE[result.failed_side]
    return STEPS.get(result.verdict)


SHORT = 10  # digits of a commit


def short_sha(sha: str) -> str:
    return visible(sha[:SHORT]) or "(no commit)"


def headline(result: Result) -> Headline:
    """The first line. Every state has its own, with the commit that it speaks of."""
    head = short_sha(result.head.sha)
    if result.calibration:
        return _calibration(result.verdict, head)
    if result.verdict is Verdict.BUILD_FAILED:
        return _failed(result, "does not build", "the build failed on the box")
    if result.verdict is Verdict.BENCH_FAILED:
        return _failed(result, "does not serve", "measuring failed")
    if result.verdict is Verdict.INCONCLUSIVE and any(notice.code == "cancelled" for notice in result.warnings):
        return Headline("⏹️", f"cancelled before a verdict on {head}", NOBODY, False)
    return {
        Verdict.PASS: Headline("✅", _pass(result, head), NOBODY, False),
        Verdict.SKIPPED: Headline("⚪", f"skipped, nothing to measure in {head}", NOBODY, False),
        Verdict.REGRESSION: Headline("❌", f"regression, {head} is slower", AUTHOR, True),
        Verdict.INCONCLUSIVE: Headline(
            "❔", f"inconclusive on {head}, neither a loss nor its absence is proven", MAINTAINER, True
        ),
        Verdict.ENVIRONMENT: Headline("⚠️", f"environment, this says nothing about {head}", OWNER, True),
    }[result.verdict]


def _calibration(verdict: Verdict, commit: str) -> Headline:
    """One commit against itself: no verdict on any change."""
    return {
        Verdict.PASS: Headline("📏", f"calibration with {commit}, the box's noise is measured", NOBODY, False),
        Verdict.INCONCLUSIVE: Headline("❔", f"calibration with {commit}, not complete", OWNER_ALONE, True),
        Verdict.ENVIRONMENT: Headline(
            "⚠️", f"calibration with {commit}, of no use: the box was not steady", OWNER_ALONE, True
        ),
    }.get(verdict, Headline("🧱", f"calibration with {commit}, could not be measured", OWNER_ALONE, True))


def _failed(result: Result, fails: str, nobodys_fault: str) -> Headline:
    base, head = short_sha(result.base.sha), short_sha(result.head.sha)
    if result.failed_side is Side.HEAD:
        return Headline("❌", f"head {head} {fails}", AUTHOR, True)
    if result.failed_side is Side.BASE:
        return Headline("🧱", f"base {base} {fails}, {head} is not to blame", MAINTAINER, True)
    return Headline("🧱", f"{nobodys_fault}, this says nothing about {head}", OWNER, True)


def _pass(result: Result, head: str) -> str:
    but = "".join(f"; {crash}" for crash in _crashes(result))
    but += "; slower where it is not gated" if words.ungated_losses(result) else ""
    but += "; some answers differ" if result.outputs_differ else ""
    effects = {metric.effect for metric in result.metrics if metric.gated}
    if Effect.SLOWER_WITHIN_BUDGET in effects or Effect.SLOWER in effects:
        return f"pass, {head} is slower within the budget{but}"
    return f"pass, {head} {'is faster' if Effect.FASTER in effects else 'loses less than the budget'}{but}"


def _crashes(result: Result) -> list[str]:
    """ "head crashed once in 5 launches, base never": the log's reason is told below."""
    told = [notice.text for notice in result.warnings if notice.code == "failed_in_passing"]
    return [text.partition(":")[0] for text in told]


def first_sentence(result: Result) -> str | None:
    """What happened to tok/s of the recipe that lost most, then to its main time."""
    judged = (Verdict.PASS, Verdict.REGRESSION, Verdict.INCONCLUSIVE)
    speeds = [
        metric
        for recipe in words.recipes_of(result)
        for metric in words.main_metrics(result, recipe)
        if metric.metric == "tok_s" and metric.slowdown is not None and metric.base is not None
    ]
    if result.verdict not in judged or result.calibration or not speeds:
        return None
    worst = max(speeds, key=lambda metric: metric.slowdown or 0.0)
    if worst.effect not in (Effect.SLOWER, Effect.SLOWER_WITHIN_BUDGET):  # nothing lost: the one that gained, if any
        worst = min(
            (one for one in speeds if one.effect is Effect.FASTER), key=lambda one: one.slowdown or 0, default=worst
        )
    size = percent(abs(worst.change) if worst.change is not None else None, signed=False)
    what = {
        Effect.SLOWER: f"is {size} slower",
        Effect.SLOWER_WITHIN_BUDGET: f"is {size} slower",
        Effect.FASTER: f"is {size} faster",
    }.get(worst.effect, f"measured {numbers.change(worst)}")
    time = next(
        (metric for metric in words.main_metrics(result, worst.recipe) if metric.metric in words.MAIN_TIMES), None
    )
    phase = f"; {_from_to(time)}" if time is not None and time.base is not None else ""
    return f"{worst.recipe} {what}: {_from_to(worst)}{phase}."


def _from_to(metric: Metric) -> str:
    """ "94.13 → 60.26 tok/s", "verify 18.99 → 28.95 ms"."""
    base, head = pair_of_amounts(metric.base, metric.head)
    name, _, unit = metric_label(metric.metric).rpartition(" ")
    return f"{name} {base} → {head}{SPACE}{unit}".lstrip()
