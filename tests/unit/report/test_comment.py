"""The comment: what it says for every verdict, and that no result can break it or get out of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfgate import records as r
from perfgate.report import headline as first_lines
from perfgate.report.comment import COMMENT_LIMIT, Links, length, render_comment
from tests.unit.report import results
from tests.unit.report.hostile import RESULTS
from tests.unit.report.rendering import active, hidden_characters, page
from tests.unit.report.snapshots import check

LINKS = Links(
    page="https://github.example/o/r/actions/runs/1#artifacts",
    run="https://github.example/o/r/actions/runs/1",
    repository="https://github.example/o/r",
    glossary="https://github.example/o/perfgate/blob/main/docs/comment.md",
)


@pytest.mark.parametrize("kind", [kind for kind in results.ALL if kind != "long"])
def test_every_kind_of_result(kind: str) -> None:
    text = render_comment(results.ALL[kind](), links=LINKS)
    check(f"comment-{kind}.md", text)
    assert active(text, links=True) == []
    assert length(text) < 10_000


HEADLINES = {
    "regression": "❌ perfgate: regression, `48642d5c0e` is slower – the author has to act",
    "pass": "✅ perfgate: pass, `48642d5c0e` loses less than the budget – nobody has to act",
    "faster": "✅ perfgate: pass, `48642d5c0e` is faster – nobody has to act",
    "within_budget": "✅ perfgate: pass, `48642d5c0e` is slower within the budget – nobody has to act",
    "inconclusive": "❔ perfgate: inconclusive on `48642d5c0e`, neither a loss nor its absence is proven"
    " – a maintainer has to act",
    "environment": "⚠️ perfgate: environment, this says nothing about `48642d5c0e`"
    " – the box's owner has to act, not the author",
    "build_failed_head": "❌ perfgate: head `48642d5c0e` does not build – the author has to act",
    "build_failed_base": "🧱 perfgate: base `bba2fc4a6a` does not build, `48642d5c0e` is not to blame"
    " – a maintainer has to act",
    "build_failed_box": "🧱 perfgate: the build failed on the box, this says nothing about `48642d5c0e`"
    " – the box's owner has to act, not the author",
    "bench_failed_head": "❌ perfgate: head `48642d5c0e` does not serve – the author has to act",
    "bench_failed_base": "🧱 perfgate: base `bba2fc4a6a` does not serve, `48642d5c0e` is not to blame"
    " – a maintainer has to act",
    "bench_failed_box": "🧱 perfgate: measuring failed, this says nothing about `48642d5c0e`"
    " – the box's owner has to act, not the author",
    "skipped": "⚪ perfgate: skipped, nothing to measure in `48642d5c0e` – nobody has to act",
}


@pytest.mark.parametrize(("kind", "headline"), HEADLINES.items())
def test_the_first_line_says_who_has_to_act(kind: str, headline: str) -> None:
    result = results.ALL[kind]()
    assert render_comment(result).splitlines()[0] == f"### {headline}"
    assert first_lines.headline(result).must_act is ("nobody" not in headline)


def spaced(result: r.Result) -> str:
    """The comment with ordinary spaces."""
    return render_comment(result).replace("\u00a0", " ")


def rows_of(text: str) -> list[list[str]]:
    """Cells of the first table, without bold, with ordinary spaces."""
    table = text.split("\n\n")[2].replace("\u00a0", " ")
    return [[cell.strip().replace("*", "") for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_story_is_told() -> None:
    text = spaced(results.story())
    assert rows_of(text)[2:] == [
        ["baseline", "tok/s", "88.39", "82.53", "−6.6 % (−8.3 … −4.9 %)", "−3.0 %", "❌ regression"],
        ["", "decode ms", "11.07", "11.85", "+7.0 % (+5.1 … +9.0 %)", "+5.1 %", "❌ regression"],
        ["eagle3", "tok/s", "94.13", "60.26", "−36.0 % (−37.1 … −34.8 %)", "−3.0 %", "❌ regression"],
        ["", "verify ms", "18.99", "28.95", "+52.4 % (+49.6 … +55.2 %)", "+5.1 %", "❌ regression"],
    ]
    assert "verify +52 % explains −27.4 points" in text
    assert "The box was steady between the launches" in text
    assert "would have shown" not in text  # it was seen
    assert text.count("Head's code sets NCCL_GRAPH_REGISTER=0.") == 1
    assert "perfgate gate --repo . --base bba2fc4a6ad7a5b1f0d4b6e2c8f90314d5e6a7b8 --head 48642d5c0e" in text
    assert all(launch.id in text for launch in results.story().launches)


def test_reading_order_does_not_follow_the_file() -> None:
    result = results.story()
    backwards = replace(result, metrics=tuple(reversed(result.metrics)))
    own = [row for row in rows_of(render_comment(result)) if row[1] in ("tok/s", "verify ms")]
    other = [row for row in rows_of(render_comment(backwards)) if row[1] in ("tok/s", "verify ms")]
    assert [row[1] for row in other] == ["tok/s", "verify ms", "tok/s"]
    assert [row[1] for row in own] == ["tok/s", "tok/s", "verify ms"]


def test_where_verify_is_absent_cycle_stands_in_and_says_so() -> None:
    text = render_comment(results.no_probe())
    assert [row[1] for row in rows_of(text)[2:]] == ["tok/s", "cycle ms"]
    assert "verify ms was not measured, so cycle ms (by the client's clock) stands in its place" in text
    assert text.count("cycle ms is judged in its place") == 0


def test_absent_is_never_zero() -> None:
    text = render_comment(results.bench_failed())
    assert ["eagle3", "tok/s", "–", "–", "–", "−3.0 %", "– not measured"] in rows_of(text)
    assert not re.search(r"\| 0\.0+ \|", text)


def test_an_environment_does_not_judge() -> None:
    text = spaced(results.environment())
    assert "❌" not in text
    assert "– not judged" in text
    assert "NCCL_PROTO was LL on base and not set on head" in text


def test_a_loss_beside_the_gate_is_told() -> None:
    text = spaced(results.at_several_levels())
    assert "not gated: eagle3 −7.7 % tok/s at concurrency 8" in text


def test_what_could_not_be_proven_is_a_note_and_no_explanation() -> None:
    text = "What the servers found at their start could not be read on both sides: nothing is proven of it."
    unproven = r.Difference(what="environment at start", sentence=text[0].lower() + text[1:-1])
    environment = r.Environment(explained=(unproven,), same=results.story().environment.same[:1])
    warning = r.Notice(code="environment_not_proven", text=text)
    comment = render_comment(replace(results.passed(), environment=environment, warnings=(warning,)))
    assert f"- {text}" in comment
    assert "Changed by the code itself" not in comment


def test_a_calibration_compares_no_answers_with_a_changes() -> None:
    result = replace(results.outputs_differ(), calibration=True)
    text = render_comment(result)
    assert "**Outputs.**" not in text
    assert text.count("other tokens than base") == 1  # a note: the launches of one commit differ


def test_outputs_that_differ_are_told_once() -> None:
    assert render_comment(results.outputs_differ()).count("other tokens than base") == 1
    bare = replace(results.passed(), outputs_differ=True)
    assert render_comment(bare).count("other tokens than base") == 1
    assert "other tokens" not in render_comment(replace(results.passed(), outputs_differ=False))


def test_the_build_that_failed_shows_its_last_lines_fenced() -> None:
    text = render_comment(results.build_failed())
    assert "The last lines of head:\n\n````text\nResolved 214" in text
    assert "SyntaxError: invalid syntax (eagle_worker.py, line 412)\n````" in text
    assert [tag for tag, _ in page(text).elements].count("pre") == 1


def test_commands_are_only_offered_on_a_pull_request() -> None:
    assert "/perfgate accept" in render_comment(results.story())
    assert "/perfgate" not in render_comment(replace(results.story(), pr=None))


def test_a_hostile_recipe_cannot_get_into_the_command() -> None:
    result = replace(results.story(), metrics=(results.metric("tok_s", 1.0, 0.5, recipe="x; rm -rf ~ #"),))
    assert "--recipes 'x; rm -rf ~ #'" in render_comment(result)


def test_links_are_only_made_to_addresses_of_the_web() -> None:
    bad = Links(page="javascript:alert(1)", run="https://a b", repository="data:x", glossary="")
    text = render_comment(results.story(), links=bad)
    assert "](" not in text
    assert "https://github.example/o/r/commit/48642d5c0e1f2a3b4c5d6e7f8091a2b3c4d5e6f7" in render_comment(
        results.story(), links=LINKS
    )


# ------------------------------------------------------------------------------------------------ numbers


def number(text: str) -> float:
    return float(re.sub(r"[ %,]", "", text).replace("−", "-"))


@given(
    name=st.sampled_from(["tok_s", "verify_ms", "accept_length"]),
    base=st.floats(0.5, 9999),
    slowdown=st.floats(-0.7, 0.7),
)
@settings(deadline=None)
def test_printed_base_head_and_change_agree(name: str, base: float, slowdown: float) -> None:
    result = replace(results.story(), metrics=(results.metric(name, base, slowdown, gated=True),))
    row = rows_of(render_comment(result))[2]
    printed_base, printed_head = number(row[2]), number(row[3])
    change = number(row[4].split("(")[0])
    assert abs(100 * (printed_head / printed_base - 1) - change) <= 0.051 + 0.12 * printed_head / printed_base


@given(name=st.sampled_from(["tok_s", "verify_ms"]), slowdown=st.floats(-0.5, 0.5), half=st.floats(0.001, 0.3))
@settings(deadline=None)
def test_the_interval_holds_the_change_in_the_metrics_own_direction(name: str, slowdown: float, half: float) -> None:
    result = replace(results.story(), metrics=(results.metric(name, 50.0, slowdown, half=half, gated=True),))
    cell = rows_of(render_comment(result))[2][4]
    change, low, high = map(number, re.fullmatch(r"(.+?) \((.+?) … (.+?)\)", cell).groups())
    assert low - 0.051 <= change <= high + 0.051
    assert (change < 0) == (slowdown > 0) or name != "tok_s" or abs(change) < 0.1


def test_an_open_interval_is_shown_as_one() -> None:
    slower = results.metric("tok_s", 50.0, 0.3, gated=True)
    text = spaced(replace(results.story(), metrics=(replace(slower, high=None),)))
    assert "(≤ −25.0 %)" in text
    text = spaced(replace(results.story(), metrics=(replace(slower, low=None),)))
    assert "(≥ −26.8 %)" in text
    text = spaced(replace(results.story(), metrics=(replace(slower, low=None, high=None),)))
    assert "(–)" in text


# ------------------------------------------------------------------------------------------------ limits


def test_a_long_result_loses_the_least_important_first() -> None:
    text = render_comment(results.long(), links=LINKS)
    assert length(text) <= COMMENT_LIMIT
    assert "Shortened to fit a comment; everything is on [the page of this run](https://github.example" in text
    assert "How it was measured" in text
    assert "**What next.**" in text
    assert "16,0" not in text


def test_the_order_in_which_parts_go() -> None:
    whole = results.suspected()
    gone = []
    for limit in range(length(render_comment(whole)), 300, -150):
        text = render_comment(whole, limit=limit)
        assert length(text) <= limit
        for part in ("tok/s**: decode", "first token ms", "Suspicion: where", "perfgate gate", "Where the time goes"):
            if part not in text and part not in gone:
                gone.append(part)
        assert text.startswith("### ❌ perfgate: regression")
    assert gone == ["tok/s**: decode", "first token ms", "Suspicion: where", "perfgate gate", "Where the time goes"]


@pytest.mark.parametrize("limit", [-1, 0, 50, 400])
def test_no_limit_is_too_small(limit: int) -> None:
    assert length(render_comment(results.long(), limit=limit)) <= max(limit, 0)


@given(RESULTS, st.sampled_from([COMMENT_LIMIT, 3000, 700, 80]))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_no_result_breaks_the_comment_or_gets_out_of_it(result: r.Result, limit: int) -> None:
    text = render_comment(result, links=LINKS, limit=limit)
    assert length(text) <= limit
    assert text.startswith("### ")
    if limit > 700:
        assert active(text, links=True) == []
    assert not hidden_characters(text)
    text.encode()


def test_hostile_texts_are_long_too() -> None:
    whole = results.story()
    huge = "@everyone <b> `x` | " * 20_000
    result = replace(
        whole,
        reason=huge,
        box=huge,
        run_id=huge,
        metrics=tuple(replace(one, recipe=huge) for one in whole.metrics),
        warnings=(r.Notice(code="w", text=huge, data={"lines": [huge] * 50}),),
    )
    text = render_comment(result)
    assert length(text) <= COMMENT_LIMIT
    assert active(text) == []
