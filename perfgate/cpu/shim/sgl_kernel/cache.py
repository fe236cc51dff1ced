"""Which KV cache slot belongs to which token.

`req_to_token` is a table [requests, positions]: row r, column p holds the slot of position p of request r.
Several requests' slots or tokens stand one behind the other in flat tensors ("packed").
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor


def _windows(rows: Tensor, starts: Tensor, ends: Tensor) -> Iterator[tuple[slice, int, slice]]:
    """For each request: its range in the packed tensor, its row in the table, its columns there."""
    packed = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        yield slice(packed, packed + end - start), row, slice(start, end)
        packed += end - start


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write packed slots into the table, at each request's positions [start, end)."""
    for packed, row, columns in _windows(req_pool_indices, start_offset, end_offset):
        req_to_token[row, columns] = out_cache_loc[packed].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """The reverse: read the table at each request's positions [start, end) into packed slots."""
    for packed, row, columns in _windows(req_pool_indices, start_offset, end_offset):
        out_cache_loc[packed] = req_to_token[row, columns].to(out_cache_loc.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """Read the `topk · num_steps` slots that follow each request's committed tokens."""
    ends = seq_lens + topk * num_steps
    assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, seq_lens, ends, out_cache_loc, pool_len)


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """Each request's last accepted token; `accept_tokens` has `accept_stride` places per request."""
    requests = accept_lens.numel()
    last = torch.arange(requests) * accept_stride + accept_lens.long() - 1
    bonus_tokens[:requests] = accept_tokens.reshape(-1)[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """The slots of the accepted tokens, moved together; -1 in `accept_index` marks a rejected one."""
    accepted = accept_index.reshape(-1)
    slots = out_cache_loc[accepted[accepted > -1].long()]
    accept_out_cache_loc[: slots.numel()] = slots.to(accept_out_cache_loc.dtype)


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None = None,
) -> None:
    """Shift each request's packed tokens one to the left and put its new token last (or at `select_index`)."""
    new_tokens = topk_index.reshape(-1).to(input_ids.dtype)
    for request, (start, length) in enumerate(zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)):
        if length <= 0:
            continue
        end = start + length
        input_ids[start : end - 1] = input_ids[start + 1 : end].clone()
        last = end - 1 if select_index is None else int(select_index[request])
        input_ids[last] = new_tokens[request]


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy cache rows from `src_loc` to `tgt_loc` in every layer, given as address and bytes per row.

    Only trees (top-k above 1) come here. All rows are read before any is written, as source and target overlap.
    """
    sources, targets = src_loc.tolist(), tgt_loc.tolist()
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(address + source * stride, stride) for source in sources]
        for target, row in zip(targets, rows, strict=True):
            ctypes.memmove(address + target * stride, row, stride)
