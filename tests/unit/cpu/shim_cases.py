"""Cases of the stand-in kernels, computed by hand. Run by the cpu environment's own Python, which has no pytest.

`python shim_cases.py` prints {case: traceback or ""} as JSON.
"""

from __future__ import annotations

import json
import math
import traceback

import sgl_kernel as k  # type: ignore[import-not-found]
import torch
from torch import tensor


def equal(found: torch.Tensor, expected: object) -> None:
    assert found.tolist() == expected, f"{found.tolist()} is not {expected}"


def raises(kind: type[Exception], call: object, *arguments: object) -> None:
    try:
        call(*arguments)  # type: ignore[operator]
    except kind:
        return
    raise AssertionError(f"{kind.__name__} expected")


# ------------------------------------------------------------------------------------------------ cache slots

TABLE = [[10, 11, 12, 13, 14, 15], [20, 21, 22, 23, 24, 25], [30, 31, 32, 33, 34, 35]]


def case_slots_are_written_where_each_request_stands() -> None:
    table = torch.zeros(3, 5, dtype=torch.int32)
    # request in row 2 gets positions 1 and 2, the one in row 0 position 4
    k.assign_req_to_token_pool_cpu(tensor([2, 0]), table, tensor([1, 4]), tensor([3, 5]), tensor([7, 8, 9]), 5)
    equal(table, [[0, 0, 0, 0, 9], [0, 0, 0, 0, 0], [0, 7, 8, 0, 0]])


def case_slots_are_read_one_request_behind_the_other() -> None:
    out = torch.full((5,), -1)
    k.assign_extend_cache_locs_cpu(tensor([1, 2]), tensor(TABLE), tensor([2, 0]), tensor([4, 1]), out, 6)
    equal(out, [22, 23, 30, -1, -1])


def case_a_request_with_nothing_new_takes_no_place() -> None:
    out = torch.full((2,), -1)
    k.assign_extend_cache_locs_cpu(tensor([0, 1]), tensor(TABLE), tensor([3, 5]), tensor([3, 6]), out, 6)
    equal(out, [25, -1])


def case_draft_slots_follow_the_committed_tokens() -> None:
    out = torch.zeros(8, dtype=torch.int64)
    k.assign_draft_cache_locs_contiguous_cpu(tensor([0, 2]), tensor(TABLE), tensor([1, 2]), out, 6, 2, 2)
    equal(out, [11, 12, 13, 14, 32, 33, 34, 35])


def case_the_bonus_token_is_the_last_accepted() -> None:
    bonus = torch.zeros(2, dtype=torch.int32)
    k.fill_bonus_tokens_cpu(tensor([[5, 6, 7], [8, 9, 0]]), tensor([3, 1]), bonus, 3)
    equal(bonus, [7, 8])


def case_slots_of_accepted_tokens_move_together() -> None:
    out = torch.full((6,), -1)
    k.fill_accept_out_cache_loc_cpu(tensor([[0, 1, -1], [3, -1, -1]]), tensor([40, 41, 42, 43, 44, 45]), out)
    equal(out, [40, 41, 43, -1, -1, -1])


def case_tokens_rotate_within_their_request() -> None:
    ids = tensor([1, 2, 3, 4, 5, 6])
    k.rotate_input_ids_cpu(ids, tensor([0, 3, 4]), tensor([3, 1, 2]), tensor([[70], [80], [90]]))
    equal(ids, [2, 3, 70, 80, 6, 90])


def case_the_new_token_goes_where_it_is_told() -> None:
    ids = tensor([1, 2, 3, 4])
    k.rotate_input_ids_cpu(ids, tensor([0, 4]), tensor([4, 0]), tensor([70, 80]), tensor([1, 3]))
    equal(ids, [2, 70, 4, 4])  # the second request is empty


def case_rows_that_overlap_are_copied_as_they_were() -> None:
    layers = [torch.arange(8, dtype=torch.float32).view(4, 2), torch.arange(4, dtype=torch.int8).view(4, 1)]
    pointers = tensor([layer.data_ptr() for layer in layers])
    strides = tensor([8, 1])
    k.copy_all_layer_kv_cache_cpu(pointers, strides, tensor([1, 2]), tensor([0, 1]))
    equal(layers[0], [[0, 1], [0, 1], [2, 3], [6, 7]])
    equal(layers[1], [[0], [0], [1], [3]])


# ------------------------------------------------------------------------------------------------ draft tree


def built(parents: object, selected: object, lengths: list[int], topk: int, depth: int, mode: int) -> dict[str, list]:  # type: ignore[type-arg]
    picked = tensor(selected)
    requests, n = picked.shape[0], picked.shape[1] + 1
    size = requests * n * n if mode == k.tree.QLEN_ONLY else sum(n * (length + n) for length in lengths)
    out = {
        "mask": torch.ones(size, dtype=torch.bool) if mode == 0 else torch.zeros(size, dtype=torch.bool),
        "positions": torch.zeros(requests * n, dtype=torch.int64),
        "index": torch.full((requests, n), -9),
        "child": torch.full((requests, n), -9),
        "sibling": torch.full((requests, n), -9),
    }
    k.build_tree_kernel_efficient_cpu(tensor(parents), picked, tensor(lengths), *out.values(), topk, depth, n, mode)
    return {name: value.int().tolist() for name, value in out.items()}


