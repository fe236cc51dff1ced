"""What is taken for granted about noise: the ledger's prior as guesses, and how a prior is learned.

A pair of launches of the same code differs by a normal amount of SD σ, unless one of its launches was bad: came
out far off, as about one launch in twelve does on some boxes. σ is never known, only guessed: a guess (sd, df) is
a scaled inverse χ² distribution of σ² (Gelman et al., Bayesian Data Analysis, 3rd ed., §2.6), worth df pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfgate.judge.values import JudgeInputError, NoisePrior

SHARE_UNSEEN = 0.01  # bad pairs where the ledger saw none: rare, but never impossible
FAR_AT_LEAST = 0.03  # log units: a bad launch is at least this far off before its distance itself tells
SURPRISE = 0.05  # how likely it is beforehand that the ledger's noise no longer holds
DOUBT = 0.3  # the same where a regression is asked for, of a ledger that claims little noise; simulated (docs/judge.md)
DOUBTED_TIMES = 3.0  # how much noisier the pairs may be than such a ledger says
DOUBTED_DF = 10.0  # what such a ledger is worth at most: the box of forty quiet pairs may be another box today
QUIET, LOUD = 1 / 2, 2 / 3  # of the budget: below, a wrong ledger fails commits; above, it takes many pairs anyway
ORDER_SMALL = 0.1  # variance of what being second costs, in units of σ², where nothing is known of it
ORDER_SURE = 4.0  # standard errors from which on the ledger knows that being second costs something
LEAST_SD = 1e-5  # ten equal pairs are a coarse clock, not a box without noise
LOOSE_SD, LOOSE_DF = 0.02, 3.0  # the guess where the ledger is wrong, or empty
WIDE_SD, WIDE_DF = 0.035, 1.0  # what an interval must reckon with where nothing is known

# Of learning. A pair is called bad in hindsight only if it lies this many SD of the others away.
SEPARATION = 3.5
BAD_BEFOREHAND, BAD_WEIGHT = 0.1, 20 / 3  # once bad pairs are seen: one in ten, worth that many pairs


@dataclass(frozen=True, slots=True)
class Guess:
    """One guess of σ: sd, worth df pairs; cost in nats is minus the log of its probability beforehand."""

    sd: float
    df: float
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Noise:
    """Guesses of σ, the likeliest first; the share of bad pairs; how far off they are at least (log units).

    order: variance of what being the second launch costs, in units of σ².
    """

    guesses: tuple[Guess, ...]
    bad: float = SHARE_UNSEEN
    far: float = FAR_AT_LEAST
    order: float = ORDER_SMALL

    @property
    def bad_cost(self) -> float:
        """Nats for calling a pair bad in one direction rather than good.

        Bad launches may come out at the same wrong place again and again (two modes), so being bad is charged by
        its frequency alone, as if all bad pairs were as dense as good ones; never by how far they scatter.
        """
        return math.log((1 - self.bad) / (self.bad / 2))


LOOSE = Noise((Guess(LOOSE_SD, LOOSE_DF),), far=3 * LOOSE_SD)
WIDE = Noise((Guess(WIDE_SD, WIDE_DF),), far=3 * WIDE_SD)


def noise_from(prior: NoisePrior) -> Noise:
    """The ledger's guess, and a loose one for the case that the noise has changed since."""
    return _noise(prior, prior.df, SURPRISE, 2.0)


def doubted(prior: NoisePrior, budget: float) -> Noise:
    """The same for whoever asks for a regression: a ledger that is too quiet fails commits that changed nothing.

    Two pairs alone cannot tell a loss from a noise three times the ledger's, and this says so: they must lie beyond
    what such noise does, or a third pair must show by its scatter which it is.
    """
    quiet = min(1.0, max(0.0, (LOUD - prior.sd / budget) / (LOUD - QUIET)))
    sure = min(1.0, max(0.0, (prior.df - LOOSE_DF) / LOOSE_DF))  # what is worth three pairs has long tails of its own
    share = quiet * sure
    df = min(prior.df, DOUBTED_DF)
    return _noise(prior, df, SURPRISE + (DOUBT - SURPRISE) * share, 2.0 + (DOUBTED_TIMES - 2.0) * share)


def _noise(prior: NoisePrior, df: float, surprise: float, times: float) -> Noise:
    sd = max(prior.sd, LEAST_SD)
    return Noise(
        guesses=(
            Guess(sd, df, -math.log1p(-surprise)),
            Guess(max(LOOSE_SD, times * sd), LOOSE_DF, -math.log(surprise)),
        ),
        bad=max(prior.bad, SHARE_UNSEEN),
        far=max(prior.far or 0.0, FAR_AT_LEAST, 3 * sd),
        order=ORDER_SMALL + prior.order_variance,
    )


def learn_order(turned: Sequence[float]) -> float:
    """What being the second launch of a pair costs (log units, + = slower), by pairs of the same code; 0 if not sure.

    turned: differences, + = the second launch is slower. An effect that is not surely there stays in the noise.
    """
    n = len(turned)
    if n < 3:
        return 0.0
    mean = math.fsum(turned) / n
    scatter = math.sqrt(math.fsum((value - mean) ** 2 for value in turned) / (n - 1))
    return mean if abs(mean) >= ORDER_SURE * max(scatter, LEAST_SD) / math.sqrt(n) else 0.0


def learn(differences: Sequence[float]) -> NoisePrior | None:
    """The prior from pairs of the same code, whose true difference is zero; None from no pairs.

    Pairs are split into good and bad where that explains them better than one wider noise does: normal good
    pairs, bad ones anywhere up to the farthest, and half a log(n) for having split (Schwarz 1978). Where half
    of the pairs or more would be bad, that is no exception but the box's noise.
    """
    if not all(math.isfinite(difference) for difference in differences):
        raise JudgeInputError("the ledger's differences must be finite numbers")
    sizes = sorted(abs(difference) for difference in differences)
    n = len(sizes)
    if n == 0:
        return None
    bad = min(range((n + 1) // 2), key=lambda count: _cost_of_split(sizes, count))
    good = sizes[: n - bad]
    sd = max(_rms(good), LEAST_SD)
    if bad == 0:
        return NoisePrior(sd=sd, df=n)
    share = (bad + BAD_BEFOREHAND * BAD_WEIGHT) / (n + BAD_WEIGHT)
    return NoisePrior(sd=sd, df=n - bad, bad=share, far=_rms(sizes[n - bad :]))


def _cost_of_split(sizes: Sequence[float], bad: int) -> float:
    """Minus the log likelihood (up to a constant) of the `bad` largest being bad."""
    n = len(sizes)
    good = n - bad
    sd = max(_rms(sizes[:good]), LEAST_SD)
    cost = good * (math.log(sd) + 0.5)
    if bad == 0:
        return cost
    if sizes[good] < SEPARATION * sd:
        return math.inf
    anywhere = math.log(2 * sizes[-1] / math.sqrt(2 * math.pi))
    return cost + bad * (anywhere - math.log(bad / n)) - good * math.log(good / n) + 0.5 * math.log(n)


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(value * value for value in values) / len(values))
