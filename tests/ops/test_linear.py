"""Matrix products of both homes compared, and the row-order rule bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.ops.formats import WeightFormat
from headrace.ops.native_ops import NativeOps
from headrace.ops.torch_ops import TorchOps
from tests.ops.cases import random_tensor, relative_error, run_rows

FORMATS = list(WeightFormat)


def _depth(fmt: WeightFormat, odd: int) -> int:
    """A legal number of columns near an odd one."""
    return max(odd // fmt.block_size, 1) * fmt.block_size


def _rows(count: int, depth: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((count, depth)).astype(np.float32)


@pytest.mark.parametrize(("num_rows", "outputs", "odd"), [(1, 17, 45), (5, 16, 291), (70, 83, 530)])
@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
def test_linear_of_every_format_agrees_with_torch(
    native: NativeOps,
    reference: TorchOps,
    product_error: float,
    fmt: WeightFormat,
    num_rows: int,
    outputs: int,
    odd: int,
) -> None:
    depth = _depth(fmt, odd)
    tensor = random_tensor(fmt, outputs, depth, np.random.default_rng(odd))
    bias = _rows(1, outputs, 9)[0]
    x = _rows(num_rows, depth)
    results = []
    for ops in (native, reference):
        weight = ops.prepare_linear([tensor])
        results.append(run_rows(ops, lambda v, o=ops, w=weight: o.linear(v, w, bias), x, outputs))
    assert relative_error(*results) < product_error


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("gate", "up"), [("BF16", "BF16"), ("Q4_1", "Q4_1"), ("Q4_K", "Q6_K")])
@pytest.mark.parametrize("num_rows", [1, 4, 37])
def test_gated_linear_agrees_with_torch(
    native: NativeOps,
    reference: TorchOps,
    product_error: float,
    activation: Any,
    gate: str,
    up: str,
    num_rows: int,
) -> None:
    rng = np.random.default_rng(0)
    tensors = [random_tensor(WeightFormat[name], 83, 256, rng) for name in (gate, up)]
    x = _rows(num_rows, 256)
    results = []
    for ops in (native, reference):
        weight = ops.prepare_gated(*tensors)
        results.append(
            run_rows(ops, lambda v, o=ops, w=weight: o.gated_linear(v, w, activation), x, 83)
        )
    assert relative_error(*results) < 4 * product_error


def test_linear_of_parts_in_different_formats_agrees_with_torch(
    native: NativeOps, reference: TorchOps, product_error: float
) -> None:
    rng = np.random.default_rng(1)
    parts = [
        random_tensor(WeightFormat[name], rows, 256, rng)
        for name, rows in [("Q4_K", 40), ("Q6_K", 9), ("F32", 17), ("BF16", 16)]
    ]
    for num_rows in (1, 3, 20):
        x = _rows(num_rows, 256)
        results = []
        for ops in (native, reference):
            weight = ops.prepare_linear(parts)
            results.append(run_rows(ops, lambda v, o=ops, w=weight: o.linear(v, w), x, 82))
        assert relative_error(*results) < product_error


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
def test_linear_row_alone_equals_row_in_any_batch(native: NativeOps, fmt: WeightFormat) -> None:
    depth = _depth(fmt, 611)
    weight = native.prepare_linear([random_tensor(fmt, 83, depth, np.random.default_rng(2))])
    x = _rows(96, depth)

    def run(values: Any, groups: int) -> Any:
        return run_rows(native, lambda v: native.linear(v, weight), values, 83, groups=groups)

    alone = run(x, 96)
    for groups in (48, 32, 24, 16, 9, 5, 3, 1):  # batches of 2 to 96 rows
        np.testing.assert_array_equal(run(x, groups), alone)


@pytest.mark.parametrize("fmt", ["BF16", "Q4_1", "Q6_K"])
def test_gated_linear_row_alone_equals_row_in_any_batch(native: NativeOps, fmt: str) -> None:
    rng = np.random.default_rng(3)
    gate, up = (random_tensor(WeightFormat[fmt], 50, 512, rng) for _ in range(2))
    weight = native.prepare_gated(gate, up)
    x = _rows(66, 512)

    def run(groups: int) -> Any:
        operation = lambda v: native.gated_linear(v, weight, "silu")  # noqa: E731
        return run_rows(native, operation, x, 50, groups=groups)

    alone = run(66)
    for groups in (33, 22, 16, 2, 1):
        np.testing.assert_array_equal(run(groups), alone)


def test_linear_on_any_number_of_threads_gives_the_same_bits(isa: str) -> None:
    tensor = random_tensor(WeightFormat.Q4_1, 333, 320, np.random.default_rng(4))
    for num_rows in (1, 7, 200):
        x = _rows(num_rows, 320)
        results = []
        for threads in (1, 2, 5):
            ops = NativeOps(threads, isa)
            weight = ops.prepare_linear([tensor])
            results.append(run_rows(ops, lambda v, o=ops, w=weight: o.linear(v, w), x, 333))
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])


@pytest.mark.parametrize("swap", [False, True])
def test_add_of_a_product_equals_the_sum_of_both(native: NativeOps, swap: bool) -> None:
    weight = native.prepare_linear(
        [random_tensor(WeightFormat.BF16, 70, 70, np.random.default_rng(5))]
    )
    x = _rows(9, 70)
    bias = _rows(1, 70, 6)[0]

    def merged(v: Any) -> Any:
        product = native.linear(v, weight, bias)
        return native.add(product, v) if swap else native.add(v, product)

    product = run_rows(native, lambda v: native.linear(v, weight, bias), x, 70)
    np.testing.assert_array_equal(run_rows(native, merged, x, 70), x + product)


def test_add_of_a_product_used_twice_keeps_the_product(native: NativeOps) -> None:
    weight = native.prepare_linear(
        [random_tensor(WeightFormat.F32, 24, 24, np.random.default_rng(7))]
    )
    x = _rows(5, 24)

    def both(v: Any) -> Any:
        product = native.linear(v, weight)
        return native.add(native.add(v, product), product)

    product = run_rows(native, lambda v: native.linear(v, weight), x, 24)
    np.testing.assert_array_equal(run_rows(native, both, x, 24), x + product + product)


@pytest.mark.parametrize("extreme", [-1e4, -90.0, 90.0, 1e4])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_linear_of_extreme_inputs_stays_finite(
    native: NativeOps, reference: TorchOps, activation: Any, extreme: float
) -> None:
    x = np.full((1, 32), extreme / 32, dtype=np.float32)
    ones = random_tensor(WeightFormat.F32, 16, 32, np.random.default_rng(8))
    ones.data.view(np.float32)[:] = 1.0
    results = []
    for ops in (native, reference):
        weight = ops.prepare_gated(ones, ones)
        results.append(
            run_rows(ops, lambda v, o=ops, w=weight: o.gated_linear(v, w, activation), x, 16)
        )
    np.testing.assert_allclose(*results, rtol=2e-2, atol=1e-30)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.label)
@pytest.mark.parametrize("num_rows", [1, 90])
def test_linear_of_normed_rows_gives_the_bits_of_the_two_apart(
    native: NativeOps, fmt: WeightFormat, num_rows: int
) -> None:
    """Kernels that convert rows norm them on the way, where nobody else reads them."""
    depth = _depth(fmt, 300)
    x, norm = _rows(num_rows, depth), _rows(1, depth, 1)[0]
    weight = native.prepare_linear([random_tensor(fmt, 40, depth, np.random.default_rng(0))])
    normed = run_rows(native, lambda v: native.rms_norm(v, norm, 1e-5), x, depth)
    apart = run_rows(native, lambda v: native.linear(v, weight), normed, 40)
    together = run_rows(
        native, lambda v: native.linear(native.rms_norm(v, norm, 1e-5), weight), x, 40
    )
    np.testing.assert_array_equal(together, apart)
