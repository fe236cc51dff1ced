"""What a person waiting for a run is told: which launch, how long still, what it has cost."""

from __future__ import annotations

import time
from datetime import datetime

from rich.console import Console, RenderableType

from perfgate import records as r
from perfgate.judge.evidence import RunFacts
from perfgate.judge.result import gpu_minutes, minutes_spent
from perfgate.run.pairs import expected_pair_minutes

LIKELY_PAIRS = 2  # what most runs need of each recipe; a regression is never told on fewer
QUIET_SECONDS = 15.0  # at least so long between two lines about the same thing
BRIEF_SECONDS = 3.0  # steps that follow each other faster are not worth a line
SHOWN = {"tok_s": "", "verify_ms": "verify ", "decode_ms": "decode ", "cycle_ms": "cycle "}


class Progress:
    """Lines on stderr, each with its time of day; readable in a terminal and in a CI log."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._last_step = ""
        self._last_told = 0.0

    def say(self, text: str) -> None:
        self._last_told = time.monotonic()
        clock = datetime.now().astimezone().strftime("%H:%M:%S")
        self._console.print(f"[dim]{clock}[/dim]  ", end="")
        self._console.print(text, markup=False)

    def tell(self, text: str) -> None:
        """Words without a time, for people who have just arrived."""
        self._console.print(text, markup=False)

    def show(self, what: RenderableType) -> None:
        self._console.print(what, soft_wrap=False)

    def step(self, text: str) -> None:
        """A step of something long; told when it changes, else now and then."""
        now = time.monotonic()
        name = text.split(" · ")[0]
        since = now - self._last_told
        if since >= (BRIEF_SECONDS if name != self._last_step else QUIET_SECONDS):
            self._last_step = name
            self.say(f"    {text}")

    def launch_begins(self, launch: r.LaunchId, run: RunFacts) -> None:
        number = len(run.launches) + 1
        again = " again" if launch.attempt > 1 else ""
        gpu = gpu_minutes(run)
        cost = f", {gpu:.0f} GPU minutes spent" if gpu else ""
        left = minutes_left(run)
        rest = f", about {_minutes(left)} to go" if left is not None else ""
        self.say(f"launch {number}: {launch.recipe}, pair {launch.pair}, {launch.side.value}{again}{rest}{cost}")

    def launch_ends(self, end: r.LaunchEnd, run: RunFacts) -> None:
        launch = run.launches[end.id]
        first = run.recipe(end.recipe).concurrencies[0]
        shown = [
            f"{label}{value:.4g} {r.METRICS[metric].unit}"
            for metric, label in SHOWN.items()
            if (value := launch.value(metric, first)) is not None
        ]
        if end.valid:
            self.say(f"    {end.wall_s:.0f} s: {', '.join(shown)}")
        else:
            self.say(f"    not valid after {end.wall_s:.0f} s: {'; '.join(end.reasons)}")


def minutes_left(run: RunFacts) -> float | None:
    """What is likely still to come: two pairs of each recipe, one where there is none yet; of a calibration all."""
    calibration, limits = run.plan.calibration, run.plan.limits
    likely = limits.max_pairs if calibration else LIKELY_PAIRS
    costs = {plan.name: expected_pair_minutes(run, plan) for plan in run.plan.to_measure}
    known = [cost for cost in costs.values() if cost is not None]
    if not known:
        return None
    total = 0.0
    for name, cost in costs.items():
        done = len(run.pairs_of(name))
        pair = cost if cost is not None else max(known)  # a recipe not launched yet is expected to cost as another
        total += pair * max(likely - done, 1 if done == 0 else 0)
    if not total or calibration:
        return total or None
    return min(total, limits.minutes - minutes_spent(run))


def _minutes(minutes: float) -> str:
    return f"{minutes * 60:.0f} s" if minutes < 2 else f"{minutes:.0f} min"
