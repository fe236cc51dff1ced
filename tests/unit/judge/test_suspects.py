"""Suspects: the right file first, nobody where nothing touches what moved, and always in words of suspicion."""

from __future__ import annotations

import pytest

from perfgate import records as r
from perfgate.cpu.changes import EDITS, Change
from perfgate.judge.suspect_table import PHASES, TABLE, is_unknown, row_of
from perfgate.judge.suspects import LEAST, Loss, Setting, loss_of, rank, rank_paths, setting_of

SRT = "python/sglang/srt/"
DENSE = Setting(
    {
        "speculative": True,
        "plain": True,
        "linear": False,
        "moe": False,
        "mla": False,
        "ranks": True,
        "multimodal": False,
    },
    attention="flashinfer",
    model="meta-llama/Llama-3.1-8B-Instruct",
)
VERIFY = Loss({"verify": 0.9, "rest": 0.1}, frozenset({"decode", "draft", "extend", "accept", "prefill"}))
PLAIN_TOO = Loss({"decode": 0.5, "verify": 0.5})
ACCEPT = Loss({"accept": 1.0}, frozenset({"verify", "draft", "decode"}))
DECOYS = (
    "python/sglang/srt/managers/tokenizer_manager.py",
    "python/sglang/srt/mem_cache/hiradix_cache.py",
    "python/sglang/srt/models/qwen3_5.py",
    "python/sglang/srt/entrypoints/http_server.py",
    "python/sglang/srt/layers/moe/topk.py",
    "python/sglang/srt/lora/lora_manager.py",
    "python/sglang/srt/disaggregation/prefill.py",
    "python/sglang/srt/multimodal/processors/base_processor.py",
    "python/sglang/srt/function_call/qwen25_detector.py",
    "docs/index.md",
    "test/srt/test_eagle_infer.py",
)


def touched(*paths: str, sha: str = "a" * 40, title: str = "A change") -> r.Touched:
    return r.Touched(sha=sha, title=title, paths=paths)


# ------------------------------------------------------------------------------------------------ the table


def test_the_table_is_well_formed() -> None:
    for row in TABLE:
        assert row.patterns
        assert set(row.phases) <= set(PHASES)
        assert all(0 < weight <= 1 for weight in row.phases.values())
        assert bool(row.phases) or row.needs == "never"


def test_an_unknown_path_that_serves_is_told() -> None:
    assert is_unknown("python/sglang/srt/brand_new/thing.py")
    (one,) = rank_paths(touched("python/sglang/srt/brand_new/thing.py"), VERIFY, DENSE)
    assert one.score >= LEAST
    assert "not in perfgate's table" in one.why
    assert not is_unknown("docs/index.md")


def test_kernels_are_known_by_their_own_names_in_both_trees() -> None:
    for tree in ("sgl-kernel/", "python/sglang/kernels/aot/"):
        row = row_of(f"{tree}csrc/speculative/eagle_utils.cu")
        assert row is not None
        assert row.area == "acceptance of drafts"


# ------------------------------------------------------------------------------------------------ the story


def test_the_storys_three_titles_are_not_on_the_verify_path_of_a_model_without_mamba() -> None:
    commits = (
        touched(
            f"{SRT}compilation/piecewise_context_manager.py",
            f"{SRT}model_executor/piecewise_cuda_graph_runner.py",
            title="Fix PCG MoE Error (#17739)",
        ),
        touched(
            f"{SRT}layers/attention/mamba/mamba.py", f"{SRT}layers/attention/mamba/ops/mamba_ssm.py", title="(#18070)"
        ),
        touched(f"{SRT}mem_cache/radix_cache.py", f"{SRT}mem_cache/swa_radix_cache.py", title="RadixTree refactor"),
    )
    ranked = rank(commits, Loss({"verify": 1.0}, frozenset({"decode"})), DENSE)
    assert [one.score for one in ranked] == [0, 0, 0]
    assert all("takes no part in what moved" in one.why for one in ranked)


# ------------------------------------------------------------------------------------------------ the right file first

MOVED_BY = {Change.VERIFY: VERIFY, Change.BASELINE: PLAIN_TOO, Change.ACCEPT: ACCEPT}


@pytest.mark.parametrize("change", MOVED_BY)
def test_on_each_demo_change_its_file_is_first(change: Change) -> None:
    path = f"python/{EDITS[change].path}"
    setting = setting_of((recipe("llama"),), "cpu")
    (first, *_) = rank_paths(touched(*DECOYS, path), MOVED_BY[change], setting)
    assert first.path == path


