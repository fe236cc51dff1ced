"""What a reader of a decision should know besides the decision: cause, numbers, next step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from perfgate.judge.explain import Explanations, PairDifference
from perfgate.judge.noise import LOOSE_SD, WIDE_DF, WIDE_SD
from perfgate.judge.values import Drift, NoisePrior, PairSamples, Policy
from perfgate.records import Notice

DRIFT_ERROR = 0.05
DRIFT_WORTH_TELLING = 0.25  # of the budget
SPREAD_ABOVE_PRIOR = 2.0  # times the ledger's SD, from three pairs on
MEDIAN_LOSES = 1.2533  # SD of a median against that of a mean, √(π/2), normal samples


def drift_of(explained: Explanations) -> Drift | None:
    """What being second in the pair costs, by the good pairs alone; None unless both orders were seen."""
    good = [explained.differences[number] for number in explained.good]
    base_first = [pair.slowdown for pair in good if pair.order > 0]
    head_first = [pair.slowdown for pair in good if pair.order < 0]
    if not base_first or not head_first:
        return None
    means = [math.fsum(side) / len(side) for side in (base_first, head_first)]
    rest = math.fsum(
        (value - mean) ** 2 for side, mean in zip((base_first, head_first), means, strict=True) for value in side
    )
    guess = explained.noise.guesses[0]
    spread = guess.df * guess.sd**2 + rest
    weight = (guess.df + len(good)) / 2
    of_mean = (1 / len(base_first) + 1 / len(head_first)) / 4
    reach = math.sqrt(spread * of_mean * math.expm1(math.log(1 / DRIFT_ERROR) / weight))
    effect = (means[0] - means[1]) / 2
    return Drift(effect, effect - reach, effect + reach)


def caveats(
    explained: Explanations, prior: NoisePrior | None, pairs: Sequence[PairSamples], policy: Policy
) -> tuple[Notice, ...]:
    """All of them on one look, the weightiest first."""
    return (
        *_no_prior(prior),
        *_spread_above_prior(explained, prior),
        *_bad_pairs(explained),
        *_order(explained, policy),
        *_one_order(explained.differences),
        *_samples_scatter(pairs, prior),
    )


def _no_prior(prior: NoisePrior | None) -> Iterator[Notice]:
    if prior is None:
        yield Notice(
            "no_prior",
            f"Nothing is known of this box's noise: an SD of {_percent(LOOSE_SD)} was assumed, and"
            f" {_percent(WIDE_SD)} for the interval. `perfgate calibrate` measures it.",
            {"assumed_sd": LOOSE_SD, "assumed_sd_interval": WIDE_SD, "df_interval": WIDE_DF},
        )


def _spread_above_prior(explained: Explanations, prior: NoisePrior | None) -> Iterator[Notice]:
    good = [explained.differences[number].slowdown for number in explained.good]
    if prior is None or len(good) < 3:
        return
    mean = math.fsum(good) / len(good)
    seen = math.sqrt(math.fsum((value - mean) ** 2 for value in good) / (len(good) - 1))
    if seen > SPREAD_ABOVE_PRIOR * prior.sd:
        yield Notice(
            "spread_above_prior",
            f"Pairs scatter by {_percent(seen)} where {_percent(prior.sd)} was expected: the expectation counts for"
            " less here. `perfgate calibrate` if the box has changed.",
            {"seen_sd": seen, "prior_sd": prior.sd},
        )


def _bad_pairs(explained: Explanations) -> Iterator[Notice]:
    good = set(explained.good)
    for number, difference in enumerate(explained.differences):
        if number not in good:
            yield Notice(
                "bad_pair",
                f"Pair {number + 1} contradicts the rest ({_signed(difference.slowdown)} against"
                f" {_signed(explained.best.centre)}): one of its launches came out far off.",
                {"pair": number + 1, "difference": difference.slowdown, "others": explained.best.centre},
            )


def _order(explained: Explanations, policy: Policy) -> Iterator[Notice]:
    drift = drift_of(explained)
    if drift is None or drift.low <= 0 <= drift.high:
        return
    if abs(drift.effect) > DRIFT_WORTH_TELLING * policy.budget:
        which = "slower" if drift.effect > 0 else "faster"
        yield Notice(
            "order_effect",
            f"The second launch of a pair is {which} by {_percent(abs(drift.effect))}, whichever side it is:"
            " the box warms up or drifts. Alternating orders cancel it.",
            {"effect": drift.effect, "low": drift.low, "high": drift.high},
        )


def _one_order(differences: Sequence[PairDifference]) -> Iterator[Notice]:
    orders = {difference.order for difference in differences}
    if len(differences) > 1 and len(orders) == 1 and orders != {0}:
        yield Notice(
            "one_order",
            "Every pair had the same side first: a drift of the box looks like a change of the code here.",
            {"pairs": len(differences)},
        )


def _samples_scatter(pairs: Sequence[PairSamples], prior: NoisePrior | None) -> Iterator[Notice]:
    variances = [implied_variance(side) for pair in pairs for side in (pair.base, pair.head)]
    known = [variance for variance in variances if variance is not None]
    if not known:
        return
    implied = math.sqrt(2 * math.fsum(known) / len(known))
    allowed = prior.sd if prior else LOOSE_SD
    if implied > allowed:
        yield Notice(
            "samples_scatter",
            f"Samples within a launch scatter so much that pairs must differ by {_percent(implied)} from that"
            f" alone (known: {_percent(allowed)}). More samples per launch would help.",
            {"implied_sd": implied, "prior_sd": allowed},
        )


def implied_variance(samples: Sequence[float]) -> float | None:
    """Variance of a launch's median (log units) that its own samples imply; None from fewer than three."""
    n = len(samples)
    if n < 3:
        return None
    logs = [math.log(sample) for sample in samples]
    mean = math.fsum(logs) / n
    return MEDIAN_LOSES**2 * math.fsum((value - mean) ** 2 for value in logs) / (n - 1) / n


def _percent(log_difference: float) -> str:
    return f"{100 * log_difference:.2g} %"


def _signed(log_difference: float) -> str:
    return f"{100 * log_difference:+.1f} %".replace("-", "−")
