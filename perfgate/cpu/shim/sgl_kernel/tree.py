"""The draft tree: how it is laid out for verification, and which of its tokens the target accepts.

A request's tree has n nodes. Node 0, the root, is the last committed token; nodes 1 … n-1 are the drafted tokens
that were chosen. `selected_index` numbers a chosen token among all candidates: candidate c was drafted in step
c // topk, and `parent_list[c // topk]` is the candidate it follows (for the first step: the root).
Links are node numbers, -1 where there is none: `next_token` is the first child, `next_sibling` the next
alternative to the node itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

FULL_MASK, QLEN_ONLY = 0, 1  # SGLang's TreeMaskMode; the third, bit-packed one never reaches a CPU


def _parents(selected: list[int], parent_list: list[int], topk: int) -> list[int | None]:
    """Each node's parent node; None for the root and for a node whose parent was not chosen."""
    node_of = {candidate: node for node, candidate in enumerate(selected, start=1)}
    parents: list[int | None] = [None]
    for candidate in selected:
        step = candidate // topk
        parents.append(0 if step == 0 else node_of.get(parent_list[step]))
    return parents


def _links(parents: list[int | None]) -> tuple[list[int], list[int]]:
    """First child and next sibling of every node."""
    first_child, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        parent = parents[node]
        if parent is not None:
            next_sibling[node], first_child[parent] = first_child[parent], node
    return first_child, next_sibling


def _path(node: int, parents: list[int | None], depth: int) -> list[int]:
    """The nodes from `node` up to, and without, the root; at most `depth` of them."""
    path: list[int] = []
    while node and len(path) < depth:
        path.append(node)
        node = parents[node] or 0
    return path


def build_tree_kernel_efficient_cpu(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill the mask (who sees whom), the positions and the links of every request's tree.

    The mask is packed: n rows per request; of n columns with QLEN_ONLY, and of the committed length + n columns
    with FULL_MASK, where the committed ones are left as they were.
    """
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"tree mask mode {tree_mask_mode}")
    n, offset = draft_token_num, 0
    for request, length in enumerate(verified_seq_len.tolist()):
        parents = _parents(selected_index[request].tolist()[: n - 1], parent_list[request].tolist(), topk)
        first_child, next_sibling = _links(parents)
        paths = [_path(node, parents, depth) for node in range(n)]

        sees = torch.zeros(n, n, dtype=torch.bool)
        sees[:, 0] = True
        for node, path in enumerate(paths):
            sees[node, path] = True
        width = n if tree_mask_mode == QLEN_ONLY else length + n
        tree_mask[offset : offset + n * width].view(n, width)[:, width - n :] = sees.to(tree_mask.dtype)
        offset += n * width

        rows = slice(request * n, (request + 1) * n)
        positions[rows] = torch.tensor([length + len(path) for path in paths], dtype=positions.dtype)
        retrieve_index[request] = torch.arange(rows.start, rows.stop)
        retrieve_next_token[request] = torch.tensor(first_child)
        retrieve_next_sibling[request] = torch.tensor(next_sibling)


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk down each tree as long as a child is the token the target would have chosen itself.

    `accept_index` [requests, steps] gets the accepted rows, the root first; `accept_token_num` their number without
    the root; `predicts` the target's token after each of them. (`retrive`: the operator's own spelling.)
    """
    wanted = target_predict.reshape(-1).tolist()
    trees = zip(
        candidates.tolist(),
        retrive_index.tolist(),
        retrive_next_token.tolist(),
        retrive_next_sibling.tolist(),
        strict=True,
    )
    for request, (tokens, rows, first_child, next_sibling) in enumerate(trees):
        accepted = [rows[0]]
        node = 0
        while len(accepted) < accept_index.shape[1]:
            node = first_child[node]
            while node != -1 and tokens[node] != wanted[accepted[-1]]:
                node = next_sibling[node]
            if node == -1:
                break
            accepted.append(rows[node])
        accept_index[request, : len(accepted)] = torch.tensor(accepted, dtype=accept_index.dtype)
        accept_token_num[request] = len(accepted) - 1
        for row in accepted:
            predicts[row] = wanted[row]
