"""Where SGLang does what the probe times: one row for each method, release by release.

A row is tried wherever its module loads, whatever the release: the range says where it must be found, which CI checks
on pinned wheels and `perfgate probe --check-tree` on any checkout. A class that inherits the method is covered by the
row of the class it inherits from.
"""

from __future__ import annotations

from typing import NamedTuple

SPECULATIVE = "sglang.srt.speculative."
OLDEST = "0.4.9"  # release that was looked at

CYCLE = "cycle"  # the whole of one speculative cycle; prefill passes through it as well and is marked
DRAFT = "draft"
VERIFY = "verify"
DRAFT_EXTEND = "draft_extend"
DECODE = "decode"  # target forward: one step of plain decoding, or, inside verify, `target`
TARGET = "target"
COLLECTIVE = "collective"  # first collectives of a rank: not timed, the environment is read after it


class Target(NamedTuple):
    """One method to wrap. `since` and `until` are the first and the last release that has it; None: the newest."""

    family: str
    since: str
    until: str | None
    module: str
    owner: str | None  # class; None: a function of the module
    method: str
    phase: str

    @property
    def place(self) -> str:
        return ".".join(part for part in (self.module, self.owner, self.method) if part)


def release_of(version: str) -> tuple[int, ...]:
    """(0, 5, 13) of "0.5.13.post1", "v0.5.13rc1+g1234": what rows compare by. () where there is no number."""
    numbers = []
    for part in version.lstrip("v").split("+")[0].split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)


def _v1(family: str, since: str, module: str, worker: str) -> list[Target]:
    """V1: one class drafts, verifies and extends; gone after 0.5.12. Its cycle had another name before 0.5.3."""
    rows = [
        ("forward_batch_speculative_generation", CYCLE, since, "0.5.2"),
        ("forward_batch_generation", CYCLE, max(since, "0.5.3", key=release_of), "0.5.12"),
        ("draft", DRAFT, since, "0.5.12"),
        ("verify", VERIFY, since, "0.5.12"),
        ("forward_draft_extend_after_decode", DRAFT_EXTEND, since, "0.5.12"),
    ]
    return [
        Target(family, first, last, SPECULATIVE + module, worker, method, phase)
        for method, phase, first, last in rows
        if release_of(first) <= release_of(last)
    ]


def _v2(family: str, since: str, module: str, worker: str, draft_worker: str) -> list[Target]:
    """V2: the worker verifies, its draft worker drafts and extends."""
    rows = [
        (worker, "forward_batch_generation", CYCLE),
        (worker, "verify", VERIFY),
        (draft_worker, "draft", DRAFT),
        (draft_worker, "_draft_extend_for_decode", DRAFT_EXTEND),
    ]
    return [Target(family, since, None, SPECULATIVE + module, *row) for row in rows]


TARGETS: tuple[Target, ...] = (
    *_v1("eagle_v1", OLDEST, "eagle_worker", "EAGLEWorker"),
    *_v1("multi_layer_v1", "0.5.7", "multi_layer_eagle_worker", "MultiLayerEagleWorker"),
    *_v1("standalone_v1", "0.5.2", "standalone_worker", "StandaloneWorker"),
    *_v2("eagle_v2", "0.5.5", "eagle_worker_v2", "EAGLEWorkerV2", "EagleDraftWorker"),
    *_v2(
        "multi_layer_v2",
        "0.5.7",
        "multi_layer_eagle_worker_v2",
        "MultiLayerEagleWorkerV2",
        "MultiLayerEagleDraftWorker",
    ),
    *_v2("standalone_v2", "0.5.8", "standalone_worker_v2", "StandaloneWorkerV2", "StandaloneDraftWorker"),
    Target("plain", OLDEST, None, "sglang.srt.managers.tp_worker", "TpModelWorker", "forward_batch_generation", DECODE),
    Target(
        "proof",
        OLDEST,
        None,
        "sglang.srt.distributed.parallel_state",
        None,
        "initialize_model_parallel",
        COLLECTIVE,
    ),
)

BY_MODULE: dict[str, tuple[Target, ...]] = {
    module: tuple(target for target in TARGETS if target.module == module)
    for module in {target.module for target in TARGETS}
}


def expected_in(target: Target, version: str) -> bool:
    """Whether this release must have the row."""
    release = release_of(version)
    return release_of(target.since) <= release and (target.until is None or release <= release_of(target.until))
