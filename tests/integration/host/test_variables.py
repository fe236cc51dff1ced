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


def test_lost_by_what_minds_the_code_it_runs_it_is_told_and_excuses_nothing(tmp_path: Path) -> None:
    """A sitecustomize of the interpreter that both sides are made from. Only head's own process says that it is lost
    there; read without head's code nothing is, and what code under test says never stands in for a loss."""
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
    assert (done.code, done.verdict) == (1, "regression"), done.err
    assert sentences(done, "unexplained") == []
    (lost,) = (one for one in sentences(done, "explained") if "NCCL_PROTO=LL" in one)
    assert "sitecustomize.py" in lost
