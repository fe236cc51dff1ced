"""What is written from the models: JSON Schema, the example, the tables of docs/configuration.md."""

from __future__ import annotations

import os
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from perfgate.config.files import builtin, example, load, reference, schema
from perfgate.config.layer import is_box_layer, load_box_layer
from perfgate.config.model import BoxFile, Config, _Model
from perfgate.config.resolve import merge

DOCS = Path(__file__).parents[3] / "docs" / "configuration.md"
MARKS = ("<!-- begin: perfgate's models -->", "<!-- end: perfgate's models -->")


def test_the_example_says_exactly_the_defaults() -> None:
    assert merge((builtin(), load(example().encode(), "example.yml"))) == merge((builtin(),))


def test_the_example_still_loads_with_every_comment_taken_away() -> None:
    """Every commented key is a real key with a value that can be."""
    bare = re.sub(r"^( *)# ([a-z_]+: \S+)$", r"\1\2", example(), flags=re.M)
    assert bare.count("# ") <= example().count("# ") - 8
    bare = bare.replace("extends: baseline\n", "enabled: true\n", 1).replace("enabled: true\n", "", 1)
    bare = bare.replace("tp-size: 8\n", "tp-size: 8\n      speculative-algorithm: EAGLE3\n")  # what a draft needs
    config = load(bare.encode(), "example.yml")
    assert config.recipes["baseline"].draft_revision == "0123456789abcdef0123456789abcdef01234567"


def test_every_key_is_in_the_example() -> None:
    names = {name for model in _models() for name in model.model_fields if model is not BoxFile}
    box_only = set(BoxFile.model_fields)
    missing = {name for name in names - box_only if not re.search(rf"\b{name}:", example())} - {"prior", "sd", "df"}
    assert not missing


def _models() -> list[type[_Model]]:
    return _Model.__subclasses__()


def test_every_key_has_a_description() -> None:
    assert all(
        info.description or model.__name__ == "Permissions"
        for model in (Config, BoxFile)
        for info in model.model_fields.values()
    )


def test_the_schema_is_a_schema_and_takes_the_example() -> None:
    for model in (Config, BoxFile):
        jsonschema.Draft202012Validator.check_schema(schema(model))
    jsonschema.validate(yaml.safe_load(example()), schema())


@pytest.mark.parametrize(
    "text",
    [
        "limitz: {}",
        "limits: {max_pairs: many}",
        "limits: {max_pairs: 0}",
        "metrics: {verfy_ms: {budget: 3%}}",
        "metrics: {tok_s: {budget: 3}}",
        "nccl: {PROTO: LL}",
        "recipes: {A B: {}}",
        "recipes: {baseline: {revision: main}}",
        "recipes: {baseline: {flags: {x: {y: 1}}}}",
        "build: {kernel: locl}",
        "recipes: {a: {workload: {samples: 0}}}",
        "recipes: {a: {workload: {samples: many}}}",
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), schema())


@pytest.mark.parametrize(
    "text",
    [
        "nccl: {NCCL_IB_DISABLE: 1}",
        "metrics: {tok_s: {budget: 3 %}}",
        "recipes: {a: {flags: {x: [1, 2], y: true}}}",
        "recipes: {a: {workload: {samples: auto}}}",
        "recipes: {a: {workload: {samples: 8}}}",
    ],
)
def test_the_schema_takes_what_the_loader_takes(text: str) -> None:
    jsonschema.validate(yaml.safe_load(text), schema())
    load(text.encode(), "x.yml")


def test_the_docs_hold_the_tables_of_the_models() -> None:
    before, _, rest = DOCS.read_text().partition(MARKS[0])
    table, end, after = rest.partition(MARKS[1])
    assert end, f"{DOCS} has lost its marks"
    wanted = f"\n\n{reference()}\n"
    if os.environ.get("PERFGATE_UPDATE_SNAPSHOTS"):
        DOCS.write_text(before + MARKS[0] + wanted + MARKS[1] + after)
        return
    assert table == wanted, "run the tests once with PERFGATE_UPDATE_SNAPSHOTS=1"


EXAMPLES = [
    (path.name, block)
    for path in (*sorted(DOCS.parent.glob("*.md")), DOCS.parents[1] / "README.md")
    for block in re.findall(r"```ya?ml\n(.*?)```", path.read_text(), flags=re.S)
    if not re.search(r"^(on|jobs|runs):|uses:", block, flags=re.M)  # workflows
]


@pytest.mark.parametrize(("name", "block"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_every_example_of_every_document_loads(name: str, block: str) -> None:
    if is_box_layer(block.encode()) or block.startswith("# box"):
        load_box_layer(block.encode(), name)
    else:
        load(block.encode(), name)


def test_the_documents_have_examples() -> None:
    assert {"box.md", "configuration.md", "github.md"} <= {name for name, _ in EXAMPLES}
