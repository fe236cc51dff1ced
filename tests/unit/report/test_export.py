"""Results in the formats of other tools, each read by that format's own schema or parser."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from typer.testing import CliRunner

from perfgate.cli import app
from perfgate.report.export import Format, export
from tests.unit.report import results
from tests.unit.report.hostile import RESULTS

NUMBER = {"type": "number"}
BMF = {  # https://bencher.dev/bmf.json, with the pattern's own keys closed
    "type": "object",
    "patternProperties": {
        ".+": {
            "type": "object",
            "patternProperties": {
                ".+": {
                    "type": "object",
                    "properties": {"value": NUMBER, "lower_value": NUMBER, "upper_value": NUMBER},
                    "required": ["value"],
                    "additionalProperties": False,
                }
            },
        }
    },
}
TEXT = {"type": "string", "minLength": 1}
BENCHMARK_ACTION = {  # github-action-benchmark's README, customBiggerIsBetter and customSmallerIsBetter
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": TEXT, "unit": TEXT, "value": NUMBER, "range": TEXT, "extra": TEXT},
        "required": ["name", "unit", "value"],
        "additionalProperties": False,
    },
}
PYTORCH = {  # the wiki page "PyTorch OSS benchmark infra", benchmark results format
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "benchmark": {
                "type": "object",
                "properties": {"name": TEXT, "mode": TEXT, "dtype": TEXT, "extra_info": {"type": "object"}},
                "required": ["name"],
                "additionalProperties": False,
            },
            "model": {
                "type": "object",
                "properties": {"name": TEXT, "type": TEXT, "backend": TEXT, "origins": {"type": "array"}},
                "required": ["name"],
                "additionalProperties": False,
            },
            "metric": {
                "type": "object",
                "properties": {
                    "name": TEXT,
                    "benchmark_values": {"type": "array", "items": NUMBER, "minItems": 1},
                    "target_value": NUMBER,
                    "extra_info": {"type": "object"},
                },
                "required": ["name", "benchmark_values"],
                "additionalProperties": False,
            },
        },
        "required": ["benchmark", "model", "metric"],
        "additionalProperties": False,
    },
}
SCHEMAS = {
    Format.BMF: BMF,
    Format.BIGGER: BENCHMARK_ACTION,
    Format.SMALLER: BENCHMARK_ACTION,
    Format.PYTORCH: PYTORCH,
}
BENCH_SERVING = {  # keys that sglang.benchmark.serving of 0.5.23 writes
    *("tag", "backend", "dataset_name", "max_concurrency", "output_throughput"),
    *("median_ttft_ms", "median_tpot_ms", "accept_length"),
}


def read(text: str) -> Any:
    """JSON without what JSON has not."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def families(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }


@pytest.mark.parametrize("form", SCHEMAS)
@pytest.mark.parametrize("kind", results.ALL)
def test_every_result_has_the_shape_of_the_format(kind: str, form: Format) -> None:
    jsonschema.validate(read(export(results.ALL[kind](), form)), SCHEMAS[form])


@pytest.mark.parametrize("kind", results.ALL)
def test_open_metrics_are_read_by_their_own_parser(kind: str) -> None:
    result = results.ALL[kind]()
    text = export(result, Format.OPENMETRICS)
    assert text.endswith("# EOF\n")
    measured = {metric.metric for metric in result.metrics if metric.base is not None}
    assert set(families(text)) == {"perfgate_run", *(f"perfgate_{name}" for name in measured)}


def test_the_numbers_are_those_of_the_comment() -> None:
    result = results.story()
    tok_s, verify = (
        next(one for one in result.metrics if (one.recipe, one.metric) == ("eagle3", name))
        for name in ("tok_s", "verify_ms")
    )
    assert None not in (tok_s.base, verify.base, tok_s.high, verify.high)
    bencher = read(export(result, Format.BMF))["eagle3"]
    assert bencher["tok_s"]["value"] == tok_s.head
    assert bencher["tok_s"]["lower_value"] == pytest.approx(tok_s.base * math.exp(-tok_s.high))
    assert bencher["verify_ms"]["upper_value"] == pytest.approx(verify.base * math.exp(verify.high))
    for measure in bencher.values():
        assert measure["lower_value"] <= measure["value"] <= measure["upper_value"]
    gauges = families(export(result, Format.OPENMETRICS))
    assert gauges["perfgate_tok_s"]["eagle3", "1", "base"] == tok_s.base
    assert gauges["perfgate_verify_ms"]["eagle3", "1", "head"] == verify.head


def test_each_tool_of_the_benchmark_action_gets_its_direction_alone() -> None:
    names = {
        form: {entry["name"].split()[-1] for entry in read(export(results.story(), form))}
        for form in (Format.BIGGER, Format.SMALLER)
    }
    assert names[Format.BIGGER] == {"tok_s", "accept_length"}
    assert {"verify_ms", "cycle_ms", "ttft_ms"} <= names[Format.SMALLER]
    assert not names[Format.BIGGER] & names[Format.SMALLER]


def test_pytorch_gets_every_launch() -> None:
    records = read(export(results.story(), Format.PYTORCH))
    (values,) = (
        one["metric"]["benchmark_values"]
        for one in records
        if (one["model"]["name"], one["metric"]["name"]) == ("eagle3", "tok_s")
    )
    assert [round(value, 1) for value in values] == [60.1, 60.4]


def test_lines_of_bench_serving_have_its_keys_and_no_others() -> None:
    lines = [read(line) for line in export(results.story(), Format.BENCH_SERVING).splitlines()]
    assert [line["tag"].split()[1:3] for line in lines] == [
        ["baseline", "base"],
        ["baseline", "head"],
        ["eagle3", "base"],
        ["eagle3", "head"],
    ]
    assert all(set(line) <= BENCH_SERVING for line in lines)
    assert "median_tpot_ms" in lines[0]
    assert "median_tpot_ms" not in lines[2], "a cycle of speculation is not a token"


def test_what_was_not_measured_is_left_out() -> None:
    nothing = replace(results.story(), metrics=(results.metric("tok_s", None, None),))
    assert read(export(nothing, Format.BMF)) == {}
    assert export(nothing, Format.BENCH_SERVING) == ""
    assert set(families(export(nothing, Format.OPENMETRICS))) == {"perfgate_run"}


@given(RESULTS)
@settings(max_examples=60, deadline=None)
def test_any_result_exports_to_what_its_readers_take(result: Any) -> None:
    for form, schema in SCHEMAS.items():
        jsonschema.validate(read(export(result, form)), schema)
    families(export(result, Format.OPENMETRICS))
    for line in export(result, Format.BENCH_SERVING).splitlines():
        read(line)


@pytest.mark.parametrize("form", Format)
def test_the_command_writes_it(form: Format) -> None:
    done = CliRunner().invoke(app, ["export", str(results.STORY_RUN), "--format", form.value])
    assert (done.exit_code, done.stdout) == (0, export(results.story(), form))