PLANTED = [
    (f"{SRT}speculative/eagle_worker_v2.py", VERIFY),
    (f"{SRT}speculative/eagle_draft_cuda_graph_runner.py", Loss({"draft": 1.0}, frozenset({"verify", "decode"}))),
    (
        f"{SRT}speculative/eagle_draft_extend_cuda_graph_runner.py",
        Loss({"extend": 1.0}, frozenset({"verify", "draft"})),
    ),
    (f"{SRT}models/llama_eagle3.py", ACCEPT),
    (f"{SRT}layers/attention/flashinfer_backend.py", PLAIN_TOO),
    (f"{SRT}distributed/device_communicators/custom_all_reduce.py", PLAIN_TOO),
    (f"{SRT}managers/scheduler.py", Loss({"rest": 1.0}, frozenset({"decode", "verify", "draft"}))),
    (f"{SRT}layers/sampler.py", Loss({"rest": 1.0}, frozenset({"decode", "draft"}))),
    (f"{SRT}model_executor/cuda_graph_runner.py", PLAIN_TOO),
    ("sgl-kernel/csrc/speculative/eagle_utils.cu", VERIFY),
    (f"{SRT}model_executor/piecewise_cuda_graph_runner.py", Loss({"prefill": 1.0}, frozenset({"decode", "verify"}))),
    (f"{SRT}layers/layernorm.py", PLAIN_TOO),
    ("python/pyproject.toml", PLAIN_TOO),
]


@pytest.mark.parametrize(("path", "loss"), PLANTED, ids=lambda value: str(value).rsplit("/", 1)[-1][:40])
def test_a_planted_file_is_first(path: str, loss: Loss) -> None:
    (first, *_) = rank_paths(touched(*DECOYS, path), loss, DENSE)
    assert first.path == path
    assert first.score >= LEAST


def test_who_would_have_moved_plain_decoding_too_comes_after_who_would_not() -> None:
    worker, norm = f"{SRT}speculative/eagle_worker_v2.py", f"{SRT}layers/layernorm.py"
    first, second = rank_paths(touched(norm, worker), VERIFY, DENSE)
    assert (first.path, second.path) == (worker, norm)
    assert "would have moved as well, and did not" in second.why


def test_another_models_file_is_no_suspect() -> None:
    ours, other = f"{SRT}models/llama.py", f"{SRT}models/qwen3_moe.py"
    first, second = rank_paths(touched(other, ours), PLAIN_TOO, DENSE)
    assert first.path == ours
    assert second.score < LEAST


# ------------------------------------------------------------------------------------------------ what moved, and where


def recipe(model: str, **flags: object) -> r.RecipePlan:
    return r.RecipePlan(
        name="eagle3", flags=flags, environment={}, workload="", concurrencies=(1,), samples=3, speculative=True,
        first_orders=(), model=model,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", {"moe": False, "linear": False, "mla": False}),
        ("Qwen/Qwen3-235B-A22B-FP8", {"moe": True, "linear": False}),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"moe": True, "linear": True}),
        ("openai/gpt-oss-120b", {"moe": True, "linear": False}),
        ("deepseek-ai/DeepSeek-V3.1", {"moe": True, "mla": True}),
    ],
)
def test_what_a_models_name_says(model: str, known: dict[str, bool]) -> None:
    found = setting_of((recipe(model, tp=8),)).known
    assert {name: found[name] for name in known} == known
    assert found["ranks"]


def metric(name: str, slowdown: float, verdict: r.MetricVerdict, high: float | None = None) -> r.Metric:
    return r.Metric(
        recipe="eagle3", metric=name, concurrency=1, unit="ms", better=r.Better.LOWER, base=1.0, head=1.0, change=0.0,
        slowdown=slowdown, low=slowdown, high=slowdown if high is None else high, interval_level=0.95, detectable=None,
        budget=0.05, alpha=0.01, gated=True, verdict=verdict, effect=r.Effect.SLOWER, pairs=2,
    )  # fmt: skip


def test_what_moved_and_what_stood_still() -> None:
    loss = loss_of(
        (metric("verify_ms", 0.4, r.MetricVerdict.REGRESSION), metric("decode_ms", 0.0, r.MetricVerdict.PASS, 0.01)), ()
    )
    assert loss == Loss({"verify": 1.0}, frozenset({"decode"}))


def test_nothing_moved_nobody_is_suspected() -> None:
    assert loss_of((metric("verify_ms", 0.001, r.MetricVerdict.PASS),), ()) is None


def test_without_phases_everything_between_two_tokens_may_have_moved() -> None:
    loss = loss_of((metric("tok_s", 0.3, r.MetricVerdict.REGRESSION),), ())
    assert loss is not None
    assert {"decode", "verify", "rest"} <= loss.shares.keys()
