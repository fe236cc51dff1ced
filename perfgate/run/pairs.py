"""Pairs, one after the other, until the judge has heard enough.

Knows nothing of servers: a `Bench` makes one launch and writes its facts. What is here is the order of launches, the
repeat of a failed one, whose fault a failure is, and what an interrupted run left to go on with.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from perfgate import records as r
from perfgate.conditions.fingerprint import NOT_COMPARED
from perfgate.judge.evidence import Evidence, RunFacts
from perfgate.judge.metrics import JudgedMetric, gated, judge_metrics
from perfgate.judge.result import minutes_spent
from perfgate.judge.verdict import NextStep, RecipeProgress, next_step
from perfgate.records import LaunchId
from perfgate.records.files import boot_id
from perfgate.run.journal import Journal

HALF_PAIR_SECONDS = 15 * 60  # a base launch and a head launch further apart than this are no neighbours
ALL_PAIRS = "all pairs are measured"
ATTEMPTS = 2  # an invalid launch is repeated once, whoever was to blame: what the box spoiled does not use it up


class Bench(Protocol):
    def launch(self, launch: LaunchId) -> r.LaunchEnd:
        """One whole launch; its facts, from launch_begin to launch_end, are in the journal when this returns."""

    def given(self, launch: LaunchId) -> Mapping[str, str]:
        """The environment that its server would be given now."""


def orders(seed: int, recipe: str, pairs: int) -> tuple[r.Side, ...]:
    """Which side goes first in each pair: alternating (ABBA), the first drawn from the seed."""
    first = random.Random(f"{seed}/{recipe}").choice(tuple(r.Side))
    return tuple(first if number % 2 == 0 else first.other for number in range(pairs))


def continued_orders(plan: r.RecipePlan, evidence: Evidence) -> tuple[r.Side, ...]:
    """The plan's orders, turned round where the pairs on file would leave one side first more often than the other."""
    first = [pair.fact.first for pair in evidence.pairs(plan.name)]
    before = {side: first.count(side) for side in r.Side}
    begins = plan.first_orders[0]
    if before[begins] <= before[begins.other]:
        return plan.first_orders
    return tuple(side.other for side in plan.first_orders)


