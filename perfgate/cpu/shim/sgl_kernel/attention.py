"""Attention over the paged KV cache, one request at a time, and the slot table of the draft's branches.

Shapes: queries [tokens, heads, dim], keys and values [tokens, kv heads, dim], cache buffers [slots, kv heads, dim].
"""

from __future__ import annotations

import torch
from torch import Tensor


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """Softmax attention of one request; several query heads may share a KV head."""
    q, k, v = (x.to(query.dtype).transpose(0, 1).unsqueeze(0) for x in (query, key, value))
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.squeeze(0).transpose(0, 1)


def _refuse_unsupported(logit_cap: float, is_cross_attn: bool, sliding_window_size: int, sinks: Tensor | None) -> None:
    """Say so rather than compute something else: the tiny model needs none of these."""
    if logit_cap or is_cross_attn or sliding_window_size > 0 or sinks is not None:
        raise NotImplementedError("logit cap, cross attention, sliding window and attention sinks")


def decode_attention_cpu(
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """One new token per request: store its key and value at slot `loc`, then attend to all of its request."""
    _refuse_unsupported(logit_cap, is_cross_attn, sliding_window_size, sinks)
    if key is not None and value is not None:
        k_buffer[loc] = key.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc] = value.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    lengths = zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)
    for request, (row, length) in enumerate(lengths):
        slots = req_to_token[row, :length]
        this = slice(request, request + 1)
        output[this] = _attend(query[this], k_buffer[slots], v_buffer[slots], sm_scale)


def extend_attention_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    """Several new tokens per request (prefill, verification); their keys and values are in the cache already.

    `seq_lens` counts the new tokens too. `tree_mask`, if any, is packed: new × new places per request.
    """
    _refuse_unsupported(logit_cap, is_cross_attn, sliding_window_size, sinks)
    offset = 0
    requests = zip(
        req_pool_indices.tolist(),
        seq_lens.tolist(),
        extend_seq_lens.tolist(),
        extend_start_loc.tolist(),
        strict=True,
    )
    for row, length, new, start in requests:
        slots = req_to_token[row, :length]
        mask = torch.ones(new, length, dtype=torch.bool)
        if tree_mask is not None:
            mask[:, length - new :] = tree_mask[offset : offset + new * new].view(new, new).bool()
            offset += new * new
        elif is_causal:
            mask = mask.tril(length - new)
        these = slice(start, start + new)
        output[these] = _attend(q[these], k_buffer[slots], v_buffer[slots], sm_scale, mask)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> Tensor:
    """A slot table with a row for each branch of each request: the committed slots, then the branch's own."""
    lengths = seq_lens.tolist()
    table = req_to_token.new_zeros((len(lengths) * topk, max(lengths) + num_steps))
    for request, (row, length) in enumerate(zip(req_pool_indices.tolist(), lengths, strict=True)):
        for branch in range(topk):
            own = length + branch * num_steps
            target = table[request * topk + branch]
            target[:length] = req_to_token[row, :length]
            target[length : length + num_steps] = req_to_token[row, own : own + num_steps]
    return table
