"""Products of int8 weights: bit for bit what integers give, on both homes and every kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.ops.formats import MAX_INT8_COLUMNS, StoredTensor, WeightFormat, dequantize
from headrace.ops.native_ops import NativeOps
from headrace.ops.torch_ops import TorchOps
from tests.ops.cases import ArrayF32, float_tensor, random_tensor, relative_error, run_rows

# Around the sizes of register blocks (2, 4, 6, 12 rows), of tiles (5, 16, 32) and of chunks (64).
ROW_COUNTS = [
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    11,
    12,
    13,
    15,
    16,
    17,
    25,
    31,
    32,
    33,
    47,
    48,
    63,
    64,
    65,
    97,
]


def _rows(count: int, depth: int, seed: int = 0) -> ArrayF32:
    return np.random.default_rng(seed).standard_normal((count, depth)).astype(np.float32)


def _quantize(x: ArrayF32) -> tuple[Any, ArrayF32]:
    """Codes as wide integers, and scales [rows, 1], in plain numpy."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    codes = np.rint(x * (np.float32(127) / largest)).astype(np.int64)
    return codes, largest / np.float32(127)


def _expected(x: ArrayF32, tensor: StoredTensor) -> ArrayF32:
    (x_codes, x_scales), (codes, scales) = _quantize(x), _quantize(dequantize(tensor))
    return (x_codes @ codes.T).astype(np.float32) * (x_scales * scales.T)


def _product(ops: Any, x: ArrayF32, tensor: StoredTensor, **options: Any) -> ArrayF32:
    weight = ops.prepare_linear([tensor], "int8")
    return run_rows(ops, lambda v: ops.linear(v, weight), x, tensor.shape[0], **options)


@pytest.mark.parametrize("num_rows", ROW_COUNTS)
def test_linear_of_any_number_of_rows_equals_integers(
    native: NativeOps, reference: TorchOps, num_rows: int
) -> None:
    rng = np.random.default_rng(num_rows)
    for outputs, depth in ((33, 101), (16, 64), (70, 130)):
        tensor = random_tensor(WeightFormat.BF16, outputs, depth, rng)
        x = _rows(num_rows, depth)
        expected = _expected(x, tensor)
        for ops in (native, reference):
            np.testing.assert_array_equal(_product(ops, x, tensor), expected)


@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 31, 32, 33, 49])
@pytest.mark.parametrize("depth", [1, 3, 4, 63, 64, 65, 576, 1001])
def test_linear_of_odd_sizes_equals_integers(native: NativeOps, outputs: int, depth: int) -> None:
    tensor = random_tensor(WeightFormat.F32, outputs, depth, np.random.default_rng(depth))
    for num_rows in (1, 3, 18):
        x = _rows(num_rows, depth)
        np.testing.assert_array_equal(_product(native, x, tensor), _expected(x, tensor))


@pytest.mark.parametrize("fmt", WeightFormat, ids=lambda f: f.label)
def test_linear_of_every_stored_format_equals_integers(
    native: NativeOps, fmt: WeightFormat
) -> None:
    tensor = random_tensor(fmt, 21, 512, np.random.default_rng(1))
    x = _rows(3, 512)
    np.testing.assert_array_equal(_product(native, x, tensor), _expected(x, tensor))


def test_linear_of_parts_with_bias_and_sum_agrees_with_torch(
    native: NativeOps, reference: TorchOps
) -> None:
    rng = np.random.default_rng(2)
    parts = [random_tensor(WeightFormat.BF16, rows, 70, rng) for rows in (40, 9, 21)]
    bias = _rows(1, 70, 9)[0]
    for num_rows in (1, 6, 40):
        x = _rows(num_rows, 70)
        results = []
        for ops in (native, reference):
            weight = ops.prepare_linear(parts, "int8")
            results.append(
                run_rows(ops, lambda v, o=ops, w=weight: o.add(v, o.linear(v, w, bias)), x, 70)
            )
        np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 37])
def test_gated_linear_agrees_with_torch(
    native: NativeOps, reference: TorchOps, activation: Any, num_rows: int
) -> None:
    rng = np.random.default_rng(3)
    tensors = [random_tensor(WeightFormat.BF16, 83, 250, rng) for _ in range(2)]
    x = _rows(num_rows, 250)
    results = []
    for ops in (native, reference):
        weight = ops.prepare_gated(*tensors, "int8")
        results.append(
            run_rows(ops, lambda v, o=ops, w=weight: o.gated_linear(v, w, activation), x, 83)
        )
    # The integers are the same; the activation is an approximation of each home's own.
    assert relative_error(*results) < 2e-6