class Measuring:
    """The loop of pairs of one run."""

    def __init__(self, journal: Journal, bench: Bench, earlier: Sequence[RunFacts] = ()) -> None:
        self._journal = journal
        self._bench = bench
        self._earlier = tuple(earlier)

    def until_decided(self) -> NextStep:
        """Measures pair after pair; returns why it stopped. A failing side is written down as a fault."""
        while True:
            step = self.next()
            if step.recipe is None:
                if step.out_of_time:
                    self._journal.append(out_of_time(self._run.plan.limits))
                return step
            number = len(self._run.pairs_of(step.recipe)) + 1
            if not self._measure_pair(step.recipe, number):
                return NextStep(None, "a launch failed twice")

    def all_pairs(self) -> NextStep:
        """Measures as many pairs of each recipe as the plan allows, recipes in turn."""
        for number in range(1, self._run.plan.limits.max_pairs + 1):
            for recipe in self._run.plan.recipes:
                if len(self._run.pairs_of(recipe.name)) < number and not self._measure_pair(recipe.name, number):
                    return NextStep(None, "a launch failed twice")
        return NextStep(None, ALL_PAIRS)

    def next(self) -> NextStep:
        return next_pair(self._evidence)

    def judged(self) -> tuple[JudgedMetric, ...]:
        return judge_metrics(self._evidence)

    @property
    def _run(self) -> RunFacts:
        return self._journal.run()

    @property
    def _evidence(self) -> Evidence:
        return Evidence(self._run, self._earlier)

    def _measure_pair(self, recipe: str, number: int) -> bool:
        first = self._run.recipe(recipe).first_orders[number - 1]
        half = self._half(recipe, number, first)
        names: dict[r.Side, str] = {first: half} if half else {}
        for position, side in enumerate((first, first.other), 1):
            if side not in names:
                end = self._launch(recipe, number, side, position)
                if not end.valid:
                    self._blame(end, served=bool(names))
                    return False
                names[side] = end.id
        for _ in range(ATTEMPTS):
            if not self._apart(names[first], names[first.other]):
                break
            end = self._launch(recipe, number, first, 2)  # the other one was first then
            if not end.valid:
                self._blame(end, served=True)
                return False
            names[first], first = end.id, first.other
        if self._apart(names[first], names[first.other]):
            text = f"no two launches of {recipe} could be made within {HALF_PAIR_SECONDS / 60:.0f} minutes"
            self._fault("launches_apart", text, r.Blame.BOX)
            return False
        self._journal.append(
            r.Pair(
                id=f"{recipe}/p{number:02d}",
                recipe=recipe,
                pair=number,
                base=names[r.Side.BASE],
                head=names[r.Side.HEAD],
                first=first,
            )
        )
        self._write_decisions(recipe)
        return True

    def _half(self, recipe: str, number: int, first: r.Side) -> str | None:
        """The launch that an interrupted run left without its partner, if the partner would be given the same.

        From another shell it would not, and the pair would prove nothing.
        """
        half = half_pair(self._run, recipe, number, first)
        if half is None:
            return None
        now = self._bench.given(LaunchId(recipe, number, first, 1, next_attempt(self._run, recipe, number, first)))
        return half if _compared(self._run.launches[half].begin.given) == _compared(now) else None

    def _launch(self, recipe: str, number: int, side: r.Side, position: int) -> r.LaunchEnd:
        """Launches until one is valid or the same one is to blame for the second time."""
        failed: list[r.Blame | None] = []
        while True:
            attempt = next_attempt(self._run, recipe, number, side)
            end = self._bench.launch(LaunchId(recipe, number, side, position, attempt))
            failed.append(end.blame)
            if end.valid or failed.count(end.blame) == ATTEMPTS:
                return end

    def _apart(self, one: str, other: str) -> bool:
        """Whether so much time went by between two launches, with failed ones, that the box may have moved."""
        launches = self._run.launches
        end = launches[one].end
        return end is not None and launches[other].begin.mono - end.mono > HALF_PAIR_SECONDS

    def _blame(self, end: r.LaunchEnd, *, served: bool) -> None:
        """A side that fails twice is to blame only where the other side serves on the same box."""
        if not _is_sides(end):
            self._blame_others(end)
            return
        if not served and not self._ever_served(end.side.other, end.recipe):
            other = self._launch(end.recipe, end.pair, end.side.other, 2)
            if not other.valid and not _is_sides(other):
                self._blame_others(other)
                return
            if not other.valid:
                text = f"neither side serves {end.recipe}: {_reason(end)}"
                self._fault("neither_side_serves", text, r.Blame.BOX, launch=end.id)
                return
        who, other_side = end.side.value, end.side.other.value
        text = f"{who} failed {ATTEMPTS} times in {end.recipe} where {other_side} served: {_reason(end)}"
        self._fault("side_fails", text, r.Blame.SIDE, side=end.side, launch=end.id)

    def _blame_others(self, end: r.LaunchEnd) -> None:
        self._fault(end.code, f"{end.recipe} could not be measured: {_reason(end)}", end.blame, launch=end.id)

    def _ever_served(self, side: r.Side, recipe: str) -> bool:
        run = self._run
        served = (one for one in run.launches.values() if one.valid and run.is_current(one))
        return any(one.side is side and one.is_of(recipe) for one in served)

    def _fault(
        self, code: str, text: str, blame: r.Blame | None, *, side: r.Side | None = None, launch: str | None = None
    ) -> None:
        self._journal.append(
            r.Fault(id=f"fault/{code}", code=code, text=text, blame=blame or r.Blame.PERFGATE, side=side, launch=launch)
        )

    def _write_decisions(self, recipe: str) -> None:
        for one in self.judged():
            if one.plan.recipe == recipe and one.decision:
                self._journal.append(decision_fact(one))


def _is_sides(failed: r.LaunchEnd) -> bool:
    """Whether the code under test is to blame for a launch that is not valid, as far as this launch tells."""
    return failed.blame in (None, r.Blame.SIDE)


def _reason(failed: r.LaunchEnd) -> str:
    return failed.reasons[0] if failed.reasons else "the launch was not valid"


