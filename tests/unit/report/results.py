"""Results of every kind, as the judge writes them: the story's, and what becomes of it when one thing is different."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfgate import records as r
from perfgate.records.files import read_facts, read_result

STORY_RUN = Path(__file__).parents[2] / "fixtures" / "run-story"


def metric(
    name: str,
    base: float | None,
    slowdown: float | None,
    *,
    recipe: str = "eagle3",
    half: float = 0.012,
    budget: float | None = None,
    gated: bool = False,
    verdict: r.MetricVerdict = r.MetricVerdict.PASS,
    effect: r.Effect = r.Effect.SAME,
    pairs: int = 2,
    concurrency: int = 1,
    detectable: float | None = 0.021,
) -> r.Metric:
    """A metric whose base, head, change and slowdown agree, as the judge's do."""
    kind = r.METRICS[name]
    turned = None if slowdown is None else -slowdown if kind.better is r.Better.HIGHER else slowdown
    known = base is not None and turned is not None and slowdown is not None
    return r.Metric(
        recipe=recipe,
        metric=name,
        concurrency=concurrency,
        unit=kind.unit,
        better=kind.better,
        base=base,
        head=base * math.exp(turned) if base is not None and turned is not None else None,
        change=math.expm1(turned) if turned is not None else None,
        slowdown=slowdown,
        low=slowdown - half if known and slowdown is not None else None,
        high=slowdown + half if known and slowdown is not None else None,
        interval_level=0.95,
        detectable=detectable if known else None,
        budget=budget if budget is not None else 0.03 if name == "tok_s" else 0.05,
        alpha=0.0025,
        gated=gated,
        verdict=verdict if known else r.MetricVerdict.ABSENT,
        effect=effect if known else r.Effect.UNKNOWN,
        pairs=pairs if known else 0,
    )


SAME = tuple(
    r.Difference(what=what, sentence=f"{what} is the same.", base=value, head=value)
    for what, value in (
        ("GPU", "8 × NVIDIA RTX PRO 6000 Blackwell"),
        ("driver", "590.48.01"),
        ("NCCL", "2.27.5"),
        ("torch", "2.9.1"),
        ("sgl-kernel", "0.3.21"),
        ("NCCL_PROTO", "LL"),
        ("NCCL_MIN_NCHANNELS", "8"),
        ("NCCL_P2P_LEVEL", "SYS"),
        ("PCIe link", "5.0 x16"),
        ("power limit", "600 W"),
    )
)
CANARY = (
    r.CanaryResult(
        name="all-reduce 32 KiB",
        unit="µs",
        before=26.1,
        after=26.2,
        shift=0.0038,
        steady=True,
        sentence="all-reduce of 32 KiB took 26.1 µs before and 26.2 µs after.",
    ),
    r.CanaryResult(
        name="GEMM 4096",
        unit="ms",
        before=0.412,
        after=0.413,
        shift=0.0024,
        steady=True,
        sentence="the matrix product took 0.412 ms before and 0.413 ms after.",
    ),
)
READING = "Plain decoding lost too, speculation far more: engine or communication, and the speculative path."
STORY_LOSSES = (
    r.Decomposition(
        recipe="baseline",
        concurrency=1,
        total=0.0686,
        parts=(
            r.Part(phase="decode_ms", slowdown=0.0665, low=0.0483, high=0.0846, base_ms=11.07, head_ms=11.85),
            r.Part(phase="rest", slowdown=0.0021, low=-0.0158, high=0.0202),
        ),
        sentence="baseline −6.6 %: decode +7 % explains −6.4 points, rest −0.2.",
    ),
    r.Decomposition(
        recipe="eagle3",
        concurrency=1,
        total=0.446,
        parts=(
            r.Part(phase="verify_ms", slowdown=0.3392, low=0.3209, high=0.3576, base_ms=18.99, head_ms=28.95),
            r.Part(phase="draft_ms", slowdown=0.0609, low=0.0429, high=0.0789, base_ms=2.105, head_ms=3.891),
            r.Part(phase="draft_extend_ms", slowdown=0.0337, low=0.0157, high=0.0517, base_ms=1.501, head_ms=2.490),
            r.Part(phase="accept_length", slowdown=0.0086, low=-0.0094, high=0.0266),
            r.Part(phase="rest", slowdown=0.0035, low=-0.0145, high=0.0215),
        ),
        sentence="eagle3 −36.0 %: verify +52 % explains −27.4 points, draft −4.9, draft-extend −2.7, accept length"
        f" −0.7, rest −0.3. {READING}",
    ),
)


