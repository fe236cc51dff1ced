"""What public reports of SGLang's failures say of their cause, in the form in which logs hold it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from perfgate.engine.causes import FailureCause
from perfgate.engine.logs import LogFile, LogParser, LogState

REPORTS = Path(__file__).parents[2] / "fixtures" / "sglang-logs" / "failures"


def read(name: str) -> LogState:
    return LogFile(REPORTS / f"{name}.log").read_all()


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("gloo-hides-oom", "out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB."),
        ("nccl-watchdog", "nccl_timeout", "Watchdog caught collective operation timeout"),
        ("nccl-watchdog-cuda", "cuda_error", "CUDA error: an illegal memory access was encountered"),
        ("sigquit-first", "scheduler_exception", "ValueError: EAGLE needs a page size of 1"),
        ("interleaved", "out_of_memory", "RuntimeError: Not enough memory. Please try to increase --mem-fraction"),
        ("torch-ranks", "scheduler_exception", "AttributeError: 'NoneType' object has no attribute 'topk_ids'"),
        ("ambiguous-flag", "bad_flag", "error: ambiguous option: --speculative-al could match"),
        ("glued-to-a-bar", "scheduler_exception", "tvm.error.InternalError: Error in function 'TllmGenFmhaRunner'"),
        ("unbalanced-raised", "memory_unbalanced", "RuntimeError: The memory capacity is unbalanced."),
        ("hard-watchdog", "watchdog_timeout", "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=Fal"),
        ("skipped-tactic-then-crash", "scheduler_exception", "KeyError: 'model.layers.0.mlp.gate.weight'"),
        ("address-in-use-then-crash", "scheduler_exception", "TypeError: verify() takes 2 positional arguments"),
    ],
)  # fmt: skip
def test_the_cause_nearest_to_the_root_is_told(name: str, code: str, line: str) -> None:
    state = read(name)
    assert state.fatal
    assert state.cause is not None
    assert (state.cause.code, line in state.cause.line) == (code, True), state.cause


@pytest.mark.parametrize("name", ["unbalanced-warned", "soft-watchdog", "skipped-tactic", "address-in-use"])
def test_a_line_that_looks_like_a_cause_is_none_while_the_server_lives(name: str) -> None:
    state = read(name)
    assert not state.fatal
    assert state.ready


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_the_ranks_does_not_matter(seed: int) -> None:
    """Rank 3 ran out of memory, the others lost it; their entries come in any order, the parent's word anywhere."""
    lost = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:9"
    ends = dict.fromkeys(range(8), lost) | {3: "torch.OutOfMemoryError: CUDA out of memory."}
    entries = [
        f"[2026-02-18 23:24:14 TP{rank}] Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "scheduler.py", line 1825, in run_scheduler_process\n    f()\n{end}\n\n'
        for rank, end in ends.items()
    ]
    entries.append("[2026-02-18 23:24:15] Received sigquit from a child process. It usually means the child failed.\n")
    random.Random(seed).shuffle(entries)
    parser = LogParser()
    parser.feed("".join(entries).encode())
    assert parser.state().cause == FailureCause("out_of_memory", ends[3])


def test_a_thousand_lost_ranks_do_not_hide_the_first_cause() -> None:
    parser = LogParser()
    parser.feed(b"[2026-02-18 23:24:14 TP3] Scheduler hit an exception: Traceback (most recent call last):\n")
    parser.feed(b"KeyError: 'gate'\n" + b"[2026-02-18 23:24:14] Connection closed by peer\n" * 1000)
    assert parser.state().cause == FailureCause("scheduler_exception", "KeyError: 'gate'")
