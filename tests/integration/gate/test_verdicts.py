"""The right verdict for what a commit does, from the command line to result.json."""

from __future__ import annotations

import pytest

from perfgate.host.lock import BoxLock
from perfgate.records import LaunchBegin, Plan

from .harness import DRAFTING, PLAIN, Case, Done, World, acting, on, one_gate

pytestmark = pytest.mark.timeout(1200)  # waiting for its turn counts, too

# ------------------------------------------------------------------------------------------ honest commits


@on(Case(act=one_gate()))
def test_a_change_that_changes_nothing_passes(done: Done) -> None:
    assert (done.code, done.verdict) == (0, "pass")
    assert {(one["recipe"], one["verdict"]) for one in done.result["metrics"] if one["gated"]} == {
        ("baseline", "pass"),
        ("eagle3", "pass"),
    }
    assert done.result["outputs_differ"] is False
    assert done.out.startswith("### ✅"), done.out[:80]
    assert done.out == (done.folder / "comment.md").read_text() + "\n"
    assert "</html>" in (done.folder / "index.html").read_text()


SLOW_VERIFY = Case(  # far over a wide budget, so that the one pair that plain decoding gets is enough for it to pass
    head=acting(verify_ms=12.0),
    config={"metrics": {"tok_s": {"budget": 0.5, "prior": {"sd": 0.1, "df": 10}}}},
    act=one_gate(),
)


@on(SLOW_VERIFY)
def test_a_slower_verify_step_is_a_regression_of_speculation_alone(done: Done) -> None:
    assert (done.code, done.verdict) == (1, "regression")
    assert done.metric("tok_s", "eagle3")["verdict"] == "regression"
    assert done.metric("tok_s", "baseline")["verdict"] == "pass"
    assert done.metric("verify_ms", "eagle3")["change"] > 0.5
    assert "eagle3 tok/s" in done.result["reason"]
    worst = next(one for one in done.result["decomposition"] if one["recipe"] == "eagle3")
    assert "verify" in str(worst)


@on(SLOW_VERIFY)
def test_every_launch_names_its_commit_and_its_log(done: Done) -> None:
    begun = [fact for fact in done.facts if isinstance(fact, LaunchBegin)]
    assert {fact.side.value for fact in begun} == {"base", "head"}
    for fact in begun:
        side = done.result[fact.side.value]
        assert (fact.sha, fact.build) == (side["sha"], side["build"])
        assert (done.folder / fact.log).stat().st_size > 0
        assert (fact.t, fact.boot) != ("", "")


@on(Case(head=acting(token_ms=4.8)))
def test_slower_plain_decoding_is_a_regression(done: Done) -> None:
    assert (done.code, done.verdict) == (1, "regression")
    assert done.metric("tok_s", "baseline")["change"] < -0.25
    assert done.pairs == 2


@on(Case(head=acting(accept_length=1.2), act=one_gate(*DRAFTING)))
def test_worse_drafts_are_a_regression_without_a_slower_cycle(done: Done) -> None:
    assert (done.code, done.verdict) == (1, "regression")
    assert done.metric("accept_length", "eagle3")["change"] < -0.2
    assert abs(done.metric("cycle_ms", "eagle3")["change"]) < 0.2


ONE_KIND = (
    Case(  # one pair has to show twice the budget; long steps and a median of three: what comes late weighs little
        base=acting(token_ms=12.0),
        head=acting(token_ms=12.0, kind_factor={"code": 1 / 0.6}),
        config={
            "recipes": {"baseline": {"workload": {"samples": 3}}},
            "metrics": {"tok_s": {"budget": 0.13}},
        },
        act=one_gate(*PLAIN, "--max-pairs", "1"),
    )
)


@on(ONE_KIND)
def test_a_loss_confined_to_one_kind_of_prompt_is_named(done: Done) -> None:
    told = done.warnings("loss_confined_to_kind")
    assert [one["data"]["kind"] for one in told] == ["code"]
    assert "code" in done.out


@on(Case(head=acting(token_ms=1.8, answers=1)))
def test_a_faster_head_passes_and_other_answers_are_told(done: Done) -> None:
    assert (done.code, done.verdict) == (0, "pass")
    assert done.metric("tok_s", "baseline")["effect"] == "faster"
    assert done.result["outputs_differ"] is True
    assert done.warnings("outputs_differ")


# ------------------------------------------------------------------------------------------ what was asked for


def docs_only(world: World) -> Done:
    """While another process holds the box: nothing is to be measured, so it need not be waited for."""
    head = world.commit({"docs/index.md": "Better words.\n", "README.md": None})
    with BoxLock.acquire(world.lock, "somebody else"):
        return world.gate("--base", head + "~1", head=head)


@on(Case(act=docs_only, own_state=True))
def test_a_diff_of_documents_is_skipped_without_the_box(done: Done) -> None:
    assert (done.code, done.verdict) == (0, "skipped")
    assert done.result["cost"]["launches"] == 0
    assert done.launches(LaunchBegin) == []
    assert "nothing to measure" in done.err.lower()


def orders_of_seeds(world: World) -> dict[str, list[object]]:
    """Plans of three skipped runs: a plan stands before anything is measured."""
    head = world.commit({"docs/index.md": "Better words.\n"})
    planned: dict[str, list[object]] = {}
    for name, seed in (("first", "5"), ("second", "5"), ("other", "6")):
        done = world.gate("--base", head + "~1", "--seed", seed, out=name, head=head)
        plan = next(fact for fact in done.facts if isinstance(fact, Plan))
        planned[name] = [plan.seed, *((recipe.name, recipe.first_orders) for recipe in plan.recipes)]
    return planned


@on(Case(act=orders_of_seeds))
def test_orders_are_drawn_from_the_seed(done: dict[str, list[object]]) -> None:
    assert done["first"] == done["second"]
    assert done["first"][1:] != done["other"][1:]


@on(Case(act=one_gate(*DRAFTING, "--max-pairs", "1")))
def test_only_the_recipes_and_pairs_asked_for_are_measured(done: Done) -> None:
    assert {name.split("/")[0] for name in done.launches()} == {"eagle3"}
    assert done.pairs == 1
    assert done.result["limits"]["max_pairs"] == 1
