"""A result in the formats of other tools, each a pure function of result.json.

What is exported is head: base turned by the judge's estimate, with the ends of the interval, so that a chart agrees
with the comment. Base stands beside it where a format has room. What is absent is left out, never written as 0.
Names are strangers' text: cleaned of what cannot be seen, and quoted as the format asks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from perfgate.records import METRICS, Better, Metric, Result, Side
from perfgate.text import visible

NAME_LIMIT = 200
LABEL_LIMIT = 200


class Format(StrEnum):
    """What other tools read."""

    BMF = "bmf"
    BIGGER = "benchmark-action-bigger"
    SMALLER = "benchmark-action-smaller"
    PYTORCH = "pytorch"
    OPENMETRICS = "openmetrics"
    BENCH_SERVING = "bench-serving"


def export(result: Result, form: Format) -> str:
    """The whole text, with a line feed at its end."""
    return WRITERS[form](result)


def _measured(result: Result) -> Iterator[tuple[Metric, float, float]]:
    """Metrics with base and head, each once."""
    told = set()
    for metric in result.metrics:
        place = (visible(metric.recipe, NAME_LIMIT), metric.concurrency, metric.metric)
        if place in told or metric.metric not in METRICS or metric.base is None or metric.head is None:
            continue
        if math.isfinite(metric.base + metric.head):
            told.add(place)
            yield metric, metric.base, metric.head


def _name(metric: Metric) -> str:
    """ "eagle3", "eagle3, concurrency 8"."""
    level = f", concurrency {metric.concurrency}" if metric.concurrency != 1 else ""
    return (visible(metric.recipe, NAME_LIMIT) or "recipe") + level


def _ends(metric: Metric, base: float) -> tuple[float | None, float | None]:
    """Head's value at the ends of the interval, the lower first; None where there is none."""
    sign = -1 if metric.better is Better.HIGHER else 1
    ends = [
        None if end is None else base * math.exp(max(min(sign * end, 50), -50)) for end in (metric.low, metric.high)
    ]
    low, high = (end if end is not None and math.isfinite(end) else None for end in ends)
    return (low, high) if sign > 0 else (high, low)


def _json(data: object) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _bmf(result: Result) -> str:
    """Bencher Metric Format: benchmark → measure → value and its bounds."""
    benchmarks: dict[str, dict[str, dict[str, float]]] = {}
    for metric, base, head in _measured(result):
        low, high = _ends(metric, base)
        values = {"value": head, "lower_value": low, "upper_value": high}
        known = {name: value for name, value in values.items() if value is not None}
        benchmarks.setdefault(_name(metric), {})[metric.metric] = known
    return _json(benchmarks)


def _benchmark_action(result: Result, better: Better) -> str:
    """github-action-benchmark's custom JSON; its two tools know one direction each."""
    entries = []
    for metric, base, head in _measured(result):
        if metric.better is better:
            low, high = _ends(metric, base)
            around = {"range": f"{low:.6g} to {high:.6g}"} if low is not None and high is not None else {}
            told = f"base {base:.6g} at {result.base.sha}\nhead at {result.head.sha}\nverdict {metric.verdict.value}"
            name = f"{_name(metric)} {metric.metric}"
            entries.append({"name": name, "unit": METRICS[metric.metric].unit, "value": head, **around, "extra": told})
    return _json(entries)


def _pytorch(result: Result) -> str:
    """Records of PyTorch's benchmark database; every valid launch of head is one of the values."""
    return _json([_pytorch_record(result, metric, base, head) for metric, base, head in _measured(result)])


def _pytorch_record(result: Result, metric: Metric, base: float, head: float) -> dict[str, Any]:
    about = {
        "run_id": result.run_id,
        "perfgate": result.perfgate,
        "box": visible(result.box, NAME_LIMIT),
        "profile": visible(result.profile, NAME_LIMIT),
        "base_sha": result.base.sha,
        "head_sha": result.head.sha,
        "concurrency": metric.concurrency,
    }
    judged = {"base": base, "change": metric.change, "budget": metric.budget, "verdict": metric.verdict.value}
    launches = _launch_values(result, metric, Side.HEAD)
    return {
        "benchmark": {"name": "perfgate", "mode": "inference", "extra_info": about},
        "model": {"name": _name(metric), "type": "sglang"},
        "metric": {"name": metric.metric, "benchmark_values": launches or [head], "extra_info": judged},
    }


