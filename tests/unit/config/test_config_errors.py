"""Every kind of mistake in perfgate.yml and in the box file: file, line, key, reason, nearest valid key."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfgate.config.files import ConfigError, check, load, load_box, resolve
from perfgate.config.yaml import MAX_BYTES
from perfgate.errors import Exit

ONE_LINE = [
    # unknown keys
    ("limits:\n  max_pairz: 3\n", "2: limits.max_pairz: unknown key → did you mean max_pairs?"),
    (
        "recipes:\n  eagle3:\n    output_tokens: 64\n",
        "3: recipes.eagle3.output_tokens: unknown key here; it belongs in recipes.NAME.workload",
    ),
    (
        "caches:\n  zzz: 1\n",
        "2: caches.zzz: unknown key; known are autotune, max_gb, min_free_gb",
    ),
    # wrong types
    ("limits:\n  max_pairs: many\n", "2: limits.max_pairs: must be a whole number, not 'many'"),
    ("limits:\n  max_pairs: true\n", "2: limits.max_pairs: must be a whole number, not true"),
    ("limits:\n  max_pairs: 2.5\n", "2: limits.max_pairs: must be a whole number, not 2.5"),
    ("limits:\n  minutes: '90'\n", "2: limits.minutes: must be a number, not '90'"),
    ("build:\n  python: 3.10\n", "2: build.python: must be text, not 3.10: quote it"),
    ("build:\n  extra: torch\n", "2: build.extra: must be a list, not 'torch'"),
    ("recipes: []\n", "1: recipes: must be a mapping of keys to values, not a list"),
    ("recipes:\n  eagle3:\n", "2: recipes.eagle3: is empty: give it a value, or leave the key out"),
    (
        "recipes:\n  eagle3:\n    flags:\n      model-loader-extra-config: {a: 1}\n",
        "4: recipes.eagle3.flags.model-loader-extra-config: must be true or false or a whole number or a number or text"
        " or a list (JSON in quotes), not a mapping",
    ),
    # impossible values
    ("version: 2\n", "1: version: must be 1, not 2"),
    (
        "build:\n  kernel: locl\n",
        "2: build.kernel: must be 'auto', 'wheel' or 'local', not 'locl' → did you mean local?",
    ),
    ("limits:\n  max_pairs: 0\n", "2: limits.max_pairs: must be at least 1, not 0"),
    (
        "recipes:\n  baseline:\n    workload: {samples: many}\n",
        "3: recipes.baseline.workload.samples: must be a whole number or 'auto', not 'many'",
    ),
    (
        "recipes:\n  baseline:\n    workload: {samples: 0}\n",
        "3: recipes.baseline.workload.samples: must be at least 1 or 'auto', not 0",
    ),
    ("limits:\n  minutes: -3\n", "2: limits.minutes: must be greater than 0, not -3"),
    ("limits: {max_pairs: 1}\n", "1: limits.min_pairs_to_fail: 2 is more than max_pairs, 1: nothing could ever fail"),
    ("metrics:\n  tok_s: {budget: 3}\n", "2: metrics.tok_s.budget: must be less than 1 (0.03, or 3 %), not 3"),
    ("metrics:\n  tok_s: {budget: bit}\n", "2: metrics.tok_s.budget: must be a number (0.03, or 3 %), not 'bit'"),
    ("metrics:\n  tok_s:\n    prior: {}\n", "3: metrics.tok_s.prior.sd: is missing"),
    (
        "recipes:\n  eagle3:\n    workload:\n      warmup_min: 9\n      warmup_max: 3\n",
        "5: recipes.eagle3.workload.warmup_max: 3 is less than warmup_min, 9",
    ),
    (  # the other one is a default: still told where the recipe speaks of it
        "recipes:\n  eagle3:\n    workload:\n      warmup_min: 50\n",
        "3: recipes.eagle3.workload.warmup_max: 32 is less than warmup_min, 50",
    ),
    (
        "recipes:\n  baseline:\n    workload: {concurrency: [1, 8, 1]}\n",
        "3: recipes.baseline.workload.concurrency: names a level twice",
    ),
    (
        "recipes:\n  baseline:\n    workload: {concurrency: []}\n",
        "3: recipes.baseline.workload.concurrency: must be a list of at least 1 item, not 0",
    ),
    (
        "recipes:\n  baseline:\n    revision: main\n",
        "3: recipes.baseline.revision: must be a full commit of 40 hexadecimal digits, small letters, not 'main'",
    ),
    (
        "recipes:\n  baseline:\n    model: /models/x\n",
        "3: recipes.baseline.model: must be a hub id (organisation/name) or a name in the box file's `models`,"
        " not '/models/x'",
    ),
    ("ignore_paths: [/docs]\n", "1: ignore_paths.0: must be a pattern relative to the repository, e.g. docs/**"),
    # recipes that extend
    ("recipes:\n  a: {extends: eagle}\n", "2: recipes.a.extends: no recipe is called eagle → did you mean eagle3?"),
    (
        "recipes:\n  a: {extends: b}\n  b: {extends: c}\n  c: {extends: b}\n",
        "3: recipes.b.extends: goes in a circle: b → c → b",
    ),
    ("recipes:\n  a: {extends: a}\n", "2: recipes.a.extends: goes in a circle: a → a"),
    # metrics
    (
        "metrics:\n  verfy_ms: {budget: 3%}\n",
        "2: metrics.verfy_ms: no such metric; known are tok_s, ttft_ms, cycle_ms, decode_ms, verify_ms, draft_ms,"
        " draft_extend_ms, accept_length → did you mean verify_ms?",
    ),
    (
        "recipes:\n  baseline:\n    metrics: {verify_ms: {budget: 3%}}\n",
        "3: recipes.baseline.metrics.verify_ms: a plain recipe has no such metric",
    ),
    (
        "metrics: {tok_s: {gated: false}, verify_ms: {gated: false}, decode_ms: {gated: false}}\n",
        "1: metrics: no metric of any recipe is gated: nothing would be judged",
    ),
    (
        "recipes:\n  baseline: {enabled: false}\n  eagle3: {enabled: false}\n",
        "1: recipes: no recipe is enabled: nothing would be measured",
    ),
    # flags
    (
        "recipes:\n  eagle3:\n    flags:\n      mem-fraction-static: 0.8\n      mem_fraction_static: 0.9\n",
        "5: recipes.eagle3.flags.mem_fraction_static: the same flag as mem-fraction-static: give it once",
    ),
    (
        "recipes:\n  eagle3:\n    flags:\n      tp: 8\n      tensor-parallel-size: 8\n",
        "5: recipes.eagle3.flags.tensor-parallel-size: the same flag as tp: give it once",
    ),
    (
        "recipes:\n  eagle3:\n    flags: {port: 3000}\n",
        "3: recipes.eagle3.flags.port: is not yours to set: perfgate sets it for each launch",
    ),
    (
        "recipes:\n  eagle3:\n    flags: {model_path: x}\n",
        "3: recipes.eagle3.flags.model_path: is not yours to set: give `model` of the recipe",
    ),
    (
        "recipes:\n  eagle3:\n    flags: {--tp-size: 8}\n",
        "3: recipes.eagle3.flags.--tp-size: must be a flag's name in small letters, without the leading dashes"
        " → did you mean tp-size?",
    ),
    (
        "recipes:\n  eagle3:\n    flags: {speculative-algo: EAGLE3}\n",
        "3: recipes.eagle3.flags.speculative-algo: is short for speculative-algorithm: write it in full",
    ),
    (
        "recipes:\n  eagle3:\n    flags: {api-k: x}\n",
        "3: recipes.eagle3.flags.api-k: is short for api-key: write it in full",
    ),
    (
        "recipes:\n  eagle3:\n    flags: {n: 2}\n",
        "3: recipes.eagle3.flags.n: is ambiguous: write nccl-port, nnodes and node-rank in full",
    ),
    # variables
    (
        "recipes:\n  eagle3:\n    env: {HF_TOKEN: x}\n",
        "3: recipes.eagle3.env.HF_TOKEN: is not allowed: servers get no token: fetch models with"
        " `perfgate models fetch`",
    ),
    (
        "recipes:\n  eagle3:\n    env: {LD_PRELOAD: /x.so}\n",
        "3: recipes.eagle3.env.LD_PRELOAD: is not allowed: a library put into both sides hides what they really"
        " run with",
    ),
    (
        "recipes:\n  eagle3:\n    env: {PYTHONPATH: /x}\n",
        "3: recipes.eagle3.env.PYTHONPATH: is not allowed: perfgate sets Python's variables for each side",
    ),
    (
        "recipes:\n  eagle3:\n    env: {NCCL_PROTO: LL}\n",
        "3: recipes.eagle3.env.NCCL_PROTO: is not allowed: NCCL's variables stand under `nccl`, for every rank",
    ),
    (
        "recipes:\n  eagle3:\n    env: {OPENAI_API_KEY: x}\n",
        "3: recipes.eagle3.env.OPENAI_API_KEY: is not allowed: it looks like a secret, and servers run code of"
        " pull requests",
    ),
    (
        "recipes:\n  eagle3:\n    env: {MINE: hf_abcdefghijklmnop}\n",
        "3: recipes.eagle3.env.MINE: is not allowed: it looks like a secret, and servers run code of pull requests",
    ),
    ("nccl:\n  P2P_LEVEL: SYS\n", "2: nccl.P2P_LEVEL: must be an NCCL variable (NCCL_…); others stand under `env`"),
    ("nccl:\n  NCCL_PROTO:\n", "2: nccl.NCCL_PROTO: is empty: give it a value, or leave the key out"),
    # YAML itself
    ("version: 1\nversion: 1\n", "2: version: given twice, first in line 1"),
    ("limits:\n\tmax_pairs: 3\n", "2: a tab: YAML is indented with spaces"),
    ("- a\n", "1: the file must hold keys with values (`version: 1`)"),
    ("just text\n", "1: the file must hold keys with values (`version: 1`)"),
    ("limits: {max_pairs: 3\n", "2: not YAML: expected ',' or '}', but got '<stream end>'"),
    (
        "a: &x [1]\nb: *x\n",
        "1: anchors and aliases are not read: write it out, or let a recipe `extends` another",
    ),
    ("<<: {version: 1}\n", "1: merge keys (<<) are not read: let a recipe `extends` another"),
    ("limits: !!python/object:os.system {}\n", "1: the tag !!python/object:os.system is not read"),
    ("version: !!str 1\n", "1: the tag !!str is not read"),
    ("version: 1\n---\nversion: 1\n", "2: a second document (`---`): only one is read"),
    ("? [a]\n: 1\n", "1: a key must be a word"),
    ("[" * 40, "1: more than 16 levels deep"),
    ("a: [" + "1," * 21_000 + "]", "1: more than 20,000 values"),
    # what YAML 1.1 and 1.2 readers disagree on
    (
        "recipes:\n  eagle3:\n    enabled: on\n",
        "3: recipes.eagle3.enabled: YAML readers disagree on a bare on: write true or false, or quote it",
    ),
    (
        "limits:\n  minutes: 1:30\n",
        "2: limits.minutes: YAML readers take 1:30 for a number to base 60: write a plain number, or quote it",
    ),
    (
        "limits:\n  max_pairs: 010\n",
        "2: limits.max_pairs: YAML readers disagree on 010 (octal or not): drop the zero, or quote it",
    ),
    (
        "limits:\n  minutes: 1_000\n",
        "2: limits.minutes: YAML readers disagree on 1_000: leave out the underscores, or quote it",
    ),
    ("limits: {minutes: .inf}\n", "1: limits.minutes: .inf is no number that can be meant here"),
    ("limits: {minutes: 1e999}\n", "1: limits.minutes: 1e999 is no number that can be meant here"),
]


@pytest.mark.parametrize(("text", "line"), ONE_LINE, ids=[line[:60] for _, line in ONE_LINE])
def test_one_mistake_is_one_line(text: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text.encode(), "perfgate.yml")
    assert str(caught.value) == f"perfgate.yml:{line}"
    assert caught.value.exit_code == Exit.USAGE == 2


def test_all_mistakes_are_told_in_the_order_of_the_file() -> None:
    text = "version: 1\nlimits:\n  max_pairz: 3\n  minutes: soon\nbuild:\n  kernel: locl\n  rust: on\n"
    with pytest.raises(ConfigError) as caught:
        load(text.encode(), "x.yml")
    assert [line.split(": ")[:2] for line in str(caught.value).splitlines()] == [
        ["x.yml:3", "limits.max_pairz"],
        ["x.yml:4", "limits.minutes"],
        ["x.yml:6", "build.kernel"],
        ["x.yml:7", "build.rust"],
    ]


def test_a_file_full_of_mistakes_does_not_flood_the_terminal() -> None:
    text = "".join(f"k{number}: 1\n" for number in range(500))
    with pytest.raises(ConfigError) as caught:
        load(text.encode(), "x.yml")
    assert len(str(caught.value).splitlines()) == ConfigError.MOST + 1
    assert str(caught.value).endswith("… and 460 more")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"version: 1\nlimits: {max_pairs: \xff}\n", "x.yml:2: not UTF-8: save it as UTF-8"),
        ("version: 1\n\nbuild: {python: 'ü'}".encode("utf-16"), "x.yml:1: not UTF-8: save it as UTF-8"),
        (b"version: 1\n\nlimits: \x00\n", "x.yml:3: a control character (U+0000)"),
        (b"#" * (MAX_BYTES + 1), "x.yml: 131,073 bytes: at most 131,072 are read"),
    ],
)
def test_what_is_no_text_is_refused(text: bytes, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text, "x.yml")
    assert str(caught.value) == line


def test_a_hostile_key_cannot_reach_the_terminal() -> None:
    with pytest.raises(ConfigError) as caught:
        load(b'"\\e[31mred\\u202e\\nperfgate.yml:1: all is well": 1\n', "x.yml")
    message = str(caught.value)
    assert message.isprintable()
    assert "red⟨U+202E⟩ perfgate.yml" in message


def written(folder: Path, text: str) -> Path:
    path = folder / "some.yml"
    path.write_text(text)
    return path


def test_a_box_file_is_checked_as_one(tmp_path: Path) -> None:
    good = written(tmp_path, "name: pro6000x8\nnccl:\n  NCCL_PROTO: LL\n")
    assert check(good) == ()
    (slip,) = check(written(tmp_path, "name: pro6000x8\nnccl:\n  NCCL_P2P_LEVL: SYS\n"))
    assert "is NCCL_P2P_LEVEL meant?" in slip
    with pytest.raises(ConfigError, match=r"some\.yml:2: stat_dir: unknown key → did you mean state_dir\?"):
        check(written(tmp_path, "name: pro6000x8\nstat_dir: /x\n"))
    with pytest.raises(ConfigError, match="name: unknown key"):  # neither one nor the other
        check(written(tmp_path, "name: pro6000x8\nrecipes: {}\n"))


def test_a_model_without_a_revision_is_told(tmp_path: Path) -> None:
    text = "recipes:\n  baseline: {model: org/m, revision: 'PIN'}\n  eagle3: {draft: org/d}\n".replace("PIN", "a1" * 20)
    (told,) = check(written(tmp_path, text))
    assert told.startswith("org/d has no revision")
    pinned = "{model: org/m, revision: 'PIN', draft: org/d, draft_revision: 'PIN'}".replace("PIN", "a1" * 20)
    (told,) = check(written(tmp_path, f"recipes:\n  baseline: {{model: org/m}}\n  eagle3: {pinned}\n"))
    assert told.startswith("org/m has no revision")


def test_missing_models_are_told_when_the_configuration_is_resolved() -> None:
    config = load(b"version: 1\nrecipes:\n  baseline: {model: org/m}\n", "x.yml")
    with pytest.raises(ConfigError, match=r"^x\.yml:2: recipes\.eagle3: has no draft model") as caught:
        resolve(config)
    assert len(caught.value.problems) == 1
    with pytest.raises(ConfigError, match=r"recipes\.baseline: has no model: give `model`, or `enabled: false`"):
        resolve(load(b"", "x.yml"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("state_dirr: /x\n", "1: state_dirr: unknown key → did you mean state_dir?"),
        ("state_dir: here\n", "1: state_dir: must be an absolute path, not 'here'"),
        ("models: {a: models/a}\n", "1: models.a: must be an absolute path, not 'models/a'"),
        ("wheels: [wheels]\n", "1: wheels.0: must be an absolute path, not 'wheels'"),
        ("name: my box\n", "1: name: must be 1 to 40 letters, digits, dots, dashes or underscores, not 'my box'"),
        ("run_as: root\n", "1: run_as: must be a user without privileges: code of pull requests runs as it"),
        (
            "nccl: {NCCL_DEBUG_FILE: /x}\n",
            "1: nccl.NCCL_DEBUG_FILE: is not allowed: it decides what is proven of the ranks: perfgate sets it",
        ),
        ("env: {HOME: /root}\n", "1: env.HOME: is not allowed: perfgate sets it for each side"),
        ("env: {GITHUB_ENV: /x}\n", "1: env.GITHUB_ENV: is not allowed: nothing of the runner may reach a server"),
        ("isolation: docker\n", "1: isolation: must be 'auto', 'bubblewrap', 'user' or 'none', not 'docker'"),
    ],
)
def test_mistakes_in_the_box_file(text: str, line: str, tmp_path) -> None:
    (tmp_path / "box.yml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_box(tmp_path / "box.yml")
    assert str(caught.value) == f"{tmp_path}/box.yml:{line}"


KEYS = st.sampled_from(
    ["recipes", "limits", "metrics", "env", "nccl", "flags", "workload", "baseline", "tok_s", "budget", "extends", "x"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
@settings(max_examples=150, deadline=None)
def test_any_document_loads_or_is_refused_in_printable_lines(value: object) -> None:
    _loads_or_is_refused(yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=60) | st.text(string.printable, max_size=60).map(str.encode))
@example(b"a: &a [*a]")
@example(b"%YAML 9.9\n--- {}")
@example(b"? ? ? a")
@example(b"!!map {a: 1}")
@settings(max_examples=200, deadline=None)
def test_any_bytes_load_or_are_refused_in_printable_lines(text: bytes) -> None:
    _loads_or_is_refused(text)


def _loads_or_is_refused(text: bytes) -> None:
    try:
        load(text, "x.yml")
        lines = ["x.yml"]
    except ConfigError as error:
        lines = str(error).split("\n")
    assert all(line.isprintable() and line.startswith("x.yml") for line in lines)
