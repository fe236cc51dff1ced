"""What a result means, in words: the headline, the verdict of a metric, and the sentences of a report.

Everything here is plain text. Parts of it come from strangers, so whoever shows it escapes it (see `escape`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perfgate.records import (
    Difference,
    Effect,
    Environment,
    Metric,
    MetricVerdict,
    Notice,
    Result,
    Verdict,
    metric_label,
)
from perfgate.report import numbers
from perfgate.text import count, listed, percent

PHASES = {
    "draft_ms": "draft",
    "verify_ms": "verify",
    "draft_extend_ms": "draft-extend",
    "decode_ms": "decode",
    "rest": "rest",
    "accept_length": "accept length",
}
"""Parts of a loss, in the order in which a cycle runs through them; acceptance is none of the cycle."""

READING_ORDER = (
    "tok_s",
    "verify_ms",
    "decode_ms",
    "cycle_ms",
    "draft_ms",
    "draft_extend_ms",
    "accept_length",
    "ttft_ms",
)
MAIN_TIMES = ("verify_ms", "decode_ms", "cycle_ms")  # the one shown beside tok/s: the first that was measured

MOST_SENTENCES = 3  # of one paragraph about differences

GLOSSARY = (
    ("tok/s", "decode tokens per second of decode time, by the client's clock, without the wait for the first token"),
    ("verify ms", "the target model's check of the drafted tokens, in one speculative cycle"),
    ("decode ms", "the target model's forward pass in one step of plain decoding"),
    ("cycle ms", "one step by the client's clock: a speculative cycle, or one token in plain decoding"),
    ("accept length", "tokens that a speculative cycle yields"),
    ("pair", "a base launch and a head launch next to each other, in alternating order"),
    ("change", "head against base in the metric's own direction: fewer tok/s and more ms are slower"),
    ("canary", "a fixed small measurement of the box itself, before and after each launch"),
    ("95 % interval", "every change that the measured pairs do not rule out; valid at each look"),
    ("budget", "the change from which a proven loss fails the check"),
)


def label(metric: Metric, result: Result) -> str:
    """ "tok/s"; with its concurrency where the recipe was measured at several."""
    name = metric_label(metric.metric)
    levels = {one.concurrency for one in result.metrics if one.recipe == metric.recipe}
    return name if len(levels) == 1 else f"{name}, concurrency {metric.concurrency}"


GATED_VERDICTS = {
    MetricVerdict.REGRESSION: "❌\u00a0regression",
    MetricVerdict.INCONCLUSIVE: "❔\u00a0inconclusive",
    MetricVerdict.CONTINUE: "❔\u00a0not decided",
    MetricVerdict.ABSENT: "–\u00a0not measured",
}
GATED_PASSES = {
    Effect.FASTER: "✅\u00a0faster",
    Effect.SAME: "✅\u00a0below budget",
    Effect.SLOWER_WITHIN_BUDGET: "✅\u00a0slower, within budget",
}
SHOWN_EFFECTS = {
    Effect.FASTER: "▲\u00a0faster",
    Effect.SAME: "=\u00a0same",
    Effect.SLOWER_WITHIN_BUDGET: "▽\u00a0slower, within budget",
    Effect.SLOWER: "▼\u00a0slower",
    Effect.UNKNOWN: "?\u00a0not known",
}


def verdict_of(metric: Metric, result: Result) -> str:
    """The verdict of one metric, a shape and words. What is not gated has an effect and no verdict."""
    if result.calibration or result.verdict in (Verdict.ENVIRONMENT, Verdict.BUILD_FAILED, Verdict.SKIPPED):
        return "–\u00a0not judged"
    if metric.base is None and metric.verdict is not MetricVerdict.CONTINUE:
        return GATED_VERDICTS[MetricVerdict.ABSENT]
    if not metric.gated:
        return SHOWN_EFFECTS[metric.effect]
    if metric.verdict is MetricVerdict.PASS:
        return GATED_PASSES.get(metric.effect, "✅\u00a0pass")
    return GATED_VERDICTS[metric.verdict]


# ------------------------------------------------------------------------------------------------ order of metrics


def recipes_of(result: Result) -> tuple[str, ...]:
    """In the order of the result."""
    return tuple(dict.fromkeys(metric.recipe for metric in result.metrics))


def in_reading_order(metrics: Iterable[Metric]) -> list[Metric]:
    """By recipe as they come, then concurrency as it comes, then one fixed order of metrics."""
    metrics = list(metrics)
    recipes = list(dict.fromkeys(metric.recipe for metric in metrics))
    levels = list(dict.fromkeys((metric.recipe, metric.concurrency) for metric in metrics))

    def place(metric: Metric) -> tuple[int, int, int]:
        known = metric.metric in READING_ORDER
        order = READING_ORDER.index(metric.metric) if known else len(READING_ORDER)
        return recipes.index(metric.recipe), levels.index((metric.recipe, metric.concurrency)), order

    return sorted(metrics, key=place)


def first_concurrency(result: Result, recipe: str) -> int | None:
    """The gated one; the first of a recipe where nothing is gated."""
    levels = [metric for metric in result.metrics if metric.recipe == recipe]
    gated = [metric.concurrency for metric in levels if metric.gated]
    return next(iter(gated), levels[0].concurrency if levels else None)


def main_metrics(result: Result, recipe: str) -> list[Metric]:
    """What the first table shows of a recipe: tok/s, the main time, and whatever else is gated."""
    level = first_concurrency(result, recipe)
    here = [metric for metric in result.metrics if metric.recipe == recipe and metric.concurrency == level]
    times = [metric for name in MAIN_TIMES for metric in here if metric.metric == name]
    main = next((metric for metric in times if metric.base is not None), next(iter(times), None))
    return in_reading_order(
        metric
        for metric in result.metrics
        if metric.recipe == recipe and (metric.gated or metric is main or (metric in here and metric.metric == "tok_s"))
    )


def stand_ins(result: Result) -> list[str]:
    """Where the client's cycle stands in the place of a time that the probe did not find, one sentence each."""
    sentences = []
    for recipe in recipes_of(result):
        shown = main_metrics(result, recipe)
        level = first_concurrency(result, recipe)
        if any(metric.metric == "cycle_ms" for metric in shown):
            sentences += [
                f"{recipe}: {metric_label(metric.metric)} was not measured, so cycle ms (by the client's clock)"
                " stands in its place."
                for metric in result.metrics
                if (metric.recipe, metric.concurrency) == (recipe, level)
                and metric.metric in ("verify_ms", "decode_ms")
                and metric.base is None
            ]
    return sentences


