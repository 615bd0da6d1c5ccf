"""Stored weights read in every way there is: numpy, embedding rows, unpacked panels."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import quants

from headrace.ops.formats import WeightFormat, dequantize
from headrace.ops.native_ops import NativeOps
from tests.ops.cases import float_tensor, plain_step, random_tensor, run_rows

QUANTISED = [f for f in WeightFormat if f.block_size > 1]


def _columns(fmt: WeightFormat) -> int:
    return 512 if fmt.block_size == 256 else 96


@pytest.mark.parametrize("fmt", [*QUANTISED, WeightFormat.BF16], ids=lambda f: f.label)
def test_dequantize_random_blocks_equals_gguf_package(fmt: WeightFormat) -> None:
    tensor = random_tensor(fmt, 5, _columns(fmt), np.random.default_rng(1))
    theirs = quants.dequantize(tensor.data, gguf.GGMLQuantizationType[fmt.label])
    np.testing.assert_array_equal(dequantize(tensor), theirs)


@pytest.mark.parametrize("fmt", [WeightFormat.F32, WeightFormat.F16], ids=lambda f: f.label)
def test_dequantize_floats_returns_their_values(fmt: WeightFormat) -> None:
    values = np.array([[0.5, -2.0, 65504.0], [6e-8, 0.0, -1.5]])
    stored = values.astype(np.float16 if fmt is WeightFormat.F16 else np.float32)
    tensor = float_tensor(values.astype(np.float32))
    tensor = type(tensor)("t", fmt, (2, 3), stored.view(np.uint8))
    np.testing.assert_array_equal(dequantize(tensor), stored.astype(np.float32))


def test_dequantize_some_rows_of_a_table_equals_those_of_all() -> None:
    tensor = random_tensor(WeightFormat.Q4_1, 9, 64, np.random.default_rng(2))
    ids = np.array([7, 0, 7])
    some = type(tensor)("some", tensor.format, (3, 64), tensor.data[ids])
    np.testing.assert_array_equal(dequantize(some), dequantize(tensor)[ids])


@pytest.mark.parametrize("fmt", WeightFormat, ids=lambda f: f.label)
def test_embedding_of_every_format_equals_dequantize(native: NativeOps, fmt: WeightFormat) -> None:
    tensor = random_tensor(fmt, 70, _columns(fmt), np.random.default_rng(3))
    table = native.prepare_table(tensor)
    width = tensor.shape[1]
    executable = native.compile(
        lambda: native.embedding(table, 2.5),
        lambda h: h,
        hidden_size=width,
        vocab_size=width,
        max_num_tokens=70,
    )
    executable.forward(plain_step(70))
    rows = executable.logits(np.arange(70, dtype=np.int32))
    np.testing.assert_array_equal(rows, dequantize(tensor) * np.float32(2.5))


@pytest.mark.parametrize("rows_per_call", [1, 3, 512])
@pytest.mark.parametrize("fmt", WeightFormat, ids=lambda f: f.label)
def test_packed_weights_of_every_format_equal_dequantize(
    native: NativeOps, isa: str, fmt: WeightFormat, rows_per_call: int
) -> None:
    depth = _columns(fmt)
    tensor = random_tensor(fmt, 21, depth, np.random.default_rng(4))
    weight = native.prepare_linear([tensor])
    # Rows of the identity pick single weights, and adding zeros to them is exact.
    picked = run_rows(
        native,
        lambda x: native.linear(x, weight),
        np.eye(depth, dtype=np.float32),
        21,
        groups=-(-depth // rows_per_call),
    )
    values = dequantize(tensor).T
    if isa.startswith("amx") and fmt not in (WeightFormat.F32, WeightFormat.F16):
        np.testing.assert_allclose(picked, values, rtol=2**-8)
    elif isa.startswith("avx512") and fmt is WeightFormat.BF16:
        # Integers of 14 bits, where the processor multiplies such.
        np.testing.assert_allclose(picked, values, rtol=0, atol=2**-13 * np.abs(values).max())
    elif fmt.block_size > 1 and isa != "portable":
        # The one is a rounded scale times a code, and scale and offset are added apart.
        np.testing.assert_allclose(picked, values, rtol=0, atol=2**-20 * np.abs(values).max())
    else:
        np.testing.assert_array_equal(picked, values)


def test_weight_bytes_of_packed_formats_stay_near_the_stored_ones(native: NativeOps) -> None:
    rng = np.random.default_rng(5)
    for fmt in WeightFormat:
        before = native.weight_bytes
        native.prepare_linear([random_tensor(fmt, 32, 512, rng)])
        stored = 32 * fmt.row_bytes(512)
        assert stored <= native.weight_bytes - before <= 1.03 * stored + 64, fmt
