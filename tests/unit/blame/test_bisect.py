"""The thinking part of a bisect: what it measures, when it names, and what it never says. No servers."""

from __future__ import annotations

import math
import random

import pytest

from perfgate.blame.bisect.evidence import PairNoise, Seen, posterior
from perfgate.blame.bisect.search import Kind, Line, Rules, SearchFinding, Step, Why, next_step, noiseless_launches

QUIET = PairNoise(0.01, 10)


def play(
    steps: dict[int, float], length: int, sd: float = 0.01, seed: int = 1, line: Line | None = None, most: int = 60
) -> tuple[tuple[SearchFinding, ...], list[Seen], list[Step]]:
    """A whole search against a world where position k adds steps[k]."""
    rng = random.Random(seed)
    line = line or Line(length)
    seen: list[Seen] = []
    asked: list[Step] = []
    rules = Rules(noise=PairNoise(max(sd, 0.002), 10), most_pairs=most)
    while isinstance(step := next_step(line, seen, rules), Step):
        asked.append(step)
        true = sum(size for k, size in steps.items() if step.older < k <= step.newer)
        seen.append(Seen(step.older, step.newer, true + rng.gauss(0, sd), step.within))
    return step, seen, asked


@pytest.mark.parametrize("culprit", range(1, 8))
def test_every_place_of_a_culprit_is_named(culprit: int) -> None:
    findings, seen, asked = play({culprit: 0.1}, 7)
    assert [(one.kind, one.newer) for one in findings] == [(Kind.NAMED, culprit)]
    assert asked[0].why is Why.ENDS
    confirmations = [one for one in asked if (one.older, one.newer) == (culprit - 1, culprit)]
    assert len(confirmations) >= 2  # against its parent, in pairs of their own
    assert 2 * len(seen) <= 3 * noiseless_launches(7)


def test_ends_that_do_not_differ_name_nobody() -> None:
    findings, seen, _ = play({}, 60)
    assert [one.kind for one in findings] == [Kind.SAME]
    assert len(seen) <= 4


def test_an_improvement_alone_is_no_loss() -> None:
    findings, _, _ = play({3: -0.2}, 7)
    assert [one.kind for one in findings] == [Kind.SAME]


def test_a_gain_and_a_loss_are_both_found() -> None:
    findings, _, _ = play({2: -0.1, 6: 0.25}, 7)
    named = {one.newer: one.slowdown for one in findings if one.kind is Kind.NAMED}
    assert set(named) == {2, 6}
    assert named[6] == pytest.approx(0.25, abs=0.03)
    assert named[2] == pytest.approx(-0.1, abs=0.03)
    assert findings[0].newer == 6  # by size


def test_two_culprits_are_ordered_by_size() -> None:
    findings, _, _ = play({2: 0.1, 5: 0.2}, 7)
    assert [one.newer for one in findings if one.kind is Kind.NAMED] == [5, 2]


def test_a_culprit_beside_one_that_does_not_build_is_a_range() -> None:
    findings, _, asked = play({4: 0.1}, 7, line=Line(7, frozenset({3})))
    (found,) = findings
    assert (found.kind, found.older, found.newer) == (Kind.RANGE, 2, 4)
    assert not any(3 in (one.older, one.newer) for one in asked)


def test_a_culprit_that_does_not_build_is_a_range() -> None:
    findings, _, _ = play({3: 0.1}, 7, line=Line(7, frozenset({3, 4})))
    (found,) = findings
    assert (found.kind, found.older, found.newer) == (Kind.RANGE, 2, 5)


def test_when_the_pairs_are_used_up_the_smallest_range_is_told() -> None:
    findings, _, _ = play({40: 0.1}, 60, most=4)
    (found,) = findings
    assert found.kind is Kind.RANGE
    assert found.older < 40 <= found.newer
    assert found.newer - found.older <= 32
    assert found.pairs_to_narrow is not None


def test_suspicion_is_asked_first() -> None:
    _, seen, asked = play({41: 0.4}, 60, line=Line(60, weight={41: 1.0, 7: 0.1}))
    assert (asked[2].older, asked[2].newer) == (40, 41)
    assert len(seen) <= 5


def test_wrong_suspicion_costs_but_does_not_mislead() -> None:
    findings, _, _ = play({7: 0.4}, 60, line=Line(60, weight={41: 1.0}))
    assert [(one.kind, one.newer) for one in findings] == [(Kind.NAMED, 7)]


def test_built_positions_are_preferred_where_they_tell_nearly_as_much() -> None:
    cost = {at: 1.0 if at == 33 else 3.0 for at in range(61)}
    _, _, asked = play({50: 0.4}, 60, line=Line(60, cost=cost))
    assert 33 in (asked[2].older, asked[2].newer)


def test_the_same_evidence_asks_the_same_step() -> None:
    _, seen, asked = play({5: 0.1}, 7)
    rules = Rules(noise=PairNoise(0.01, 10))
    for number, step in enumerate(asked):
        assert next_step(Line(7), seen[:number], rules) == step


def test_the_posterior_adds_up() -> None:
    seen = [Seen(0, 8, 0.1, (0, 8)), Seen(0, 4, 0.0, (0, 8)), Seen(0, 6, 0.1, (0, 8))]
    found = posterior(range(9), seen, dict.fromkeys(range(1, 9), 1 / 8), QUIET)
    assert math.fsum(found.single.values()) + found.several == pytest.approx(1)
    assert found.slow_at(4) < 0.01
    assert found.slow_at(6) > 0.99
    assert found.single[5] == pytest.approx(found.single[6])


def test_a_level_between_the_ends_is_more_than_one_step() -> None:
    seen = [Seen(0, 8, 0.2, (0, 8)), Seen(0, 8, 0.2, (0, 8)), Seen(0, 4, 0.1, (0, 8)), Seen(4, 8, 0.1, (0, 8))]
    found = posterior(range(9), seen, dict.fromkeys(range(1, 9), 1 / 8), QUIET)
    assert found.several > 0.9


def test_rates_in_short() -> None:
    """Of 200 searches at an SD of a fifth of the loss none names a wrong commit; most name the right one."""
    named = []
    for seed in range(200):
        culprit = random.Random(seed).randint(1, 7)
        findings, _, _ = play({culprit: 0.1}, 7, sd=0.02, seed=seed)
        named.append([one.newer == culprit for one in findings if one.kind is Kind.NAMED])
    assert all(all(one) for one in named)
    assert sum(map(bool, named)) >= 190
