"""Random weights for `--load-format dummy`: the same for the same configuration and seed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import ModelError
from headrace.ops.formats import StoredTensor, WeightFormat

SCALE = 0.02
SEED_MASK = 2**64 - 1


class DummyTensors(Mapping[str, StoredTensor]):
    """The tensors a checkpoint of this configuration would have, made when asked for.

    Matrices and biases are bfloat16, uniform with a standard deviation of 0.02; norms are close to
    doing nothing. A tensor's numbers depend on its name and the seed only.

    Raises:
        ModelError: a model type whose shapes are not known, or a configuration without its keys.
    """

    def __init__(self, hf_config: Mapping[str, Any], seed: int) -> None:
        self._shapes = checkpoint_shapes(hf_config)
        self._seed = seed
        self._norm_mean = 0.0 if hf_config["model_type"].startswith("gemma") else 1.0

    def __getitem__(self, name: str) -> StoredTensor:
        shape = self._shapes[name]
        seeds = [self._seed & SEED_MASK, zlib.crc32(name.encode())]
        numbers = np.random.default_rng(seeds).random(math.prod(shape), dtype=np.float32)
        numbers = (numbers - np.float32(0.5)) * np.float32(SCALE * math.sqrt(12.0))
        if name.endswith("norm.weight"):
            numbers += np.float32(self._norm_mean)
        data = _to_bfloat16(numbers).view(np.uint8)
        if len(shape) > 1:
            data = data.reshape(shape[0], -1)
        return StoredTensor(name, WeightFormat.BF16, shape, data, "dummy weights")

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def checkpoint_shapes(hf_config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor in a checkpoint of this configuration.

    Raises ModelError for a model type that is not known here, or a missing key.
    """
    model_type = hf_config.get("model_type")
    if model_type not in ("llama", "qwen2", "gemma3_text"):
        raise ModelError(f"load_format dummy is not supported for the model type {model_type}")
    try:
        return _decoder_shapes(hf_config)
    except KeyError as missing:
        raise ModelError(f"config.json lacks the key {missing}") from None


def _decoder_shapes(hf: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, num_heads = hf["hidden_size"], hf["intermediate_size"], hf["num_attention_heads"]
    head_dim = hf.get("head_dim") or hidden // num_heads
    q_size = num_heads * head_dim
    kv_size = (hf.get("num_key_value_heads") or num_heads) * head_dim
    is_gemma = hf["model_type"] == "gemma3_text"
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q_size, hidden),
        "self_attn.k_proj.weight": (kv_size, hidden),
        "self_attn.v_proj.weight": (kv_size, hidden),
        "self_attn.o_proj.weight": (hidden, q_size),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    biases = {"self_attn.q_proj.bias": q_size, "self_attn.k_proj.bias": kv_size,
              "self_attn.v_proj.bias": kv_size}  # fmt: skip
    if hf.get("attention_bias", False) and not is_gemma:
        biases["self_attn.o_proj.bias"] = hidden
    elif hf["model_type"] != "qwen2":
        biases = {}
    layer.update({name: (size,) for name, size in biases.items()})
    if is_gemma:
        further = {"pre_feedforward_layernorm": hidden, "post_feedforward_layernorm": hidden,
                   "self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}  # fmt: skip
        for name, size in further.items():
            layer[f"{name}.weight"] = (size,)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (hf["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for i in range(hf["num_hidden_layers"]):
        shapes.update({f"model.layers.{i}.{name}": shape for name, shape in layer.items()})
    if not hf.get("tie_word_embeddings", is_gemma):
        shapes["lm_head.weight"] = (hf["vocab_size"], hidden)
    return shapes


def _to_bfloat16(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to nearest, ties to even."""
    bits = numbers.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
