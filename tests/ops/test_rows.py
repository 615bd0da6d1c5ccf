"""Norms, sums and rotations against plain numpy, on both homes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.ops.native_ops import NativeOps
from headrace.ops.ops import HeadNorm, HeadShape
from headrace.ops.torch_ops import TorchOps
from tests.ops.cases import run_rows


def _rows(count: int, width: int) -> Any:
    return np.random.default_rng(width).standard_normal((count, width)).astype(np.float32)


def _norm(x: Any, weight: Any, eps: float) -> Any:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * weight


@pytest.mark.parametrize("width", [1, 7, 64, 100, 576, 1153])
def test_rms_norm_agrees_with_numpy(native: NativeOps, reference: TorchOps, width: int) -> None:
    x, weight = _rows(5, width), _rows(1, width)[0]
    for ops in (native, reference):
        result = run_rows(ops, lambda v, o=ops: o.rms_norm(v, weight, 1e-5), x, width)
        np.testing.assert_allclose(result, _norm(x, weight, 1e-5), rtol=2e-6, atol=1e-6)


def test_rms_norm_row_alone_equals_row_in_a_batch(native: NativeOps) -> None:
    x, weight = _rows(200, 611), _rows(1, 611)[0]
    operation = lambda v: native.rms_norm(v, weight, 1e-6)  # noqa: E731
    np.testing.assert_array_equal(
        run_rows(native, operation, x, 611, groups=200), run_rows(native, operation, x, 611)
    )


@pytest.mark.parametrize("width", [1, 15, 16, 130])
def test_add_equals_numpy(native: NativeOps, reference: TorchOps, width: int) -> None:
    x, weight = _rows(3, width), _rows(1, width)[0]
    for ops in (native, reference):
        normed = run_rows(ops, lambda v, o=ops: o.rms_norm(v, weight, 1e-5), x, width)
        total = run_rows(ops, lambda v, o=ops: o.add(v, o.rms_norm(v, weight, 1e-5)), x, width)
        np.testing.assert_array_equal(total, x + normed)


@pytest.mark.parametrize("scale", [1.0, 0.75])
def test_rope_agrees_with_numpy(native: NativeOps, reference: TorchOps, scale: float) -> None:
    inv_freq = (10000.0 ** -(np.arange(20) / 20)).astype(np.float32)
    angles = np.arange(70, dtype=np.float32)[:, None] * inv_freq
    expected = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * scale
    for ops in (native, reference):
        result = run_rows(ops, lambda _v, o=ops: o.rope(inv_freq, scale), _rows(70, 4), 40)
        np.testing.assert_allclose(result, expected, atol=2e-7)


@pytest.mark.parametrize("normed", [False, True])
def test_rope_and_cache_turns_pairs_half_the_rotary_width_apart(
    native: NativeOps, reference: TorchOps, normed: bool
) -> None:
    heads = HeadShape(3, 1, 24)
    x = _rows(9, 5 * 24)
    inv_freq = np.array([1.0, 0.5, 0.1], dtype=np.float32)  # the last 18 columns stay
    weight = _rows(2, 24)
    q = x[:, : 3 * 24].reshape(9, 3, 24)
    if normed:
        q = _norm(q, weight[0], 1e-6)
    angles = np.arange(9)[:, None, None] * inv_freq
    expected = q.astype(np.float64)
    first, second = q[..., :3], q[..., 3:6]
    expected[..., :3] = first * np.cos(angles) - second * np.sin(angles)
    expected[..., 3:6] = second * np.cos(angles) + first * np.sin(angles)
    norm = HeadNorm(weight[0], weight[1], 1e-6) if normed else None
    for ops in (native, reference):
        cache = ops.make_kv_caches(1, 2, 16, heads, "bfloat16")[0]

        def operation(v: Any, o: Any = ops, c: Any = cache) -> Any:
            return o.rope_and_cache(v, o.rope(inv_freq), c, heads, norm)

        result = run_rows(ops, operation, x, 72)
        np.testing.assert_allclose(result, expected.reshape(9, 72), rtol=1e-5, atol=1e-5)
