"""A bench that needs no server: it writes the facts a launch would have left, with speeds from a table."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from perfgate import records as r
from perfgate.records import LaunchId
from perfgate.run.journal import Journal
from perfgate.run.pairs import orders

KINDS = ("code", "chat")


def a_plan(**changes: object) -> r.Plan:
    recipes = tuple(
        r.RecipePlan(
            name=name,
            flags={},
            environment={},
            workload="w",
            concurrencies=(1,),
            samples=2,
            speculative=name == "eagle3",
            first_orders=orders(7, name, 6),
        )
        for name in ("baseline", "eagle3")
    )
    metrics = tuple(
        r.MetricPlan(
            recipe=recipe,
            metric=metric,
            concurrency=1,
            gated=True,
            budget=budget,
            alpha=0.0025,
            prior_sd=0.01,
            prior_df=10,
            fallback=fallback,
        )
        for recipe, phase in (("baseline", "decode_ms"), ("eagle3", "verify_ms"))
        for metric, budget, fallback in (("tok_s", 0.03, None), (phase, 0.05, "cycle_ms"))
    )
    plan = r.Plan(
        id="plan",
        run_id="run",
        perfgate="test",
        box="box",
        profile="gpu",
        base=r.Commit(sha="b" * 40, tree="1" * 40),
        head=r.Commit(sha="a" * 40, tree="2" * 40),
        diff_class="python",
        seed=7,
        recipes=recipes,
        metrics=metrics,
        limits=r.RunLimits(max_pairs=6, min_pairs_to_fail=2, minutes=90, alpha=0.01, beta=0.05),
        config="test",
        config_hash="test",
    )
    return dataclasses.replace(plan, **changes)  # type: ignore[arg-type]


class TableBench:
    """speed(order) → tok/s of that launch; fails, blames: launches that are not valid, and whose fault that is."""

    def __init__(
        self,
        journal: Journal,
        speed: Callable[[LaunchId], float],
        *,
        fails: Callable[[LaunchId], bool] = lambda order: False,
        blames: Callable[[LaunchId], r.Blame | None] = lambda order: None,
        verify: bool = True,
        kinds: Mapping[str, float] | None = None,
        wall_s: float = 60.0,
    ) -> None:
        self.journal = journal
        self.speed = speed
        self.fails = fails
        self.blames = blames
        self.verify = verify
        self.kinds = kinds or {}
        self.wall_s = wall_s
        self.launched: list[str] = []
        self.shell: dict[str, str] = {}
        self.builds = "k"

    def given(self, order: LaunchId) -> dict[str, str]:
        return {**self.shell, "PERFGATE_PROBE_LAUNCH": order.launch_id} if self.shell else {}

    def launch(self, order: LaunchId) -> r.LaunchEnd:
        self.launched.append(order.launch_id)
        head = {**order.identity, "id": order.launch_id}
        self.journal.append(
            r.LaunchBegin(**head, sha="a" * 40, build=self.builds, argv=(), given=self.given(order), port=1, log="log")  # type: ignore[arg-type]
        )
        blame = self.blames(order)
        fails = blame is not None or self.fails(order)
        if not fails:
            self._samples(order, head)
        end = r.LaunchEnd(
            **head,  # type: ignore[arg-type]
            valid=not fails,
            reasons=("the server died",) if fails else (),
            log="log",
            code="box_disturbed" if blame is r.Blame.BOX else "",
            blame=blame,
            ready_s=None if fails else 1.0,
            wall_s=self.wall_s,
        )
        return self.journal.append(end)

    def _samples(self, order: LaunchId, head: Mapping[str, object]) -> None:
        draw = random.Random(order.launch_id)
        for index in range(2):
            speed = self.speed(order) * math.exp(draw.gauss(0, 0.001))
            slow = self.kinds if order.side is r.Side.HEAD else {}
            by_kind = {kind: speed * slow.get(kind, 1.0) for kind in KINDS}
            requests = tuple(
                r.Request(
                    prompt=kind,
                    prompt_kind=kind,
                    tokens=11,
                    ttft_s=0.1,
                    decode_s=10 / by_kind[kind],
                    output="same",
                    cycle_ms=1000 / by_kind[kind],
                )
                for kind in KINDS
            )
            whole = len(KINDS) / sum(1 / one for one in by_kind.values())
            common = {**head, "sample": index, "concurrency": 1}
            self.journal.append(
                r.Sample(
                    **common | {"id": f"{order.launch_id}/s{index}"},  # type: ignore[arg-type]
                    begin=0,
                    end=1,
                    requests=requests,
                    tok_s=whole,
                    ttft_ms=100.0,
                    cycle_ms=1000 / whole,
                    accept_length=None,
                    tok_s_by_kind=by_kind,
                )
            )
            if self.verify:
                self.journal.append(
                    r.Phases(
                        **common | {"id": f"{order.launch_id}/s{index}/phases"},  # type: ignore[arg-type]
                        clock="perf_counter",
                        cycles=10,
                        verify_ms=900 / whole if order.recipe == "eagle3" else None,
                        decode_ms=900 / whole if order.recipe == "baseline" else None,
                    )
                )


def a_journal(where: Path, plan: r.Plan | None = None) -> Journal:
    journal = Journal(where)
    journal.append(plan or a_plan())
    built(journal, "k")
    return journal


def built(journal: Journal, key: str) -> None:
    for side in r.Side:
        journal.append(r.Build(id=f"build/{side}", side=side, key=key, ok=True))


def numbers_of(launched: Sequence[str]) -> list[str]:
    return [name.rsplit("/", 1)[0] for name in launched]
