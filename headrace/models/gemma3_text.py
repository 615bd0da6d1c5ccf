"""Gemma 3 (Gemma Team 2025), text part.

What differs from Llama: embeddings scaled by sqrt(H); norms that store weight - 1, before and after
each block; a norm on every head of queries and keys; most layers see only a window and rotate with
another base.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import ModelError
from headrace.hub.hf_values import count, positive_number
from headrace.layers.attention import Attention
from headrace.layers.loader import Loader
from headrace.layers.rotary import make_rotary, rope_settings
from headrace.models.llama import common_fields
from headrace.ops.ops import Array, HeadNorm, HeadShape, KVCache

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Gemma3Config:
    """The keys of config.json that the computation depends on."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    heads: HeadShape
    rms_norm_eps: float
    hidden_act: str
    max_position_embeddings: int
    query_pre_attn_scalar: float
    sliding_window: int
    layer_types: tuple[str, ...]
    rope_full: dict[str, Any]
    rope_sliding: dict[str, Any]

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Gemma3Config:
        """Raises ModelError for a key that is missing or asks for something else."""
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if hf.get(key):
                raise ModelError(f"config.json: {key} is not supported for gemma3 models")
        if hf.get("attention_bias"):
            raise ModelError("config.json: attention_bias is not supported for gemma3 models")
        fields = common_fields(hf)
        del fields["rope"], fields["tie_word_embeddings"]  # always tied
        fields["hidden_act"] = hf.get("hidden_activation", "gelu_pytorch_tanh")
        return cls(
            **fields,
            query_pre_attn_scalar=positive_number(hf, "query_pre_attn_scalar", 256),
            sliding_window=count(hf, "sliding_window", 4096),
            layer_types=_layer_types(hf, fields["num_layers"]),
            rope_full=rope_settings(hf, FULL),
            rope_sliding=_sliding_rope(hf),
        )


def _layer_types(hf: Mapping[str, Any], num_layers: int) -> tuple[str, ...]:
    given = hf.get("layer_types")
    if given is None:
        every = count(hf, "sliding_window_pattern", 6)
        given = [FULL if (i + 1) % every == 0 else SLIDING for i in range(num_layers)]
    if not isinstance(given, list) or any(kind not in (FULL, SLIDING) for kind in given):
        raise ModelError(f"config.json: layer_types must be a list of {FULL} and {SLIDING}")
    if len(given) != num_layers:
        raise ModelError(f"config.json: layer_types names {len(given)} layers of {num_layers}")
    return tuple(given)


def _sliding_rope(hf: Mapping[str, Any]) -> dict[str, Any]:
    """Scaling, where given in the older spelling, is meant for the full layers only."""
    if SLIDING in (hf.get("rope_parameters") or {}):
        return rope_settings(hf, SLIDING)
    return {"rope_type": "default", "rope_theta": hf.get("rope_local_base_freq", 10000.0)}


class Gemma3DecoderLayer:
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def __init__(self, config: Gemma3Config, load: Loader, layer_type: str) -> None:
        c = config
        self.ops = load.ops
        self.is_sliding = layer_type == SLIDING

        def norm(name: str) -> Any:
            return load.rms_norm(name, c.hidden_size, c.rms_norm_eps, offset=1.0)

        self.input_layernorm = norm("input_layernorm")
        self.self_attn = _attention(c, load.at("self_attn"), self.is_sliding)
        self.post_attention_layernorm = norm("post_attention_layernorm")
        self.pre_feedforward_layernorm = norm("pre_feedforward_layernorm")
        mlp = load.at("mlp")
        self.gate_up_proj = mlp.gated_linear(
            "gate_proj", "up_proj", c.intermediate_size, c.hidden_size, c.hidden_act
        )
        self.down_proj = mlp.linear(["down_proj"], [c.hidden_size], c.intermediate_size, bias=False)
        self.post_feedforward_layernorm = norm("post_feedforward_layernorm")

    def __call__(self, x: Array, rope: Array, cache: KVCache) -> Array:
        attended = self.self_attn(self.input_layernorm(x), rope, cache)
        x = self.ops.add(x, self.post_attention_layernorm(attended))
        fed = self.down_proj(self.gate_up_proj(self.pre_feedforward_layernorm(x)))
        return self.ops.add(x, self.post_feedforward_layernorm(fed))


def _attention(c: Gemma3Config, load: Loader, is_sliding: bool) -> Attention:
    heads = c.heads
    q_size, kv_size = heads.num_heads * heads.head_dim, heads.num_kv_heads * heads.head_dim
    q_weight, k_weight = (
        load.vector(f"{name}.weight", heads.head_dim) + np.float32(1.0)
        for name in ("q_norm", "k_norm")
    )
    return Attention(
        load.ops,
        heads,
        qkv_proj=load.linear(
            ["q_proj", "k_proj", "v_proj"], [q_size, kv_size, kv_size], c.hidden_size, bias=False
        ),
        o_proj=load.linear(["o_proj"], [c.hidden_size], q_size, bias=False),
        scale=c.query_pre_attn_scalar**-0.5,
        window=c.sliding_window if is_sliding else None,
        head_norm=HeadNorm(q_weight, k_weight, c.rms_norm_eps),
    )


class Gemma3ForCausalLM:
    """The whole decoder. Implements CausalLM."""

    def __init__(self, config: Gemma3Config, load: Loader) -> None:
        c = config
        self.num_layers, self.hidden_size = c.num_layers, c.hidden_size
        self.vocab_size, self.heads = c.vocab_size, c.heads
        model = load.at("model")
        self.embed_tokens = model.embedding(
            "embed_tokens", c.vocab_size, c.hidden_size, scale=math.sqrt(c.hidden_size)
        )
        self.rotary_full, self.rotary_sliding = (
            make_rotary(
                load.ops, rope, c.heads.head_dim, max_position_embeddings=c.max_position_embeddings
            )
            for rope in (c.rope_full, c.rope_sliding)
        )
        layers = model.at("layers")
        self.layers = [
            Gemma3DecoderLayer(c, layers.at(i), kind) for i, kind in enumerate(c.layer_types)
        ]
        self.norm = model.rms_norm("norm", c.hidden_size, c.rms_norm_eps, offset=1.0)
        self.lm_head = model.tied_linear("embed_tokens", c.vocab_size, c.hidden_size)

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any], load: Loader) -> Gemma3ForCausalLM:
        """Build from config.json and weights."""
        return cls(Gemma3Config.from_hf(hf_config), load)

    def forward(self, caches: Sequence[KVCache]) -> Array:
        """See CausalLM."""
        x = self.embed_tokens()
        full, sliding = self.rotary_full(), self.rotary_sliding()
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, sliding if layer.is_sliding else full, cache)
        return self.norm(x)

    def compute_logits(self, hidden_states: Array) -> Array:
        """See CausalLM."""
        return self.lm_head(hidden_states)
