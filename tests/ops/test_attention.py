"""Attention, rotation and the paged cache of both homes compared, and the row-order rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from headrace.ops.native_ops import NativeOps
from headrace.ops.ops import HeadShape
from headrace.ops.torch_ops import TorchOps
from tests.ops.cases import AttentionCase, float_tensor, plain_step, relative_error, run_rows

ROUNDING = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}
CASES = {
    "one head": AttentionCase(HeadShape(1, 1, 32), [7]),
    "grouped by 3": AttentionCase(HeadShape(9, 3, 64), [1, 70, 16]),
    "grouped by 8, norm": AttentionCase(HeadShape(8, 1, 128), [33, 5], norm=True),
    "wide heads, window": AttentionCase(HeadShape(4, 1, 256), [70], window=20, norm=True),
    "odd heads, partial rotation": AttentionCase(HeadShape(6, 2, 80), [40], num_rotary=32),
    "heads of 20, float32": AttentionCase(HeadShape(2, 2, 20), [50], dtype="float32"),
    "small blocks": AttentionCase(HeadShape(4, 2, 64), [61, 13], block_size=8, window=9),
    "small float32 blocks": AttentionCase(HeadShape(4, 2, 64), [61], block_size=8, dtype="float32"),
    "bfloat16": AttentionCase(HeadShape(4, 2, 64), [61, 13], dtype="bfloat16"),
    "small bfloat16 blocks": AttentionCase(
        HeadShape(3, 1, 20), [40], block_size=8, dtype="bfloat16"
    ),
    "large blocks": AttentionCase(HeadShape(4, 4, 32), [130, 3], block_size=64, window=64),
    "several partitions": AttentionCase(HeadShape(3, 1, 32), [1100, 513], window=None),
    "window over partitions": AttentionCase(HeadShape(2, 1, 32), [1100], window=600),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_agrees_with_torch(native: NativeOps, reference: TorchOps, name: str) -> None:
    case = CASES[name]
    ours, theirs = (case.run(ops, case.at_once()) for ops in (native, reference))
    for mine, other in zip(ours, theirs, strict=True):
        # Sums in another order can move a rotated key over a rounding border.
        assert relative_error(mine, other) < ROUNDING[case.dtype]


@pytest.mark.parametrize("name", CASES)
def test_attention_in_chunks_gives_the_same_bits_as_at_once(native: NativeOps, name: str) -> None:
    case = CASES[name]
    whole = case.run(native, case.at_once())
    sizes = (200, 512) if max(case.lengths) > 500 else (1, 3, 16)
    for size in sizes:
        for mine, other in zip(case.run(native, case.in_chunks(size)), whole, strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("name", CASES)
def test_attention_of_one_token_of_each_sequence_gives_the_bits_of_many(
    isa: str, name: str
) -> None:
    """Such steps rotate and write inside the attention, unless one is cut by partition."""
    case = CASES[name]
    lengths = case.lengths
    whole = case.run(NativeOps(1, isa), case.at_once())
    last = 5 if max(lengths) > 500 else max(lengths) - 1
    alone = [n for n in lengths if n <= last]
    schedule = [
        [(s, n - last) for s, n in enumerate(lengths) if n > last],
        # The short ones join when as many tokens are left.
        *([(s, 1) for s, n in enumerate(lengths) if n >= left] for left in range(last, 0, -1)),
    ]
    assert sum(map(len, schedule)) >= last + len(alone)
    for threads in (1, 3):
        for mine, other in zip(case.run(NativeOps(threads, isa), schedule), whole, strict=True):
            np.testing.assert_array_equal(mine, other)


def test_rotated_queries_that_others_read_too_are_there(
    native: NativeOps, reference: TorchOps
) -> None:
    heads = HeadShape(4, 2, 16)
    qkv = np.random.default_rng(0).standard_normal((8, 8 * 16)).astype(np.float32)
    inv_freq = np.ones(8, np.float32)

    def run(ops: NativeOps | TorchOps) -> np.ndarray:
        cache = ops.make_kv_caches(1, 1, 8, heads, "float32")[0]

        def forward(x: object) -> object:
            q = ops.rope_and_cache(x, ops.rope(inv_freq), cache, heads)
            return ops.add(ops.attention(q, cache, heads, 0.25), q)

        return run_rows(ops, forward, qkv, 64, groups=8)  # each a step of one token

    assert relative_error(run(native), run(reference)) < 1e-5


def test_attention_decode_of_a_long_context_gives_the_bits_of_its_prefill(isa: str) -> None:
    case = AttentionCase(HeadShape(6, 2, 64), [1300, 40], window=None)
    whole = case.run(NativeOps(1, isa), case.at_once())
    last = 4
    schedule = [
        [(0, 1300 - last)],
        [(1, 40 - last)],
        *[[(0, 1)] for _ in range(last)],  # alone: cut by partition
        *[[(1, 1)] for _ in range(last)],
    ]
    for threads in (1, 2, 8):
        for mine, other in zip(case.run(NativeOps(threads, isa), schedule), whole, strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("group", range(1, 9))
@pytest.mark.parametrize(
    ("head_dim", "dtype", "block_size", "window"),
    [
        (64, "float16", 16, None),
        (64, "bfloat16", 32, 70),
        (48, "float32", 16, 129),
        (80, "float16", 64, None),
        (20, "float16", 16, None),  # not whole panels of columns
        (256, "float16", 128, 5),
        (32, "float16", 8, 90),  # less than a panel of positions in a block
    ],
)
def test_attention_of_few_rows_gives_the_bits_of_many(
    isa: str, group: int, head_dim: int, dtype: str, block_size: int, window: int | None
) -> None:
    """Few query rows read the cache directly, many through widened tiles."""
    heads = HeadShape(2 * group, 2, head_dim)
    case = AttentionCase(heads, [150], window=window, block_size=block_size, dtype=dtype)
    whole = case.run(NativeOps(1, isa), case.at_once())[0]
    for size in (1, 2, 3, 7):
        np.testing.assert_array_equal(case.run(NativeOps(1, isa), case.in_chunks(size))[0], whole)


def test_attention_of_few_rows_in_partitions_gives_the_bits_of_many(isa: str) -> None:
    for window in (None, 530, 1000):
        case = AttentionCase(HeadShape(3, 1, 48), [1100], window=window)
        whole = case.run(NativeOps(1, isa), case.at_once())[0]
        schedule = [[(0, 1090)], *[[(0, 1)]] * 4, [(0, 2)], *[[(0, 1)]] * 4]
        for threads in (1, 4):  # whole, and cut by partition
            mine = case.run(NativeOps(threads, isa), schedule)[0]
            np.testing.assert_array_equal(mine, whole)


def test_attention_in_mixed_batches_gives_the_same_bits(native: NativeOps) -> None:
    case = AttentionCase(HeadShape(9, 3, 64), [70, 33, 2, 90])
    whole = case.run(native, case.in_chunks(1000))
    schedule = [
        [(0, 20), (1, 33)],
        [(2, 1), (0, 1), (3, 64)],
        [(0, 49), (3, 1), (2, 1)],
        [(3, 25)],
    ]
    for mine, other in zip(case.run(native, schedule), whole, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_attention_does_not_read_recycled_blocks_past_the_end(native: NativeOps) -> None:
    """Not-a-numbers left in a block by another sequence must not reach this one."""
    heads = HeadShape(2, 1, 32)
    case = AttentionCase(heads, [20], block_size=32)
    clean = case.run(native, case.in_chunks(1))[0]
    cache = native.make_kv_caches(1, 2, 32, heads, case.dtype)[0]
    poison = np.full((32, 4 * 32), np.nan, dtype=np.float32)
    zero = np.zeros(16, dtype=np.float32)
    run_rows(
        native,
        lambda x: native.rope_and_cache(x, native.rope(zero), cache, heads),
        poison,
        64,
    )
    result = case.run(native, case.in_chunks(1), cache)[0]
    np.testing.assert_array_equal(result, clean)


@pytest.mark.parametrize("scale", [0.0, 30.0, 1e4, 1e18])
def test_attention_of_scores_near_and_far_apart_agrees_with_torch(
    native: NativeOps, reference: TorchOps, scale: float
) -> None:
    """Weights from all alike to all but one nothing, in order of falling and of rising scores."""
    heads = HeadShape(2, 1, 16)
    keys = np.linspace(-1, 1, 200, dtype=np.float32)[:, None] * np.ones(16, np.float32)
    values = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32)
    one = np.ones((200, 16), np.float32)
    qkv = np.concatenate([one, -one, keys, values], axis=1)

    def attend(ops: NativeOps | TorchOps) -> np.ndarray:
        cache = ops.make_kv_caches(1, 25, 8, heads, "float32")[0]
        rope = np.zeros(8, np.float32)

        def forward(x: object) -> object:
            q = ops.rope_and_cache(x, ops.rope(rope), cache, heads)
            return ops.attention(q, cache, heads, scale)

        return run_rows(ops, forward, qkv, 32)

    assert relative_error(attend(native), attend(reference)) < 1e-5


@pytest.mark.parametrize("column", [0, 8, 16])  # of the query, of the key, of the value
@pytest.mark.parametrize("size", [1, 100])
def test_a_value_that_is_no_number_reaches_those_who_see_it_and_nobody_else(
    native: NativeOps, column: int, size: int
) -> None:
    heads, bad = HeadShape(1, 1, 8), 70
    rng = np.random.default_rng(0)
    clean = rng.standard_normal((100, 24)).astype(np.float32)
    dirty = clean.copy()
    dirty[bad, column] = np.nan

    def attend(qkv: np.ndarray) -> np.ndarray:
        cache = native.make_kv_caches(1, 13, 8, heads, "float32")[0]
        table = native.prepare_table(float_tensor(qkv))

        def forward() -> object:
            rope = native.rope(np.zeros(4, np.float32))
            q = native.rope_and_cache(native.embedding(table), rope, cache, heads)
            return native.attention(q, cache, heads, 1.0)

        executable = native.compile(
            forward, lambda h: h, hidden_size=8, vocab_size=8, max_num_tokens=100
        )
        step, rows = plain_step(100), []
        for start in range(0, 100, size):
            at = slice(start, start + size)
            executable.forward(
                replace(
                    step,
                    input_ids=step.input_ids[at],
                    positions=step.positions[at],
                    slot_mapping=step.slot_mapping[at],
                    query_start_loc=np.array([0, size], np.int32),
                    seq_lens=np.array([start + size], np.int32),
                )
            )
            rows.append(executable.logits(np.arange(size, dtype=np.int32)).copy())
        return np.concatenate(rows)

    ours, expected = attend(dirty), attend(clean)
    reached = np.zeros(100, bool)
    reached[bad : bad + 1 if column == 0 else None] = True
    np.testing.assert_array_equal(ours[~reached], expected[~reached])
    assert np.isnan(ours[reached]).any(axis=1).all()


def test_float16_cache_keeps_values_beyond_its_range_at_the_largest(
    native: NativeOps, reference: TorchOps
) -> None:
    heads = HeadShape(1, 1, 32)
    values = np.full((3, 3 * 32), 1e-3, dtype=np.float32)
    values[:, 64:] = np.array([[1e9], [-7e4], [1e-7]], dtype=np.float32)
    zero = np.zeros(16, dtype=np.float32)

    def attend(ops: NativeOps | TorchOps) -> np.ndarray:
        cache = ops.make_kv_caches(1, 1, 8, heads, "float16")[0]

        def forward(x: object) -> object:
            q = ops.rope_and_cache(x, ops.rope(zero), cache, heads)
            return ops.attention(q, cache, heads, 1.0)

        return run_rows(ops, forward, values, 32)

    ours = attend(native)
    np.testing.assert_allclose(ours, attend(reference), rtol=1e-5)
    assert ours[0, 0] == 65504.0
