"""How often the demo's verdict is right: recorded launches, resampled through the gate's own loop.

    python -m benchmarks.demo_rates none=DIR[,DIR…] verify:eagle3=DIR[,DIR…] [--trials 2000] [--seed 1]

A group is the run directories of one change of the cpu profile; `none` has to pass, any other to be a regression.
With a recipe behind the change only that one is measured: what is a regression by it alone is one beside any other.
Whose launch it is, its commit says: the first run's base and head count, in whichever of the runs they were served. A
trial is a whole run: `perfgate.run.pairs.Measuring` asks for launches, and gets recorded ones of that side and recipe,
drawn with replacement; the plan is that of the group's first run with pairs, budgets and priors as the profile has them
now; orders are drawn anew.
Launches of base and head are drawn apart, so what two neighbours shared does not cancel as it does in a real pair:
rates are a little worse than true ones. Exits 1 where a group is right in less than 99.5 % of trials.

Enough launches come from several runs of `perfgate demo`, whose base is the same for every change, and from
`perfgate calibrate` of a head, of which both sides count.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from perfgate import records as r
from perfgate.cpu.profile import settings
from perfgate.errors import PerfgateError
from perfgate.judge.evidence import Evidence, Launch, RunFacts
from perfgate.judge.result import judge_run
from perfgate.records import LaunchId
from perfgate.records.files import boot_id, read_facts
from perfgate.run.journal import F, Journal
from perfgate.run.pairs import Measuring, orders

WANTED = 0.995
FEWEST = 8  # recorded launches a side
S = TypeVar("S", r.Sample, r.Phases)
Pool = Mapping[tuple[str, r.Side], Sequence[Launch]]  # recipe, side


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="+", metavar="CHANGE=DIR[,DIR…]")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    try:
        return report(asked.groups, asked.trials, asked.seed)
    except PerfgateError as error:
        print(error, file=sys.stderr)
        return 2


def report(groups: Sequence[str], trials: int, seed: int) -> int:
    """A row for each group; whether one is right too rarely."""
    print("| change | launches a side | right | verdicts | pairs a recipe |")
    print("|---|---|--:|---|--:|")
    missed = False
    for group in groups:
        name, _, folders = group.partition("=")
        change, _, recipe = name.partition(":")
        recorded = Recorded.of(change, [Path(folder) for folder in folders.split(",")], recipe)
        rates = resampled(recorded, trials, seed)
        missed |= rates.right < WANTED
        print(f"| {name} | {recorded.counts} | {100 * rates.right:.2f} % | {rates.told} | {rates.pairs:.2f} |")
    return int(missed)


@dataclass(frozen=True)
class Recorded:
    """What was measured of one change."""

    change: str
    plan: r.Plan
    builds: Sequence[r.Build]
    pool: Pool

    @classmethod
    def of(cls, change: str, folders: Iterable[Path], recipe: str = "") -> Recorded:
        runs = [run for folder in folders if (run := RunFacts.of(read_facts(folder))) is not None]
        if not runs:
            raise PerfgateError("no run there", where=change)
        first = _only(recipe, runs[0].plan) if recipe else runs[0].plan
        commits = {r.Side.BASE: first.base.sha, r.Side.HEAD: first.head.sha}
        pool = {
            (plan.name, side): [one for run in runs for one in _launches(run, plan, sha)]
            for plan in first.recipes
            for side, sha in commits.items()
        }
        for (name, side), launches in pool.items():
            if len(launches) < FEWEST:
                what = f"{len(launches)} launches of {side.value} under {name}, {FEWEST} are wanted"
                raise PerfgateError(what, where=change, remedy="give more runs")
        plan = dataclasses.replace(first, continues=(), calibration=False)
        return cls(change, by_the_profile(plan), tuple(runs[0].builds.values()), pool)

    @property
    def right(self) -> r.Verdict:
        return r.Verdict.PASS if self.change == "none" else r.Verdict.REGRESSION

    @property
    def counts(self) -> str:
        return ", ".join(f"{recipe} {side.value} {len(found)}" for (recipe, side), found in self.pool.items())


def by_the_profile(plan: r.Plan) -> r.Plan:
    """The plan under the rules that the cpu profile has now, whenever its launches were recorded."""
    rules, limits = settings().metrics, settings().limits

    def ruled(metric: r.MetricPlan) -> r.MetricPlan:
        rule = rules[metric.metric]
        assert rule.prior is not None, "the profile names a prior for every metric"
        return dataclasses.replace(metric, budget=rule.budget, prior_sd=rule.prior.sd, prior_df=rule.prior.df)

    return dataclasses.replace(
        plan,
        metrics=tuple(map(ruled, plan.metrics)),
        limits=dataclasses.replace(plan.limits, max_pairs=limits.max_pairs, minutes=limits.minutes),
    )


def _only(recipe: str, plan: r.Plan) -> r.Plan:
    """The plan of one recipe, under the shares of the gate's error that the whole plan gave it."""
    recipes = tuple(one for one in plan.recipes if one.name == recipe)
    return dataclasses.replace(plan, recipes=recipes, metrics=tuple(m for m in plan.metrics if m.recipe == recipe))


