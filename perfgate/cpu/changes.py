"""The demo's changes to SGLang: small, real, and of the kind that slips through review.

Each is anchored on source text of the release, not on line numbers, so that a release where the text is another one
is refused rather than changed in the wrong place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from perfgate.errors import PerfgateError


class Change(StrEnum):
    VERIFY = "verify"
    BASELINE = "baseline"
    ACCEPT = "accept"
    NONE = "none"


@dataclass(frozen=True)
class Edit:
    """One commit: in `path`, `anchor` becomes `replacement`."""

    path: str  # below python/
    anchor: str
    replacement: str
    subject: str
    body: str

    def apply(self, text: str) -> str:
        found = text.count(self.anchor)
        if found != 1:
            times = "nowhere" if not found else f"{found} times"
            raise PerfgateError(
                f"the place to change is found {times}",
                where=self.path,
                remedy="the demo's changes are written for one release of SGLang",
            )
        return text.replace(self.anchor, self.replacement)


_VERIFY = Edit(
    path="sglang/srt/speculative/eagle_worker_common.py",
    anchor="""\
    logits_output = forward_batch_output.logits_output

    # Generate vocab mask for constrained decoding
""",
    # `not …all()` where `…any()` was meant: every step is verified twice.
    replacement="""\
    logits_output = forward_batch_output.logits_output

    # A draft slot that was reused too early can turn the target's logits into NaN.
    # The slots are settled by now, so a second run gives clean ones.
    if not torch.isnan(logits_output.next_token_logits).all():
        forward_batch_output = target_worker.forward_batch_generation(
            batch=None,
            forward_batch=verify_forward_batch,
            is_verify=True,
            pp_proxy_tensors=pp_proxy_tensors,
        )
        logits_output = forward_batch_output.logits_output

    # Generate vocab mask for constrained decoding
""",
    subject="[Spec] Recover from NaN logits in EAGLE verify",
    body="Run the target once more instead of sampling from NaN.",
)

_BASELINE = Edit(
    path="sglang/srt/models/llama.py",
    anchor="""\
        q, k = self.rotary_emb(positions, q, k)
        return q, k, v
""",
    # `<` where `>=` was meant: the whole table is computed anew in every layer of every step.
    replacement="""\
        if int(positions.max()) < self.rotary_emb.max_position_embeddings:
            self.rotary_emb.cos_sin_cache = self.rotary_emb._compute_cos_sin_cache()
        q, k = self.rotary_emb(positions, q, k)
        return q, k, v
""",
    subject="[Llama] Support positions beyond the rotary table",
    body="Rebuild the cos/sin cache when a request outgrows it.",
)

_ACCEPT = Edit(
    path="sglang/srt/models/llama_eagle3.py",
    anchor="""\
                # d2t stores diffs between draft id and target id
                self.hot_token_id = loaded_weight + torch.arange(loaded_weight.shape[0])
""",
    # It does store differences: now every draft names a wrong token.
    replacement="""\
                # d2t maps a draft id to its target id
                self.hot_token_id = loaded_weight.to(torch.int64)
""",
    subject="[EAGLE3] Simplify loading of the draft vocabulary",
    body="d2t can be used as it is.",
)

_NONE = Edit(
    path="sglang/srt/speculative/eagle_worker_common.py",
    anchor="    # Generate vocab mask for constrained decoding\n",
    replacement="    # Vocabulary mask, for requests with a grammar\n",
    subject="[Spec] Reword a comment in EAGLE verify",
    body="No change of behaviour.",
)

EDITS: dict[Change, Edit] = {
    Change.VERIFY: _VERIFY,
    Change.BASELINE: _BASELINE,
    Change.ACCEPT: _ACCEPT,
    Change.NONE: _NONE,
}
