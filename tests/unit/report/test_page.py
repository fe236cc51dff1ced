"""The page: self-contained, harmless, and it says where every number comes from."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfgate import records as r
from perfgate.report.comment import Links
from perfgate.report.page import render_page, samples_of, sources_of
from perfgate.report.plots import dot_plot, pairs_of, phase_bars, phases_of, spans_of, timeline
from perfgate.report.svg import ticks
from tests.unit.report import results
from tests.unit.report.hostile import RESULTS, TEXT
from tests.unit.report.rendering import hidden_characters
from tests.unit.report.snapshots import check

LINKS = Links(repository="https://github.example/o/r", run="https://github.example/o/r/actions/runs/1")
NEVER = {"script", "iframe", "object", "embed", "img", "image", "link", "base", "form", "input", "foreignobject", "use"}


class Html(HTMLParser):
    """Elements, attributes and text of a page; complains about tags that do not match."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.comments: list[str] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def assert_harmless(html: str) -> Html:
    seen = Html(html)
    assert not seen.wrong
    assert not seen.open
    assert not seen.comments
    for tag, attributes in seen.elements:
        assert tag not in NEVER
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        for name in ("href", "src", "xlink:href", "action"):
            address = attributes.get(name)
            assert address is None or address.startswith(("#", "https://github.example/"))
    assert not hidden_characters(html)
    return seen


@pytest.mark.parametrize("kind", results.ALL)
def test_every_kind_of_result_has_a_page(kind: str) -> None:
    result = results.ALL[kind]()
    seen = assert_harmless(render_page(result, links=LINKS))
    assert result.reason in seen.text
    assert seen.text.count("perfgate:") >= 1


def test_the_page_of_the_story() -> None:
    html = render_page(results.story(), results.story_facts(), links=LINKS)
    check("page-story.html", html)
    seen = assert_harmless(html)
    assert len([tag for tag, _ in seen.elements if tag == "svg"]) == 7  # four metrics, phases of each recipe, timeline
    assert len(html) < 120_000


