"""Tokens that come as embeddings: both homes put them where the table's rows would be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.ops.native_ops import NativeOps
from headrace.ops.ops import GivenEmbeddings
from headrace.ops.torch_ops import TorchOps
from tests.ops.cases import float_tensor, plain_step

WIDTH = 24
TABLE = np.random.default_rng(0).standard_normal((16, WIDTH), dtype=np.float32)


@pytest.fixture(params=["native", "torch"])
def executable(request: pytest.FixtureRequest) -> Any:
    """Embeddings times 3."""
    ops: Any = NativeOps(2) if request.param == "native" else TorchOps()
    table = ops.prepare_table(float_tensor(TABLE))
    return ops.compile(
        lambda: ops.embedding(table, 3.0), lambda hidden: hidden,
        hidden_size=WIDTH, vocab_size=WIDTH, max_num_tokens=16,
    )  # fmt: skip


def run(executable: Any, num_tokens: int, given: GivenEmbeddings | None) -> Any:
    executable.forward(replace(plain_step(num_tokens), given=given))
    return executable.logits(np.arange(num_tokens, dtype=np.int32)).copy()


def some(*rows: int, width: int = WIDTH) -> GivenEmbeddings:
    values = np.random.default_rng(1).standard_normal((len(rows), width), dtype=np.float32)
    return GivenEmbeddings(np.array(rows, np.int32), values)


@pytest.mark.parametrize("rows", [(0,), (3, 1), (2, 3, 4), tuple(range(9))], ids=str)
def test_given_rows_are_taken_as_they_are_and_others_looked_up(
    executable: Any, rows: tuple[int, ...]
) -> None:
    expected = TABLE[:9] * np.float32(3.0)
    given = some(*rows)
    expected[list(rows)] = given.values
    assert np.array_equal(run(executable, 9, given), expected)
    assert np.array_equal(run(executable, 9, None), TABLE[:9] * np.float32(3.0))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (some(9), "a row is given for"),
        (some(0, -1), "a row is given for"),
        (some(0, width=WIDTH - 1), r"given rows|columns, not 24"),
        (GivenEmbeddings(np.zeros(2, np.int32), some(0).values), "given rows|differ in number"),
    ],
    ids=["behind", "before", "narrow", "count"],
)
def test_given_rows_that_do_not_fit_are_refused(
    executable: Any, given: GivenEmbeddings, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        run(executable, 9, given)


def test_numbers_of_another_type_are_refused_by_the_native_home() -> None:
    ops = NativeOps(1)
    table = ops.prepare_table(float_tensor(TABLE))
    executable = ops.compile(
        lambda: ops.embedding(table), lambda hidden: hidden,
        hidden_size=WIDTH, vocab_size=WIDTH, max_num_tokens=16,
    )  # fmt: skip
    wide: Any = some(0).values.astype(np.float64)
    with pytest.raises(TypeError, match="embeddings float32"):
        run(executable, 9, GivenEmbeddings(np.zeros(1, np.int32), wide))


def test_a_model_without_a_table_takes_none() -> None:
    ops = NativeOps(1)
    executable = ops.compile(
        lambda: ops.rope(np.ones(WIDTH // 2, np.float32)), lambda hidden: hidden,
        hidden_size=WIDTH, vocab_size=WIDTH, max_num_tokens=16,
    )  # fmt: skip
    with pytest.raises(ValueError, match="columns, not 0"):
        run(executable, 9, some(0))
