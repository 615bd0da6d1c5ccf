"""Rotary position embedding (Su et al. 2021) and the ways to stretch it to longer contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.errors import ModelError, shown
from headrace.hub.hf_values import positive_number
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

    Raises ModelError when they are no JSON objects.
    """
    parameters = _object(hf_config, "rope_parameters")
    if layer_type is not None and layer_type in parameters:
        parameters = _object(parameters, layer_type)
    settings = dict(parameters or _object(hf_config, "rope_scaling"))
    settings["rope_type"] = settings.get("rope_type") or settings.get("type") or "default"
    settings.setdefault("rope_theta", hf_config.get("rope_theta", 10000.0))
    if "partial_rotary_factor" in hf_config:
        settings.setdefault("partial_rotary_factor", hf_config["partial_rotary_factor"])
    return settings


def _object(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A JSON object; an empty one when the key is missing or null."""
    value = values.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ModelError(f"config.json: {key} must be an object, found {shown(value)}")
    return value


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
        ModelError: a kind of scaling that is not known, one with a key missing or a value that
            is no positive number, or heads that cannot be rotated.
    """
    kind = settings["rope_type"]
    size = _rotated_columns(settings, head_dim)
    inv_freq = _inverse_frequencies(size, positive_number(settings, "rope_theta"))
    scale = 1.0
    try:
        if kind == "linear":
            inv_freq = inv_freq / positive_number(settings, "factor")
        elif kind == "dynamic":
            inv_freq = _dynamic(settings, size)
        elif kind == "llama3":
            inv_freq = _llama3(settings, inv_freq)
        elif kind == "yarn":
            inv_freq, scale = _yarn(settings, inv_freq, size, max_position_embeddings)
        elif kind != "default":
            raise ModelError("not supported; known: default, linear, dynamic, llama3, yarn")
    except ModelError as error:
        raise ModelError(f"rope scaling {kind!r}: {error}") from None
    if frequency_factors is not None:
        inv_freq = inv_freq / frequency_factors
    return RotaryEmbedding(ops, inv_freq.astype(np.float32), scale)


def _rotated_columns(settings: Mapping[str, Any], head_dim: int) -> int:
    """How many leading columns of a head are rotated: pairs, so an even number."""
    size = int(head_dim * positive_number(settings, "partial_rotary_factor", 1.0))
    if size % 2 or not 0 < size <= head_dim:
        raise ModelError(f"config.json: {size} of the {head_dim} columns of a head cannot rotate")
    return size


def _inverse_frequencies(size: int, theta: float) -> F32:
    # float32 throughout, as the models were trained: the last bits decide at far positions.
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    return (1.0 / np.float32(theta) ** exponents).astype(np.float32)


def _dynamic(settings: Mapping[str, Any], size: int) -> F32:
    """NTK-aware scaling for the whole stretched context.

    The published form changes with the length of the text, which would leave cached keys rotated
    by an older base; here the base is that of the full length at all times.
    """
    factor = positive_number(settings, "factor")
    if size < 4:
        raise ModelError(f"needs at least 4 rotated columns, found {size}")
    stretch = factor * factor - (factor - 1.0)
    theta = positive_number(settings, "rope_theta") * stretch ** (size / (size - 2))
    return _inverse_frequencies(size, theta)


def _llama3(settings: Mapping[str, Any], inv_freq: F32) -> F32:
    """Llama 3.1: slow waves are stretched, fast ones kept, those between blended."""
    factor = positive_number(settings, "factor")
    low, high = (positive_number(settings, f"{end}_freq_factor") for end in ("low", "high"))
    if low == high:
        raise ModelError(f"low_freq_factor and high_freq_factor are both {low:g}")
    context = positive_number(settings, "original_max_position_embeddings")
    turns = context * inv_freq / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return np.asarray((1 - blend) * inv_freq / factor + blend * inv_freq, dtype=np.float32)


def _yarn(
    settings: Mapping[str, Any], inv_freq: F32, size: int, max_position_embeddings: int
) -> tuple[F32, float]:
    """YaRN (Peng et al. 2023): as above with a ramp over dimensions, and a warmer attention."""
    factor = positive_number(settings, "factor")
    theta = positive_number(settings, "rope_theta")
    context = positive_number(settings, "original_max_position_embeddings", max_position_embeddings)

    def dimension_of(turns: float) -> float:
        return size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(dimension_of(positive_number(settings, "beta_fast", 32.0))), 0)
    high = min(math.ceil(dimension_of(positive_number(settings, "beta_slow", 1.0))), size - 1)
    ramp = np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    stretched = inv_freq / factor * ramp + inv_freq * (1 - ramp)
    return stretched.astype(np.float32), _yarn_attention_factor(settings, factor)


def _yarn_attention_factor(settings: Mapping[str, Any], factor: float) -> float:
    def warmth(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if settings.get("attention_factor") is not None:
        return positive_number(settings, "attention_factor")
    if settings.get("mscale") and settings.get("mscale_all_dim"):
        return warmth(positive_number(settings, "mscale")) / warmth(
            positive_number(settings, "mscale_all_dim")
        )
    return warmth(1.0)
