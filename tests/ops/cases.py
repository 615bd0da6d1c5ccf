"""Random inputs for the operations, and ways to run a few of them on any home."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.ops.formats import StoredTensor, WeightFormat
from headrace.ops.ops import HeadNorm, HeadShape, StepInputs

ArrayF32 = np.ndarray[Any, np.dtype[np.float32]]

# Bytes of a block that hold float16 scales; random bits there would be infinities.
_SCALES_AT = {
    WeightFormat.Q8_0: [0],
    WeightFormat.Q4_0: [0],
    WeightFormat.Q4_1: [0, 2],
    WeightFormat.Q5_0: [0],
    WeightFormat.Q5_1: [0, 2],
    WeightFormat.Q4_K: [0, 2],
    WeightFormat.Q5_K: [0, 2],
    WeightFormat.Q6_K: [208],
}


def random_tensor(
    fmt: WeightFormat, rows: int, columns: int, rng: np.random.Generator
) -> StoredTensor:
    """A valid random matrix of any format."""
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    if fmt is WeightFormat.F32:
        data = values.view(np.uint8)
    elif fmt is WeightFormat.F16:
        data = values.astype(np.float16).view(np.uint8)
    elif fmt is WeightFormat.BF16:
        data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        data = rng.integers(0, 256, (rows, fmt.row_bytes(columns)), dtype=np.uint8)
        blocks = data.reshape(-1, fmt.block_bytes)
        for at in _SCALES_AT[fmt]:
            scales = rng.standard_normal((len(blocks), 1)) * 0.01
            blocks[:, at : at + 2] = scales.astype(np.float16).view(np.uint8)
    return StoredTensor(f"random {fmt.label}", fmt, (rows, columns), data)


def float_tensor(values: ArrayF32) -> StoredTensor:
    """The values as a stored F32 matrix."""
    data = np.ascontiguousarray(values, dtype=np.float32).view(np.uint8)
    return StoredTensor("given", WeightFormat.F32, values.shape, data)


def plain_step(num_tokens: int) -> StepInputs:
    """One sequence of new tokens with ids 0, 1, 2 ... and no cache behind."""
    numbers = np.arange(num_tokens, dtype=np.int32)
    return StepInputs(
        input_ids=numbers,
        positions=numbers,
        slot_mapping=numbers,
        query_start_loc=np.array([0, num_tokens], dtype=np.int32),
        seq_lens=np.array([num_tokens], dtype=np.int32),
        block_table=np.arange(-(-num_tokens // 8), dtype=np.int32)[None],
    )


def run_rows(
    ops: Any, operation: Callable[[Any], Any], x: ArrayF32, width: int, *, groups: int = 1
) -> ArrayF32:
    """operation applied to the rows of x, in that many calls, as [rows, width]."""
    table = ops.prepare_table(float_tensor(x))
    executable = ops.compile(
        lambda: operation(ops.embedding(table)),
        lambda hidden: hidden,
        hidden_size=width,
        vocab_size=width,
        max_num_tokens=len(x),
    )
    results = []
    for ids in np.array_split(np.arange(len(x), dtype=np.int32), groups):
        step = plain_step(len(ids))
        executable.forward(
            StepInputs(ids, *(getattr(step, name) for name in StepInputs.__slots__[1:]))
        )
        results.append(executable.logits(np.arange(len(ids), dtype=np.int32)).copy())
    return np.concatenate(results)


@dataclass
class AttentionCase:
    """Sequences of random queries, keys and values behind one attention layer."""

    heads: HeadShape
    lengths: Sequence[int]
    window: int | None = None
    block_size: int = 16
    dtype: str = "float16"
    num_rotary: int | None = None
    norm: bool = False
    seed: int = 0

    def run(
        self, ops: Any, schedule: Sequence[Sequence[tuple[int, int]]], cache: Any = None
    ) -> list[ArrayF32]:
        """Attention of every token, by sequence.

        schedule: for each step, (sequence, number of its next tokens) in the order of the batch.
        cache: a used one; by default a new one is made.
        """
        rng = np.random.default_rng(self.seed)
        dim = self.heads.head_dim
        width = (self.heads.num_heads + 2 * self.heads.num_kv_heads) * dim
        out = self.heads.num_heads * dim
        first_row = np.concatenate([[0], np.cumsum(self.lengths)])
        qkv = rng.standard_normal((first_row[-1], width)).astype(np.float32)
        pairs = (dim if self.num_rotary is None else self.num_rotary) // 2
        inv_freq = (100.0 ** -(np.arange(pairs) / max(pairs, 1))).astype(np.float32)
        norm = None
        if self.norm:
            weights = rng.standard_normal((2, dim)).astype(np.float32)
            norm = HeadNorm(weights[0], weights[1], 1e-6)

        blocks_each = -(-max(self.lengths) // self.block_size)
        num_blocks = blocks_each * len(self.lengths) + 1
        tables = rng.permutation(num_blocks - 1).reshape(len(self.lengths), blocks_each)
        if cache is None:
            cache = ops.make_kv_caches(1, num_blocks, self.block_size, self.heads, self.dtype)[0]
        table = ops.prepare_table(float_tensor(qkv))

        def forward() -> Any:
            rope = ops.rope(inv_freq)
            x = ops.embedding(table)
            q = ops.rope_and_cache(x, rope, cache, self.heads, norm)
            return ops.attention(q, cache, self.heads, dim**-0.5, self.window)

        executable = ops.compile(
            forward, lambda h: h, hidden_size=out, vocab_size=out, max_num_tokens=4096
        )
        done = [0] * len(self.lengths)
        results: list[list[ArrayF32]] = [[] for _ in self.lengths]
        for batch in schedule:
            step = self._step(batch, done, first_row, tables)
            executable.forward(step)
            rows = executable.logits(np.arange(len(step.input_ids), dtype=np.int32)).copy()
            for (sequence, count), start in zip(batch, step.query_start_loc[:-1], strict=True):
                results[sequence].append(rows[start : start + count])
                done[sequence] += count
        return [np.concatenate(parts) for parts in results]

    def _step(
        self, batch: Sequence[tuple[int, int]], done: Sequence[int], first_row: Any, tables: Any
    ) -> StepInputs:
        positions, ids, slots = [], [], []
        for sequence, count in batch:
            at = np.arange(done[sequence], done[sequence] + count)
            positions.append(at)
            ids.append(first_row[sequence] + at)
            block = tables[sequence][at // self.block_size]
            slots.append(block * self.block_size + at % self.block_size)
        starts = np.concatenate([[0], np.cumsum([count for _, count in batch])])
        lengths = [done[sequence] + count for sequence, count in batch]
        return StepInputs(
            input_ids=np.concatenate(ids).astype(np.int32),
            positions=np.concatenate(positions).astype(np.int32),
            slot_mapping=np.concatenate(slots).astype(np.int32),
            query_start_loc=starts.astype(np.int32),
            seq_lens=np.array(lengths, dtype=np.int32),
            block_table=tables[[sequence for sequence, _ in batch]].astype(np.int32),
        )

    def at_once(self) -> list[list[tuple[int, int]]]:
        """All tokens of all sequences in one step."""
        return [[(s, n) for s, n in enumerate(self.lengths)]]

    def in_chunks(self, size: int) -> list[list[tuple[int, int]]]:
        """Sequences one after the other, this many tokens a step."""
        return [
            [(s, min(size, n - start))]
            for s, n in enumerate(self.lengths)
            for start in range(0, n, size)
        ]


def relative_error(result: ArrayF32, reference: ArrayF32) -> float:
    """Largest difference, as a share of the largest reference value."""
    return float(np.abs(result - reference).max() / np.abs(reference).max())
