"""What each part of SGLang's tree does while it serves: paths → the phases they run in.

Read in the sources of 0.5.3 … 0.5.23. The first row that matches a path counts, so narrow rows stand above wide ones.
Patterns are relative to python/sglang (a leading slash: to the whole tree), `*` crosses slashes.

Phases: `prefill` ends with the first token; `decode` is the target's forward of a plain step; `verify`, `draft` and
`extend` (the draft model's catch-up) are the parts of a speculative cycle; `accept` is how many drafts are right;
`rest` is what the scheduler and the processes beside it do between forwards. A weight says how likely a change there
moves that phase: 1 it is made of this, 0.5 it takes part, 0.2 it could.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

PHASES = ("prefill", "decode", "verify", "draft", "extend", "accept", "rest")


@dataclass(frozen=True)
class SuspectArea:
    """`needs`: what must be true of the run for this code to run at all; `{}`: always."""

    area: str  # completes "touches …"
    patterns: tuple[str, ...]
    phases: Mapping[str, float] = field(default_factory=dict)
    needs: str = ""  # one of the words of `Setting`


def _phases(text: str) -> dict[str, float]:
    """`decode verify .5 draft`: a number holds for what follows it."""
    found: dict[str, float] = {}
    weight = 1.0
    for word in text.split():
        if word[0] in ".01":
            weight = float(word)
        else:
            found[word] = weight
    return found


_FORWARD = "decode verify prefill .6 draft extend"
_TARGET = "decode verify prefill"

TABLE: tuple[SuspectArea, ...] = tuple(
    SuspectArea(area, tuple(patterns.split()), _phases(phases), needs)
    for area, patterns, phases, needs in (
        # ------------------------------------------------------------------ not while it serves, or not here
        (
            "tests, tools and diffusion",
            "test/* multimodal_gen/* bench* benchmark/* profiler.py check_env.py lang/* eval/* cli/* "
            "*/tests/* */benchmark/* srt/debug_utils/* srt/kv_canary/* kernels/ops/kv_canary/* "
            "kernels/ops/diffusion/* jit_kernel/diffusion/* jit_kernel/kv_canary/* "
            "jit_kernel/csrc/diffusion/* compile_deep_gemm.py auto_benchmark* global_config.py README* "
            "*.md launch_server.py utils.py version.py _version.py api/* kernels/jit/benchmark/* "
            "srt/ray/*",
            "",
            "never",
        ),
        (
            "another kind of hardware",
            "*/npu/* *_npu* *npu_* */ascend/* *hip* *aiter* *rocm* *_amd* */amd/* *xpu* *musa* */mlx/* "
            "*/mps/* *wave_backend* *mori* *mindspore* *gfx9* *AMD_* *gluon* *flydsl*",
            "",
            "never",
        ),
        (
            "the CPU's own kernels",
            "*amx* *csrc/cpu/* srt/hardware_backend/cpu/* *cpu_graph_runner* *_cpu.py *_cpu_*",
            _FORWARD,
            "cpu",
        ),
        # ------------------------------------------------------------------ by their folder
        (
            "the draft model",
            "srt/models/*eagle* srt/models/*nextn* srt/models/*mtp* srt/models/*draft*",
            "draft extend accept",
            "speculative",
        ),
        (
            "the processes beside the scheduler",
            "*tokenizer* *detokenizer* srt/entrypoints/* srt/parser/* srt/function_call/* srt/grpc/* "
            "srt/tokenizer/* srt/plugins/* *data_parallel_controller* srt/managers/template_manager*",
            ".5 rest prefill",
            "",
        ),
        (
            "server arguments and defaults",
            "*server_args* *arg_groups* *environ.py* srt/constants.py",
            ".5 decode verify prefill draft extend rest .3 accept",
            "",
        ),
        (
            "model configuration",
            "srt/configs/* *model_config*",
            ".3 decode verify prefill draft",
            "",
        ),
        (
            "loading of weights",
            "srt/model_loader/* srt/weight_cache/*",
            ".1 decode verify",
            "",
        ),
        (
            "metrics and tracing",
            "srt/metrics/* srt/observability/* srt/tracing/*",
            ".4 rest",
            "",
        ),
        (
            "storage of the cache",
            "srt/mem_cache/storage/* *hicache* *pool_host* *memory_pool_host* *cache_controller*",
            ".5 prefill .2 rest",
            "hicache",
        ),
        (
            "the radix cache",
            "srt/mem_cache/*radix* *mem_cache/storage/* *hicache* *pool_host* *tree_core* *cache_controller* "
            "*unified_cache* *chunk_cache* *evict* *cache_init* *hybrid_cache* *streaming_session* "
            "*mem_cache/registry* *rust_tree*",
            ".6 prefill .2 rest",
            "",
        ),
        # ------------------------------------------------------------------ models of a kind
        (
            "Mamba and linear attention",
            "*mamba* *linear_attn* */fla/* *gdn* *kda* *lightning* *radix_linear* *selective_state* "
            "*causal_conv* *short_conv* *gated_delta*",
            _TARGET,
            "linear",
        ),
        (
            "pictures, sound and video",
            "srt/multimodal/* *vision* *mm_utils* *multimodal* *encoder* *audio* *image* *clip* *vit* "
            "*mm_schedule* srt/models/*vl* srt/models/*omni* srt/models/*_mm*",
            ".5 prefill",
            "multimodal",
        ),
        (
            "a model's own file",
            "srt/models/*",
            _FORWARD,
            "model",
        ),
        (
            "LoRA",
            "srt/lora/* *lora*",
            _FORWARD,
            "lora",
        ),
        (
            "disaggregated serving",
            "srt/disaggregation/* srt/connector/* *disagg* srt/weight_sync/* srt/checkpoint_engine/* srt/elastic_ep/*",
            ".5 prefill rest",
            "disaggregation",
        ),
        (
            "diffusion language models",
            "srt/dllm/* *llada*",
            _TARGET,
            "dllm",
        ),
        (
            "beam search",
            "srt/beam_search/*",
            "rest",
            "never",
        ),
        # ------------------------------------------------------------------ prefill only
        (
            "piecewise CUDA graphs (prefill only, and off while speculating)",
            "*piecewise* srt/compilation/* *breakable_cuda_graph* *prefill*graph*",
            "prefill",
            "plain",
        ),
        # ------------------------------------------------------------------ speculation
        (
            "a drafter that is not EAGLE",
            "*ngram* *n_gram* *dflash* *dspark* *domino* *lilicorr* srt/speculative/uno* "
            "*standalone_worker* *frozen_kv_mtp* *decoupled_spec* *engram* *lplb*",
            "verify draft extend accept",
            "drafter",
        ),
        (
            "the draft model's catch-up",
            "*draft_extend*",
            "extend .2 draft",
            "speculative",
        ),
        (
            "EAGLE over several layers",
            "*multi_layer_eagle*",
            "draft extend .4 verify",
            "speculative",
        ),
        (
            "drafting",
            "*draft_cuda_graph* *draft_worker* *draft_utils* *draft_parallel* *pp_draft* *draft_backend*",
            "draft .6 extend .2 verify",
            "speculative",
        ),
        (
            "verification",
            "*verify* *ragged_verify* *grammar_barrier*",
            "verify .3 accept",
            "speculative",
        ),
        (
            "acceptance of drafts",
            "*eagle_info* *eagle_utils* */spec_utils* spec_utils* *spec_info* *tree_speculative* "
            "*build_tree* *reject* *kernels/ops/speculative/* *csrc/speculative/* *jit_kernel/*spec* "
            "*spec_sampling* *spec_tp_sync* *speculative/triton_ops/*",
            "verify accept .5 draft extend",
            "speculative",
        ),
        (
            "the speculative worker",
            "*eagle_worker* *speculative/*worker* *speculative/*",
            "verify .8 draft extend .5 accept",
            "speculative",
        ),
        # ------------------------------------------------------------------ what every forward goes through
        (
            "CUDA graphs",
            "*cuda_graph* *graph_runner* srt/model_executor/runner/* srt/model_executor/runner_*/* "
            "*graph_utils* *graph_variants* *graph_memory* *graph_shared*",
            "decode verify .7 draft .5 extend",
            "",
        ),
        (
            "how a forward is run",
            "srt/model_executor/* srt/batch_overlap/* *two_batch_overlap* *single_batch_overlap* "
            "*forward_context* srt/layers/layer_boundary/* srt/multiplex/* srt/state_capturer/*",
            "decode verify .6 prefill draft extend .4 rest",
            "",
        ),
        (
            "all-reduce and communicators",
            "srt/distributed/* *all_reduce* *allreduce* *communicat* *comm_fusion* *mnnvl* "
            "*dp_attention* *kernels/ops/communication/* *csrc/distributed/* *symm* *pynccl* *nccl* "
            "*quick_reduce* srt/layers/cp/* srt/layers/dcp/* *layers/model_parallel* *lm_head_tp* "
            "*moe_a2a*",
            "decode verify .7 prefill draft extend",
            "ranks",
        ),
        (
            "MoE layers",
            "*moe* *expert* *eplb* *topk.py *deepep* *fused_gate* *routing* *router.py",
            _TARGET,
            "moe",
        ),
        (
            "quantisation",
            "srt/layers/quantization/* *quant* *fp8* *fp4* *int8* *int4* *marlin* *awq* *gptq* *w8a8* *mxfp*",
            _FORWARD,
            "quantized",
        ),
        (
            "attention for MLA models",
            "*mla* *dsa* *nsa* *deepseek_v4_* *dsv4* *dsv32* *hisparse* *indexer* *index_topk* *compress*",
            _TARGET,
            "mla",
        ),
        (
            "sparse attention",
            "*sparse_attn* *minimax_sparse* *sparsity* *sparse* *minimax* *qsa*",
            _TARGET,
            "sparse",
        ),
        (
            "FlashInfer attention",
            "*flashinfer_backend* *flashinfer*attention*",
            "verify decode extend .8 prefill draft",
            "attention=flashinfer",
        ),
        (
            "FlashAttention",
            "*flashattention_backend* *flash_attention* *flash_attn* *fa3* *fa4* *flashmla*",
            "verify decode extend .8 prefill draft",
            "attention=fa3 fa4",
        ),
        (
            "Triton attention",
            "*triton_backend* *attention/triton_ops/* *ops/attention/triton* *merge_state*",
            "verify decode extend .8 prefill draft",
            "attention=triton",
        ),
        (
            "TRT-LLM attention",
            "*trtllm_mha*",
            "verify decode extend .8 prefill draft",
            "attention=trtllm_mha",
        ),
        (
            "other attention back ends",
            "*torch_native_backend* *torch_flex* *tbo_backend* *dots_hybrid* *hpc_ops* *cutlass* "
            "*local_attention* *double_sparsity*",
            ".6 decode verify prefill",
            "attention=torch_native flex_attention",
        ),
        (
            "attention",
            "srt/layers/attention/* *radix_attention* *kernels/ops/attention/* *csrc/attention/* "
            "*jit_kernel/*attn* *attn_* *kernels/ops/kvcache/* *kvcacheio* *sliding_window* *swa*",
            "verify decode .8 prefill extend draft",
            "",
        ),
        (
            "normalisation and rotary embedding",
            "*layernorm* *norm.* *norm_* *rotary* *rope* *activation* *elementwise* *hyperconn* *attn_residual*",
            _FORWARD,
            "",
        ),
        (
            "linear layers",
            "*linear.py *gemm* *matmul* *kernels/ops/mm/* *dense* *layers/parameter* *vocab_parallel* "
            "*embedding* *dual_gemm* *conv.py *layers/utils/*",
            _FORWARD,
            "",
        ),
        (
            "logits",
            "*logits_processor* *logprob* *logsumexp* *joint_schema* *pointer_head* *pooler*",
            "decode .6 verify draft .3 rest",
            "",
        ),
        (
            "deterministic kernels",
            "srt/batch_invariant_ops/*",
            _FORWARD,
            "never",
        ),
        (
            "the sampler",
            "*sampler* srt/sampling/* *penalty* *kernels/ops/sampling/* *watermark*",
            "rest .5 decode .3 verify",
            "",
        ),
        (
            "layers",
            "srt/layers/*",
            ".7 decode verify prefill .4 draft extend",
            "",
        ),
        # ------------------------------------------------------------------ between forwards
        (
            "structured output",
            "srt/constrained/* *grammar*",
            "rest .3 verify",
            "grammar",
        ),
        (
            "the memory pool",
            "srt/mem_cache/* *memory_pool* *allocator* *kernels/ops/memory/* *pool_configurator*",
            "rest .5 prefill .3 decode",
            "",
        ),
        (
            "the scheduler",
            "*scheduler* *schedule_batch* *schedule_policy* *tp_worker* *overlap_utils* "
            "*managers/utils* *prefill_delayer* *delayer* *async_d2h* srt/managers/* srt/session/* "
            "*rust_server* *rust_extensions*",
            "rest .5 prefill .2 decode",
            "",
        ),
        # ------------------------------------------------------------------ the rest
        (
            "kernels",
            "jit_kernel/* kernels/* srt/platforms/* *deep_gemm_wrapper* *triton_ops* "
            "srt/hardware_backend/gpu/* srt/kernel_plugins/*",
            _FORWARD,
            "",
        ),
        (
            "helpers",
            "srt/utils/* srt/utils.py srt/runtime_context.py __init__.py kernel_api_logging.py _* "
            "srt/hardware_backend/__init__.py *.pyi */__init__.py srt/operations* srt/offloader.py "
            "srt/custom_op.py srt/_custom_ops.py srt/aio_rwlock.py srt/bench_utils.py "
            "srt/host_shared_memory.py srt/torch_memory_saver_adapter.py srt/warmup.py",
            ".2 decode verify prefill rest",
            "",
        ),
        (
            "kernels that are built with the package",
            "/python/sglang/kernels/aot/* /sgl-kernel/*",
            _FORWARD,
            "",
        ),
        (
            "pinned packages",
            "/python/pyproject.toml",
            "decode verify prefill draft extend rest .4 accept",
            "",
        ),
        (
            "Rust extensions",
            "/rust/* /proto/* /python/setup.py",
            "rest .4 prefill",
            "",
        ),
    )
)
PACKAGE = "python/sglang/"
KERNEL_TREES = ("python/sglang/kernels/aot/", "sgl-kernel/")


def row_of(path: str) -> SuspectArea | None:
    """The row that a path of the repository belongs to; None: outside of what serves, or unknown."""
    if path.startswith(KERNEL_TREES):
        inside = path.split("/", 4 if path.startswith(PACKAGE) else 1)[-1]
        return _first(inside, kernel=True)
    if path.startswith(PACKAGE):
        return _first(path.removeprefix(PACKAGE))
    return next(
        (row for row in TABLE if any(fnmatchcase("/" + path, one) for one in row.patterns if one[0] == "/")), None
    )


def _first(inside: str, *, kernel: bool = False) -> SuspectArea | None:
    found = next((row for row in TABLE if any(fnmatchcase(inside, one) for one in row.patterns if one[0] != "/")), None)
    if found is None and kernel:
        return next(row for row in TABLE if "/sgl-kernel/*" in row.patterns)
    return found


def is_unknown(path: str) -> bool:
    """A path that serves, as far as its place tells, and that no row knows."""
    return (
        path.startswith(PACKAGE) and path.endswith((".py", ".cu", ".cuh", ".h", ".cpp", ".rs")) and row_of(path) is None
    )
