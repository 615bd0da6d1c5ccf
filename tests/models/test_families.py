"""Every family on tiny random weights: native against the torch twin, whole and in chunks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.errors import ModelError
from headrace.layers.loader import Loader
from headrace.models.registry import ModelRegistry
from headrace.ops.formats import StoredTensor, WeightFormat
from headrace.ops.native_ops import NativeOps
from headrace.ops.ops import F32, Ops, StepInputs
from headrace.ops.torch_ops import TorchOps

BLOCK = 8
COMMON = {
    "vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256, "rope_theta": 10000.0,
}  # fmt: skip
FAMILIES = {
    "llama": COMMON | {"model_type": "llama", "tie_word_embeddings": True},
    "llama-untied-biased": COMMON | {
        "model_type": "llama", "attention_bias": True,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
    },
    "qwen2": COMMON | {"model_type": "qwen2"},
    "qwen2-windowed": COMMON | {"model_type": "qwen2", "use_sliding_window": True,
                                "sliding_window": 11, "max_window_layers": 1},
    "gemma3": COMMON | {
        "model_type": "gemma3_text", "sliding_window": 9, "query_pre_attn_scalar": 16,
        "hidden_activation": "gelu_pytorch_tanh", "sliding_window_pattern": 3,
        "rope_local_base_freq": 1000.0,
    },
}  # fmt: skip


class RandomWeights:
    """Whatever is asked for, drawn from a seed by name: no file, no list of names."""

    def __init__(self, config: dict[str, Any]) -> None:
        c = config
        q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
        hidden, inner = c["hidden_size"], c["intermediate_size"]
        self.sizes = {
            "embed_tokens.weight": (c["vocab_size"], hidden),
            "lm_head.weight": (c["vocab_size"], hidden),
            "q_proj.weight": (q, hidden),
            "k_proj.weight": (kv, hidden),
            "v_proj.weight": (kv, hidden),
            "q_proj.bias": (q,),
            "k_proj.bias": (kv,),
            "v_proj.bias": (kv,),
            "o_proj.weight": (hidden, q),
            "gate_proj.weight": (inner, hidden),
            "up_proj.weight": (inner, hidden),
            "down_proj.weight": (hidden, inner),
            "q_norm.weight": (c["head_dim"],),
            "k_norm.weight": (c["head_dim"],),
        }
        self.hidden = hidden

    def has(self, name: str) -> bool:
        return name != "rope_freqs"

    def get(self, name: str) -> StoredTensor:
        shape = self.sizes.get(".".join(name.split(".")[-2:]), (self.hidden,))
        rng = np.random.default_rng(sum(name.encode()))
        values = rng.normal(0, 0.3, shape).astype(np.float32)
        return StoredTensor(name, WeightFormat.F32, shape, values.view(np.uint8), "memory")

    def get_vector(self, name: str) -> F32:
        vector: F32 = self.get(name).data.view(np.float32)
        return vector + 1 if "norm" in name else vector


def run(ops: Ops, config: dict[str, Any], chunks: list[int]) -> F32:
    """Logits at every position of one sequence computed in chunks of these sizes."""
    load = Loader(RandomWeights(config), ops)
    model = ModelRegistry.make_model(config["model_type"], config, load)
    total = sum(chunks)
    num_blocks = -(-total // BLOCK)
    caches = ops.make_kv_caches(model.num_layers, num_blocks, BLOCK, model.heads, "float32")
    executable = ops.compile(
        lambda: model.forward(caches), model.compute_logits,
        hidden_size=model.hidden_size, vocab_size=model.vocab_size, max_num_tokens=total,
    )  # fmt: skip
    tokens = np.random.default_rng(7).integers(0, config["vocab_size"], total).astype(np.int32)
    table = np.arange(num_blocks, dtype=np.int32)[::-1].copy()  # blocks out of order
    rows, done = [], 0
    for size in chunks:
        positions = np.arange(done, done + size, dtype=np.int32)
        done += size
        executable.forward(
            StepInputs(
                input_ids=tokens[positions],
                positions=positions,
                slot_mapping=table[positions // BLOCK] * np.int32(BLOCK)
                + positions % np.int32(BLOCK),
                query_start_loc=np.array([0, size], np.int32),
                seq_lens=np.array([done], np.int32),
                block_table=table[None, :],
            )
        )
        rows.append(executable.logits(np.arange(size, dtype=np.int32)).copy())
    return np.concatenate(rows)


@pytest.mark.torch
@pytest.mark.parametrize("name", FAMILIES)
def test_native_logits_equal_the_torch_twin(name: str) -> None:
    config = FAMILIES[name]
    theirs = run(TorchOps(), config, [37])
    ours = run(NativeOps(num_threads=2), config, [37])
    assert np.abs(theirs).max() > 0.5
    np.testing.assert_allclose(ours, theirs, atol=2e-2 if NativeOps().name == "amx" else 2e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_chunks_change_no_bit(name: str) -> None:
    config = FAMILIES[name]
    whole = run(NativeOps(num_threads=1), config, [37])
    np.testing.assert_array_equal(run(NativeOps(num_threads=2), config, [1] * 37), whole)
    np.testing.assert_array_equal(run(NativeOps(num_threads=2), config, [16, 20, 1]), whole)


def test_unknown_family_is_refused_with_the_list() -> None:
    with pytest.raises(ModelError, match=r"'mamba'.*gemma3_text, llama, qwen2"):
        ModelRegistry.check("mamba")


def test_a_missing_key_is_named() -> None:
    config = {k: v for k, v in FAMILIES["llama"].items() if k != "rms_norm_eps"}
    with pytest.raises(ModelError, match="rms_norm_eps"):
        run(TorchOps(), config, [1])


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("llama", {"num_hidden_layers": "3"}, "num_hidden_layers"),
        ("llama", {"num_attention_heads": {}}, "num_attention_heads"),
        ("llama", {"head_dim": 10**12}, "head_dim"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("llama", {"rms_norm_eps": "1e-5"}, "rms_norm_eps"),
        ("llama", {"head_dim": 15}, "15 columns"),
        ("qwen2-windowed", {"sliding_window": None}, "sliding_window"),
        ("gemma3", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ("gemma3", {"layer_types": "full_attention"}, "layer_types"),
        ("gemma3", {"layer_types": ["full_attention"]}, "names 1 layers of 3"),
    ],
)
def test_a_value_of_another_kind_is_named(family: str, changes: dict[str, Any], named: str) -> None:
    config = FAMILIES[family] | changes
    weights = RandomWeights(FAMILIES[family] | {"head_dim": changes.get("head_dim", 16) % 1000})
    with pytest.raises(ModelError, match=named):
        ModelRegistry.make_model(config["model_type"], config, Loader(weights, NativeOps()))


def test_a_weight_of_another_shape_is_named_with_both_shapes() -> None:
    config = FAMILIES["llama"] | {"intermediate_size": 64}
    weights = RandomWeights(FAMILIES["llama"])
    with pytest.raises(
        ModelError, match=r"gate_proj.weight has shape \[80, 48\], expected \[64, 48\]"
    ):
        ModelRegistry.make_model("llama", config, Loader(weights, TorchOps()))


@pytest.mark.parametrize("key", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_gemma_settings_without_an_implementation_are_refused(key: str) -> None:
    with pytest.raises(ModelError, match=key):
        run(TorchOps(), FAMILIES["gemma3"] | {key: 30.0}, [1])
