"""The right verdict for what a commit does, from the command line to result.json."""

from __future__ import annotations

from perfgate.records import Build, Fault

from .harness import DRAFTING, PLAIN, Case, Done, World, acting, merged, on, one_gate

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
    assert done.out == (done.run / "comment.md").read_text() + "\n" if done.run else False


SLOW_VERIFY = Case(head=acting(verify_ms=8.0), act=one_gate())


@on(SLOW_VERIFY)
def test_a_slower_verify_step_is_a_regression_of_speculation_alone(done: Done) -> None:
    assert (done.code, done.verdict) == (1, "regression")
    assert done.metric("tok_s", "eagle3")["verdict"] == "regression"
    assert done.metric("tok_s", "baseline")["verdict"] == "pass"
    assert done.metric("verify_ms", "eagle3")["change"] > 0.5
    assert "eagle3 tok_s" in done.result["reason"]
    worst = next(one for one in done.result["decomposition"] if one["recipe"] == "eagle3")
    assert "verify" in str(worst)


@on(SLOW_VERIFY)
def test_every_launch_names_its_commit_and_its_log(done: Done) -> None:
    for fact in done.facts:
        if fact.kind == "launch_begin":
            side = done.result[fact.side.value]
            assert fact.sha == side["sha"]
            assert fact.build == side["build"]
            assert (done.run / fact.log).stat().st_size > 0 if done.run else False


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


@on(Case(head=acting(kind_factor={"code": 1 / 0.6}), act=one_gate(*PLAIN, "--max-pairs", "1")))
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