# ------------------------------------------------------------------------------------------------ sentences


BY_CODE = "code_sets_variable"


def explained_by_code(result: Result) -> list[str]:
    """What head's or base's own code made differ, a sentence each. What else is explained stands in the notes."""
    told = {notice.text for notice in result.warnings if notice.code == BY_CODE}
    sentences = [_capitalised(_sentence(one.sentence)) for one in result.environment.explained]
    return [sentence for sentence in sentences if sentence in told][:MOST_SENTENCES]


def _first_sentences(differences: Sequence[Difference]) -> str:
    told = " ".join(_capitalised(_sentence(one.sentence)) for one in differences[:MOST_SENTENCES])
    left = len(differences) - MOST_SENTENCES
    return f"{told} And {left} more." if left > 0 else told


def environment_sentences(environment: Environment) -> list[str]:
    """Whether the two sides ran with the same; what nobody explains comes first."""
    same, explained, unexplained = environment.same, environment.explained, environment.unexplained
    if not (same or explained or unexplained):
        return ["What the two sides ran with was not compared."]
    sentences = []
    if unexplained:
        told = _first_sentences(unexplained)
        sentences.append(f"Not the same for both sides, and the change does not explain it: {told}")
    if same:
        things = count(len(same), "thing")
        if explained or unexplained:
            sentences.append(f"All else that was compared is the same ({things}).")
        else:
            sentences.append(f"Both sides ran with the same ({things} compared).")
    return sentences


