"""From what the user asked (EngineArgs) to what the engine is (EngineConfig), in small pure steps.

Each step returns one part and notes why in `reasons`. Reads no file, opens nothing, writes nothing
back. A setting that cannot work is a ConfigError of one line that names it and the way out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal, TypeGuard

from headrace.config.args import EngineArgs
from headrace.config.engine import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    FrontConfig,
    ModelConfig,
    ModelFacts,
    SchedulerConfig,
    StructuredOutputsConfig,
)
from headrace.config.foreign import check_foreign
from headrace.config.speculative import resolve_speculative
from headrace.errors import ConfigError
from headrace.import_path import import_path_of

Reasons = dict[str, str]

SERVER_MAX_NUM_SEQS, OFFLINE_MAX_NUM_SEQS = 128, 256
SERVER_MAX_NUM_BATCHED_TOKENS, OFFLINE_MAX_NUM_BATCHED_TOKENS = 1024, 4096
MAX_SCHEMA_DEPTH = 100
"""Compilers of schemas give up a little deeper."""
BLOCK_SIZES = (8, 16, 32, 64, 128, 256)
FALLBACK_MAX_MODEL_LEN = 2048
MAX_CPU = 1023
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
SAMPLING_KEYS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "max_new_tokens": "max_tokens",
}
"""Key of generation_config.json -> field of SamplingParams."""


def resolve(args: EngineArgs, facts: ModelFacts) -> EngineConfig:
    """Decide everything that can be decided before a weight is read.

    Args:
        args: the user's options; `chat_template` is the template's text by now.
        facts: what is known about the model.

    Raises:
        ConfigError: a setting that cannot work.
    """
    reasons: Reasons = {}
    _refuse_what_is_not_offered(args)
    model = _model(args, facts, reasons)
    return EngineConfig(
        model=model,
        cache=_cache(args, reasons),
        scheduler=_scheduler(args, model, reasons),
        device=_device(args, reasons),
        front=_front(args),
        structured_outputs=_structured_outputs(args),
        speculative=resolve_speculative(args, reasons),
        reasons=reasons,
        logits_processors=[
            import_path_of("logits_processors", one) for one in args.logits_processors
        ],
        profiler_dir=_profiler_dir(args),
        executor=None
        if args.worker_cls == "auto"
        else import_path_of("worker_cls", args.worker_cls),
    )


def _profiler_dir(args: EngineArgs) -> str | None:
    config = dict(args.profiler_config)
    kind = config.pop("profiler", None)
    given = [config.pop(key) for key in ("dir", "torch_profiler_dir") if key in config]
    if config or kind not in (None, "torch", "cprofile"):
        raise ConfigError(
            f"profiler_config: only the key dir has an effect, got {args.profiler_config!r}"
        )
    return args.profiler_dir if not given else str(given[0])


def _refuse_what_is_not_offered(args: EngineArgs) -> None:
    check_foreign(args)
    if args.trust_remote_code:
        raise ConfigError(
            "trust_remote_code=True is refused: headrace never runs code that comes with a model; "
            "leave it out and use a model family that headrace knows"
        )
    if args.data_parallel_size != 1:
        raise ConfigError(
            f"data_parallel_size={args.data_parallel_size!r}: one process runs one engine; start "
            "an engine per process and share the prompts out, as examples/data_parallel.py does"
        )
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if getattr(args, name) != 1:
            raise ConfigError(f"{name} must be 1: this version runs one engine on one machine")


# -- the model ---------------------------------------------------------------------------------


def _model(args: EngineArgs, facts: ModelFacts, reasons: Reasons) -> ModelConfig:
    config = _merge(facts.hf_config, args.hf_overrides)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ConfigError(
            f"the config of {facts.model} has no model_type; "
            'name it: --hf-overrides \'{"model_type": "llama"}\''
        )
    max_model_len, is_auto = _max_model_len(args.max_model_len, config, reasons)
    vocab_size = _vocab_size(config, facts)
    return ModelConfig(
        model=facts.model,
        path=facts.path,
        format=_format(args, facts),
        hf_config=config,
        model_type=model_type,
        quantization=_quantization(args.quantization, reasons),
        tokenizer=None if args.skip_tokenizer_init else facts.tokenizer,
        max_model_len=max_model_len,
        max_model_len_auto=is_auto,
        vocab_size=vocab_size,
        served_names=_served_names(args, facts, reasons),
        chat_template=args.chat_template,
        chat_template_timeout=_template_timeout(args.chat_template_timeout),
        chat_template_max_chars=_template_chars(args.chat_template_max_chars),
        generation_config=_generation_config(args, facts, reasons),
        eos_token_ids=_eos_token_ids(facts.generation_config, config, vocab_size),
        max_logprobs=_at_least("max_logprobs", args.max_logprobs, -1),
        seed=_at_least("seed", args.seed, -(2**63)),
        enable_prompt_embeds=bool(args.enable_prompt_embeds),
    )


def _template_timeout(seconds: object) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 600:
        raise ConfigError(
            f"chat_template_timeout must be more than 0 and at most 600 seconds, got {seconds!r}"
        )
    return float(seconds)


def _template_chars(number: object) -> int:
    """Never more than what the sandbox of templates lets any text have."""
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= 8 << 20:
        raise ConfigError(
            f"chat_template_max_chars must be an integer in [1, {8 << 20}], got {number!r}"
        )
    return number


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, dicts within dicts key by key."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            value = _merge(old, value)
        merged[key] = value
    return merged


def _format(args: EngineArgs, facts: ModelFacts) -> Any:
    if args.load_format == "auto":
        return facts.format
    if args.load_format == "dummy" or args.load_format == facts.format:
        return args.load_format
    raise ConfigError(
        f"load_format {args.load_format!r} does not fit {facts.model}, "
        f"which is {facts.format}; leave it auto"
    )


def _quantization(asked: str | None, reasons: Reasons) -> Literal["int8"] | None:
    if asked is None:
        reasons["quantization"] = "weights stay as they are stored"
        return None
    if asked == "int8":
        reasons["quantization"] = (
            "float weights are rounded to 8 bits at load, the logits' too; those stored in blocks "
            "stay, and what they meet is rounded to 8 bits where they are multiplied as integers"
        )
        return "int8"
    raise ConfigError(
        f"quantization={asked!r} is not offered: int8 makes float weights smaller and products "
        "faster; weights of .gguf files are used as they are stored"
    )


def _max_model_len(
    asked: int | str | None, config: dict[str, Any], reasons: Reasons
) -> tuple[int, bool]:
    """The limit, and whether the core may shrink it to what the KV cache holds."""
    key = next((key for key in LENGTH_KEYS if _is_count(config.get(key))), None)
    derived = config[key] if key else FALLBACK_MAX_MODEL_LEN
    if asked is None or asked in ("auto", -1):
        said = f"{key} of the model's config" if key else "the model's config names no length"
        reasons["max_model_len"] = f"{said}; shrinks to what the KV cache holds"
        return derived, True
    if not _is_count(asked):
        raise ConfigError(f"max_model_len must be a positive integer or auto, got {asked!r}")
    if key and asked > derived:
        raise ConfigError(
            f"max_model_len {asked} is more than the model allows ({key} = {derived}); "
            f"lower it, or raise the model's own with --hf-overrides '{{\"{key}\": {asked}}}'"
        )
    return asked, False


def _vocab_size(config: dict[str, Any], facts: ModelFacts) -> int:
    size = config.get("vocab_size")
    if not _is_count(size):
        raise ConfigError(f"the config of {facts.model} names no vocab_size; set it: hf_overrides")
    return size


def _served_names(args: EngineArgs, facts: ModelFacts, reasons: Reasons) -> list[str]:
    given = args.served_model_name
    names = [given] if isinstance(given, str) else list(dict.fromkeys(given))
    if any(not name.strip() for name in names):
        raise ConfigError("served_model_name must not be empty")
    if names:
        return names
    reasons["served_model_name"] = "the model as it was given"
    return [facts.model]


def _generation_config(args: EngineArgs, facts: ModelFacts, reasons: Reasons) -> dict[str, Any]:
    """Sampling defaults under the names of SamplingParams."""
    if args.generation_config not in ("auto", "headrace", "vllm"):
        raise ConfigError(
            f"generation_config must be auto or headrace, got {args.generation_config!r}"
        )
    source = facts.generation_config if args.generation_config == "auto" else {}
    defaults = {
        name: source[key] for key, name in SAMPLING_KEYS.items() if source.get(key) is not None
    }
    known = {**SAMPLING_KEYS, "max_tokens": "max_tokens"}
    for key, value in args.override_generation_config.items():
        if key not in known:
            raise ConfigError(
                f"override_generation_config has no key {key!r}; known: {', '.join(known)}"
            )
        defaults[known[key]] = value
    if defaults:
        said = ", ".join(f"{name}={value}" for name, value in defaults.items())
        reasons["generation_config"] = f"sampling defaults: {said}"
    return defaults


def _eos_token_ids(
    generation_config: dict[str, Any], config: dict[str, Any], vocab_size: int
) -> list[int]:
    """All ids that end an answer; the first is the model's main one.

    An id outside the vocabulary can never come and is left out.
    """
    found: list[int] = []
    for source in (generation_config, config):
        value = source.get("eos_token_id")
        ids: Iterable[Any] = value if isinstance(value, list) else [value]
        found += [
            i for i in ids if isinstance(i, int) and not isinstance(i, bool) and 0 <= i < vocab_size
        ]
    return list(dict.fromkeys(found))


# -- the engine --------------------------------------------------------------------------------


CACHE_DTYPES: dict[str, Literal["float16", "bfloat16", "float32"]] = {
    "auto": "float16",
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
}
"""What `dtype` means for the KV cache."""


def _cache(args: EngineArgs, reasons: Reasons) -> CacheConfig:
    if args.dtype not in CACHE_DTYPES:
        raise ConfigError(
            f"dtype {args.dtype!r} is not offered: weights stay as stored and the KV cache is "
            "float16, bfloat16 or float32; use dtype auto"
        )
    kv_dtype = args.kv_cache_dtype
    if kv_dtype == "auto":
        kv_dtype = CACHE_DTYPES[args.dtype]
        reasons["kv_cache_dtype"] = f"dtype is {args.dtype}"
    elif kv_dtype not in CACHE_DTYPES.values():
        raise ConfigError(
            f"kv_cache_dtype must be auto, float16, bfloat16 or float32, got {kv_dtype!r}"
        )
    block_size = CacheConfig().block_size if args.block_size is None else args.block_size
    if block_size not in BLOCK_SIZES:
        raise ConfigError(f"block_size must be one of {_words(BLOCK_SIZES)}, got {block_size!r}")
    share = args.gpu_memory_utilization
    if not _is_number(share) or not 0 < share <= 1:
        raise ConfigError(f"gpu_memory_utilization must be above 0 and at most 1, got {share!r}")
    if args.kv_cache_memory_bytes is None and args.num_gpu_blocks_override is None:
        reasons["kv_cache_memory_bytes"] = f"{share:.0%} of the memory free after loading"
    sample = args.kv_cache_metrics_sample
    if not _is_number(sample) or not 0 < sample <= 1:
        raise ConfigError(f"kv_cache_metrics_sample must be above 0 and at most 1, got {sample!r}")
    return CacheConfig(
        block_size=block_size,
        kv_cache_dtype=kv_dtype,
        kv_cache_memory_bytes=_optional("kv_cache_memory_bytes", args.kv_cache_memory_bytes, 1),
        memory_utilization=float(share),
        num_blocks_override=_optional("num_gpu_blocks_override", args.num_gpu_blocks_override, 1),
        enable_prefix_caching=bool(args.enable_prefix_caching),
        kv_cache_metrics_sample=float(sample) if args.kv_cache_metrics else None,
    )


def _scheduler(args: EngineArgs, model: ModelConfig, reasons: Reasons) -> SchedulerConfig:
    place = "server" if args.is_server else "offline"
    max_num_seqs = _optional("max_num_seqs", args.max_num_seqs, 1)
    if max_num_seqs is None:
        max_num_seqs = SERVER_MAX_NUM_SEQS if args.is_server else OFFLINE_MAX_NUM_SEQS
        reasons["max_num_seqs"] = f"default {place}"
    max_tokens = _optional("max_num_batched_tokens", args.max_num_batched_tokens, 1)
    if max_tokens is None:
        usual = SERVER_MAX_NUM_BATCHED_TOKENS if args.is_server else OFFLINE_MAX_NUM_BATCHED_TOKENS
        max_tokens, why = max(usual, max_num_seqs), f"default {place}"
        if not args.enable_chunked_prefill and model.max_model_len > max_tokens:
            max_tokens, why = model.max_model_len, "a whole prompt in one step (no chunked prefill)"
        elif max_num_seqs > usual:
            why = "one token for each of max_num_seqs"
        reasons["max_num_batched_tokens"] = why
    if max_tokens < max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({max_tokens}) must be at least max_num_seqs "
            f"({max_num_seqs}); raise the first or lower the second"
        )
    if not args.enable_chunked_prefill and max_tokens < model.max_model_len:
        raise ConfigError(
            f"without chunked prefill max_num_batched_tokens ({max_tokens}) must be at least "
            f"max_model_len ({model.max_model_len}); raise it or lower max_model_len"
        )
    if args.scheduling_policy not in ("fcfs", "priority"):
        raise ConfigError(
            f"scheduling_policy must be fcfs or priority, got {args.scheduling_policy!r}"
        )
    return SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_tokens,
        policy=args.scheduling_policy,
        enable_chunked_prefill=bool(args.enable_chunked_prefill),
        long_prefill_token_threshold=_at_least(
            "long_prefill_token_threshold", args.long_prefill_token_threshold, 0
        ),
    )


def _device(args: EngineArgs, reasons: Reasons) -> DeviceConfig:
    if args.backend not in ("native", "torch"):
        raise ConfigError(f"backend must be native or torch, got {args.backend!r}")
    if args.backend == "native" and args.device != "cpu":
        raise ConfigError(
            f"device {args.device!r} needs the torch backend: add --backend torch, or use cpu"
        )
    num_threads = _at_least("num_threads", args.num_threads, 0)
    if num_threads == 0:
        reasons["num_threads"] = "one per available core"
    cpu_affinity = _cpu_affinity(args.cpu_affinity)
    if cpu_affinity is not None and args.backend != "native":
        raise ConfigError("cpu_affinity works with the native backend only; use none")
    return DeviceConfig(
        backend=args.backend,
        device=args.device,
        num_threads=num_threads,
        cpu_affinity=cpu_affinity,
    )


def _cpu_affinity(value: str) -> Literal["auto"] | list[int] | None:
    """`none`, `auto`, or numbers and ranges of them, each once, in the order given."""
    if value == "none":
        return None
    if value == "auto":
        return "auto"
    cpus: list[int] = []
    for part in str(value).split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ConfigError(
                f"cpu_affinity must be none, auto or a list such as 0-3,8, got {value!r}"
            )
        if not int(first) <= int(last or first) <= MAX_CPU:
            raise ConfigError(f"cpu_affinity: {part.strip()} is no range from 0 to {MAX_CPU}")
        cpus += range(int(first), int(last or first) + 1)
    if len(set(cpus)) != len(cpus):
        raise ConfigError(f"cpu_affinity must name each processor once, got {value!r}")
    return cpus


def _front(args: EngineArgs) -> FrontConfig:
    for name in ("stats_interval", "ready_timeout", "shutdown_timeout"):
        value = getattr(args, name)
        if not _is_number(value) or value < 0 or (value == 0 and name != "shutdown_timeout"):
            raise ConfigError(f"{name} must be a positive number of seconds, got {value!r}")
    return FrontConfig(
        max_num_queued_reqs=_optional("max_num_queued_reqs", args.max_num_queued_reqs, 0),
        max_num_queued_tokens=_optional("max_num_queued_tokens", args.max_num_queued_tokens, 0),
        stream_interval=_at_least("stream_interval", args.stream_interval, 1),
        log_stats=not args.disable_log_stats,
        stats_interval=float(args.stats_interval),
        ready_timeout=float(args.ready_timeout),
        shutdown_timeout=float(args.shutdown_timeout),
    )


def _structured_outputs(args: EngineArgs) -> StructuredOutputsConfig:
    timeout, depth = args.structured_outputs_timeout, args.structured_outputs_max_depth
    if not _is_number(timeout) or timeout <= 0:
        raise ConfigError(
            f"structured_outputs_timeout must be a positive number of seconds, got {timeout!r}"
        )
    if _at_least("structured_outputs_max_depth", depth, 1) > MAX_SCHEMA_DEPTH:
        raise ConfigError(
            f"structured_outputs_max_depth must be at most {MAX_SCHEMA_DEPTH}, got {depth}"
        )
    size = _at_least("structured_outputs_max_bytes", args.structured_outputs_max_bytes, 1)
    if args.structured_outputs_preload and args.skip_tokenizer_init:
        raise ConfigError("structured_outputs_preload needs a tokenizer, not skip_tokenizer_init")
    return StructuredOutputsConfig(
        max_bytes=size,
        max_depth=depth,
        compile_timeout=float(timeout),
        preload=args.structured_outputs_preload,
    )


# -- checks ------------------------------------------------------------------------------------


def _is_number(value: object) -> bool:
    is_real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_real and math.isfinite(value)  # type: ignore[arg-type]


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _at_least(name: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 2**63:
        raise ConfigError(f"{name} must be an integer of at least {low}, got {value!r}")
    return value


def _optional(name: str, value: object, low: int) -> int | None:
    return None if value is None else _at_least(name, value, low)


def _words(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)
