"""Writes small GGUF and safetensors files for tests."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LITTLE_LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 1,
    "llama.rope.freq_base": 10000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 16,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "<end>"],
    "tokenizer.ggml.token_type": np.array([1, 1, 1, 3], np.int32),
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 3,
}
LITTLE_LLAMA_SHAPES = {
    "token_embd.weight": (4, 32),
    "output_norm.weight": (32,),
    "blk.0.attn_norm.weight": (32,),
    "blk.0.attn_q.weight": (32, 32),
    "blk.0.attn_k.weight": (16, 32),
    "blk.0.attn_v.weight": (16, 32),
    "blk.0.attn_output.weight": (32, 32),
    "blk.0.ffn_norm.weight": (32,),
    "blk.0.ffn_gate.weight": (64, 32),
    "blk.0.ffn_up.weight": (64, 32),
    "blk.0.ffn_down.weight": (32, 64),
}
_ELEMENT_TYPES = {"uint8": 0, "int8": 1, "uint16": 2, "int16": 3, "uint32": 4, "int32": 5,
                  "float32": 6, "uint64": 10, "int64": 11, "float64": 12}  # fmt: skip


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray[Any, Any] | tuple[tuple[int, ...], int, bytes]] = {},
    *,
    version: int = 3,
    alignment: int = 32,
) -> Path:
    """A GGUF file. A tensor is a float32 array, or (shape, type number, bytes)."""
    entries = [
        tensor if isinstance(tensor, tuple) else (tensor.shape, 0, tensor.astype("<f4").tobytes())
        for tensor in tensors.values()
    ]
    infos, data = b"", b""
    for name, (shape, kind, raw) in zip(tensors, entries, strict=True):
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos += _string(name) + dims + struct.pack("<IQ", kind, len(data))
        data += raw + b"\0" * (-len(raw) % alignment)
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items()) + infos
    path.write_bytes(head + b"\0" * (-len(head) % alignment) + data)
    return path


def write_little_llama(path: Path, metadata: Mapping[str, Any] = {}) -> Path:
    """A complete one-layer Llama with float32 weights counting up."""
    tensors = {
        name: np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        for name, shape in LITTLE_LLAMA_SHAPES.items()
    }
    return write_gguf(path, {**LITTLE_LLAMA, **metadata}, tensors)


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, Sequence[int], bytes]]) -> Path:
    """A safetensors file. A tensor is (dtype, shape, bytes)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    data = b"".join(raw for _, _, raw in tensors.values())
    return write_safetensors_header(path, json.dumps(header).encode(), data)


def write_safetensors_header(path: Path, header: bytes, data: bytes) -> Path:
    """A safetensors file with a header written out."""
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, np.ndarray):
        kind = _ELEMENT_TYPES[value.dtype.name]
        return struct.pack("<IIQ", 9, kind, len(value)) + value.tobytes()
    strings = b"".join(map(_string, value))
    return struct.pack("<IIQ", 9, 8, len(value)) + strings
