"""A lost variable through the whole gate: something outside both trees is the box's doing, head's code is head's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.gate.harness import PLAIN, Done, World, acting
from tests.integration.host.interpreter import copy_interpreter, losing
from tests.standin import Behaviour

TUNED = {"nccl": {"NCCL_PROTO": "LL", "NCCL_MIN_NCHANNELS": "8"}}
QUIET = {"environment": {"rules": {"neighbour": "off", "canary": "off"}}}
MARK = 0.0517  # seconds to load: how head's tree is told from base's


def needing(**changes: object) -> Behaviour:
    """A commit that is slow without the tuning."""
    return acting(slow_without={"NCCL_PROTO": 1.7}, **changes)


@pytest.fixture
def tuned(tmp_path: Path) -> Callable[..., World]:
    def world(head: Behaviour) -> World:
        return World(tmp_path / "world", base=needing(), head=head, config={**TUNED, **QUIET})

    return world


def sentences(done: Done, kind: str) -> list[str]:
    return [one["sentence"] for one in done.result["environment"][kind]]


def test_removed_by_head_s_code_it_stays_a_regression_with_the_sentence_beside_it(
    tuned: Callable[..., World],
) -> None:
    done = tuned(needing(drops_env=["NCCL_PROTO"])).gate(*PLAIN)
    assert (done.code, done.verdict) == (1, "regression"), done.err
    assert "head's code takes NCCL_PROTO=LL away" in sentences(done, "explained")
    assert sentences(done, "unexplained") == []
    assert "NCCL_PROTO" in done.out


def test_lost_by_a_sitecustomize_outside_both_trees_it_is_the_box_s(tmp_path: Path) -> None:
    """It lies in the interpreter that both sides' environment is made from, and minds what it runs."""
    loses = losing("NCCL_PROTO", str(MARK), "sglang/srt/behaviour.py")
    python = copy_interpreter(tmp_path / "python", loses)
    world = World(
        tmp_path / "world",
        base=needing(),
        head=needing(start_s=MARK),
        config={**TUNED, **QUIET},
        box={"tools": {"python": str(python.parent)}},
    )
    done = world.gate(*PLAIN, environment={"LD_LIBRARY_PATH": str(tmp_path / "python" / "lib")})
    assert (done.code, done.verdict) == (4, "environment"), done.err
    (lost,) = sentences(done, "unexplained")
    assert lost.startswith("head started without NCCL_PROTO=LL (")
    assert lost.endswith("sitecustomize.py, outside both trees)")
    assert "NCCL_PROTO=LL" in done.result["reason"]