def test_the_policy_allows_exactly_the_style_of_the_page() -> None:
    html = render_page(results.story())
    style = re.search(r"<style>(.*?)</style>", html, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'" in html
    assert "url(" not in style
    assert "@import" not in style


def test_drawings_can_be_read_without_seeing_them() -> None:
    seen = Html(render_page(results.story(), results.story_facts()))
    ids = [attributes["id"] for _, attributes in seen.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    drawings = [attributes for tag, attributes in seen.elements if tag == "svg"]
    for attributes in drawings:
        assert attributes["role"] == "img"
        assert set(attributes["aria-labelledby"].split()) <= set(ids)
    headings = [int(tag[1]) for tag, _ in seen.elements if re.fullmatch(r"h[1-6]", tag)]
    assert headings[0] == 1
    assert all(below <= above + 1 for above, below in pairwise(headings))
    assert all(attributes.get("scope") for tag, attributes in seen.elements if tag == "th")


def test_each_number_names_its_facts_and_its_log() -> None:
    html = render_page(results.story(), results.story_facts())
    for launch in results.story().launches:
        assert f"{launch.id}/s0" in html
        assert f"logs/{launch.id.replace('/', '-')}.log" in html
    sources = sources_of(results.story_facts())
    one = sources["eagle3/p01/head/a1"]
    assert one.sha.startswith("48642d5c0e")
    assert one.facts["sample"] == tuple(f"eagle3/p01/head/a1/s{number}" for number in range(3))
    assert len(one.facts["canary"]) == 2
    assert len(one.facts["proof"]) == 8


def test_samples_are_found_by_metric() -> None:
    facts = results.story_facts()
    by_name = {(one.recipe, one.metric): one for one in results.story().metrics}
    tok_s = samples_of(facts, by_name["eagle3", "tok_s"])
    verify = samples_of(facts, by_name["eagle3", "verify_ms"])
    assert len(tok_s) == len(verify) == 4
    assert all(len(values) == 3 for values in (*tok_s.values(), *verify.values()))
    assert 90 < min(tok_s["eagle3/p01/base/a1"]) < 100
    assert 28 < min(verify["eagle3/p01/head/a1"]) < 30


def test_a_plot_shows_each_launch_the_interval_and_the_budget() -> None:
    result = results.story()
    metric = next(one for one in result.metrics if (one.recipe, one.metric) == ("eagle3", "tok_s"))
    drawn = str(dot_plot("x", result, metric))
    assert drawn.count('class="base-mark"') == drawn.count('class="head-mark"') == 2
    assert drawn.count('class="budget"') == drawn.count('class="interval"') == 1
    assert "eagle3/p02/head/a1: 60.45, measured first" in drawn
    assert "95 % interval: −37.1\u00a0…\u00a0−34.8" in drawn


def test_a_plot_leaves_out_what_did_not_count() -> None:
    result = results.story()
    metric = next(one for one in result.metrics if (one.recipe, one.metric) == ("eagle3", "tok_s"))
    launches = tuple(replace(one, valid=one.id != "eagle3/p02/base/a1") for one in result.launches)
    pairs = pairs_of(replace(result, launches=launches), metric)
    assert [(pair.name, pair.base is None, pair.head is None) for pair in pairs] == [
        ("p01", False, False),
        ("p02", True, False),
    ]
    assert dot_plot("x", result, replace(metric, base=None)) is None


def test_phases_are_on_one_scale_and_the_rest_is_what_the_cycle_leaves() -> None:
    result = results.story()
    phases = phases_of(result, result.decomposition[1])
    assert [phase.name for phase in phases] == ["draft", "verify", "draft-extend", "rest"]
    cycle = next(one for one in result.metrics if (one.recipe, one.metric) == ("eagle3", "cycle_ms"))
    assert sum(phase.base for phase in phases) == pytest.approx(cycle.base)
    assert sum(phase.head for phase in phases) == pytest.approx(cycle.head)
    drawn = str(phase_bars("x", "eagle3", phases))
    assert "base: verify 18.99 ms" in drawn
    assert "head: verify 28.95 ms" in drawn
    assert drawn.index("23.39") < drawn.index("36.23")
    assert phase_bars("x", "eagle3", []) is None
    without_cycle = replace(result, metrics=())
    assert [phase.name for phase in phases_of(without_cycle, result.decomposition[1])] == [
        "draft",
        "verify",
        "draft-extend",
    ]


def test_the_timeline_follows_the_facts() -> None:
    spans = spans_of(results.story_facts())
    lanes = list(dict.fromkeys(span.lane for span in spans))
    assert lanes == ["build", "baseline base", "baseline head", "eagle3 base", "eagle3 head", "canary"]
    launches = sorted((span for span in spans if " " in span.lane), key=lambda span: span.begin)
    assert all(first.end <= second.begin + 1e-6 for first, second in pairwise(launches))
    assert timeline("x", ()) is None


@given(RESULTS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_no_result_breaks_the_page_or_gets_out_of_it(result: r.Result) -> None:
    assert_harmless(render_page(result, links=LINKS)).text.encode()


@given(st.lists(TEXT, min_size=6, max_size=6), st.floats(allow_nan=True, allow_infinity=True))
@settings(max_examples=40, deadline=None)
def test_no_fact_breaks_the_page(texts: list[str], number: float) -> None:
    recipe, sha, log, time, build, key = texts
    launch = {"recipe": recipe, "pair": 1, "side": r.Side.HEAD, "position": 1, "attempt": 1}
    name = f"{recipe}/p01/head/a1"
    good = "2026-02-19T14:00:00Z"
    facts = [
        r.LaunchBegin(id=name, t=good, sha=sha, build=build, argv=(), given={}, port=1, log=log, **launch),
        r.Build(id="b", t=time, side=r.Side.BASE, key=key, ok=False, seconds=number, reason=sha, versions={key: log}),
        r.Canary(id=log, t=good, launch=name, when="before", readings={}),
        r.LaunchEnd(id=name, t=time, valid=False, reasons=(sha,), log=log, ready_s=number, wall_s=number, **launch),
    ]
    assert_harmless(render_page(results.story(), facts, links=LINKS))


@given(st.floats(-1e4, 1e4), st.floats(1e-3, 1e9))
def test_ticks_are_few_round_and_inside(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert len(found) <= 12
    assert all(low - 1e-6 * span <= value <= low + span * (1 + 1e-9) + 1e-6 for value in found)
