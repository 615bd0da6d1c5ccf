"""Recording, planning and running programs: what is refused, and what stays valid."""

from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.ops.formats import StoredTensor, WeightFormat, dequantize
from headrace.ops.native_ops import NativeOps
from headrace.ops.ops import HeadNorm, HeadShape
from headrace.ops.torch_ops import TorchOps
from tests.ops.cases import AttentionCase, float_tensor, plain_step, random_tensor

HEADS = HeadShape(4, 2, 16)


def _tensor(rows: int, columns: int, fmt: WeightFormat = WeightFormat.F32) -> StoredTensor:
    return random_tensor(fmt, rows, columns, np.random.default_rng(0))


@pytest.fixture(params=["native", "torch"])
def ops(request: pytest.FixtureRequest) -> Any:
    return NativeOps(1) if request.param == "native" else TorchOps()


def _compile(ops: Any, forward: Any, width: int, **kwargs: Any) -> Any:
    sizes = {"hidden_size": width, "vocab_size": width, "max_num_tokens": 16, **kwargs}
    return ops.compile(forward, lambda h: h, **sizes)


WRONG = {
    "rms_norm": lambda o, x: o.rms_norm(x, np.ones(9, np.float32), 1e-5),
    "linear": lambda o, x: o.linear(x, o.prepare_linear([_tensor(4, 9)])),
    "linear: 4 columns, bias": lambda o, x: o.linear(
        x, o.prepare_linear([_tensor(4, 8)]), np.ones(5, np.float32)
    ),
    "linear: the weight": lambda o, x: o.linear(x, o.prepare_gated(_tensor(4, 8), _tensor(4, 8))),
    "gated_linear: the weight": lambda o, x: o.gated_linear(
        x, o.prepare_linear([_tensor(4, 8)]), "silu"
    ),
    "gated_linear": lambda o, x: o.gated_linear(
        x, o.prepare_gated(_tensor(4, 9), _tensor(4, 9)), "silu"
    ),
    "gated_linear: unknown activation": lambda o, x: o.gated_linear(
        x, o.prepare_gated(_tensor(4, 8), _tensor(4, 8)), "relu"
    ),
    "prepare_linear": lambda o, x: o.prepare_linear([_tensor(4, 8), _tensor(4, 9)]),
    "prepare_gated": lambda o, x: o.prepare_gated(_tensor(4, 8), _tensor(5, 8)),
    "add": lambda o, x: o.add(x, o.linear(x, o.prepare_linear([_tensor(4, 8)]))),
    "rope_and_cache": lambda o, x: o.rope_and_cache(
        x, o.rope(np.ones(4, np.float32)), o.make_kv_caches(1, 2, 8, HEADS, "float32")[0], HEADS
    ),
    "attention": lambda o, x: o.attention(
        x, o.make_kv_caches(1, 2, 8, HEADS, "float32")[0], HEADS, 1.0
    ),
    "make_kv_caches": lambda o, x: o.make_kv_caches(1, 2, 8, HEADS, "int7"),
}


@pytest.mark.parametrize("text", WRONG)
def test_shapes_that_do_not_fit_are_refused_naming_the_op(ops: Any, text: str) -> None:
    table = ops.prepare_table(_tensor(16, 8))
    with pytest.raises(ValueError, match=text):
        _compile(ops, lambda: WRONG[text](ops, ops.embedding(table)), 8).forward(plain_step(2))


@pytest.mark.parametrize("token_id", [-1, 16, 2**31 - 1])
def test_embedding_of_an_id_outside_the_table_is_refused(ops: Any, token_id: int) -> None:
    table = ops.prepare_table(_tensor(16, 8))
    executable = _compile(ops, lambda: ops.embedding(table), 8)
    step = plain_step(3)
    bad = replace(step, input_ids=np.array([0, token_id, 1], dtype=np.int32))
    with pytest.raises(ValueError, match=f"embedding: token id {token_id} "):
        executable.forward(bad)
    executable.forward(step)
    assert executable.logits(np.array([2], dtype=np.int32)).shape == (1, 8)


def test_a_part_that_is_no_matrix_is_refused(ops: Any) -> None:
    vector = StoredTensor("v", WeightFormat.F32, (4,), np.zeros(16, np.uint8))
    with pytest.raises(ValueError, match="prepare_linear"):
        ops.prepare_linear([vector])
    with pytest.raises(ValueError, match="prepare_table"):
        ops.prepare_table(vector)


def test_operations_outside_compile_are_refused() -> None:
    native = NativeOps(1)
    table = native.prepare_table(_tensor(16, 8))
    with pytest.raises(RuntimeError, match="only inside compile"):
        native.embedding(table)


