"""SGLang's own device timer, read from `/metrics`: a second opinion about the probe's phases, where a server offers it.

Needs `--enable-metrics` and SGLANG_ENABLE_METRICS_DEVICE_TIMER=1. It is off by default and gives sums only, so two
readings and the number of cycles between them are needed.
"""

from __future__ import annotations

from collections.abc import Iterable

from perfgate.engine.exchange import body_of, get
from perfgate.engine.faults import ClientError
from perfgate.records import Sample

READ_S = 5.0
COUNTERS = ("sglang:gpu_execution_seconds_total{", "sglang:forward_execution_seconds_total{")
MAX_CHARACTERS = 4 * 2**20  # of an answer; strangers' text
TIMER_PHASES = {
    "target_verify": "target",
    "eagle_draft": "draft",
    "eagle_draft_extend": "draft_extend",
    "decode": "decode",
    "forward_decode": "cycle",  # until 0.5.10: the whole cycle
}


def read_metrics(url: str) -> str:
    """What a server's `/metrics` says now; nothing where it does not answer. Never between the requests of a sample."""
    try:
        return body_of(get(f"{url}/metrics"), READ_S, MAX_CHARACTERS).decode("utf-8", "replace")
    except ClientError:
        return ""


def cycles_of(samples: Iterable[Sample]) -> int:
    """Cycles that the samples at one request at a time took, as their answers tell."""
    return sum(
        request.verify_ct if request.verify_ct is not None else request.tokens - 1
        for sample in samples
        if sample.concurrency == 1
        for request in sample.requests
    )


def device_timer(before: str, after: str, cycles: int) -> dict[str, float]:
    """Milliseconds per cycle by SGLang's own device timer, from two readings of `/metrics` around `cycles` cycles.

    Needs `--enable-metrics` and SGLANG_ENABLE_METRICS_DEVICE_TIMER=1. Empty where the server does not offer it, as
    before 0.5.8, on CPU, or with the timer off.
    """
    if cycles <= 0:
        return {}
    earlier, later = _timer_seconds(before), _timer_seconds(after)
    moved = {phase: (later[phase] - earlier.get(phase, 0.0)) * 1000 / cycles for phase in later}
    return {phase: ms for phase, ms in moved.items() if 0 < ms < 600_000}


def _timer_seconds(metrics: str) -> dict[str, float]:
    """The largest among ranks, by phase."""
    seconds: dict[str, float] = {}
    for line in metrics[:MAX_CHARACTERS].splitlines():
        if not line.startswith(COUNTERS):
            continue
        category = line.partition('category="')[2].partition('"')[0]
        phase = TIMER_PHASES.get(category)
        value = _number(line.rpartition(" ")[2])
        if phase is not None and value is not None:
            seconds[phase] = max(value, seconds.get(phase, 0.0))
    return seconds


def _number(text: str) -> float | None:
    try:
        return float(text[:40])
    except ValueError:
        return None
