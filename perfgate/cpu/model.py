"""The tiny model with its EAGLE-3 head: trained with 4 layers, served with 24.

The 20 layers added compute and change nothing: with the projections back into the residual stream at zero a layer
is the identity. The outputs and the draft stay what they were trained to be, while the target becomes dear
enough, against the draft, that speculation pays on a CPU as it does on a GPU.

Weights are read and written as bytes (https://github.com/huggingface/safetensors#format), without PyTorch:
8 bytes with the header's length, a JSON header {name: {dtype, shape, data_offsets}}, then the data.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRAINED = Path(__file__).parent / "model"
LAYERS = 24
# Only sizes the table of rotary embeddings (a row per position). The demo's `baseline` mistake computes it anew for
# every layer, and the table must be long enough to make that felt on a fast CPU.
POSITIONS = 8192
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_INTO_RESIDUAL = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


@dataclass(frozen=True)
class Tensor:
    """One tensor as it stands in the file: what its header says, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def read_safetensors(path: Path) -> dict[str, Tensor]:
    raw = path.read_bytes()
    body = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:body])
    header.pop("__metadata__", None)
    return {
        name: Tensor(
            entry["dtype"],
            tuple(entry["shape"]),
            raw[body + entry["data_offsets"][0] : body + entry["data_offsets"][1]],
        )
        for name, entry in header.items()
    }


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8 bytes
    body = b"".join(tensor.data for tensor in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def deepen(tensors: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """`tensors` with identity layers appended until there are `layers`; their other weights repeat trained ones."""
    by_layer: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := _LAYER.fullmatch(name):
            by_layer.setdefault(int(match[1]), {})[match[2]] = tensor
    deep = dict(tensors)
    for index in range(len(by_layer), layers):
        for part, tensor in by_layer[index % len(by_layer)].items():
            data = bytes(len(tensor.data)) if part in _INTO_RESIDUAL else tensor.data
            deep[f"model.layers.{index}.{part}"] = Tensor(tensor.dtype, tensor.shape, data)
    return deep


def write_model(where: Path) -> None:
    """Make `where/target` (24 layers) and `where/draft`; byte for byte the same each time."""
    shutil.copytree(TRAINED, where)
    weights = where / "target" / "model.safetensors"
    write_safetensors(weights, deepen(read_safetensors(weights), LAYERS))
    _edit_config(where / "target", num_hidden_layers=LAYERS, max_position_embeddings=POSITIONS)
    _edit_config(where / "draft", max_position_embeddings=POSITIONS)


def _edit_config(model: Path, **values: int) -> None:
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values, indent=2) + "\n")
