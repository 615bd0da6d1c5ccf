"""Products of bfloat16 weights in 16-bit integers, against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.ops.dispatch import available_isas
from headrace.ops.formats import StoredTensor, WeightFormat, dequantize
from headrace.ops.native_ops import NativeOps
from tests.ops.cases import ArrayF32, run_rows

BLOCK, LARGEST, BITS = 32, 8191, 13
# Around the rows of a tile (6), of panels side by side (3), of tasks (64).
ROW_COUNTS = [1, 2, 3, 4, 5, 6, 7, 12, 13, 25, 63, 65, 130]


def _multiplies_integers(isa: str) -> bool:
    """Whether it does so with bfloat16 here: their exponents take bytes of their own."""
    ops = NativeOps(1, isa)
    ops.prepare_linear([_tensor(np.ones((16, BLOCK)))])
    return isa.startswith("avx512") and ops.weight_bytes > 2 * 16 * BLOCK


def _tensor(values: Any) -> StoredTensor:
    """A matrix in bfloat16, of values that are or are cut off to such."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16
    data = bits.astype(np.uint16).view(np.uint8)
    return StoredTensor("w", WeightFormat.BF16, np.shape(values), data)


ISAS = [isa for isa in available_isas() if _multiplies_integers(isa)]
pytestmark = pytest.mark.skipif(not ISAS, reason="no instruction for it on this processor (VNNI)")


def _random(outputs: int, depth: int, seed: int) -> StoredTensor:
    """Weights over many exponents."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-4, 1, (outputs, depth))
    return _tensor(rng.standard_normal((outputs, depth)) * sizes)


def _rows(count: int, depth: int, seed: int = 0) -> ArrayF32:
    """Rows whose blocks differ in size, as those of real models do."""
    rng = np.random.default_rng(seed)
    sizes = np.repeat(10.0 ** rng.uniform(-3, 3, (count, depth // BLOCK)), BLOCK, axis=1)
    return (rng.standard_normal((count, depth)) * sizes).astype(np.float32)


def _rounded_rows(x: ArrayF32) -> Any:
    """What the kernels make of activations, in float64."""
    blocks = x.reshape(len(x), -1, BLOCK)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    inverse = np.float32(LARGEST) / np.maximum(largest, np.float32(1e-30))
    codes = np.rint(blocks.astype(np.float64) * inverse)  # fused: rounded once
    return (codes * (largest / np.float32(LARGEST))).reshape(x.shape)


def _rounded_weights(tensor: StoredTensor) -> Any:
    """What the kernels make of weights, in float64: [outputs, depth]."""
    blocks = dequantize(tensor).reshape(tensor.shape[0], -1, BLOCK).astype(np.float64)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    unit = np.exp2(np.floor(np.log2(np.maximum(largest, 2.0**-100))) + 1 - BITS)
    return (np.rint(blocks / unit) * unit).reshape(tensor.shape)


def _product(ops: NativeOps, x: ArrayF32, tensor: StoredTensor, groups: int = 1) -> ArrayF32:
    weight = ops.prepare_linear([tensor])
    return run_rows(ops, lambda v: ops.linear(v, weight), x, tensor.shape[0], groups=groups)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("outputs", "depth"), [(1, 32), (33, 64), (70, 416), (100, 1536)])
def test_product_of_any_number_of_rows_is_that_of_rounded_rows(
    isa: str, outputs: int, depth: int
) -> None:
    ops = NativeOps(2, isa)
    tensor = _random(outputs, depth, depth)
    weights = _rounded_weights(tensor).T
    for num_rows in ROW_COUNTS:
        x = _rows(num_rows, depth, num_rows)
        # Sums are float32: an error is small beside the terms, not beside their sum.
        limit = 4e-6 * (np.abs(x) @ np.abs(weights)).max(axis=1)[:, None]
        assert (np.abs(_product(ops, x, tensor) - _rounded_rows(x) @ weights) <= limit).all()


@pytest.mark.parametrize("isa", ISAS)
def test_weights_near_the_largest_of_their_block_stay_exact(isa: str) -> None:
    rng = np.random.default_rng(1)
    values = rng.uniform(1.0, 2.0, (40, 128)) * 2.0 ** rng.integers(-4, 1, (40, 128))
    values[:, ::BLOCK] = 1.5
    tensor = _tensor(values * rng.choice([-1.0, 1.0], values.shape))
    picked = _product(NativeOps(1, isa), np.eye(128, dtype=np.float32), tensor)
    np.testing.assert_allclose(picked, dequantize(tensor).T, rtol=2**-22)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sign", [1, -1])
def test_largest_weights_and_activations_do_not_overflow(isa: str, sign: int) -> None:
    largest = np.float32(255 / 128)  # all bits of a bfloat16's fraction
    tensor = _tensor(np.full((20, 256), sign * largest))
    result = _product(NativeOps(1, isa), np.full((9, 256), 3.0, np.float32), tensor)
    np.testing.assert_allclose(result, sign * 256 * 3.0 * largest, rtol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_tiny_weights_and_rows_give_next_to_nothing(isa: str) -> None:
    values = np.full((20, 96), 1e-38)
    values[:, 32:64] = 1e-40  # denormals
    values[:, 64:] = 1.0
    x = np.full((3, 96), 1e-38, np.float32)
    x[1] = 1.0
    x[2] = 0.0
    result = _product(NativeOps(1, isa), x, _tensor(values))
    assert np.abs(result[[0, 2]]).max() < 1e-35
    np.testing.assert_allclose(result[1], 32.0, rtol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_scales_that_meet_nothing_give_nothing(isa: str) -> None:
    values = np.zeros((17, 64))
    values[:, 1], values[:, 32] = 2.0**100, 1.0
    x = np.zeros((2, 64), np.float32)
    x[:, 0], x[:, 32] = 1e30, 3.0
    result = _product(NativeOps(1, isa), x, _tensor(values))
    np.testing.assert_allclose(result, 3.0, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("isa", ISAS)
def test_what_is_not_finite_harms_nothing_beside_it(isa: str, bad: float) -> None:
    ops = NativeOps(2, isa)
    for num_rows in (2, 5, 40):
        x = _rows(num_rows, 512)
        tensor = _random(40, 512, 3)
        alone = _product(ops, x[1:], tensor)
        x[0, 77] = bad
        result = _product(ops, x, tensor)
        assert not np.isfinite(result[0]).any()
        np.testing.assert_array_equal(result[1:], alone)

        values = dequantize(tensor)
        values[11, 300] = bad
        result = _product(ops, x[1:], _tensor(values))
        assert not np.isfinite(result[:, 11]).any()
        np.testing.assert_array_equal(np.delete(result, 11, axis=1), np.delete(alone, 11, axis=1))


@pytest.mark.parametrize("isa", ISAS)
def test_row_alone_equals_row_in_any_batch_on_any_threads(isa: str) -> None:
    tensor = _random(333, 512, 6)
    x = _rows(150, 512)
    whole = _product(NativeOps(1, isa), x, tensor)
    for threads, groups in ((1, 150), (2, 1), (2, 3), (2, 25), (2, 40), (3, 75)):
        np.testing.assert_array_equal(_product(NativeOps(threads, isa), x, tensor, groups), whole)


@pytest.mark.parametrize("isa", ISAS)
def test_depth_of_broken_blocks_stays_exact(isa: str) -> None:
    tensor = _random(20, 65, 7)
    picked = _product(NativeOps(1, isa), np.eye(65, dtype=np.float32), tensor)
    np.testing.assert_array_equal(picked, dequantize(tensor).T)