def story_facts() -> list[r.Fact]:
    return read_facts(STORY_RUN)


def story() -> r.Result:
    """The story: EAGLE-3 94 → 60 tok/s, verify 19 → 29 ms, on one steady box."""
    return read_result(STORY_RUN)


def suspected() -> r.Result:
    """The story with a commit that somebody suspects."""
    why = "touches mem_cache, which every decode step reads"
    suspect = r.Suspect(
        sha="48642d5c0e1f2a3b4c5d6e7f8091a2b3c4d5e6f7", title="Refactor RadixTree cache node layout", why=why
    )
    return replace(story(), suspects=(suspect,))


def _like_story(
    verdict: r.Verdict, reason: str, exit_code: int, metrics: Sequence[r.Metric] = (), **changes
) -> r.Result:
    return replace(
        story(),
        verdict=verdict,
        reason=reason,
        exit_code=exit_code,
        metrics=tuple(metrics),
        **{"decomposition": (), "suspects": (), "warnings": (), **changes},
    )


def passed() -> r.Result:
    return _like_story(
        r.Verdict.PASS,
        "No gated metric is slower by its budget. Nearest to it at worst:"
        " eagle3 tok/s −0.3 % (−1.5 to +0.9 %) in 1 pair, budget −3.0 %.",
        0,
        (
            metric("tok_s", 88.4, 0.001, recipe="baseline", gated=True, pairs=1),
            metric("decode_ms", 11.07, 0.002, recipe="baseline", gated=True, pairs=1),
            metric("tok_s", 94.1, 0.003, gated=True, pairs=1),
            metric("verify_ms", 19.0, -0.001, gated=True, pairs=1),
        ),
    )


def faster() -> r.Result:
    return _like_story(
        r.Verdict.PASS,
        "No gated metric is slower by its budget. Nearest to it at worst:"
        " baseline tok/s +0.1 % (−1.1 to +1.3 %) in 2 pairs, budget −3.0 %.",
        0,
        (
            metric("tok_s", 88.4, -0.001, recipe="baseline", gated=True),
            metric("decode_ms", 11.07, 0.002, recipe="baseline", gated=True),
            metric("tok_s", 94.1, -0.062, gated=True, effect=r.Effect.FASTER),
            metric("verify_ms", 19.0, -0.088, gated=True, effect=r.Effect.FASTER),
        ),
    )


def within_budget() -> r.Result:
    slower = r.Effect.SLOWER_WITHIN_BUDGET
    return _like_story(
        r.Verdict.PASS,
        "No gated metric is slower by its budget. Nearest to it at worst:"
        " eagle3 tok/s −1.6 % (−2.2 to −1.0 %) in 3 pairs, budget −3.0 %.",
        0,
        (
            metric("tok_s", 94.1, 0.016, half=0.006, gated=True, effect=slower, pairs=3),
            metric("verify_ms", 19.0, 0.018, half=0.006, gated=True, effect=slower, pairs=3),
        ),
    )


def inconclusive() -> r.Result:
    return _like_story(
        r.Verdict.INCONCLUSIVE,
        "eagle3 tok/s −2.7 % (−5.6 to +0.3 %) in 6 pairs is neither a loss for sure nor surely under the budget of"
        " −3.0 %; a loss of 5.7 % would have shown; measuring ended at the limit of 6 pairs.",
        3,
        (
            metric(
                "tok_s",
                94.1,
                0.027,
                half=0.030,
                gated=True,
                pairs=6,
                detectable=0.059,
                verdict=r.MetricVerdict.INCONCLUSIVE,
                effect=r.Effect.UNKNOWN,
            ),
            metric("verify_ms", 19.0, 0.02, half=0.02, gated=True, pairs=6, detectable=0.04),
        ),
        warnings=(
            r.Notice(
                code="spread_above_prior",
                text="eagle3 tok/s: pairs scatter by 3 %, the ledger knows 1 %. `perfgate calibrate` if the box has"
                " changed.",
            ),
        ),
    )


