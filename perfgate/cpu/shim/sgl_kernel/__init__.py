"""Stand-in, in plain PyTorch, for the CPU build of SGLang's kernel package, which no package registry ships.

It holds what SGLang imports with SGLANG_USE_CPU_ENGINE=1 for a Llama-like model with or without EAGLE
speculation, and nothing else: the bookkeeping of KV cache slots, the draft tree, and attention. Names, argument
order and results are those of SGLang's own kernels; outputs are written into the tensors handed in, as there.
Speed does not matter here; that base and head run the same arithmetic does.
"""

from __future__ import annotations

import torch

from .attention import build_draft_decode_metadata_cpu, decode_attention_cpu, extend_attention_cpu
from .cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from .tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__version__ = "0+perfgate"

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

# SGLang's attention backend takes these two from torch's operator namespace, not from this module.
torch.ops.sgl_kernel.decode_attention_cpu = decode_attention_cpu
torch.ops.sgl_kernel.extend_attention_cpu = extend_attention_cpu
