"""Reads the tensors of a GGUF file as mapped blocks, under Hugging Face checkpoint names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.hub.gguf_metadata import GgufFile, GgufTensor
from headrace.ops.formats import StoredTensor, WeightFormat
from headrace.weights.name_map import BLOCK_NAMES, to_checkpoint_name

FORMATS = {
    0: WeightFormat.F32, 1: WeightFormat.F16, 2: WeightFormat.Q4_0, 3: WeightFormat.Q4_1,
    6: WeightFormat.Q5_0, 7: WeightFormat.Q5_1, 8: WeightFormat.Q8_0, 12: WeightFormat.Q4_K,
    13: WeightFormat.Q5_K, 14: WeightFormat.Q6_K, 30: WeightFormat.BF16,
}  # fmt: skip
"""GGUF's type number -> format."""
OTHER_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
"""Types that exist but are not read; for messages."""


@dataclass(frozen=True, slots=True)
class GgufTensors:
    """A file's tensors, and how they differ from a checkpoint's."""

    tensors: dict[str, StoredTensor]
    interleaved_rows: dict[str, int]
    """Name -> number of heads: rows keep rotary pairs side by side."""
    norm_offset: float
    """What was added to every norm weight."""


def read_gguf_tensors(path: Path) -> GgufTensors:
    """Map all tensors of a file.

    Raises:
        ModelError: a damaged file, a type that is not read, or a tensor without a checkpoint name.
    """
    gguf = GgufFile(path)
    architecture = gguf.string("general.architecture")
    if architecture not in BLOCK_NAMES:
        raise gguf.fault(f"architecture {architecture!r} is not supported")
    tensors: dict[str, StoredTensor] = {}
    _check_overlaps(gguf)
    for entry in gguf.tensors:
        name = to_checkpoint_name(architecture, entry.name)
        if name is None:
            raise gguf.fault(f"tensor {entry.name} is unknown for the architecture {architecture}")
        if name in tensors:
            raise gguf.fault(f"tensor {entry.name}: there is another one for {name}")
        tensors[name] = _view(gguf, entry, name)
    return GgufTensors(
        tensors,
        interleaved_rows=_rotary_tensors(gguf, tensors) if architecture == "llama" else {},
        norm_offset=1.0 if architecture == "gemma3" else 0.0,
    )


def _rotary_tensors(gguf: GgufFile, tensors: dict[str, StoredTensor]) -> dict[str, int]:
    num_heads = gguf.integer("llama.attention.head_count")
    num_kv_heads = gguf.integer("llama.attention.head_count_kv", num_heads)
    heads = {"q_proj": num_heads, "k_proj": num_kv_heads}
    if min(heads.values()) <= 0:
        raise gguf.fault("llama.attention.head_count is not positive")
    return {
        name: heads[part]
        for name in tensors
        for part in heads
        if name.endswith((f"{part}.weight", f"{part}.bias"))
    }


def _num_bytes(gguf: GgufFile, entry: GgufTensor) -> int:
    """Bytes a tensor takes, when its type is known and its rows are whole blocks."""
    stored = FORMATS.get(entry.type_id)
    if stored is None:
        kind = OTHER_TYPES.get(entry.type_id, "unknown")
        supported = ", ".join(known.label for known in FORMATS.values())
        raise gguf.fault(
            f"tensor {entry.name} has the type {kind} ({entry.type_id}); supported: {supported}"
        )
    columns = entry.shape[-1]
    if columns % stored.block_size:
        raise gguf.fault(
            f"tensor {entry.name} has rows of {columns}, "
            f"not a multiple of the {stored.block_size} of {stored.label}"
        )
    return math.prod(entry.shape[:-1]) * stored.row_bytes(columns)


def _check_overlaps(gguf: GgufFile) -> None:
    """Every tensor lies in the file, aligned, and apart from the others."""
    available = len(gguf.mapping) - gguf.data_start
    last_end, last_name = 0, ""
    for entry in sorted(gguf.tensors, key=lambda entry: entry.offset):
        end = entry.offset + _num_bytes(gguf, entry)
        if entry.offset % gguf.alignment:
            raise gguf.fault(f"tensor {entry.name} begins at {entry.offset}, which is not aligned")
        if end > available:
            raise gguf.fault(
                f"truncated or damaged: tensor {entry.name} lies at {entry.offset} to {end} "
                f"of {max(available, 0)} bytes of data"
            )
        if entry.offset < last_end:
            raise gguf.fault(f"damaged: tensors {last_name} and {entry.name} overlap")
        last_end, last_name = end, entry.name


def _view(gguf: GgufFile, entry: GgufTensor, name: str) -> StoredTensor:
    stored = FORMATS[entry.type_id]
    row_bytes = stored.row_bytes(entry.shape[-1])
    num_rows = math.prod(entry.shape[:-1])
    start = gguf.data_start + entry.offset
    data = np.frombuffer(gguf.mapping, np.uint8, num_rows * row_bytes, start)
    if len(entry.shape) > 1:
        data = data.reshape(num_rows, row_bytes)
    return StoredTensor(name, stored, entry.shape, data, str(gguf.path))