def test_row_alone_equals_row_in_any_batch_on_any_threads(isa: str) -> None:
    tensor = random_tensor(WeightFormat.BF16, 333, 611, np.random.default_rng(4))
    x = _rows(160, 611)
    alone = _product(NativeOps(1, isa), x, tensor, groups=160)
    for threads in (1, 2, 5):
        for groups in (80, 32, 9, 3, 1):  # batches of 2 to 160 rows
            result = _product(NativeOps(threads, isa), x, tensor, groups=groups)
            np.testing.assert_array_equal(result, alone)


def test_codes_are_rounded_to_nearest_ties_to_even(native: NativeOps, reference: TorchOps) -> None:
    weights = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, -127]], dtype=np.float32)
    codes = np.array([127, 0, 2, 2, 0, -2, 126, -127], dtype=np.float32)
    # One-hot rows have the codes 127 and 0, and the scale 1 / 127.
    for ops in (native, reference):
        picked = _product(ops, np.eye(8, dtype=np.float32), float_tensor(weights))
        np.testing.assert_allclose(picked[:, 0], codes, rtol=1e-6)


def test_rows_that_are_zero_or_tiny_give_zeros(native: NativeOps, reference: TorchOps) -> None:
    x = _rows(4, 40)
    x[1] = 0
    x[2] *= np.float32(1e-38)
    tensor = float_tensor(np.vstack([_rows(16, 40, 1), np.zeros((1, 40), np.float32)]))
    for ops in (native, reference):
        result = _product(ops, x, tensor)
        assert not result[1:3].any()
        assert not result[:, 16].any()
        assert result[[0, 3], :16].all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_spoils_its_row_only(
    native: NativeOps, reference: TorchOps, bad: float
) -> None:
    x = _rows(19, 100)
    x[7, 93] = bad
    tensor = random_tensor(WeightFormat.BF16, 20, 100, np.random.default_rng(5))
    for ops in (native, reference):
        result = _product(ops, x, tensor)
        assert np.isnan(result[7]).all()
        assert np.isfinite(np.delete(result, 7, axis=0)).all()


@pytest.mark.parametrize("num_rows", [1, 20])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sums_do_not_overflow(native: NativeOps, num_rows: int, sign: float) -> None:
    weight = float_tensor(np.full((2, MAX_INT8_COLUMNS), 127, dtype=np.float32))
    x = np.full((num_rows, MAX_INT8_COLUMNS), 127 * sign, dtype=np.float32)
    total = sign * 127 * 127 * MAX_INT8_COLUMNS
    np.testing.assert_array_equal(_product(native, x, weight), np.float32(total))


def test_more_columns_than_sums_can_hold_are_refused(
    native: NativeOps, reference: TorchOps
) -> None:
    matrix = float_tensor(np.ones((1, MAX_INT8_COLUMNS + 1), np.float32))
    for ops in (native, reference):
        for prepare in (lambda o: o.prepare_linear([matrix], "int8"),
                        lambda o: o.prepare_gated(matrix, matrix, "int8")):  # fmt: skip
            with pytest.raises(ValueError, match=str(MAX_INT8_COLUMNS)):
                prepare(ops)
        ops.prepare_linear([matrix])


def test_weight_bytes_are_half_of_bfloat16(native: NativeOps) -> None:
    tensor = random_tensor(WeightFormat.BF16, 64, 576, np.random.default_rng(6))
    native.prepare_linear([tensor], "int8")
    assert 64 * 576 < native.weight_bytes < 1.02 * 64 * 576


@pytest.mark.parametrize("num_rows", [1, 90])
def test_linear_of_normed_rows_gives_the_bits_of_the_two_apart(
    native: NativeOps, num_rows: int
) -> None:
    x, norm = _rows(num_rows, 101), _rows(1, 101, 1)[0]
    tensor = random_tensor(WeightFormat.BF16, 33, 101, np.random.default_rng(0))
    normed = run_rows(native, lambda v: native.rms_norm(v, norm, 1e-5), x, 101)
    weight = native.prepare_linear([tensor], "int8")
    together = run_rows(
        native, lambda v: native.linear(native.rms_norm(v, norm, 1e-5), weight), x, 33
    )
    np.testing.assert_array_equal(together, _product(native, normed, tensor))
