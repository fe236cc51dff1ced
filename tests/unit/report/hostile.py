"""Results of the right types in which every text and number may be anything, as an artifact of a stranger may be."""

from __future__ import annotations

from hypothesis import strategies as st

from perfgate import records as r
from tests.unit.report.test_escape import ATTACKS

TEXT = st.text(max_size=30) | st.sampled_from(ATTACKS)
NAME = st.sampled_from(["eagle3", "baseline"]) | TEXT
NUMBER = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.floats(0.1, 1000)
SURE = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0.001, 1)
SMALL = st.integers(-5, 10**12)
METRIC_NAME = st.sampled_from([*r.METRICS]) | TEXT

METRICS = st.builds(
    r.Metric,
    recipe=NAME,
    metric=METRIC_NAME,
    concurrency=SMALL,
    unit=TEXT,
    better=st.sampled_from(r.Better),
    base=NUMBER,
    head=NUMBER,
    change=NUMBER,
    slowdown=NUMBER,
    low=NUMBER,
    high=NUMBER,
    interval_level=SURE,
    detectable=NUMBER,
    budget=SURE,
    alpha=SURE,
    gated=st.booleans(),
    verdict=st.sampled_from(r.MetricVerdict),
    effect=st.sampled_from(r.Effect),
    pairs=SMALL,
)
DIFFERENCES = st.builds(r.Difference, what=TEXT, sentence=TEXT, base=st.none() | TEXT, head=st.none() | TEXT)
PARTS = st.builds(r.Part, phase=TEXT, slowdown=SURE, low=NUMBER, high=NUMBER, base_ms=NUMBER, head_ms=NUMBER)
LAUNCHES = st.builds(
    r.LaunchResult,
    id=st.sampled_from(["eagle3/p01/base/a1", "eagle3/p01/head/a1", "eagle3/pxx/head/a1"]) | TEXT,
    position=SMALL,
    valid=st.booleans(),
    values=st.dictionaries(st.sampled_from(["tok_s@1", "verify_ms@1"]) | TEXT, NUMBER, max_size=3),
    paired=st.booleans(),
)
SIDES = st.builds(r.SideResult, sha=st.just("a" * 40) | TEXT, tree=TEXT, build=st.none() | TEXT, title=TEXT)
NOTICES = st.builds(
    r.Notice,
    code=TEXT,
    text=TEXT,
    data=st.dictionaries(st.just("lines"), st.lists(TEXT, max_size=3) | TEXT | st.integers(), max_size=1),
)


def _tuples(of: st.SearchStrategy, most: int = 3) -> st.SearchStrategy:
    return st.lists(of, max_size=most).map(tuple)


RESULTS = st.builds(
    r.Result,
    run_id=TEXT,
    box=TEXT,
    started=TEXT,
    finished=st.just("2026-02-19T14:00:00Z") | TEXT,
    verdict=st.sampled_from(r.Verdict),
    reason=TEXT,
    exit_code=SMALL,
    base=SIDES,
    head=SIDES,
    limits=st.builds(r.RunLimits, max_pairs=SMALL, min_pairs_to_fail=SMALL, minutes=SURE, alpha=SURE, beta=SURE),
    cost=st.builds(r.Cost, launches=SMALL, gpu_minutes=NUMBER, wall_s=SURE),
    metrics=_tuples(METRICS),
    launches=_tuples(LAUNCHES),
    environment=st.builds(
        r.Environment, same=_tuples(DIFFERENCES), explained=_tuples(DIFFERENCES), unexplained=_tuples(DIFFERENCES)
    ),
    canary=_tuples(
        st.builds(
            r.CanaryResult,
            name=TEXT,
            unit=TEXT,
            before=NUMBER,
            after=NUMBER,
            shift=NUMBER,
            steady=st.none() | st.booleans(),
            sentence=TEXT,
        ),
        2,
    ),
    decomposition=_tuples(
        st.builds(r.Decomposition, recipe=NAME, concurrency=SMALL, total=SURE, parts=_tuples(PARTS), sentence=TEXT), 2
    ),
    suspects=_tuples(st.builds(r.Suspect, sha=TEXT, title=TEXT, why=TEXT), 2),
    warnings=_tuples(NOTICES),
    outputs_differ=st.none() | st.booleans(),
    failed_side=st.none() | st.sampled_from(r.Side),
    pr=st.none() | st.builds(r.PullRequest, repository=TEXT, number=SMALL),
    continues=_tuples(TEXT, 2),
    profile=st.just("gpu") | TEXT,
    perfgate=TEXT,
)