def next_pair(evidence: Evidence) -> NextStep:
    """Which recipe gets the next pair, judged on everything so far. Earlier runs' pairs do not use up the limit.

    A calibration and a step of a search leave nothing to the judge: all their pairs are measured.
    """
    run = evidence.run
    limits = run.plan.limits
    progress = [
        RecipeProgress(
            recipe=plan.name,
            pairs=len(run.pairs_of(plan.name)),
            minutes_per_pair=expected_pair_minutes(run, plan),
        )
        for plan in run.plan.to_measure
    ]
    if run.plan.calibration or run.plan.exact:
        last = min(progress, key=lambda recipe: recipe.pairs)
        return NextStep(last.recipe, "not all pairs") if last.pairs < limits.max_pairs else NextStep(None, ALL_PAIRS)
    judged = gated(judge_metrics(evidence))
    return next_step(judged, progress, limits.max_pairs, limits.minutes - minutes_spent(run))


def what_is_left(facts: Sequence[r.Fact], plan: r.Plan, earlier: Sequence[RunFacts] = ()) -> NextStep:
    """What a run of these facts would measure next under this plan; nothing is written down."""
    run = RunFacts.of((*facts, plan))
    assert run is not None, "there is a plan"
    return next_pair(Evidence(run, tuple(earlier)))


def end_here(journal: Journal, plan: r.Plan, left: NextStep) -> None:
    """Ends a run that goes on and has nothing left to measure.

    By its plan, written anew, what had gone wrong before no longer counts, unless there is no time to try it again.
    """
    faults = journal.run().faults
    journal.append(plan)
    if left.out_of_time:
        for fault in (*(one for one in faults if one.code != r.STOPPED_FAULT), out_of_time(plan.limits)):
            journal.append(fault)


def out_of_time(limits: r.RunLimits) -> r.Fault:
    return stopped(f"the limit of {limits.minutes:g} minutes")


def stopped(why: str) -> r.Fault:
    return r.Fault(id="fault/stopped", code=r.STOPPED_FAULT, text=why, blame=r.Blame.USER)


def decision_fact(one: JudgedMetric) -> r.DecisionFact:
    decision, plan = one.decision, one.plan
    assert decision is not None
    return r.DecisionFact(
        id=f"{plan.recipe}/{plan.metric}@{plan.concurrency}/{decision.pairs}",
        recipe=plan.recipe,
        metric=plan.metric,
        concurrency=plan.concurrency,
        pairs=decision.pairs,
        state=decision.state.value,
        slowdown=decision.slowdown,
        low=decision.low,
        high=decision.high,
        detectable=decision.detectable,
    )


def next_attempt(run: RunFacts, recipe: str, pair: int, side: r.Side) -> int:
    begun = [
        fact.attempt
        for fact in run.facts
        if isinstance(fact, r.LaunchBegin) and (fact.recipe, fact.pair, fact.side) == (recipe, pair, side)
    ]
    return max(begun, default=0) + 1


def half_pair(run: RunFacts, recipe: str, pair: int, first: r.Side) -> str | None:
    """The launch of `first` that an interrupted run left without its partner, if it can still be paired.

    Only of the same build, in the same boot and within 15 minutes: else the box may have moved in between.
    """
    asked = (recipe, pair, first, 1)
    halves = [
        one
        for one in run.launches.values()
        if (one.begin.recipe, one.begin.pair, one.side, one.begin.position) == asked
        if one.valid and run.is_current(one)
    ]
    if not halves or (end := halves[-1].end) is None:
        return None
    fresh = end.boot == boot_id() and 0 <= time.monotonic() - end.mono <= HALF_PAIR_SECONDS
    return halves[-1].id if fresh else None


def _compared(given: Mapping[str, str]) -> Mapping[str, str]:
    """All but what names the launch."""
    return {name: value for name, value in given.items() if not name.startswith(NOT_COMPARED)}


def expected_pair_minutes(run: RunFacts, plan: r.RecipePlan) -> float | None:
    """From this run's own launches of the recipe, else from the plan."""
    walls = [
        launch.end.wall_s
        for launch in run.launches.values()
        if launch.end and launch.valid and launch.is_of(plan.name) and launch.begin.pair > 0  # none to throw away
    ]
    seconds = sum(walls) / len(walls) if walls else plan.expected_launch_s
    return seconds * 2 / 60 if seconds is not None else None
