"""resolve: what is decided, why, and what is refused in one line."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.config.args import AsyncEngineArgs, EngineArgs
from headrace.config.engine import EngineConfig, ModelFacts
from headrace.config.resolve import resolve
from headrace.errors import ConfigError

HF_CONFIG = {"model_type": "llama", "vocab_size": 100, "max_position_embeddings": 2048,
             "eos_token_id": 2}  # fmt: skip


def facts(**changes: Any) -> ModelFacts:
    known = {"model": "org/m", "path": "/m", "format": "safetensors", "hf_config": HF_CONFIG,
             "tokenizer": "/m"}  # fmt: skip
    return ModelFacts(**{**known, **changes})


def config_of(**options: Any) -> EngineConfig:
    return resolve(EngineArgs(**options), facts())


def test_defaults_are_told_with_their_reasons() -> None:
    config = config_of()
    assert config.model.max_model_len == 2048
    assert config.model.max_model_len_auto
    assert config.model.served_names == ["org/m"]
    assert config.cache.kv_cache_dtype == "float16"
    for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "num_threads",
                 "kv_cache_memory_bytes", "served_model_name"):  # fmt: skip
        assert config.reasons[name]


def test_what_was_given_has_no_reason() -> None:
    config = config_of(max_num_seqs=3, max_model_len=64, num_threads=1, served_model_name="x")
    assert not {"max_num_seqs", "max_model_len", "num_threads", "served_model_name"} & set(
        config.reasons
    )
    assert config.model.served_names == ["x"]


def test_server_and_offline_differ_in_their_defaults() -> None:
    offline = resolve(EngineArgs(), facts()).scheduler
    server = resolve(AsyncEngineArgs(), facts()).scheduler
    assert (offline.max_num_seqs, offline.max_num_batched_tokens) == (256, 4096)
    assert (server.max_num_seqs, server.max_num_batched_tokens) == (128, 1024)


def test_result_crosses_the_process_line() -> None:
    config = config_of(hf_overrides={"rope_theta": 5.0})
    wire = msgspec.msgpack.encode(config)
    assert msgspec.msgpack.decode(wire, type=EngineConfig) == config


@pytest.mark.parametrize(
    ("asked", "length", "is_auto"),
    [
        (None, 2048, True),
        ("auto", 2048, True),
        (-1, 2048, True),
        (1, 1, False),
        (2048, 2048, False),
    ],
)
def test_max_model_len_forms(asked: int | str | None, length: int, is_auto: bool) -> None:
    model = config_of(max_model_len=asked).model
    assert (model.max_model_len, model.max_model_len_auto) == (length, is_auto)


def test_model_without_a_length_gets_a_fallback() -> None:
    config = resolve(EngineArgs(), facts(hf_config={"model_type": "llama", "vocab_size": 5}))
    assert config.model.max_model_len == 2048
    assert "names no length" in config.reasons["max_model_len"]


def test_overrides_go_over_the_models_config_key_by_key() -> None:
    known = {**HF_CONFIG, "rope_scaling": {"factor": 2, "type": "linear"}}
    args = EngineArgs(hf_overrides={"rope_scaling": {"factor": 4}, "max_position_embeddings": 9})
    model = resolve(args, facts(hf_config=known)).model
    assert model.hf_config["rope_scaling"] == {"factor": 4, "type": "linear"}
    assert model.max_model_len == 9
    assert known["rope_scaling"] == {"factor": 2, "type": "linear"}


def test_generation_defaults_carry_the_names_of_sampling_params() -> None:
    source = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 64, "do_sample": True}
    found = facts(generation_config=source)
    assert resolve(EngineArgs(), found).model.generation_config == {
        "temperature": 0.6, "top_k": 20, "max_tokens": 64,
    }  # fmt: skip
    args = EngineArgs(generation_config="headrace", override_generation_config={"top_p": 0.5})
    assert resolve(args, found).model.generation_config == {"top_p": 0.5}


def test_eos_ids_of_both_files_in_order_without_repeats() -> None:
    found = facts(generation_config={"eos_token_id": [7, 2]})
    assert resolve(EngineArgs(), found).model.eos_token_ids == [7, 2]
    assert config_of().model.eos_token_ids == [2]
    assert resolve(EngineArgs(), facts(hf_config={**HF_CONFIG, "eos_token_id": None})).model \
        .eos_token_ids == []  # fmt: skip


def test_eos_ids_outside_the_vocabulary_are_left_out() -> None:
    config = {**HF_CONFIG, "eos_token_id": [2, 100, 10**9]}
    assert resolve(EngineArgs(), facts(hf_config=config)).model.eos_token_ids == [2]


@pytest.mark.parametrize("length", [0, -5, True, "9", None])
def test_a_length_that_is_none_counts_as_no_length(length: object) -> None:
    config = {**HF_CONFIG, "max_position_embeddings": length}
    assert resolve(EngineArgs(), facts(hf_config=config)).model.max_model_len == 2048
    assert resolve(EngineArgs(max_model_len=9), facts(hf_config=config)).model.max_model_len == 9


def test_quantization_int8_is_told_with_what_it_does() -> None:
    assert config_of().model.quantization is None
    assert "as they are stored" in config_of().reasons["quantization"]
    config = config_of(quantization="int8")
    assert config.model.quantization == "int8"
    assert "8 bits" in config.reasons["quantization"]


def test_float32_asks_for_a_float32_cache() -> None:
    assert config_of(dtype="float32").cache.kv_cache_dtype == "float32"
    both = config_of(dtype="float32", kv_cache_dtype="bfloat16")
    assert both.cache.kv_cache_dtype == "bfloat16"


def test_without_chunks_a_step_holds_a_whole_prompt() -> None:
    config = resolve(AsyncEngineArgs(enable_chunked_prefill=False), facts())
    assert config.scheduler.max_num_batched_tokens == 2048
    assert "whole prompt" in config.reasons["max_num_batched_tokens"]


def test_skip_tokenizer_init_leaves_no_tokenizer() -> None:
    assert config_of().model.tokenizer == "/m"
    assert config_of(skip_tokenizer_init=True).model.tokenizer is None


@pytest.mark.parametrize("value", [True, False])
def test_enforce_eager_is_accepted_either_way(value: bool) -> None:
    assert config_of(enforce_eager=value, tensor_parallel_size=1, trust_remote_code=False)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"max_model_len": 0}, "max_model_len"),
        ({"max_model_len": -2}, "max_model_len"),
        ({"max_model_len": True}, "max_model_len"),
        ({"max_model_len": 2049}, "max_position_embeddings"),
        ({"block_size": 7}, "block_size"),
        ({"block_size": 512}, "block_size"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization"),
        ({"kv_cache_metrics_sample": 0}, "kv_cache_metrics_sample"),
        ({"kv_cache_metrics_sample": 1.1}, "kv_cache_metrics_sample"),
        ({"kv_cache_metrics_sample": "0.1"}, "kv_cache_metrics_sample"),
        ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"dtype": "int8"}, "dtype"),
        ({"num_gpu_blocks_override": 0}, "num_gpu_blocks_override"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": -1}, "max_num_seqs"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": 8, "max_num_seqs": 9}, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": 1024, "enable_chunked_prefill": False}, "max_model_len"),
        ({"scheduling_policy": "lottery"}, "scheduling_policy"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold"),
        ({"max_num_queued_reqs": -1}, "max_num_queued_reqs"),
        ({"max_num_queued_tokens": 1.5}, "max_num_queued_tokens"),
        ({"stream_interval": 0}, "stream_interval"),
        ({"stats_interval": 0}, "stats_interval"),
        ({"shutdown_timeout": -1}, "shutdown_timeout"),
        ({"num_threads": -1}, "num_threads"),
        ({"cpu_affinity": ""}, "cpu_affinity must be none, auto or a list"),
        ({"cpu_affinity": "all"}, "cpu_affinity must be none, auto or a list"),
        ({"cpu_affinity": "1,"}, "cpu_affinity must be none, auto or a list"),
        ({"cpu_affinity": "1-2-3"}, "cpu_affinity must be none, auto or a list"),
        ({"cpu_affinity": "-1"}, "cpu_affinity must be none, auto or a list"),
        ({"cpu_affinity": "3-1"}, "3-1 is no range"),
        ({"cpu_affinity": "0-99999999999"}, "no range from 0 to 1023"),
        ({"cpu_affinity": "0-3,2"}, "each processor once"),
        ({"cpu_affinity": "auto", "backend": "torch"}, "native backend only"),
        ({"backend": "cuda"}, "backend"),
        ({"device": "cuda"}, "--backend torch"),
        ({"load_format": "gguf"}, "load_format"),
        ({"generation_config": "mine"}, "generation_config"),
        ({"override_generation_config": {"warmth": 1}}, "warmth"),
        ({"max_logprobs": -2}, "max_logprobs"),
        ({"chat_template_timeout": 0}, "chat_template_timeout"),
        ({"chat_template_max_chars": (8 << 20) + 1}, "chat_template_max_chars"),
        ({"served_model_name": [""]}, "served_model_name"),
        ({"trust_remote_code": True}, "trust_remote_code"),
        ({"quantization": "awq"}, "'awq' is not offered: int8"),
        ({"quantization": ""}, "quantization"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size"),
        ({"data_parallel_size": 2}, "data_parallel_size"),
        ({"hf_overrides": {"model_type": None}}, "model_type"),
        ({"hf_overrides": {"vocab_size": 0}}, "vocab_size"),
        (
            {"structured_outputs_preload": True, "skip_tokenizer_init": True},
            "structured_outputs_preload",
        ),
    ],
    ids=str,
)
def test_setting_that_cannot_work_is_one_line_naming_it(
    options: dict[str, Any], names: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        config_of(**options)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)
