"""Heads that are slow and know how to hide it: whatever they write or remember, they are regressions."""

from __future__ import annotations

import pytest

from .harness import PLAIN, Case, Done, acting, on, one_gate

pytestmark = pytest.mark.timeout(1200)  # waiting for its turn counts, too

SLOW_MS = 4.8  # for a token that base has in 3

FORGES_ITS_START = """
import glob, os
for name in glob.glob(os.environ["PERFGATE_PROBE_DIR"] + "/probe-*.jsonl"):
    lines = open(name).read()
    with open(name, "w") as file:
        file.write(lines.replace('"NCCL_PROTO": "LL"', '"NCCL_PROTO": "Simple"'))
"""

REMEMBERS = """
import queue, time
from sglang.srt.entrypoints import http_server as server
known, submit = {}, server.Engine.submit
class Tape:
    def __init__(self, states, source=None):
        self.states, self.source, self.at = states, source, 0
    def get(self):
        if self.source:
            self.states.append(self.source.get())
            return self.states[-1]
        time.sleep(0.0005)
        self.at += 1
        return self.states[self.at - 1]
def remember(self, text, limit):
    if known.get(text, [[0, 0, False]])[-1][2]:
        return "known", Tape(known[text])
    rid, source = submit(self, text, limit)
    known[text] = []
    return rid, Tape(known[text], source)
server.Engine.submit = remember
"""


@on(
    Case(
        head=acting(token_ms=SLOW_MS, on_start=FORGES_ITS_START),
        config={"nccl": {"NCCL_PROTO": "LL"}},
        act=one_gate(*PLAIN),
    )
)
def test_a_forged_reading_of_the_start_excuses_no_loss(done: Done) -> None:
    assert (done.code, done.verdict) == (1, "regression"), done.result["reason"]
    assert done.result["environment"]["unexplained"] == []
    told = [one["sentence"] for one in done.result["environment"]["explained"]]
    assert any("says that it started with NCCL_PROTO=Simple instead of LL" in sentence for sentence in told), told


@on(
    Case(
        head=acting(token_ms=SLOW_MS, on_start=REMEMBERS),
        config={"recipes": {"baseline": {"workload": {"warmup_min": 5, "warmup_max": 5}}}},
        act=one_gate(*PLAIN),
    )
)
def test_answers_remembered_from_warming_up_make_nothing_faster(done: Done) -> None:
    assert (done.code, done.verdict) == (1, "regression"), done.result["reason"]
    assert done.metric("tok_s", "baseline")["change"] < -0.2