def _launch_values(result: Result, metric: Metric, side: Side) -> list[float]:
    key = f"{metric.metric}@{metric.concurrency}"
    own = [one for one in result.launches if one.valid and one.paired and one.id.startswith(f"{metric.recipe}/")]
    values = [one.values.get(key) for one in own if f"/{side.value}/" in one.id]
    return [value for value in values if value is not None and math.isfinite(value)]


def _openmetrics(result: Result) -> str:
    """OpenMetrics text: one gauge a metric, with recipe, concurrency and side; the run and its verdict as an info."""
    run = {
        "run_id": result.run_id,
        "verdict": result.verdict.value,
        "box": result.box,
        "base": result.base.sha,
        "head": result.head.sha,
    }
    lines = [
        "# TYPE perfgate_run info",
        "# HELP perfgate_run The run and its verdict.",
        f"perfgate_run_info{_labels(run)} 1",
    ]
    for name in dict.fromkeys(metric.metric for metric, _, _ in _measured(result)):
        own = [row for row in _measured(result) if row[0].metric == name]
        lines += [
            f"# TYPE perfgate_{name} gauge",
            f"# HELP perfgate_{name} In {own[0][0].unit}, {own[0][0].better.value} is better.",
        ]
        for metric, base, head in own:
            for side, value in ((Side.BASE, base), (Side.HEAD, head)):
                labels = {"recipe": metric.recipe, "concurrency": str(metric.concurrency), "side": side.value}
                lines.append(f"perfgate_{name}{_labels(labels)} {value!r}")
    return "\n".join((*lines, "# EOF")) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    def quoted(text: str) -> str:
        return visible(text, LABEL_LIMIT).replace("\\", "\\\\").replace('"', '\\"')

    return "{" + ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items()) + "}"


BENCH_SERVING_KEYS = {"tok_s": "output_throughput", "ttft_ms": "median_ttft_ms", "accept_length": "accept_length"}


def _bench_serving(result: Result) -> str:
    """Lines as SGLang's bench_serving appends them, one a side, recipe and concurrency, with the keys that are known.

    tok/s is decode alone: the wait for the first token is not in it. In plain decoding a step is a token.
    """
    lines: dict[tuple[str, int, Side], dict[str, Any]] = {}
    speculative = {
        metric.recipe for metric, _, _ in _measured(result) if metric.metric in ("verify_ms", "accept_length")
    }
    for metric, base, head in _measured(result):
        for side, sha, value in ((Side.BASE, result.base.sha, base), (Side.HEAD, result.head.sha, head)):
            line = lines.setdefault(
                (metric.recipe, metric.concurrency, side),
                {
                    "tag": f"perfgate {visible(metric.recipe, NAME_LIMIT)} {side.value} {sha}",
                    "backend": "sglang",
                    "dataset_name": "perfgate",
                    "max_concurrency": metric.concurrency,
                },
            )
            if metric.metric in BENCH_SERVING_KEYS:
                line[BENCH_SERVING_KEYS[metric.metric]] = value
            elif metric.metric == "cycle_ms" and metric.recipe not in speculative:
                line["median_tpot_ms"] = value
    return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines.values())


WRITERS: Mapping[Format, Callable[[Result], str]] = {
    Format.BMF: _bmf,
    Format.BIGGER: lambda result: _benchmark_action(result, Better.HIGHER),
    Format.SMALLER: lambda result: _benchmark_action(result, Better.LOWER),
    Format.PYTORCH: _pytorch,
    Format.OPENMETRICS: _openmetrics,
    Format.BENCH_SERVING: _bench_serving,
}