def environment() -> r.Result:
    return _like_story(
        r.Verdict.ENVIRONMENT,
        "GPU 3 was throttled by its temperature during eagle3/p02/head/a1.",
        4,
        (
            metric(
                "tok_s",
                94.1,
                0.21,
                gated=True,
                verdict=r.MetricVerdict.REGRESSION,
                effect=r.Effect.SLOWER,
            ),
        ),
        environment=r.Environment(
            same=SAME[:3],
            unexplained=(
                r.Difference(
                    what="throttling",
                    sentence="GPU 3 was throttled by its temperature in 1 of 2 head launches, never on base",
                    base="none",
                    head="SwThermalSlowdown",
                ),
                r.Difference(
                    what="NCCL_PROTO at start",
                    sentence="NCCL_PROTO was LL on base and not set on head before sglang was imported",
                    base="LL",
                ),
            ),
        ),
        canary=(
            replace(
                CANARY[0],
                after=31.9,
                shift=0.2,
                steady=False,
                sentence="all-reduce of 32 KiB took 26.1 µs before and 31.9 µs after.",
            ),
        ),
    )


LOG_LINES = [
    "Resolved 214 packages in 1.2s",
    "  × Failed to build `sglang @ file:///build/head/python`",
    "error: `@owner` [see](https://evil.example) <img src=x onerror=alert(1)>",
    "```",
    "SyntaxError: invalid syntax (eagle_worker.py, line 412)",
]


def build_failed(side: r.Side | None = r.Side.HEAD) -> r.Result:
    return _like_story(
        r.Verdict.BUILD_FAILED,
        "uv pip install ended with 1: SyntaxError: invalid syntax (eagle_worker.py, line 412).",
        4,
        failed_side=side,
        launches=(),
        environment=r.Environment(),
        canary=(),
        warnings=(
            r.Notice(
                code="build_log",
                text="uv pip install ended with 1: SyntaxError: invalid syntax (eagle_worker.py, line 412)",
                data={"lines": LOG_LINES},
            ),
        ),
        cost=r.Cost(launches=0, gpu_minutes=0.0, wall_s=71.0),
    )


def bench_failed(side: r.Side | None = r.Side.HEAD) -> r.Result:
    who = f"{side.value} did not serve" if side else "neither side served"
    kept = tuple(launch for launch in story().launches if launch.id.startswith("baseline/"))
    return _like_story(
        r.Verdict.BENCH_FAILED,
        f"eagle3: {who} in two launches: Scheduler hit an exception.",
        4,
        (
            metric("tok_s", 88.4, 0.001, recipe="baseline", gated=True, pairs=1),
            metric("decode_ms", 11.07, 0.002, recipe="baseline", gated=True, pairs=1),
            metric("tok_s", None, None, gated=True),
            metric("verify_ms", None, None, gated=True),
        ),
        failed_side=side,
        launches=kept,
        warnings=(
            r.Notice(
                code="launch_failed",
                text=f"eagle3/p01/{side.value if side else 'base'}/a1 and a2 failed.",
                data={"lines": ["Scheduler hit an exception: Traceback", "torch.OutOfMemoryError: CUDA out of memory"]},
            ),
        ),
    )


def skipped() -> r.Result:
    return _like_story(
        r.Verdict.SKIPPED,
        "The change touches only documentation (12 files under docs/).",
        0,
        launches=(),
        environment=r.Environment(),
        canary=(),
        cost=r.Cost(launches=0, gpu_minutes=None, wall_s=3.0),
        base=replace(story().base, build=None),
        head=replace(story().head, build=None),
    )


