"""Rotary position embedding (Su et al. 2021) and the ways to stretch it to longer contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.errors import ModelError
from headrace.ops.ops import F32, Array, Ops


class RotaryEmbedding:
    """Cosines and sines at the step's positions, computed once a step for all layers. -> [T, 2R]"""

    def __init__(self, ops: Ops, inv_freq: F32, scale: float = 1.0) -> None:
        self.ops = ops
        self.inv_freq = inv_freq
        self.scale = scale

    def __call__(self) -> Array:
        return self.ops.rope(self.inv_freq, self.scale)


def rope_settings(hf_config: Mapping[str, Any], layer_type: str | None = None) -> dict[str, Any]:
    """The rotary settings of a config, from its newer or its older spelling.

    Newer: `rope_parameters` (for each layer type, where a model has several); older: `rope_theta`
    beside `rope_scaling`. The result always has `rope_type` and `rope_theta`.
    """
    parameters = hf_config.get("rope_parameters")
    if parameters and layer_type in parameters:
        parameters = parameters[layer_type]
    settings = dict(parameters or hf_config.get("rope_scaling") or {})
    settings["rope_type"] = settings.get("rope_type") or settings.get("type") or "default"
    settings.setdefault("rope_theta", hf_config.get("rope_theta", 10000.0))
    return settings


def make_rotary(
    ops: Ops,
    settings: Mapping[str, Any],
    head_dim: int,
    *,
    max_position_embeddings: int,
    frequency_factors: F32 | None = None,
) -> RotaryEmbedding:
    """The rotary embedding for settings as `rope_settings` gives them.

    Args:
        head_dim: columns of a head; `partial_rotary_factor` may leave the last ones unrotated.
        max_position_embeddings: the context the model was trained for.
        frequency_factors: divisors of the frequencies [R], as GGUF files of Llama 3 carry them.

    Raises:
        ModelError: a kind of scaling that is not known, or one with a key missing.
    """
    kind = settings["rope_type"]
    size = int(head_dim * settings.get("partial_rotary_factor", 1.0))
    inv_freq = _inverse_frequencies(size, settings["rope_theta"])
    scale = 1.0
    try:
        if kind == "linear":
            inv_freq = inv_freq / settings["factor"]
        elif kind == "dynamic":
            inv_freq = _dynamic(settings, size)
        elif kind == "llama3":
            inv_freq = _llama3(settings, inv_freq)
        elif kind == "yarn":
            inv_freq, scale = _yarn(settings, inv_freq, size, max_position_embeddings)
        elif kind != "default":
            raise ModelError(
                f"rope scaling {kind!r} is not supported; "
                "known: default, linear, dynamic, llama3, yarn"
            )
    except KeyError as missing:
        raise ModelError(f"rope scaling {kind!r} needs the key {missing} in config.json") from None
    if frequency_factors is not None:
        inv_freq = inv_freq / frequency_factors
    return RotaryEmbedding(ops, inv_freq.astype(np.float32), scale)


def _inverse_frequencies(size: int, theta: float) -> F32:
    # float32 throughout, as the models were trained: the last bits decide at far positions.
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    return (1.0 / np.float32(theta) ** exponents).astype(np.float32)


def _dynamic(settings: Mapping[str, Any], size: int) -> F32:
    """NTK-aware scaling for the whole stretched context.

    The published form changes with the length of the text, which would leave cached keys rotated
    by an older base; here the base is that of the full length at all times.
    """
    factor = settings["factor"]
    stretch = factor * factor - (factor - 1.0)
    theta = settings["rope_theta"] * stretch ** (size / (size - 2))
    return _inverse_frequencies(size, theta)


def _llama3(settings: Mapping[str, Any], inv_freq: F32) -> F32:
    """Llama 3.1: slow waves are stretched, fast ones kept, those between blended."""
    factor = settings["factor"]
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    context = settings["original_max_position_embeddings"]
    turns = context * inv_freq / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray((1 - blend) * inv_freq / factor + blend * inv_freq, dtype=np.float32)


def _yarn(
    settings: Mapping[str, Any], inv_freq: F32, size: int, max_position_embeddings: int
) -> tuple[F32, float]:
    """YaRN (Peng et al. 2023): as above with a ramp over dimensions, and a warmer attention."""
    factor = settings["factor"]
    theta = settings["rope_theta"]
    context = settings.get("original_max_position_embeddings") or max_position_embeddings

    def dimension_of(turns: float) -> float:
        return size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension_of(settings.get("beta_fast") or 32.0)), 0)
    high = min(math.ceil(dimension_of(settings.get("beta_slow") or 1.0)), size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    stretched = inv_freq / factor * ramp + inv_freq * (1 - ramp)
    return stretched.astype(np.float32), _yarn_attention_factor(settings, factor)


def _yarn_attention_factor(settings: Mapping[str, Any], factor: float) -> float:
    def warmth(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    given = settings.get("attention_factor")
    if given is not None:
        return float(given)
    mscale, all_dims = settings.get("mscale"), settings.get("mscale_all_dim")
    if mscale and all_dims:
        return warmth(mscale) / warmth(all_dims)
    return warmth(1.0)
