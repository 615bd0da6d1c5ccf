"""Llama (Touvron et al. 2023) and everything built like it: SmolLM2, Mistral-style decoders, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import ModelError
from headrace.hub.hf_values import count, positive_number
from headrace.layers.attention import Attention
from headrace.layers.loader import Loader
from headrace.layers.rotary import make_rotary, rope_settings
from headrace.ops.ops import Array, HeadShape, KVCache


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The keys of config.json that the computation depends on."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    heads: HeadShape
    rms_norm_eps: float
    hidden_act: str
    max_position_embeddings: int
    rope: dict[str, Any]
    tie_word_embeddings: bool
    qkv_bias: bool = False
    o_bias: bool = False
    windows: tuple[int | None, ...] = ()
    """Sliding window of each layer; empty when no layer has one."""

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> LlamaConfig:
        """Raises ModelError for a key that is missing or asks for something else."""
        if hf.get("mlp_bias"):
            raise ModelError("config.json: mlp_bias is not supported for llama models")
        bias = bool(hf.get("attention_bias", False))
        return cls(**common_fields(hf), qkv_bias=bias, o_bias=bias)


def common_fields(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that all families of this shape read alike."""
    return {
        "vocab_size": count(hf, "vocab_size"),
        "hidden_size": count(hf, "hidden_size"),
        "intermediate_size": count(hf, "intermediate_size"),
        "num_layers": count(hf, "num_hidden_layers"),
        "heads": _heads(hf),
        "rms_norm_eps": positive_number(hf, "rms_norm_eps"),
        "hidden_act": hf.get("hidden_act", "silu"),
        "max_position_embeddings": count(hf, "max_position_embeddings"),
        "rope": rope_settings(hf),
        "tie_word_embeddings": bool(hf.get("tie_word_embeddings", False)),
    }


def _heads(hf: Mapping[str, Any]) -> HeadShape:
    num_heads = count(hf, "num_attention_heads")
    num_kv_heads = count(hf, "num_key_value_heads", num_heads)
    head_dim = count(hf, "head_dim", count(hf, "hidden_size") // num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(
            f"config.json: {num_heads} num_attention_heads cannot share "
            f"{num_kv_heads} num_key_value_heads evenly"
        )
    return HeadShape(num_heads, num_kv_heads, head_dim)


class LlamaDecoderLayer:
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: LlamaConfig, load: Loader, layer_idx: int) -> None:
        c = config
        self.ops = load.ops
        self.input_layernorm = load.rms_norm("input_layernorm", c.hidden_size, c.rms_norm_eps)
        self.self_attn = llama_attention(c, load.at("self_attn"), layer_idx)
        self.post_attention_layernorm = load.rms_norm(
            "post_attention_layernorm", c.hidden_size, c.rms_norm_eps
        )
        mlp = load.at("mlp")
        self.gate_up_proj = mlp.gated_linear(
            "gate_proj", "up_proj", c.intermediate_size, c.hidden_size, c.hidden_act
        )
        self.down_proj = mlp.linear(["down_proj"], [c.hidden_size], c.intermediate_size, bias=False)

    def __call__(self, x: Array, rope: Array, cache: KVCache) -> Array:
        x = self.ops.add(x, self.self_attn(self.input_layernorm(x), rope, cache))
        return self.ops.add(x, self.down_proj(self.gate_up_proj(self.post_attention_layernorm(x))))


def llama_attention(c: LlamaConfig, load: Loader, layer_idx: int) -> Attention:
    """Attention as in Llama: 1/sqrt(D) scale, no norms inside."""
    q_size, kv_size = c.heads.num_heads * c.heads.head_dim, c.heads.num_kv_heads * c.heads.head_dim
    return Attention(
        load.ops,
        c.heads,
        qkv_proj=load.linear(
            ["q_proj", "k_proj", "v_proj"], [q_size, kv_size, kv_size], c.hidden_size,
            bias=c.qkv_bias,
        ),
        o_proj=load.linear(["o_proj"], [c.hidden_size], q_size, bias=c.o_bias),
        scale=c.heads.head_dim**-0.5,
        window=c.windows[layer_idx] if c.windows else None,
    )  # fmt: skip


class LlamaForCausalLM:
    """The whole decoder. Implements CausalLM."""

    def __init__(self, config: LlamaConfig, load: Loader) -> None:
        c = config
        self.num_layers, self.hidden_size = c.num_layers, c.hidden_size
        self.vocab_size, self.heads = c.vocab_size, c.heads
        model = load.at("model")
        self.embed_tokens = model.embedding("embed_tokens", c.vocab_size, c.hidden_size)
        factors = "rope_freqs"
        self.rotary = make_rotary(
            load.ops,
            c.rope,
            c.heads.head_dim,
            max_position_embeddings=c.max_position_embeddings,
            frequency_factors=(
                load.vector(factors, c.heads.head_dim // 2) if load.has(factors) else None
            ),
        )
        layers = model.at("layers")
        self.layers = [LlamaDecoderLayer(c, layers.at(i), i) for i in range(c.num_layers)]
        self.norm = model.rms_norm("norm", c.hidden_size, c.rms_norm_eps)
        if c.tie_word_embeddings:
            self.lm_head = model.tied_linear("embed_tokens", c.vocab_size, c.hidden_size)
        else:
            self.lm_head = load.linear(["lm_head"], [c.vocab_size], c.hidden_size, bias=False)

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any], load: Loader) -> LlamaForCausalLM:
        """Build from config.json and weights."""
        return cls(LlamaConfig.from_hf(hf_config), load)

    def forward(self, caches: Sequence[KVCache]) -> Array:
        """See CausalLM."""
        x = self.embed_tokens()
        rope = self.rotary()
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, rope, cache)
        return self.norm(x)

    def compute_logits(self, hidden_states: Array) -> Array:
        """See CausalLM."""
        return self.lm_head(hidden_states)
