"""What really holds: built-in defaults, layers, recipes that extend, the box on top, the judge's plan."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate.config.files import ConfigError, load, metric_plans, resolve
from perfgate.config.model import BoxFile, Resolved
from perfgate.config.resolve import refuse_abbreviations
from perfgate.config.yaml import plain_value
from perfgate.records import METRICS
from perfgate.source.arguments import flags_in

MODELS = "recipes:\n  baseline: {model: org/target}\n  eagle3: {draft: org/draft}\n"


def resolved(text: str = MODELS, box: BoxFile | None = None, *overlays: str) -> Resolved:
    layers = [load(overlay.encode(), "overlay.yml") for overlay in overlays]
    return resolve(load(text.encode(), "perfgate.yml"), box, *layers)


def test_a_number_of_tokens_is_no_secret_and_a_token_is() -> None:
    env = "recipes:\n  eagle3:\n    env: {SGLANG_TWO_STREAM_MAX_TOKENS: 1024, MY_TOKENS: true, X_NUM_TOKEN: 8}\n"
    assert load(env.encode(), "x.yml").recipes["eagle3"].env["SGLANG_TWO_STREAM_MAX_TOKENS"] == "1024"
    for secret in ("MY_TOKEN: abcdef", "ADMIN_TOKENS: abc1", "DB_PASSWORD: 12345"):
        with pytest.raises(ConfigError, match="looks like a secret"):
            load(f"recipes:\n  eagle3:\n    env: {{{secret}}}\n".encode(), "x.yml")


@pytest.mark.parametrize(("algorithm", "legal"), [("EAGLE", True), ("NEXTN", True), ("EAGLE3", False)])
def test_multi_token_prediction_in_the_target_needs_no_draft(algorithm: str, legal: bool) -> None:
    flags = f"flags: {{speculative-algorithm: {algorithm}}}"
    text = f"recipes:\n  baseline: {{model: zai-org/GLM-4.5}}\n  eagle3: {{{flags}}}\n"
    if not legal:
        with pytest.raises(ConfigError, match="has no draft model"):
            resolved(text)
        return
    (note,) = resolved(text).notes
    assert note.startswith("eagle3 has no draft: fine where zai-org/GLM-4.5 brings layers of multi-token prediction")


def test_a_debug_setting_that_perfgate_overrides_is_told() -> None:
    (note,) = resolved(MODELS + "nccl: {NCCL_DEBUG: WARN}\n").notes
    assert note == "nccl: NCCL_DEBUG has no effect: perfgate sets it, to read from NCCL itself what it took"


def test_a_flag_that_the_tree_knows_by_a_longer_name_is_refused() -> None:
    known = frozenset({"mem-fraction-static", "mem-other", "cuda-graph-bs", "max-total-tokens", "model", "model-path"})
    text = MODELS.replace("target}", "target, flags: {FLAG: 1}}")
    for flag, refused in {
        "max-total": "is short for max-total-tokens: write it in full",
        "mem": "is ambiguous: write mem-fraction-static and mem-other in full",
        "mem-fraction-static": "",
        "new-flag": "",
    }.items():
        config = resolved(text.replace("FLAG", flag))
        if refused:
            with pytest.raises(ConfigError, match=refused):
                refuse_abbreviations(config, known)
        else:
            refuse_abbreviations(config, known)
        refuse_abbreviations(config, frozenset())  # nothing is known: nothing is refused


def test_flags_are_found_in_both_shapes_of_server_args() -> None:
    old = b'parser.add_argument("--tp-size", "--tensor-parallel-size", type=int)'
    new = b"class Spec:\n    speculative_algorithm: A[str, Arg(help='--x y')] = None\n"
    assert {"tp-size", "tensor-parallel-size", "speculative-algorithm"} <= flags_in([old, new, b"no python ("])


@pytest.mark.parametrize("written", ["off", '"off"', "'off'"])
def test_off_is_a_word_where_it_may_stand(written: str) -> None:
    text = f"environment: {{rules: {{neighbour: {written}}}}}\ncaches: {{autotune: {written}}}\n"
    config = load(text.encode(), "x.yml")
    assert config.environment.of("neighbour") == config.caches.autotune == "off"


def test_defaults_suit_eight_gpus() -> None:
    config = resolved()
    baseline, eagle3 = config.recipes
    assert (baseline.name, eagle3.name) == ("baseline", "eagle3")
    assert baseline.flags == {"tp-size": 8}
    assert eagle3.flags == {
        "tp-size": 8,
        "speculative-algorithm": "EAGLE3",
        "speculative-num-steps": 2,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 3,
    }
    assert (baseline.model, eagle3.model, baseline.draft, eagle3.draft) == (
        "org/target",
        "org/target",
        None,
        "org/draft",
    )
    assert not baseline.speculative
    assert eagle3.speculative
    assert (config.limits.max_pairs, config.limits.minutes) == (12, 90)


def test_gated_by_default_are_tok_s_and_one_time_of_each_recipe() -> None:
    plans = metric_plans(resolved())
    assert [(p.recipe, p.metric, p.budget, p.fallback) for p in plans if p.gated] == [
        ("baseline", "tok_s", 0.03, None),
        ("baseline", "decode_ms", 0.05, "cycle_ms"),
        ("eagle3", "tok_s", 0.03, None),
        ("eagle3", "verify_ms", 0.05, "cycle_ms"),
    ]
    shown = {(p.recipe, p.metric) for p in plans if not p.gated}
    assert shown == {
        ("baseline", "ttft_ms"),
        ("baseline", "cycle_ms"),
        *(("eagle3", m) for m in ("ttft_ms", "cycle_ms", "draft_ms", "draft_extend_ms", "accept_length")),
    }
    assert all(p.metric in METRICS for p in plans)


def test_alpha_is_split_over_the_gated_metrics() -> None:
    gated = [plan for plan in metric_plans(resolved()) if plan.gated]
    assert math.isclose(sum(plan.alpha for plan in gated), 0.01)
    more = resolved(MODELS + "metrics: {ttft_ms: {budget: 10 %}}\n")
    gated = [plan for plan in metric_plans(more) if plan.gated]
    assert len(gated) == 6
    assert math.isclose(sum(plan.alpha for plan in gated), 0.01)


def test_only_the_first_concurrency_is_gated() -> None:
    config = resolved(MODELS + "metrics: {}\n" + "limits: {}\n")
    assert {plan.concurrency for plan in metric_plans(config)} == {1}
    text = MODELS.replace("{model: org/target}", "{model: org/target, workload: {concurrency: [8, 1]}}")
    plans = metric_plans(resolved(text))
    assert {plan.concurrency for plan in plans} == {1, 8}
    assert {plan.concurrency for plan in plans if plan.gated} == {8}


def test_naming_a_metric_gates_it_unless_it_says_not() -> None:
    rules = resolved(MODELS + "metrics: {ttft_ms: {budget: 10 %}, verify_ms: {gated: false}}\n").recipe("eagle3").rules
    assert (rules["ttft_ms"].gated, rules["ttft_ms"].budget) == (True, 0.1)
    assert not rules["verify_ms"].gated
    assert rules["tok_s"].gated
    assert rules["tok_s"].budget == 0.03


def test_a_gated_cycle_is_no_fallback_too() -> None:
    plans = metric_plans(resolved(MODELS + "metrics: {cycle_ms: {budget: 4 %}}\n"))
    assert all(plan.fallback is None for plan in plans)


def test_a_recipes_rule_lies_over_the_general_one() -> None:
    text = MODELS.replace("{draft: org/draft}", "{draft: org/draft, metrics: {tok_s: {prior: {sd: 0.02}}}}")
    plans = {(p.recipe, p.metric): p for p in metric_plans(resolved(text))}
    tok_s = plans["eagle3", "tok_s"]
    assert (tok_s.budget, tok_s.prior_sd, tok_s.prior_df, tok_s.prior_from) == (0.03, 0.02, 10, "configuration")
    assert plans["baseline", "tok_s"].prior_sd is None


def test_the_ledger_is_asked_before_the_configuration() -> None:
    config = resolved(MODELS + "metrics: {tok_s: {prior: {sd: 0.02}}}\n")

    def known(recipe: str, metric: str, concurrency: int) -> tuple[float, float, str] | None:
        return (0.004, 24, "ledger, 24 pairs") if (recipe, metric) == ("eagle3", "tok_s") else None

    plans = {(p.recipe, p.metric): p for p in metric_plans(config, known)}
    assert (plans["eagle3", "tok_s"].prior_sd, plans["eagle3", "tok_s"].prior_from) == (0.004, "ledger, 24 pairs")
    assert (plans["baseline", "tok_s"].prior_sd, plans["baseline", "tok_s"].prior_from) == (0.02, "configuration")


def test_nccl_is_defaults_below_file_below_box() -> None:
    box = BoxFile(nccl={"NCCL_PROTO": "LL", "NCCL_MIN_NCHANNELS": "8"})
    config = resolved(MODELS + "nccl: {NCCL_PROTO: Simple, NCCL_P2P_LEVEL: SYS}\n", box)
    assert config.nccl == {"NCCL_PROTO": "LL", "NCCL_P2P_LEVEL": "SYS", "NCCL_MIN_NCHANNELS": "8"}


def test_variables_are_taken_as_they_are_written() -> None:
    text = "nccl: {NCCL_A: 1, NCCL_B: on, NCCL_C: 0x10, NCCL_D: 010, NCCL_E: 1:30, NCCL_F: true, NCCL_G: 3.10}\n"
    assert list(resolved(MODELS + text).nccl.values()) == ["1", "on", "0x10", "010", "1:30", "true", "3.10"]


def test_a_slip_in_an_nccl_variable_is_noted_not_refused() -> None:
    notes = resolved(MODELS + "nccl: {NCCL_P2P_LEVL: SYS, NCCL_PROTO: LL, NCCL_SOMETHING_NEW: 1}\n").notes
    assert len(notes) == 1
    assert "is NCCL_P2P_LEVEL meant?" in notes[0]


def test_the_box_names_folders_and_adds_variables() -> None:
    box = BoxFile(models={"org/target": "/models/t"}, env={"CUDA_HOME": "/usr/local/cuda", "A": "box"})
    config = resolved(MODELS.replace("{model: org/target}", "{model: org/target, env: {A: file, B: file}}"), box)
    eagle3 = config.recipe("eagle3")
    assert (eagle3.model, eagle3.model_path, eagle3.draft_path) == ("org/target", "/models/t", "org/draft")
    assert eagle3.env == {"A": "box", "B": "file", "CUDA_HOME": "/usr/local/cuda"}


def test_overlays_lie_over_the_file_in_order() -> None:
    first = "recipes: {baseline: {flags: {tp_size: 1, device: cpu}}}\n"
    second = "recipes: {baseline: {flags: {device: cuda}, workload: {samples: 2}}}\nmetrics: {tok_s: {budget: 15 %}}\n"
    config = resolved(MODELS, None, first, second)
    assert config.recipe("baseline").flags == {"tp-size": 1, "device": "cuda"}
    assert config.recipe("eagle3").flags["tp-size"] == 1
    assert config.recipe("eagle3").workload.samples == 2
    assert config.recipe("eagle3").rules["tok_s"].budget == 0.15


def test_flags_have_one_spelling_and_can_be_taken_away() -> None:
    text = (
        "recipes:\n  baseline: {model: m, flags: {tensor_parallel_size: 4, cuda_graph_bs: [1, 2], quiet: true}}\n"
        "  eagle3: {draft: d, flags: {quiet: null, disable-radix-cache: false}}\n"
    )
    config = resolved(text)
    assert config.recipe("baseline").flags == {"tp-size": 4, "cuda-graph-bs": ["1", "2"], "quiet": True}
    assert "quiet" not in config.recipe("eagle3").flags
    assert "disable-radix-cache" not in config.recipe("eagle3").flags


def test_a_helper_recipe_is_not_measured_but_extended() -> None:
    text = (
        "recipes:\n  baseline: {enabled: false, model: m}\n  eagle3: {enabled: false}\n"
        "  mine: {extends: baseline, workload: {samples: 7}}\n"
    )
    config = resolved(text)
    assert [(recipe.name, recipe.model, recipe.workload.samples) for recipe in config.recipes] == [("mine", "m", 7)]


def test_a_recipe_of_the_users_own_gets_the_metric_of_its_kind() -> None:
    text = (
        "recipes:\n  baseline: {enabled: false}\n  eagle3: {enabled: false}\n"
        "  ngram: {model: m, flags: {speculative-algorithm: NGRAM}}\n"
    )
    gated = [plan.metric for plan in metric_plans(resolved(text)) if plan.gated]
    assert gated == ["tok_s", "verify_ms"]


def test_the_hash_follows_what_is_measured_not_what_the_box_calls_it() -> None:
    plain = resolved()
    assert resolved().hash == plain.hash
    assert resolved(MODELS, BoxFile(state_dir="/other", models={"org/target": "/models/t"})).hash == plain.hash
    assert resolved(MODELS + "# a comment\n").hash == plain.hash
    assert resolved(MODELS, BoxFile(nccl={"NCCL_PROTO": "LL"})).hash != plain.hash
    assert resolved(MODELS + "metrics: {tok_s: {budget: 4 %}}\n").hash != plain.hash


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("False", False),
        ("tRue", "tRue"),
        ("~", None),
        ("", None),
        ("3e-2", 0.03),
        ("3.", 3.0),
        (".5", 0.5),
        ("-7", -7),
        ("0x1F", 31),
        ("1.2.3", "1.2.3"),
        ("2026-11-30", "2026-11-30"),
        ("3 %", "3 %"),
        ("9" * 40, 10**40 - 1),
    ],
)
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    made = plain_value(text)
    assert made == value
    assert type(made) is type(value)


@given(st.text(max_size=70))
@settings(max_examples=200, deadline=None)
def test_any_plain_scalar_is_a_finite_value_or_refused(text: str) -> None:
    try:
        value = plain_value(text)
    except ValueError:
        return
    assert not isinstance(value, float) or math.isfinite(value)


@given(st.sampled_from(["3 %", "3%", " 3.0 % ", "0.03", "3e-2"]))
def test_a_share_is_read_in_every_spelling(text: str) -> None:
    quoted = f"'{text}'" if text.startswith(" ") else text
    config = resolved(MODELS + f"metrics: {{tok_s: {{budget: {quoted}}}}}\n")
    assert math.isclose(config.recipe("eagle3").rules["tok_s"].budget, 0.03)
