"""The least time of a job, by hand."""

from __future__ import annotations

import pytest
from peer_parts.floors import (
    Machine,
    ModelCost,
    floor_seconds,
    machine_of,
    peak_seconds,
    prefill_operations,
    stream_seconds,
)
from peer_parts.works import Job

COST = ModelCost(
    weight_bytes=1000, layer_weights=400, head_weights=100, kv_bytes=10, attention_operations=20
)


def test_prefill_operations_count_each_pair_of_tokens_once() -> None:
    job = Job(num_prompts=3, input_len=4, output_len=1)
    pairs = 3 * (1 + 2 + 3 + 4)
    assert prefill_operations(job, COST) == 2 * (400 * 12 + 100 * 3) + 20 * pairs


def test_floor_bound_by_memory_reads_weights_and_cache_once_a_step() -> None:
    machine = Machine(reads=1.0, peak=1e12)
    job = Job(num_prompts=2, input_len=4, output_len=3)
    # prefill, then one step with 5 and one with 6 tokens of context in each of two sequences
    expected = 1000 + (1000 + 2 * 5 * 10) + (1000 + 2 * 6 * 10)
    assert floor_seconds(job, COST, machine) == pytest.approx(expected)


def test_floor_bound_by_arithmetic_counts_operations() -> None:
    machine = Machine(reads=1e12, peak=1.0)
    job = Job(num_prompts=2, input_len=4, output_len=2)
    expected = prefill_operations(job, COST) + 2 * (2 * 500 + 20 * 5)
    assert floor_seconds(job, COST, machine) == pytest.approx(expected)


def test_one_output_token_is_prefill_alone() -> None:
    job, machine = Job(8, 16, 1), Machine(reads=1e9, peak=1.0)
    assert floor_seconds(job, COST, machine) == peak_seconds(job, COST, machine)


def test_stream_limit_reads_weights_once_a_token() -> None:
    assert stream_seconds(Job(1, 32, 256), COST, Machine(2000.0, 1.0)) == 128.0


def cost_of(*, is_tied: bool) -> ModelCost:
    hf = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
          "hidden_size": 32}  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (100, 32), "model.norm.weight": (32,),
        "model.layers.0.mlp.up_proj.weight": (64, 32),
        "model.layers.1.mlp.up_proj.weight": (64, 32),
    }  # fmt: skip
    if not is_tied:
        shapes["lm_head.weight"] = (100, 32)
    sizes = {name: 7 if len(shape) == 1 else shape[0] * shape[1] for name, shape in shapes.items()}
    return ModelCost.from_shapes(hf, shapes, sizes)


def test_cost_of_a_tied_embedding_counts_it_as_the_output_layer() -> None:
    cost = cost_of(is_tied=True)
    assert cost == cost_of(is_tied=False)  # whose embedding is only looked up in
    assert (cost.layer_weights, cost.head_weights, cost.weight_bytes) == (4096, 3200, 7296)
    assert cost.kv_bytes == 2 * (2 * 8) * 2 * 2
    assert cost.attention_operations == 4 * 32 * 2


def test_machine_takes_the_fastest_floats_and_leaves_integers_out() -> None:
    peaks = [("avx2", "float32", 1.0), ("amx", "bfloat16", 5.0), ("amx", "int8", 9.0)]
    limits = {
        "read_bytes_per_second": 3.0,
        "peaks": [{"isa": i, "type": t, "operations_per_second": r} for i, t, r in peaks],
    }
    assert machine_of(limits) == Machine(3.0, 5.0)