def test_arrays_of_another_program_are_refused() -> None:
    native = NativeOps(1)
    table = native.prepare_table(_tensor(16, 8))
    kept: list[Any] = []

    def forward() -> Any:
        kept.append(native.embedding(table))
        return kept[0]

    with pytest.raises(ValueError, match="another program"):
        native.compile(
            forward,
            lambda h: native.add(h, kept[0]),
            hidden_size=8,
            vocab_size=8,
            max_num_tokens=4,
        )


def test_wrong_widths_of_results_are_refused() -> None:
    native = NativeOps(1)
    table = native.prepare_table(_tensor(16, 8))
    with pytest.raises(ValueError, match="hidden states have 8 columns, not 9"):
        _compile(native, lambda: native.embedding(table), 8, hidden_size=9, vocab_size=9)
    with pytest.raises(ValueError, match="logits have 8 columns, not 9"):
        _compile(native, lambda: native.embedding(table), 8, vocab_size=9)


def test_logits_that_read_the_step_are_refused() -> None:
    native = NativeOps(1)
    table = native.prepare_table(_tensor(16, 8))
    with pytest.raises(ValueError, match="logits reads the step's tokens"):
        native.compile(
            lambda: native.embedding(table),
            lambda h: native.add(h, native.embedding(table)),
            hidden_size=8,
            vocab_size=8,
            max_num_tokens=4,
        )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"slot_mapping": [0, 16]}, "slot 16 of token 1"),
        ({"slot_mapping": [-1, 0]}, "slot -1 of token 0"),
        ({"block_table": [[2]]}, "block 2 of sequence 0"),
        ({"block_table": [[-1]]}, "block -1 of sequence 0"),
        ({"seq_lens": [1]}, "length 1"),
        ({"seq_lens": [9]}, "length 9"),
        ({"query_start_loc": [0, 1]}, "query_start_loc"),
        ({"positions": [0]}, "differ in tokens"),
    ],
)
def test_a_step_that_would_leave_the_cache_is_refused(change: Any, text: str) -> None:
    native = NativeOps(1)
    cache = native.make_kv_caches(1, 2, 8, HEADS, "float32")[0]
    table = native.prepare_table(_tensor(16, 128))

    def forward() -> Any:
        rope = native.rope(np.ones(4, np.float32))
        return native.rope_and_cache(native.embedding(table), rope, cache, HEADS)

    executable = _compile(native, forward, 64)
    executable.forward(plain_step(2))
    arrays = {name: np.array(value, dtype=np.int32) for name, value in change.items()}
    with pytest.raises(ValueError, match=text):
        executable.forward(replace(plain_step(2), **arrays))


def test_a_step_filled_anew_is_computed_anew() -> None:
    native = NativeOps(1)
    tensor = _tensor(16, 8)
    table = native.prepare_table(tensor)
    executable = _compile(native, lambda: native.embedding(table), 8)
    step, row = plain_step(1), np.array([0], dtype=np.int32)
    for token_id in (3, 7):
        step.input_ids[0] = token_id
        executable.forward(step)
        np.testing.assert_array_equal(executable.logits(row), dequantize(tensor)[[token_id]])


def test_arrays_of_another_type_or_layout_are_refused() -> None:
    native = NativeOps(1)
    table = native.prepare_table(_tensor(16, 8))
    executable = _compile(native, lambda: native.embedding(table), 8)
    for wrong in (np.zeros(2, np.int64), np.zeros(4, np.int32)[::2]):
        with pytest.raises(TypeError, match=r"int32 .*C-contiguous"):
            executable.forward(replace(plain_step(2), input_ids=wrong))


def test_more_tokens_than_agreed_are_refused() -> None:
    native = NativeOps(1)
    table = native.prepare_table(_tensor(32, 8))
    executable = _compile(native, lambda: native.embedding(table), 8)
    with pytest.raises(ValueError, match="17 tokens, at most 16"):
        executable.forward(plain_step(17))


def test_logits_of_rows_that_do_not_exist_are_refused() -> None:
    native = NativeOps(1)
    table = native.prepare_table(_tensor(16, 8))
    executable = _compile(native, lambda: native.embedding(table), 8)
    with pytest.raises(ValueError, match="no forward has run"):
        executable.logits(np.array([0], dtype=np.int32))
    executable.forward(plain_step(3))
    for row in (-1, 3):
        with pytest.raises(ValueError, match=f"row {row} is not in"):
            executable.logits(np.array([row], dtype=np.int32))