def case_a_chain_is_a_tree_without_siblings() -> None:
    # top-k 1, two steps: candidate 0 follows the root, candidate 1 follows candidate 0
    tree = built([[-1, 0], [-1, 0]], [[0, 1], [0, 1]], [5, 9], topk=1, depth=2, mode=1)
    assert tree["positions"] == [5, 6, 7, 9, 10, 11]
    assert tree["index"] == [[0, 1, 2], [3, 4, 5]]
    assert tree["child"] == [[1, 2, -1], [1, 2, -1]]
    assert tree["sibling"] == [[-1, -1, -1], [-1, -1, -1]]
    assert tree["mask"] == [1, 0, 0, 1, 1, 0, 1, 1, 1] * 2


def case_branches_see_their_own_ancestors_alone() -> None:
    # top-k 2: candidates 0 and 1 follow the root; the second step's parents are candidates 0 and 1,
    # so candidates 2, 3 follow 0 and candidates 4, 5 follow 1. Chosen: 0, 1, 2, 5.
    #        0 root
    #       1      2
    #      3        4
    tree = built([[-1, 0, 1]], [[0, 1, 2, 5]], [3], topk=2, depth=2, mode=1)
    assert tree["positions"] == [3, 4, 4, 5, 5]
    assert tree["child"] == [[1, 3, 4, -1, -1]]
    assert tree["sibling"] == [[-1, 2, -1, -1, -1]]
    rows = [tree["mask"][i : i + 5] for i in range(0, 25, 5)]
    assert rows == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 1]]


