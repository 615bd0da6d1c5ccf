"""GGUF tensors under checkpoint names, and what the file keeps differently."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.errors import ModelError
from headrace.hub.lookup import find_model
from headrace.ops.formats import StoredTensor, WeightFormat, dequantize
from headrace.weights.gguf import read_gguf_tensors
from headrace.weights.name_map import to_checkpoint_name
from headrace.weights.reader import WeightReader, open_weights
from tests.gguf_files import LITTLE_LLAMA, LITTLE_LLAMA_SHAPES, write_gguf, write_little_llama


def test_every_tensor_has_its_checkpoint_name_and_shape(tmp_path: Path) -> None:
    path = write_little_llama(tmp_path / "x.gguf")
    weights = open_weights(find_model(str(path)))
    assert set(weights.names()) == {
        "model.embed_tokens.weight", "model.norm.weight",
        *(f"model.layers.0.{name}.weight" for name in (
            "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
            "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
            "mlp.down_proj")),
    }  # fmt: skip
    down = weights.get("model.layers.0.mlp.down_proj.weight", (32, 64))
    assert (down.format, down.data.shape) == (WeightFormat.F32, (32, 256))
    assert not down.data.flags.owndata
    np.testing.assert_array_equal(
        dequantize(down), np.arange(32 * 64, dtype=np.float32).reshape(32, 64)
    )


def test_rotary_rows_of_llama_are_put_half_a_head_apart(tmp_path: Path) -> None:
    weights = open_weights(find_model(str(write_little_llama(tmp_path / "x.gguf"))))
    key = dequantize(weights.get("model.layers.0.self_attn.k_proj.weight"))  # one head of 16 rows
    np.testing.assert_array_equal(key[:, 0] / 32, [*range(0, 16, 2), *range(1, 16, 2)])
    query = dequantize(weights.get("model.layers.0.self_attn.q_proj.weight"))  # two heads
    evens, odds = np.arange(0, 16, 2), np.arange(1, 16, 2)
    np.testing.assert_array_equal(
        query[:, 0] / 32, np.concatenate([evens, odds, evens + 16, odds + 16])
    )
    value = weights.get("model.layers.0.self_attn.v_proj.weight")
    np.testing.assert_array_equal(dequantize(value)[:, 0] / 32, np.arange(16))


def test_rotary_bias_moves_with_its_rows(tmp_path: Path) -> None:
    tensors = _ones()
    tensors["blk.0.attn_k.bias"] = np.arange(16, dtype=np.float32)
    path = write_gguf(tmp_path / "x.gguf", LITTLE_LLAMA, tensors)
    facts = find_model(str(path))
    bias = open_weights(facts).get_vector("model.layers.0.self_attn.k_proj.bias", 16)
    assert bias.tolist() == [*range(0, 16, 2), *range(1, 16, 2)]


def test_rope_factors_are_offered(tmp_path: Path) -> None:
    factors = np.array([1, 2, 4, 8, 1, 1, 1, 1], np.float32)
    path = write_gguf(tmp_path / "x.gguf", LITTLE_LLAMA, {**_ones(), "rope_freqs.weight": factors})
    weights = open_weights(find_model(str(path)))
    assert weights.rope_freqs is not None
    assert weights.rope_freqs.tolist() == factors.tolist()
    assert weights.has("rope_freqs")
    plain = open_weights(find_model(str(write_little_llama(tmp_path / "y.gguf"))))
    assert plain.rope_freqs is None


def _ones() -> dict[str, Any]:
    return {name: np.ones(shape, np.float32) for name, shape in LITTLE_LLAMA_SHAPES.items()}


@pytest.mark.parametrize(
    ("architecture", "name", "expected"),
    [
        ("llama", "output.weight", "lm_head.weight"),
        ("llama", "blk.12.ffn_norm.weight", "model.layers.12.post_attention_layernorm.weight"),
        ("gemma3", "blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight"),
        (
            "gemma3",
            "blk.0.post_ffw_norm.weight",
            "model.layers.0.post_feedforward_layernorm.weight",
        ),
        ("gemma3", "blk.3.attn_q_norm.weight", "model.layers.3.self_attn.q_norm.weight"),
        ("qwen2", "blk.1.attn_v.bias", "model.layers.1.self_attn.v_proj.bias"),
        ("llama", "blk.0.attn_q_norm.weight", None),
        ("llama", "blk.x.attn_q.weight", None),
        ("llama", "blk.0.ffn_gate_exps.weight", None),
        ("llama", "mystery", None),
    ],
)
def test_names_are_mapped(architecture: str, name: str, expected: str | None) -> None:
    assert to_checkpoint_name(architecture, name) == expected


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (((4, 32), 20, bytes(999)), r"token_embd.weight has the type IQ4_NL \(20\)"),
        (((4, 32), 99, bytes(999)), r"has the type unknown \(99\)"),
        (((4, 31), 8, bytes(999)), "rows of 31, not a multiple of the 32 of Q8_0"),
        (((2**31, 2**31), 0, b""), "truncated or damaged: tensor token_embd.weight lies at"),
        (((4, 32), 0, bytes(100)), "overlap"),
    ],
)
def test_tensor_that_cannot_be_read_is_named(tmp_path: Path, tensor: Any, message: str) -> None:
    path = write_gguf(tmp_path / "x.gguf", LITTLE_LLAMA, {**_ones(), "token_embd.weight": tensor})
    with pytest.raises(ModelError, match=message) as caught:
        read_gguf_tensors(path)
    assert str(caught.value).startswith(str(path))


def test_unknown_tensor_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", LITTLE_LLAMA, {**_ones(), "blk.0.extra": np.ones(2)})
    with pytest.raises(
        ModelError, match=r"tensor blk.0.extra is unknown for the architecture llama"
    ):
        read_gguf_tensors(path)


def test_truncated_data_raises_and_random_changes_never_crash(tmp_path: Path) -> None:
    content = write_little_llama(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "x.gguf"
    for size in range(0, len(content) - 1, 997):
        path.write_bytes(content[:size])
        with pytest.raises(ModelError):
            read_gguf_tensors(path)
    rng = random.Random(5)
    outcomes = set()
    messages = []
    for _ in range(800):
        changed = bytearray(content)
        changed[rng.randrange(1900)] = rng.choice((0, 1, 0x80, 0xFF, rng.randrange(256)))
        path.write_bytes(changed)
        try:
            for tensor in read_gguf_tensors(path).tensors.values():
                tensor.data.sum()
            outcomes.add("read")
        except ModelError as error:
            outcomes.add("refused")
            messages.append(str(error))
    assert outcomes == {"read", "refused"}
    assert all(message.isprintable() for message in messages)


def to_bfloat16(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rounded to bfloat16, ties to even; as the converted models were."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint32) << 16).view(np.float32)


def first_rows(tensor: StoredTensor, count: int) -> np.ndarray[Any, Any]:
    return dequantize(
        StoredTensor(
            tensor.name, tensor.format, (count, tensor.shape[1]), tensor.data[:count], tensor.source
        )
    )


@pytest.mark.model
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "gemma3-270m",
                                  "qwen2.5-coder-0.5b-instruct"])  # fmt: skip
def test_gguf_and_checkpoint_hold_the_same_weights(
    model_dir: Callable[[str], Path], name: str
) -> None:
    stored = open_weights(find_model(str(model_dir(f"{name}-gguf"))))
    checkpoint = open_weights(find_model(str(model_dir(name))))
    assert set(stored.names()) == set(checkpoint.names())
    for key in checkpoint.names():
        reference = checkpoint.get(key)
        if len(reference.shape) == 1:
            ours = to_bfloat16(stored.get_vector(key, reference.shape[0]))
            np.testing.assert_array_equal(ours, checkpoint.get_vector(key), key)
        elif ".layers." not in key or ".layers.7." in key:
            count = min(reference.shape[0], 512)
            ours = to_bfloat16(first_rows(stored.get(key, reference.shape), count))
            np.testing.assert_array_equal(ours, first_rows(reference, count), key)
    for weights in (stored, checkpoint):
        read_all(weights)
        weights.check_all_used()


def read_all(weights: WeightReader) -> None:
    for name in weights.names():
        weights.get(name)
