"""The strict walk over weights: missing, leftover and misshapen ones, and dummy weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.config.engine import ModelConfig, ModelFacts
from headrace.errors import ModelError
from headrace.ops.formats import StoredTensor, WeightFormat, dequantize
from headrace.weights.dummy import checkpoint_shapes
from headrace.weights.reader import WeightReader, open_weights
from tests.gguf_files import write_safetensors

CONFIG = {"model_type": "qwen2", "hidden_size": 16, "intermediate_size": 24, "vocab_size": 10,
          "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
          "tie_word_embeddings": False}  # fmt: skip


def tensor(name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> StoredTensor:
    data = np.frombuffer(values.astype("<f4").tobytes(), np.uint8)
    if values.ndim > 1:
        data = data.reshape(values.shape[0], -1)
    return StoredTensor(name, WeightFormat.F32, values.shape, data, "f.bin")


@pytest.fixture
def reader() -> WeightReader:
    tensors = [
        tensor("a.weight", np.arange(6, dtype=np.float32).reshape(2, 3)),
        tensor("b.norm.weight", np.arange(3, dtype=np.float32)),
        tensor("c.bias", np.arange(3, dtype=np.float32)),
        tensor("layers.0.rotary_emb.inv_freq", np.ones(2, np.float32)),
        tensor("lm_head.weight", np.ones((2, 3), np.float32)),
    ]
    return WeightReader(
        {t.name: t for t in tensors}, source="the file", norm_offset=1.0, ignored=["lm_head.weight"]
    )


def test_leftover_weights_raise_and_are_named(reader: WeightReader) -> None:
    reader.get("a.weight")
    assert reader.unused() == ["b.norm.weight", "c.bias"]
    with pytest.raises(ModelError, match=r"^the file: .* no place for .*b\.norm\.weight, c\.bias"):
        reader.check_all_used()
    reader.get_vector("b.norm.weight")
    reader.get_vector("c.bias")
    reader.check_all_used()


def test_missing_weight_raises_and_is_named(reader: WeightReader) -> None:
    assert not reader.has("x")
    with pytest.raises(ModelError, match=r"^the file: the tensor x is missing"):
        reader.get("x")


def test_shape_that_does_not_fit_is_told_with_both_shapes(reader: WeightReader) -> None:
    with pytest.raises(ModelError, match=r"f\.bin: tensor a\.weight has shape \[2, 3\], expected"):
        reader.get("a.weight", (3, 2))
    with pytest.raises(ModelError, match=r"c\.bias has shape \[3\], expected \[4\]"):
        reader.get_vector("c.bias", 4)


def test_vectors_have_the_checkpoints_meaning(reader: WeightReader) -> None:
    assert reader.get_vector("b.norm.weight").tolist() == [-1, 0, 1]
    assert reader.get_vector("c.bias").tolist() == [0, 1, 2]
    with pytest.raises(ModelError, match=r"not a vector"):
        reader.get_vector("a.weight")


def test_vector_in_blocks_is_refused() -> None:
    blocks = StoredTensor("v", WeightFormat.Q8_0, (32,), np.zeros(34, np.uint8), "f.bin")
    with pytest.raises(ModelError, match=r"vector v is stored as Q8_0"):
        WeightReader({"v": blocks}, source="x").get_vector("v")


def test_views_stay_valid_after_close(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"w": ("F32", (1,), b"\0\0\x80\x3f")})
    facts = ModelFacts(model="m", path=str(tmp_path), format="safetensors", hf_config={})
    with open_weights(facts) as weights:
        kept = weights.get("w")
    assert dequantize(kept).tolist() == [1.0]
    assert not weights.has("w")


def model_config(hf_config: dict[str, object], seed: int = 0) -> ModelConfig:
    return ModelConfig(
        model="m", path="/", format="dummy", hf_config=hf_config, tokenizer=None, max_model_len=8,
        model_type=str(hf_config["model_type"]), vocab_size=10, served_names=["m"], seed=seed,
    )  # fmt: skip


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma3_text"])
def test_dummy_weights_have_the_shapes_of_the_checkpoint(model_type: str) -> None:
    weights = open_weights(model_config({**CONFIG, "model_type": model_type}))
    q_proj = weights.get("model.layers.1.self_attn.q_proj.weight", (16, 16))
    assert weights.get("lm_head.weight", (10, 16)).format is WeightFormat.BF16
    assert weights.has("model.layers.0.self_attn.k_proj.bias") == (model_type == "qwen2")
    assert weights.has("model.layers.0.self_attn.q_norm.weight") == (model_type == "gemma3_text")
    assert 0.01 < dequantize(q_proj).std() < 0.03
    norm = weights.get_vector("model.norm.weight", 16)
    assert abs(norm.mean() - (0.0 if model_type == "gemma3_text" else 1.0)) < 0.05


def test_dummy_weights_depend_on_seed_and_name_only() -> None:
    def matrix(seed: int, name: str) -> bytes:
        return open_weights(model_config(CONFIG, seed)).get(name).data.tobytes()

    one, two = (f"model.layers.{i}.mlp.up_proj.weight" for i in (0, 1))
    assert matrix(1, one) == matrix(1, one)
    assert matrix(1, one) != matrix(2, one)
    assert matrix(1, one) != matrix(1, two)
    assert matrix(-5, one) != matrix(5, one)


def test_dummy_weights_of_an_unknown_family_are_refused() -> None:
    with pytest.raises(ModelError, match=r"dummy is not supported for the model type whisper"):
        checkpoint_shapes({"model_type": "whisper"})
    with pytest.raises(ModelError, match=r"lacks the key 'hidden_size'"):
        checkpoint_shapes({"model_type": "llama"})


def test_progress_is_told_as_weights_are_asked_for() -> None:
    told: list[float] = []
    names = [f"{number}.weight" for number in range(400)]
    tensors = {name: tensor(name, np.ones(2, np.float32)) for name in names}
    reader = WeightReader(tensors, source="the file", on_progress=told.append)
    for name in names:
        reader.get(name)
        reader.get(name)
    assert told == [percent / 100 for percent in range(1, 101)]