def case_a_full_mask_leaves_the_committed_tokens_visible() -> None:
    tree = built([[-1, 0], [-1, 0]], [[0, 1], [0, 1]], [2, 1], topk=1, depth=2, mode=0)
    first = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    second = [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert tree["mask"] == [seen for row in first + second for seen in row]


def case_an_unknown_mask_is_refused() -> None:
    raises(NotImplementedError, built, [[-1, 0]], [[0, 1]], [2], 1, 2, 2)


def verified(candidates: object, child: object, sibling: object, target: object, steps: int) -> dict[str, list]:  # type: ignore[type-arg]
    tokens = tensor(candidates)
    requests, n = tokens.shape
    predicts = torch.full((requests * n,), -1, dtype=torch.int32)
    accepted = torch.full((requests, steps), -1, dtype=torch.int32)
    number = torch.zeros(requests, dtype=torch.int32)
    rows = torch.arange(requests * n).view(requests, n)
    k.verify_tree_greedy_cpu(predicts, accepted, number, tokens, rows, tensor(child), tensor(sibling), tensor(target))
    return {"predicts": predicts.tolist(), "accepted": accepted.tolist(), "number": number.tolist()}


def case_a_chain_is_accepted_up_to_the_first_other_token() -> None:
    # the target says 7 8 9, then 7 5 6: all of the first draft (7, 8) and the first token of the second one
    chain = [[1, 2, -1], [1, 2, -1]]
    out = verified([[3, 7, 8], [4, 7, 8]], chain, [[-1] * 3] * 2, [[7, 8, 9], [7, 5, 6]], 3)
    assert out["accepted"] == [[0, 1, 2], [3, 4, -1]]
    assert out["number"] == [2, 1]
    assert out["predicts"] == [7, 8, 9, 7, 5, -1]


def case_nothing_drafted_right_still_gives_the_targets_token() -> None:
    out = verified([[3, 1, 8]], [[1, 2, -1]], [[-1] * 3], [[7, 8, 9]], 3)
    assert out == {"predicts": [7, -1, -1], "accepted": [[0, -1, -1]], "number": [0]}


def case_the_sibling_is_tried_where_the_first_child_is_wrong() -> None:
    # the tree of above; the target goes root → node 2 → node 4
    tokens, child, sibling = [[0, 5, 6, 7, 8]], [[1, 3, 4, -1, -1]], [[-1, 2, -1, -1, -1]]
    out = verified(tokens, child, sibling, [[6, 0, 8, 0, 9]], 3)
    assert out == {"predicts": [6, -1, 8, -1, 9], "accepted": [[0, 2, 4]], "number": [2]}


def case_no_more_is_accepted_than_there_is_room_for() -> None:
    out = verified([[3, 7, 8]], [[1, 2, -1]], [[-1] * 3], [[7, 8, 9]], 2)
    assert out["number"] == [1]
    assert out["accepted"] == [[0, 1]]


# ------------------------------------------------------------------------------------------------ attention

LN3 = math.log(3)
NONE_OF_IT = (0.0, False, 0, None)  # logit cap, cross attention, window; encoder lengths


def case_decoding_stores_the_new_token_and_weighs_all() -> None:
    # Two slots in use, [1] and [3]; scores 0 and ln 3 weigh them 1 : 3.
    keys, values = torch.zeros(4, 1, 1), torch.zeros(4, 1, 1)
    values[1] = 8.0
    out = torch.zeros(1, 1, 1)
    k.decode_attention_cpu(
        *(tensor([[[1.0]]]), keys, values, 1.0, 1.0, out, tensor([[LN3]]), tensor([[4.0]]), tensor([3])),
        *(torch.empty(0), tensor([[1, 3, 0]]), tensor([0]), tensor([2]), 1.0, *NONE_OF_IT, None),
    )
    assert keys[3].item() == tensor(LN3).item()
    assert values[3].item() == 4.0
    assert abs(out.item() - (8 * 1 + 4 * 3) / 4) < 1e-6


def case_decoding_scales_the_scores() -> None:
    keys, values = tensor([[[0.0]], [[2 * LN3]]]), tensor([[[0.0]], [[4.0]]])
    out = torch.zeros(1, 1, 1)
    k.decode_attention_cpu(
        *(tensor([[[1.0]]]), keys, values, 1.0, 1.0, out, None, None, tensor([0]), torch.empty(0)),
        *(tensor([[0, 1]]), tensor([0]), tensor([2]), 0.5, *NONE_OF_IT, None),
    )
    assert abs(out.item() - 3.0) < 1e-6


def extended(new: int, length: int, mask: object = None, causal: bool = True, heads: int = 1) -> list[float]:
    """Every score is 0, so a token's output is the mean of the values (1, 2, 4, 8 …) that it sees."""
    values = tensor([2.0**slot for slot in range(6)]).view(6, 1, 1)
    out = torch.zeros(new, heads, 1)
    k.extend_attention_cpu(
        *(torch.zeros(new, heads, 1), None, None, out, torch.zeros(6, 1, 1), values, 1.0, 1.0),
        *(tensor([[0, 1, 2, 3, 4, 5]]), tensor([0]), tensor([length]), tensor([new]), tensor([0]), new, 1.0),
        *(*NONE_OF_IT, None, None if mask is None else tensor(mask), causal),
    )
    return [round(value, 5) for value in out.flatten().tolist()]


def case_extending_sees_the_committed_and_the_earlier_new_tokens() -> None:
    assert extended(2, 4) == [round(7 / 3, 5), 3.75]


def case_extending_without_causality_sees_all() -> None:
    assert extended(2, 4, causal=False) == [3.75, 3.75]


def case_a_tree_mask_says_which_new_tokens_are_seen() -> None:
    # one committed token, then the root and its two children, which do not see each other
    sees = [1, 0, 0, 1, 1, 0, 1, 0, 1]
    assert extended(3, 4, mask=sees) == [1.5, round(7 / 3, 5), round(11 / 3, 5)]


def case_query_heads_share_a_key_head() -> None:
    assert extended(1, 2, heads=2) == [1.5, 1.5]


def case_requests_do_not_see_each_other() -> None:
    values = tensor([2.0**slot for slot in range(4)]).view(4, 1, 1)
    out = torch.zeros(3, 1, 1)
    k.extend_attention_cpu(
        *(torch.zeros(3, 1, 1), None, None, out, torch.zeros(4, 1, 1), values, 1.0, 1.0),
        *(tensor([[0, 1], [2, 3]]), tensor([0, 1]), tensor([2, 2]), tensor([2, 1]), tensor([0, 2]), 2, 1.0),
        *(*NONE_OF_IT, None, None, True),
    )
    assert out.flatten().tolist() == [1.0, 1.5, 6.0]


def case_what_the_model_does_not_need_is_refused() -> None:
    for unsupported in ((30.0, False, 0, None), (0.0, True, 0, None), (0.0, False, 8, None)):
        rest = (tensor([[0]]), tensor([0]), tensor([1]), 1.0, *unsupported, None)
        one = torch.zeros(1, 1, 1)
        raises(NotImplementedError, k.decode_attention_cpu, *[one] * 3, 1.0, 1.0, one, None, None, None, None, *rest)


def case_each_branch_has_a_row_of_slots() -> None:
    table = k.build_draft_decode_metadata_cpu(tensor(TABLE), tensor([2, 0]), tensor([2, 1]), 2, 2, 6)
    equal(table, [[30, 31, 32, 33], [30, 31, 34, 35], [10, 11, 12, 0], [10, 13, 14, 0]])


def case_sglang_finds_attention_among_torchs_operators() -> None:
    assert torch.ops.sgl_kernel.decode_attention_cpu is k.decode_attention_cpu
    assert torch.ops.sgl_kernel.extend_attention_cpu is k.extend_attention_cpu


def main() -> None:
    results: dict[str, str] = {}
    for name, case in list(globals().items()):
        if name.startswith("case_"):
            try:
                case()
                results[name] = ""
            except Exception:  # noqa: BLE001  a case may fail in any way; it is told
                results[name] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