def _sentence(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?…" else f"{text}."


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def canary_sentence(result: Result) -> str:
    """Whether the box itself was steady between the launches."""
    moved = [canary for canary in result.canary if canary.steady is False]
    if moved:
        return f"The box moved while it was measured. {' '.join(_sentence(canary.sentence) for canary in moved[:3])}"
    shifts = [abs(canary.shift) for canary in result.canary if canary.shift is not None]
    if not shifts:
        return "The box's own speed was not watched (no canary)."
    unsure = [canary for canary in result.canary if canary.steady is None]
    if unsure:
        return f"Whether the box was steady is not known for sure. {_capitalised(_sentence(unsure[0].sentence))}"
    largest = percent(max(shifts), signed=False)
    return f"The box was steady between the launches (canary: no shift above {largest})."


def detectable_sentence(result: Result) -> str | None:
    """What these pairs could have shown. A pass without it would be an empty word."""
    if result.verdict in (Verdict.ENVIRONMENT, Verdict.REGRESSION):
        return None  # nothing is judged, or it was seen
    parts = []
    for recipe in recipes_of(result):
        gated = [metric for metric in main_metrics(result, recipe) if metric.gated and metric.detectable is not None]
        sizes = [f"≥ {numbers.loss(one.detectable, one.better)} {metric_label(one.metric)}" for one in gated]
        if sizes:
            pairs = count(max(metric.pairs for metric in gated), "pair")
            parts.append(f"{recipe} {' or '.join(sizes)} ({pairs})")
    return f"These pairs would have shown a loss of: {'; '.join(parts)}." if parts else None


def ungated_losses(result: Result) -> str | None:
    """Losses beside the verdict: of what is only shown, where the verdict itself tells of no loss."""
    slower = [
        f"{one.recipe} {numbers.change(one)} {metric_label(one.metric)} at concurrency {one.concurrency}"
        for one in in_reading_order(result.metrics)
        if not one.gated and one.effect is Effect.SLOWER and one.base is not None
    ]
    if result.verdict not in (Verdict.PASS, Verdict.INCONCLUSIVE) or result.calibration or not slower:
        return None
    return f"Slower all the same, but not gated: {listed(slower, 4)}."


def outputs_sentences(result: Result) -> list[str]:
    """Whether head still answers as base does, and what it means."""
    if not result.outputs_differ or result.calibration:
        return []
    told = [notice.text for notice in result.warnings if notice.code == "outputs_differ"]
    plain = "Head answers some prompts with other tokens than base, at temperature 0."
    return [*(told or [plain]), "Only a change that is meant to alter answers, or their rounding, should do that."]


def failure(result: Result) -> Notice | None:
    """The first notice that brings the last lines of a log."""
    return next((notice for notice in result.warnings if lines_of(notice)), None)


def lines_of(notice: Notice) -> tuple[str, ...]:
    """Lines of a log; a stranger's text."""
    lines = notice.data.get("lines")
    if isinstance(lines, Sequence) and not isinstance(lines, str):
        return tuple(str(line) for line in lines)
    return ()


def failure_lines(result: Result) -> tuple[str, ...]:
    """The last lines of what failed; a stranger's text."""
    found = failure(result)
    return lines_of(found) if found else ()


def notices(result: Result) -> list[Notice]:
    """Warnings first, what was fixed from the start last. What is said elsewhere already is not said twice."""
    stood_in = bool(stand_ins(result))
    by_code, outputs = explained_by_code(result), outputs_sentences(result)

    def is_said(notice: Notice) -> bool:
        repeats = bool(lines_of(notice)) and notice.text.rstrip(".") in result.reason
        return (
            repeats
            or (notice.code == "metric_absent" and stood_in)
            or (notice.code == "outputs_differ" and notice.text in outputs)
            or (notice.code == BY_CODE and notice.text in by_code)
            or notice.code == "cancelled"
        )

    told = [notice for notice in result.warnings if not is_said(notice)]
    return sorted(told, key=lambda notice: (notice.code == "condition", notice.code != "failed_in_passing"))


def paragraphs(result: Result) -> list[tuple[str, list[str]]]:
    """What stands under the first table: a title of a few words, then sentences."""
    lost = [part.sentence for part in result.decomposition[:6] if part.sentence]
    watched = bool(result.launches) or result.verdict is Verdict.ENVIRONMENT
    box = [*environment_sentences(result.environment), canary_sentence(result)] if watched else []
    told: list[tuple[str, Sequence[str | None]]] = [
        ("Where the time goes.", lost),
        ("Outputs.", outputs_sentences(result)),
        ("Beside the verdict.", [ungated_losses(result)]),
        ("Changed by the code itself.", explained_by_code(result) if watched else []),
        ("The box.", box),
        ("What could be seen.", [detectable_sentence(result)]),
        ("Read with care.", stand_ins(result)[:4]),
    ]
    kept = [(title, [sentence for sentence in sentences if sentence]) for title, sentences in told]
    return [(title, sentences) for title, sentences in kept if sentences]
