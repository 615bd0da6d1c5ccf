"""Speed of the kernels on the shape of a model with random weights, beside the machine's limits.

    python benchmarks/kernels.py [--format Q4_1] [--rows 1,8,1024] [--context 8192] [--threads 2]

`--format INT8` is bfloat16 weights quantised to int8 at load.

For each number of rows: the forward pass of that many tokens of one sequence from nothing, and the
logits of one row, in milliseconds, and the share of the limit that is nearer: reading the weights
once, or the multiply-adds. For each context: attention alone, one token, and the share of the limit
that reading its keys and values sets. Figures are the best of `--repeat` runs; the limits are
measured in the same process, with nothing else running.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from headrace.bench.limits import measure_limits
from headrace.ops.formats import StoredTensor, WeightFormat
from headrace.ops.native_ops import NativeExecutable, NativeOps
from headrace.ops.ops import HeadShape, Quantization, StepInputs

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama-like model."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    heads: HeadShape


SHAPES = {
    "smollm2-135m": Shape(30, 576, 1536, 49152, HeadShape(9, 3, 64)),
    "qwen2.5-0.5b": Shape(24, 896, 4864, 151936, HeadShape(14, 2, 64)),
    "llama-3.2-1b": Shape(16, 2048, 8192, 128256, HeadShape(32, 8, 64)),
}


def random_matrix(fmt: WeightFormat, rows: int, columns: int) -> StoredTensor:
    """Finite values of ordinary size: as float16 scales, bytes below 0x30 are less than 0.2."""
    rng = np.random.default_rng(0)
    if fmt.block_size > 1:
        data = rng.integers(0x10, 0x30, (rows, fmt.row_bytes(columns)), dtype=np.uint8)
    else:
        values = rng.standard_normal((rows, columns), np.float32) * np.float32(columns**-0.5)
        stored: Any = values.astype(np.float16) if fmt is WeightFormat.F16 else values
        if fmt is WeightFormat.BF16:
            stored = (values.view(np.uint32) >> 16).astype(np.uint16)
        data = stored.view(np.uint8)
    return StoredTensor("random", fmt, (rows, columns), data)


def make_model(
    ops: NativeOps,
    shape: Shape,
    fmt: WeightFormat,
    quantization: Quantization | None,
    num_tokens: int,
) -> tuple[NativeExecutable, int]:
    """A model of this shape, and the multiply-adds of its layers per token, attention apart."""
    heads, hidden = shape.heads, shape.hidden_size
    width = heads.num_heads * heads.head_dim
    kv_width = heads.num_kv_heads * heads.head_dim
    caches = ops.make_kv_caches(
        shape.num_layers, -(-num_tokens // BLOCK_SIZE), BLOCK_SIZE, heads, "float16"
    )

    def matrix(rows: int, columns: int) -> Any:
        return ops.prepare_linear([random_matrix(fmt, rows, columns)], quantization)

    layers = [
        (
            matrix(width + 2 * kv_width, hidden),
            matrix(hidden, width),
            ops.prepare_gated(
                *(random_matrix(fmt, shape.intermediate_size, hidden),) * 2, quantization
            ),
            matrix(hidden, shape.intermediate_size),
        )
        for _ in range(shape.num_layers)
    ]
    table = ops.prepare_table(random_matrix(fmt, shape.vocab_size, hidden))
    output = matrix(shape.vocab_size, hidden)
    inv_freq = (1e4 ** -np.linspace(0, 1, heads.head_dim // 2, endpoint=False)).astype(np.float32)
    ones = np.ones(hidden, np.float32)

    def forward() -> Any:
        rope = ops.rope(inv_freq)
        x = ops.embedding(table)
        for (qkv, o, gate_up, down), cache in zip(layers, caches, strict=True):
            y = ops.linear(ops.rms_norm(x, ones, 1e-5), qkv)
            q = ops.rope_and_cache(y, rope, cache, heads)
            y = ops.attention(q, cache, heads, heads.head_dim**-0.5)
            x = ops.add(x, ops.linear(y, o))
            y = ops.gated_linear(ops.rms_norm(x, ones, 1e-5), gate_up, "silu")
            x = ops.add(x, ops.linear(y, down))
        return ops.rms_norm(x, ones, 1e-5)

    executable = ops.compile(
        forward, lambda h: ops.linear(h, output),
        hidden_size=hidden, vocab_size=shape.vocab_size, max_num_tokens=num_tokens,
    )  # fmt: skip
    per_layer = hidden * (2 * width + 2 * kv_width + 3 * shape.intermediate_size)
    return executable, shape.num_layers * per_layer


def make_attention(ops: NativeOps, shape: Shape, context: int) -> NativeExecutable:
    """The attention layers alone, over a cache of this many positions each."""
    heads, width = shape.heads, shape.heads.num_heads * shape.heads.head_dim
    caches = ops.make_kv_caches(
        shape.num_layers, -(-context // BLOCK_SIZE), BLOCK_SIZE, heads, "float16"
    )
    columns = width + 2 * heads.num_kv_heads * heads.head_dim
    table = ops.prepare_table(random_matrix(WeightFormat.F32, 512, columns))
    rope_frequencies = np.ones(heads.head_dim // 2, np.float32)

    def forward() -> Any:
        x, rope = ops.embedding(table), ops.rope(rope_frequencies)
        for cache in caches:
            y = ops.attention(ops.rope_and_cache(x, rope, cache, heads), cache, heads, 0.1)
        return y

    return ops.compile(
        forward, lambda h: h, hidden_size=width, vocab_size=width, max_num_tokens=512
    )


def step_of(first: int, count: int) -> StepInputs:
    """Tokens first .. first + count of one sequence whose blocks lie anywhere."""
    num_blocks = -(-(first + count) // BLOCK_SIZE)
    blocks = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
    positions = np.arange(first, first + count, dtype=np.int32)
    return StepInputs(
        input_ids=positions % 512,
        positions=positions,
        slot_mapping=blocks[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
        query_start_loc=np.array([0, count], np.int32),
        seq_lens=np.array([first + count], np.int32),
        block_table=blocks[None],
    )


def best_of(repeat: int, run: Callable[[], object]) -> float:
    """Seconds of the fastest of some runs, after one that is not counted."""
    run()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--format", choices=[*WeightFormat.__members__, "INT8"],
                        default="Q4_1")  # fmt: skip
    parser.add_argument("--rows", type=numbers, default=[1, 2, 4, 8, 32, 1024])
    parser.add_argument("--context", type=numbers, default=[1024, 8192])
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--isa", help="default: the best there is")
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    quantization: Quantization | None = "int8" if args.format == "INT8" else None
    shape, fmt = SHAPES[args.shape], WeightFormat["BF16" if quantization else args.format]
    if shape.hidden_size % fmt.block_size or shape.intermediate_size % fmt.block_size:
        parser.error(f"rows of {args.shape} are not whole blocks of {fmt.label}")

    ops = NativeOps(args.threads, args.isa)
    limits = measure_limits(args.threads)
    bandwidth = limits.read_bytes_per_second
    peak = max(rate for _, kind, rate in limits.peaks if kind == "float32")
    print(f"{args.shape}, {ops.name}, {ops.num_threads} threads; reads {bandwidth / 1e9:.1f} GB/s, "
          f"multiply-adds {peak / 1e9:.0f} GOP/s")  # fmt: skip

    if args.rows:
        model, work = make_model(ops, shape, fmt, quantization, max(args.rows))
        head = shape.vocab_size * shape.hidden_size
        layer_bytes = ops.weight_bytes * work / (work + head)
        head_bytes = ops.weight_bytes - layer_bytes
        for count in args.rows:
            step = step_of(0, count)
            took = best_of(args.repeat, partial(model.forward, step))
            pairs = shape.num_layers * count * (count + 1) // 2
            attention = 2 * pairs * shape.heads.num_heads * shape.heads.head_dim
            limit = max(layer_bytes / bandwidth, 2 * (work * count + attention) / peak)
            print(f"{args.format} forward of {count:5} rows {took * 1e3:9.2f} ms "
                  f"{limit / took:5.0%} of the limit")  # fmt: skip
        took = best_of(args.repeat, lambda: model.logits(np.zeros(1, np.int32)))
        limit = max(head_bytes / bandwidth, 2 * head / peak)
        print(f"{args.format} logits of      1 row  {took * 1e3:9.2f} ms {limit / took:5.0%}")

    kv_width = shape.heads.num_kv_heads * shape.heads.head_dim
    for context in args.context:
        attention_only = make_attention(ops, shape, context)
        for first in range(0, context - 1, 512):  # bytes of the cache come into being
            attention_only.forward(step_of(first, min(512, context - 1 - first)))
        step = step_of(context - 1, 1)
        took = best_of(args.repeat, partial(attention_only.forward, step))
        limit = 4 * kv_width * context * shape.num_layers / bandwidth
        print(f"attention over {context:5} positions {took * 1e3:9.2f} ms {limit / took:5.0%}")


if __name__ == "__main__":
    main()