def no_probe() -> r.Result:
    """The probe found nothing to time: cycle ms is gated in the place of verify ms. On the CPU profile."""
    return _like_story(
        r.Verdict.REGRESSION,
        "eagle3 tok/s −38.1 % (−44.9 to −30.4 %) in 2 pairs, over the budget of −13.9 %; 1 more metric too.",
        1,
        (
            metric(
                "tok_s",
                41.7,
                0.48,
                half=0.117,
                gated=True,
                budget=0.15,
                verdict=r.MetricVerdict.REGRESSION,
                effect=r.Effect.SLOWER,
            ),
            metric("verify_ms", None, None),
            metric(
                "cycle_ms",
                52.3,
                0.47,
                half=0.11,
                gated=True,
                budget=0.15,
                verdict=r.MetricVerdict.REGRESSION,
                effect=r.Effect.SLOWER,
            ),
            metric("ttft_ms", 310.0, 0.02, half=0.08, budget=0.15),
            metric("accept_length", 2.17, 0.0, half=0.02),
        ),
        profile="cpu",
        box="laptop",
        pr=None,
        cost=r.Cost(launches=4, gpu_minutes=None, wall_s=212.0),
        launches=tuple(
            r.LaunchResult(
                id=f"eagle3/p{pair:02d}/{side}/a1",
                position=1 + ((pair + (side == "head")) % 2),
                valid=True,
                values={"tok_s@1": tok_s, "verify_ms@1": None, "cycle_ms@1": 2170 / tok_s},
            )
            for pair, side, tok_s in ((1, "base", 41.2), (1, "head", 25.6), (2, "head", 26.1), (2, "base", 42.3))
        ),
        warnings=(
            r.Notice(
                code="condition", text="The cpu profile's environment is fixed by the profile: pins are not installed."
            ),
            r.Notice(
                code="metric_absent",
                text="eagle3: verify_ms is absent (the probe found nothing), so cycle_ms is judged in its place.",
                data={"recipe": "eagle3", "metric": "verify_ms", "instead": "cycle_ms"},
            ),
        ),
    )


def outputs_differ() -> r.Result:
    return replace(
        passed(),
        outputs_differ=True,
        warnings=(
            r.Notice(
                code="outputs_differ",
                text="eagle3: head answers 3 of 16 prompts with other tokens than base, at temperature 0.",
                data={"recipe": "eagle3", "prompts": 3, "compared": 16},
            ),
        ),
    )


def at_several_levels() -> r.Result:
    """Two concurrencies: faster at 1, slower at 8, which is shown and not gated."""
    return _like_story(
        r.Verdict.PASS,
        "No gated metric is slower by its budget. Nearest to it at worst:"
        " eagle3 verify ms −1.0 % (−2.2 to +0.2 %) in 2 pairs, budget +5.1 %.",
        0,
        (
            metric("tok_s", 94.1, -0.04, gated=True, effect=r.Effect.FASTER),
            metric("verify_ms", 19.0, -0.01, gated=True),
            metric("tok_s", 412.0, 0.08, concurrency=8, verdict=r.MetricVerdict.REGRESSION, effect=r.Effect.SLOWER),
            metric("verify_ms", 33.0, 0.09, concurrency=8, verdict=r.MetricVerdict.REGRESSION, effect=r.Effect.SLOWER),
        ),
    )


def long() -> r.Result:
    """More of everything than a comment can hold."""
    whole = story()
    return replace(
        whole,
        launches=tuple(
            replace(whole.launches[2], id=f"{recipe}/p{pair:02d}/{side}/a1")
            for recipe in ("eagle3", "baseline", "third")
            for pair in range(1, 200)
            for side in ("base", "head")
        ),
        environment=r.Environment(
            same=tuple(replace(SAME[0], what=f"thing {number}", base="x" * 200) for number in range(300)),
            unexplained=tuple(
                r.Difference(what=f"NCCL_{number}", sentence="word " * 60, base="a" * 100, head="b" * 100)
                for number in range(300)
            ),
        ),
        warnings=tuple(r.Notice(code="w", text=f"warning {number} " + "word " * 100) for number in range(50)),
        metrics=tuple(replace(one, recipe=f"{one.recipe}-{number}") for number in range(40) for one in whole.metrics),
    )


ALL = {
    "regression": story,
    "pass": passed,
    "faster": faster,
    "within_budget": within_budget,
    "inconclusive": inconclusive,
    "environment": environment,
    "build_failed_head": build_failed,
    "build_failed_base": lambda: build_failed(r.Side.BASE),
    "build_failed_box": lambda: build_failed(None),
    "bench_failed_head": bench_failed,
    "bench_failed_base": lambda: bench_failed(r.Side.BASE),
    "bench_failed_box": lambda: bench_failed(None),
    "skipped": skipped,
    "no_probe": no_probe,
    "outputs_differ": outputs_differ,
    "several_levels": at_several_levels,
    "long": long,
}