def test_logits_of_chosen_rows_follow_their_order(ops: Any) -> None:
    tensor = _tensor(16, 8)
    table, head = ops.prepare_table(tensor), ops.prepare_linear([_tensor(5, 8)])
    executable = ops.compile(
        lambda: ops.embedding(table),
        lambda h: ops.linear(h, head),
        hidden_size=8,
        vocab_size=5,
        max_num_tokens=16,
    )
    executable.forward(plain_step(6))
    rows = executable.logits(np.array([5, 0, 5], dtype=np.int32))
    assert rows.dtype == np.float32
    assert rows.flags["C_CONTIGUOUS"]
    expected = dequantize(tensor)[[5, 0, 5]] @ dequantize(_tensor(5, 8)).T
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-5)
    assert executable.logits(np.array([], dtype=np.int32)).shape == (0, 5)


def test_logits_kept_after_larger_ones_stay_readable() -> None:
    native = NativeOps(1)
    tensor = _tensor(16, 8)
    table = native.prepare_table(tensor)
    executable = _compile(native, lambda: native.embedding(table), 8)
    executable.forward(plain_step(16))
    few = executable.logits(np.array([0], dtype=np.int32))
    executable.logits(np.arange(16, dtype=np.int32))
    del executable
    np.testing.assert_array_equal(few, dequantize(tensor)[:1])


def test_a_deep_program_reuses_memory_without_mixing_slots(ops: Any) -> None:
    """Many live and dead arrays of different widths; compared with numpy."""
    rng = np.random.default_rng(1)
    widths = [8, 40, 24, 8, 100, 8]
    matrices = [
        rng.standard_normal((b, a)).astype(np.float32) / a**0.5 for a, b in pairwise(widths)
    ]
    tensor = _tensor(16, 8)
    table = ops.prepare_table(tensor)
    weights = [ops.prepare_linear([float_tensor(m)]) for m in matrices]
    ones = np.ones(8, np.float32)

    def forward() -> Any:
        x = ops.embedding(table)
        for _ in range(4):
            h = ops.rms_norm(x, ones, 1e-5)
            for weight in weights:
                h = ops.linear(h, weight)
            x = ops.add(x, ops.add(h, ops.rms_norm(h, ones, 1e-5)))
        return x

    executable = _compile(ops, forward, 8)
    x = dequantize(tensor).astype(np.float64)[:12]
    for _ in range(4):
        h = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        for m in matrices:
            h = h @ m.T
        x = x + h + h / np.sqrt((h**2).mean(-1, keepdims=True) + 1e-5)
    for num_tokens in (3, 12, 1):  # grown, then used for fewer rows
        executable.forward(plain_step(num_tokens))
        rows = executable.logits(np.arange(num_tokens, dtype=np.int32))
        np.testing.assert_allclose(rows, x[:num_tokens], rtol=1e-4, atol=1e-4)


def test_weights_of_a_mapped_file_are_let_go_and_still_readable(tmp_path: Path) -> None:
    tensor = _tensor(300, 512, WeightFormat.BF16)
    path = tmp_path / "weights"
    path.write_bytes(tensor.data.tobytes())
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapped, dtype=np.uint8).reshape(tensor.data.shape)
    stored = StoredTensor("w", WeightFormat.BF16, tensor.shape, data)
    native = NativeOps(2)
    assert data.sum() > 0  # every page has been read
    before = _resident(path)
    native.prepare_linear([stored])
    assert _resident(path) < before / 10
    np.testing.assert_array_equal(dequantize(stored), dequantize(tensor))


def _resident(path: Path) -> int:
    """Kilobytes of this file that are in this process's memory now."""
    lines = iter(Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.endswith(str(path)):
            return next(int(text.split()[1]) for text in lines if text.startswith("Rss:"))
    raise AssertionError("the file is not mapped")


def test_weights_in_ordinary_memory_are_left_alone() -> None:
    tensor = _tensor(300, 512, WeightFormat.BF16)
    copy = tensor.data.copy()
    NativeOps(1).prepare_linear([tensor])
    np.testing.assert_array_equal(tensor.data, copy)


def test_two_executables_in_two_threads_give_what_they_give_alone() -> None:
    case = AttentionCase(HeadShape(9, 3, 64), [300])
    alone = case.run(NativeOps(1), case.at_once())[0]
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(case.run, NativeOps(2), case.in_chunks(50)) for _ in range(8)]
        for run in runs:
            np.testing.assert_array_equal(run.result()[0], alone)


def test_head_norm_of_the_wrong_width_is_refused() -> None:
    native = NativeOps(1)
    cache = native.make_kv_caches(1, 2, 8, HEADS, "float32")[0]
    table = native.prepare_table(_tensor(16, 128))
    norm = HeadNorm(np.ones(16, np.float32), np.ones(15, np.float32), 1e-6)

    def forward() -> Any:
        rope = native.rope(np.ones(4, np.float32))
        return native.rope_and_cache(native.embedding(table), rope, cache, HEADS, norm)

    with pytest.raises(ValueError, match=r"norm weight \[15\]"):
        _compile(native, forward, 64)
