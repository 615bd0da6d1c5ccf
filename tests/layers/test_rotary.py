"""Rotary scalings against their published formulas, written out slowly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.errors import ModelError
from headrace.layers.rotary import RotaryEmbedding, make_rotary, rope_settings


def rotary(settings: dict[str, object], head_dim: int = 64, **options: object) -> RotaryEmbedding:
    settings = {"rope_type": "default", "rope_theta": 10000.0} | settings
    return make_rotary(None, settings, head_dim, max_position_embeddings=2048, **options)  # type: ignore[arg-type]


def plain(head_dim: int = 64, theta: float = 10000.0) -> list[float]:
    return [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]


def test_default_frequencies_follow_the_paper() -> None:
    np.testing.assert_allclose(rotary({}).inv_freq, plain(), rtol=2e-6)


def test_linear_scaling_divides_all_frequencies() -> None:
    scaled = rotary({"rope_type": "linear", "factor": 4.0})
    np.testing.assert_allclose(scaled.inv_freq, np.array(plain()) / 4, rtol=2e-6)


def test_llama3_scaling_stretches_slow_waves_only() -> None:
    settings = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
                "rope_theta": 500000.0}  # fmt: skip
    expected = []
    for frequency in plain(128, 500000.0):
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4.0:
            expected.append(frequency)
        elif wavelength > 8192 / 1.0:
            expected.append(frequency / 8.0)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            expected.append((1 - smooth) * frequency / 8.0 + smooth * frequency)
    np.testing.assert_allclose(rotary(settings, 128).inv_freq, expected, rtol=1e-5)


def test_yarn_keeps_fast_waves_stretches_slow_ones_and_warms_attention() -> None:
    scaled = rotary({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048})
    ratio = scaled.inv_freq / np.array(plain())
    assert ratio[0] == pytest.approx(1.0, rel=1e-5)
    assert ratio[-1] == pytest.approx(0.25, rel=1e-5)
    assert np.all(np.diff(ratio) <= 1e-6)
    assert scaled.scale == pytest.approx(0.1 * math.log(4.0) + 1.0)


def test_dynamic_scaling_uses_the_base_of_the_full_length() -> None:
    scaled = rotary({"rope_type": "dynamic", "factor": 2.0})
    theta = 10000.0 * (2.0 * 2.0 - 1.0) ** (64 / 62)
    np.testing.assert_allclose(scaled.inv_freq, plain(theta=theta), rtol=1e-5)


def test_partial_rotation_covers_part_of_the_head() -> None:
    assert rotary({"partial_rotary_factor": 0.5}).inv_freq.shape == (16,)


def test_frequency_factors_divide() -> None:
    factors = np.linspace(1, 8, 32, dtype=np.float32)
    scaled = rotary({}, frequency_factors=factors)
    np.testing.assert_allclose(scaled.inv_freq, np.array(plain()) / factors, rtol=2e-6)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}},
         {"type": "linear", "rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}},
         {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}),
        ({"partial_rotary_factor": 0.25},
         {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}),
        ({}, {"rope_type": "default", "rope_theta": 10000.0}),
    ],
)  # fmt: skip
def test_settings_are_read_in_both_spellings(config: dict, expected: dict) -> None:
    assert rope_settings(config) == expected


def test_settings_of_a_layer_type_are_its_own() -> None:
    config = {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                                  "sliding_attention": {"rope_theta": 1e4}}}  # fmt: skip
    assert rope_settings(config, "full_attention")["rope_theta"] == 1e6
    assert rope_settings(config, "sliding_attention")["rope_theta"] == 1e4


def test_unknown_scaling_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="longrope"):
        rotary({"rope_type": "longrope"})


def test_scaling_with_a_missing_key_names_the_key() -> None:
    with pytest.raises(ModelError, match="factor"):
        rotary({"rope_type": "linear"})


@pytest.mark.parametrize("config", [{"rope_parameters": "linear"}, {"rope_scaling": 5}])
def test_settings_that_are_no_object_are_refused(config: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=r"must be an object"):
        rope_settings(config)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": "10000"}, "rope_theta"),
        ({"rope_type": "linear", "factor": 0}, "factor"),
        ({"rope_type": "dynamic", "factor": "2"}, "factor"),
        ({"rope_type": "yarn", "factor": math.inf}, "factor"),
        ({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 1,
          "original_max_position_embeddings": 64}, "high_freq_factor"),
        ({"partial_rotary_factor": 2.0}, "128 of the 64"),
        ({"partial_rotary_factor": 0.01}, "0 of the 64"),
    ],
)  # fmt: skip
def test_values_that_give_no_frequencies_are_refused(
    settings: dict[str, object], named: str
) -> None:
    with pytest.raises(ModelError, match=named):
        rotary(settings)
