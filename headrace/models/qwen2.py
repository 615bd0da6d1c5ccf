"""Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.hub.hf_values import count
from headrace.layers.loader import Loader
from headrace.models.llama import LlamaConfig, LlamaForCausalLM, common_fields


class Qwen2ForCausalLM(LlamaForCausalLM):
    """The whole decoder. Implements CausalLM."""

    @classmethod
    def from_hf(cls, hf_config: Mapping[str, Any], load: Loader) -> Qwen2ForCausalLM:
        """Build from config.json and weights."""
        fields = common_fields(hf_config)
        windows = _windows(hf_config, fields["num_layers"])
        return cls(LlamaConfig(**fields, qkv_bias=True, windows=windows), load)


def _windows(hf: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    """With use_sliding_window the layers from max_window_layers on see only a window."""
    if not hf.get("use_sliding_window"):
        return ()
    first = count(hf, "max_window_layers", num_layers, at_least=0)
    window = count(hf, "sliding_window")
    return tuple(window if i >= first else None for i in range(num_layers))
