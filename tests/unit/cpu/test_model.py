from __future__ import annotations

import json
import struct
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from perfgate.cpu.model import (
    LAYERS,
    TRAINED,
    Tensor,
    deepen,
    read_safetensors,
    write_model,
    write_safetensors,
)

TENSORS = st.dictionaries(
    st.text(min_size=1, max_size=20).filter(lambda name: name != "__metadata__"),
    st.binary(max_size=64).map(lambda data: Tensor("U8", (len(data),), data)),
    max_size=8,
)


def layer(byte: int) -> dict[str, Tensor]:
    """One layer's tensors of one BF16 number each, told apart by their bytes."""
    parts = ("self_attn.q_proj.weight", "self_attn.o_proj.weight", "mlp.down_proj.weight", "input_layernorm.weight")
    return {part: Tensor("BF16", (1, 1), bytes([byte, number])) for number, part in enumerate(parts)}


def model(*bytes_: int) -> dict[str, Tensor]:
    """A model of as many layers as bytes."""
    tensors = {"model.embed_tokens.weight": Tensor("BF16", (1,), b"ee"), "lm_head.weight": Tensor("BF16", (1,), b"hh")}
    for index, byte in enumerate(bytes_):
        tensors |= {f"model.layers.{index}.{part}": tensor for part, tensor in layer(byte).items()}
    return tensors


@given(TENSORS)
def test_what_is_written_is_read_again(tmp_path_factory, tensors: dict[str, Tensor]) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    write_safetensors(path, tensors)
    assert read_safetensors(path) == tensors


def test_the_file_is_what_the_format_says(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"a": Tensor("BF16", (2, 1), b"\x01\x02\x03\x04"), "b": Tensor("U8", (1,), b"\x05")})
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert length % 8 == 0
    assert json.loads(raw[8 : 8 + length]) == {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "BF16", "shape": [2, 1], "data_offsets": [0, 4]},
        "b": {"dtype": "U8", "shape": [1], "data_offsets": [4, 5]},
    }
    assert raw[8 + length :] == b"\x01\x02\x03\x04\x05"


def test_added_layers_repeat_the_trained_ones_but_add_nothing_to_the_residual() -> None:
    deep = deepen(model(10, 20), 5)
    assert {name: deep[name] for name in model(10, 20)} == model(10, 20)
    for index, byte in {2: 10, 3: 20, 4: 10}.items():
        prefix = f"model.layers.{index}"
        assert deep[f"{prefix}.self_attn.q_proj.weight"].data == bytes([byte, 0])
        assert deep[f"{prefix}.input_layernorm.weight"].data == bytes([byte, 3])
        assert deep[f"{prefix}.self_attn.o_proj.weight"] == Tensor("BF16", (1, 1), b"\0\0")
        assert deep[f"{prefix}.mlp.down_proj.weight"] == Tensor("BF16", (1, 1), b"\0\0")
    assert len(deep) == len(model(10, 20)) + 3 * len(layer(0))


def test_the_model_is_deep_whole_and_the_same_each_time(tmp_path: Path) -> None:
    write_model(tmp_path / "one")
    write_model(tmp_path / "two")
    names = {path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()}
    assert {"target/tokenizer.json", "draft/model.safetensors"} <= set(map(str, names))
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in names)

    config = json.loads((tmp_path / "one/target/config.json").read_text())
    trained = json.loads((TRAINED / "target/config.json").read_text())
    assert config["num_hidden_layers"] == LAYERS
    assert config["hidden_size"] == trained["hidden_size"]
    tensors = read_safetensors(tmp_path / "one/target/model.safetensors")
    assert sum(name.endswith("q_proj.weight") for name in tensors) == LAYERS
    draft = (TRAINED / "draft/model.safetensors").read_bytes()
    assert (tmp_path / "one/draft/model.safetensors").read_bytes() == draft