def _launches(run: RunFacts, recipe: r.RecipePlan, sha: str) -> list[Launch]:
    """Launches of a commit that counted, each reduced to its medians."""
    if (recipe.name, recipe.workload) not in [(one.name, one.workload) for one in run.plan.recipes]:
        return []  # not asked, or asked otherwise
    served = {fact.id for fact in run.facts if isinstance(fact, r.LaunchBegin) and fact.sha == sha}
    paired = {name for pair in run.pairs_of(recipe.name) for name in (pair.base, pair.head)}
    return [_medians(one) for one in run.launches.values() if one.id in paired & served]


def _medians(launch: Launch) -> Launch:
    """One sample, and one of the probe, for each concurrency: the median of each figure."""
    samples = [_median_of(facts) for facts in _by_concurrency(launch.samples)]
    phases = [_median_of(facts) for facts in _by_concurrency(launch.phases)]
    bare = tuple(dataclasses.replace(sample, requests=(), tok_s_by_kind={}) for sample in samples)
    return dataclasses.replace(launch, samples=bare, phases=tuple(phases))


def _by_concurrency(facts: Sequence[S]) -> list[list[S]]:
    return [[fact for fact in facts if fact.concurrency == level] for level in {one.concurrency for one in facts}]


def _median_of(facts: Sequence[S]) -> S:
    names = [field.name for field in dataclasses.fields(facts[0]) if field.name in r.METRICS]
    medians: dict[str, Any] = {name: _median(getattr(fact, name) for fact in facts) for name in names}
    return dataclasses.replace(facts[0], **medians)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


# ------------------------------------------------------------------------------------------------ trials


class Memory(Journal):
    """Facts of a trial, in memory alone."""

    def __init__(self) -> None:
        self.facts: list[r.Fact] = []

    def append(self, fact: F) -> F:
        written = dataclasses.replace(
            fact, t="2026-01-01T00:00:00.000000Z", mono=float(len(self.facts)), boot=boot_id()
        )
        self.facts.append(written)
        return written

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Replay:
    """A bench that launches nothing: what it is asked for is drawn from what was recorded."""

    journal: Journal
    pool: Pool
    draw: random.Random

    def given(self, _order: LaunchId) -> dict[str, str]:
        return {}

    def launch(self, order: LaunchId) -> r.LaunchEnd:
        recorded = self.draw.choice(self.pool[order.recipe, order.side])
        place = {**dataclasses.asdict(order), "id": order.launch_id}
        assert recorded.end is not None
        self.journal.append(r.LaunchBegin(**place, sha="", build="", argv=(), given={}, port=0, log=""))
        for fact in (*recorded.samples, *recorded.phases):
            self.journal.append(dataclasses.replace(fact, **place))
        return self.journal.append(dataclasses.replace(recorded.end, **place))


@dataclass(frozen=True)
class Rates:
    verdicts: Counter[r.Verdict]
    right: float
    pairs: float  # of a recipe, on average

    @property
    def told(self) -> str:
        return ", ".join(f"{verdict.value} {count}" for verdict, count in self.verdicts.most_common())


def resampled(recorded: Recorded, trials: int, seed: int) -> Rates:
    verdicts: Counter[r.Verdict] = Counter()
    pairs = 0
    for trial in range(trials):
        run = one_trial(recorded, random.Random(f"{seed}/{recorded.change}/{trial}"))
        verdicts[judge_run(Evidence(run)).verdict] += 1
        pairs += len(run.pairs)
    whole = trials * len(recorded.plan.recipes)
    return Rates(verdicts, verdicts[recorded.right] / trials, pairs / whole)


def one_trial(recorded: Recorded, draw: random.Random) -> RunFacts:
    journal = Memory()
    most = recorded.plan.limits.max_pairs
    recipes = tuple(
        dataclasses.replace(recipe, first_orders=orders(draw.randrange(2**31), recipe.name, most))
        for recipe in recorded.plan.recipes
    )
    journal.append(dataclasses.replace(recorded.plan, recipes=recipes))
    for build in recorded.builds:
        journal.append(build)
    Measuring(journal, Replay(journal, recorded.pool, draw)).until_decided()
    return journal.run()


if __name__ == "__main__":
    sys.exit(main())
