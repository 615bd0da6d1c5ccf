"""Products of weights stored in blocks with 16- and 8-bit activations, against plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.ops.dispatch import available_isas
from headrace.ops.formats import StoredTensor, WeightFormat, dequantize
from headrace.ops.native_ops import NativeOps
from headrace.ops.ops import Quantization
from tests.ops.cases import ArrayF32, random_tensor, run_rows

BLOCK = 32
LARGEST_CODES: dict[Quantization | None, int] = {None: 127 * 256 + 127, "int8_activations": 127}
FORMATS = [fmt for fmt in WeightFormat if fmt.block_size > 1]
# Around the rows of a pass (2, 4), of all passes (3, 8), of tiles (4, 6) and of chunks (64).
ROW_COUNTS = [1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 25, 63, 65, 130]


def _rows(count: int, depth: int, seed: int = 0) -> ArrayF32:
    """Rows whose blocks differ in size, as those of real models do."""
    rng = np.random.default_rng(seed)
    sizes = np.repeat(10.0 ** rng.uniform(-3, 3, (count, depth // BLOCK)), BLOCK, axis=1)
    return (rng.standard_normal((count, depth)) * sizes).astype(np.float32)


def _rounded(x: ArrayF32, quantization: Quantization | None = None) -> Any:
    """What the kernels make of activations, in float64."""
    top = np.float32(LARGEST_CODES[quantization])
    blocks = x.reshape(len(x), -1, BLOCK)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    inverse = top / np.maximum(largest, np.float32(1e-30))
    codes = np.rint(blocks * np.where(largest < 1e-30, np.float32(0), inverse))
    scales = largest / top
    return (codes.astype(np.float64) * scales).reshape(x.shape)


def _product(
    ops: NativeOps, x: ArrayF32, tensor: StoredTensor, quantization: Quantization | None = None
) -> ArrayF32:
    weight = ops.prepare_linear([tensor], quantization)
    return run_rows(ops, lambda v: ops.linear(v, weight), x, tensor.shape[0])


def _rounds_rows(isa: str) -> bool:
    """Whether it multiplies in integers: beside a large activation a small one is lost."""
    tensor = random_tensor(WeightFormat.Q4_0, 64, BLOCK, np.random.default_rng(0))
    x = np.zeros((2, BLOCK), np.float32)
    x[:, 0], x[1, 1] = 1.0, 1e-6
    one, both = _product(NativeOps(1, isa), x, tensor)
    return np.array_equal(one, both)


# Not where there are no such kernels or, as with AVX-512 without VNNI, floats are faster.
INTEGER_ISAS = [isa for isa in available_isas() if _rounds_rows(isa)]
pytestmark = pytest.mark.skipif(not INTEGER_ISAS, reason="no integer kernels on this processor")


def _assert_close(
    result: ArrayF32, x: ArrayF32, weights: Any, quantization: Quantization | None,
    fmt: WeightFormat, limit: Any,
) -> None:  # fmt: skip
    """Where sums of eight bits have no room, a product with Q8_0 is one of floats."""
    kinds = [_rounded(x, quantization)]
    kinds += [x.astype(np.float64)] if fmt is WeightFormat.Q8_0 else []
    assert any((np.abs(result - inputs @ weights) <= limit).all() for inputs in kinds)


@pytest.mark.parametrize("isa", INTEGER_ISAS)
@pytest.mark.parametrize("quantization", LARGEST_CODES)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
def test_product_of_any_number_of_rows_is_that_of_rounded_rows(
    isa: str, quantization: Quantization | None, fmt: WeightFormat
) -> None:
    rng = np.random.default_rng(fmt.block_bytes)
    ops = NativeOps(2, isa)
    for num_rows in ROW_COUNTS:
        # The last is unpacked in uneven stretches, which do not end with groups of blocks.
        for outputs, depth in ((33, fmt.block_size), (70, 3 * 256), (40, 13 * fmt.block_size)):
            tensor = random_tensor(fmt, outputs, depth, rng)
            x = _rows(num_rows, depth, num_rows)
            weights = dequantize(tensor).astype(np.float64).T
            result = _product(ops, x, tensor, quantization)
            # Sums are float32: an error is small beside the terms, not beside their sum.
            limit = 4e-6 * (np.abs(x) @ np.abs(weights)).max(axis=1)[:, None]
            _assert_close(result, x, weights, quantization, fmt, limit)


@pytest.mark.parametrize("isa", INTEGER_ISAS)
@pytest.mark.parametrize("quantization", LARGEST_CODES)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
def test_largest_codes_and_activations_do_not_overflow(
    isa: str, quantization: Quantization | None, fmt: WeightFormat
) -> None:
    """All bits of all codes set, and activations whose bytes are the largest, -128 among them."""
    low = (100 * 256 - 128) / LARGEST_CODES[None]  # its bytes are 100 and -128
    tensor = random_tensor(fmt, 16, 256, np.random.default_rng(1))
    blocks = tensor.data.reshape(-1, fmt.block_bytes)
    is_scale = np.zeros(fmt.block_bytes, bool)
    for at in {WeightFormat.Q4_1: (0, 2), WeightFormat.Q5_1: (0, 2), WeightFormat.Q4_K: (0, 2),
               WeightFormat.Q5_K: (0, 2), WeightFormat.Q6_K: (208,)}.get(fmt, (0,)):  # fmt: skip
        is_scale[at : at + 2] = True
    weights_of = {}
    for code in (0xFF, 0x7F, 0x80, 0x00):
        blocks[:, ~is_scale] = code
        weights_of[code] = dequantize(tensor).astype(np.float64).T
        for pattern in ([1.0], [-1.0], [1.0, -1.0], [1.0, 0.0039], [1.0, *[low] * 31]):
            x = np.resize(np.float32(pattern), (9, 256))
            result = _product(NativeOps(1, isa), x, tensor, quantization)
            terms = (np.abs(x.astype(np.float64)) @ np.abs(weights_of[code])).max()
            limit = 4e-5 * max(terms, 1e-9)
            _assert_close(result, x, weights_of[code], quantization, fmt, limit)


@pytest.mark.parametrize("isa", INTEGER_ISAS)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
def test_zero_and_tiny_rows_give_nothing(isa: str, fmt: WeightFormat) -> None:
    tensor = random_tensor(fmt, 40, 256, np.random.default_rng(2))
    x = np.zeros((3, 256), np.float32)
    x[1] = 1e-38
    x[2, :32] = 1e-44
    assert np.abs(_product(NativeOps(1, isa), x, tensor)).max() < 1e-33


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("isa", INTEGER_ISAS)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
def test_a_row_that_is_not_finite_harms_no_other(isa: str, fmt: WeightFormat, bad: float) -> None:
    tensor = random_tensor(fmt, 40, 512, np.random.default_rng(3))
    ops = NativeOps(2, isa)
    for num_rows in (2, 5, 40):
        x = _rows(num_rows, 512)
        alone = _product(ops, x[1:], tensor)
        x[0, 77] = bad
        result = _product(ops, x, tensor)
        assert not np.isfinite(result[0]).any()
        np.testing.assert_array_equal(result[1:], alone)


@pytest.mark.parametrize("isa", INTEGER_ISAS)
@pytest.mark.parametrize("quantization", LARGEST_CODES)
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
def test_row_alone_equals_row_in_any_batch_on_any_threads(
    isa: str, quantization: Quantization | None, fmt: WeightFormat
) -> None:
    tensor = random_tensor(fmt, 333, 768, np.random.default_rng(6))
    x = _rows(150, 768)

    def run(threads: int, groups: int) -> ArrayF32:
        ops = NativeOps(threads, isa)
        weight = ops.prepare_linear([tensor], quantization)
        return run_rows(ops, lambda v: ops.linear(v, weight), x, 333, groups=groups)

    alone = run(1, 150)
    for threads, groups in ((1, 75), (2, 50), (2, 30), (5, 17), (1, 9), (2, 3), (5, 1)):
        np.testing.assert_array_equal(run(threads, groups), alone)


@pytest.mark.parametrize("isa", INTEGER_ISAS)
def test_gated_products_of_two_formats_are_in_integers_too(isa: str) -> None:
    rng = np.random.default_rng(4)
    gate, up = (random_tensor(WeightFormat[name], 50, 1280, rng) for name in ("Q4_K", "Q6_K"))
    ops = NativeOps(2, isa)
    for num_rows in (1, 6, 40):
        x = _rows(num_rows, 1280, 5) * np.float32(1e-3)
        weight = ops.prepare_gated(gate, up)
        result = run_rows(ops, lambda v, w=weight: ops.gated_linear(v, w, "silu"), x, 50)
        inputs = _rounded(x)
        first, second = (inputs @ dequantize(t).astype(np.float64).T for t in (gate, up))
        expected = first / (1 + np.exp(-first)) * second
        np.testing.assert_allclose(result, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
