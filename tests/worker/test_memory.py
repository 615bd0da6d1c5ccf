"""How the size of the KV cache is decided."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.config.engine import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from headrace.errors import ConfigError
from headrace.worker.memory import available_memory, block_bytes, memory_table, plan_kv_cache

KIB = 1024


def config(
    max_model_len: int = 160, auto: bool = False, max_num_seqs: int = 4, **cache: Any
) -> EngineConfig:
    model = ModelConfig(
        model="m", path="m", format="dummy", hf_config={}, model_type="llama", tokenizer=None,
        max_model_len=max_model_len, max_model_len_auto=auto, vocab_size=10, served_names=["m"],
    )  # fmt: skip
    return EngineConfig(
        model=model,
        cache=CacheConfig(**cache),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs),
    )


def test_block_bytes_counts_keys_and_values_of_all_layers() -> None:
    cache = CacheConfig(block_size=16)
    assert block_bytes(cache, num_layers=3, num_kv_heads=2, head_dim=64) == 16 * 2 * 3 * 2 * 64 * 2
    wide = msgspec.structs.replace(cache, kv_cache_dtype="float32")
    assert block_bytes(wide, num_layers=3, num_kv_heads=2, head_dim=64) == 16 * 2 * 3 * 2 * 64 * 4


def test_a_share_of_free_memory_is_taken() -> None:
    plan = plan_kv_cache(config(memory_utilization=0.5), KIB, 40 * KIB)
    assert plan.num_blocks == 20
    assert plan.max_model_len == 160
    assert plan.max_concurrency == 2.0


def test_no_more_than_all_sequences_can_use_is_taken() -> None:
    plan = plan_kv_cache(config(max_num_seqs=4), KIB, 10**9)
    assert plan.num_blocks == 4 * 10


def test_given_bytes_win_over_free_memory() -> None:
    plan = plan_kv_cache(config(kv_cache_memory_bytes=12 * KIB + 5), KIB, 10**9)
    assert plan.num_blocks == 12


def test_given_blocks_win_over_everything() -> None:
    plan = plan_kv_cache(config(num_blocks_override=100, kv_cache_memory_bytes=1), KIB, 0)
    assert plan.num_blocks == 100


def test_a_request_of_full_length_that_does_not_fit_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"holds 48 tokens.*--max-model-len 160.*auto"):
        plan_kv_cache(config(kv_cache_memory_bytes=3 * KIB), KIB, 0)


def test_auto_shrinks_the_context_to_what_fits() -> None:
    plan = plan_kv_cache(config(auto=True, kv_cache_memory_bytes=3 * KIB), KIB, 0)
    assert plan.max_model_len == 48


def test_auto_without_room_for_one_block_is_refused() -> None:
    with pytest.raises(ConfigError):
        plan_kv_cache(config(auto=True, kv_cache_memory_bytes=KIB - 1), KIB, 0)


def test_table_tells_blocks_bytes_and_concurrency() -> None:
    plan = plan_kv_cache(config(memory_utilization=0.5), KIB, 40 * KIB)
    table = memory_table(plan, weight_bytes=5 << 20, isa="avx2", num_threads=2)
    for text in ("avx2", "5 MiB", "20 of 16 tokens", "2.0 requests", "160 tokens"):
        assert text in table


def test_available_memory_is_a_plausible_number() -> None:
    assert 2**26 < available_memory() < 2**50
