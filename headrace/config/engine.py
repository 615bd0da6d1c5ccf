"""The resolved settings of one engine: frozen records, made once by `resolve`, sent to the core.

Nothing is written back into them. What is learnt at run time (number of KV blocks, the context
length that fits) comes back as `messages.startup.EngineReady`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What `hub` finds out about a model before any weight is read."""

    model: str
    """As the user gave it, or the name of the packaged model."""
    path: str
    """The local folder, or the local .gguf file."""
    format: Literal["safetensors", "gguf"]
    hf_config: dict[str, Any]
    """The keys of config.json; for GGUF the same keys, derived from its metadata."""
    generation_config: dict[str, Any] = {}
    """generation_config.json; for GGUF what its metadata says."""
    tokenizer: str | None = None
    """Folder or .gguf file that holds the tokenizer."""


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which model, and the facts about it that the engine needs."""

    model: str
    """As the user gave it (or the name of the packaged model)."""
    path: str
    """The local folder, or the local .gguf file."""
    format: Literal["safetensors", "gguf", "dummy"]
    hf_config: dict[str, Any]
    """The keys of config.json; for GGUF the same keys, derived from its metadata."""
    model_type: str
    """`hf_config["model_type"]`: the key of models/registry.py."""
    quantization: Literal["int8"] | None = None
    """What the matrices of products become at load; None: they stay as stored."""
    tokenizer: str | None
    """Folder or .gguf file of the tokenizer; None with skip_tokenizer_init."""
    max_model_len: int
    """Tokens of prompt and answer together. The core may shrink it (`auto`)."""
    max_model_len_auto: bool = False
    """Whether the core may shrink max_model_len to what the KV cache holds."""
    vocab_size: int
    served_names: list[str]
    chat_template: str | None = None
    """A template that replaces the model's own."""
    chat_template_timeout: float = 5.0
    """Seconds of one rendering."""
    chat_template_max_chars: int = 8 << 20
    """Of what one rendering makes."""
    generation_config: dict[str, Any] = {}
    """Sampling defaults from the model, after overrides."""
    eos_token_ids: list[int] = []
    max_logprobs: int = 20
    seed: int = 0
    enable_prompt_embeds: bool = False
    """Whether prompts may come as embeddings."""


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The paged KV cache."""

    block_size: int = 16
    """Tokens per block: a power of two, 8 to 256."""
    kv_cache_dtype: Literal["float16", "bfloat16", "float32"] = "float16"
    """float16 rounds eight times finer than bfloat16 at the same size."""
    kv_cache_memory_bytes: int | None = None
    """None: `memory_utilization` of the memory that is free after loading."""
    memory_utilization: float = 0.5
    num_blocks_override: int | None = None
    enable_prefix_caching: bool = True
    kv_cache_metrics_sample: float | None = None
    """Share of the KV blocks whose times are measured; None: of none."""


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How steps are filled."""

    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    policy: Literal["fcfs", "priority"] = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    """Most tokens of one prompt in one step; 0 is no such limit."""


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Speculative decoding: tokens guessed from the request's own are checked many at once."""

    method: Literal["ngram"] = "ngram"
    num_speculative_tokens: int
    """Most tokens guessed in one step for one request."""
    prompt_lookup_min: int
    prompt_lookup_max: int
    """How many of the last tokens must have stood before; the longest such run counts."""
    disable_by_batch_size: int
    """With more running requests than this nothing is guessed."""


class FrontConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The half of the engine that lives in the front process."""

    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    stream_interval: int = 1
    log_stats: bool = True
    stats_interval: float = 10.0
    output_chunk_size: int = 128
    """Requests handled between two yields to the event loop."""
    ready_timeout: float = 600.0
    heartbeat_timeout: float = 300.0
    """Seconds without a word from a core at work before it counts as stuck (health fails; it is
    well again with its next word). Must exceed the longest step. 0: never. An idle core is judged
    after 15 s, since it speaks every second."""
    shutdown_timeout: float = 30.0
    multiprocess: bool = True


class StructuredOutputsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds for schemas, patterns and grammars that requests bring."""

    max_bytes: int = 262_144
    """Of a schema, pattern, list of choices or grammar, as text."""
    max_depth: int = 64
    """Levels of lists and objects in a schema."""
    compile_timeout: float = 1.5
    """Seconds of processor time the check and compilation of one may take."""
    preload: bool = False
    """Make what grammars need of the vocabulary at the start, and not with the first of them."""


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What computes."""

    backend: Literal["native", "torch"] = "native"
    device: str = "cpu"
    num_threads: int = 0
    """0: one per available core."""
    cpu_affinity: Literal["auto"] | list[int] | None = None
    """Processors the threads are bound to; `auto` chooses among the available ones."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one engine is made from."""

    model: ModelConfig
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    device: DeviceConfig = DeviceConfig()
    front: FrontConfig = FrontConfig()
    speculative: SpeculativeConfig | None = None
    """None: no token is guessed."""
    logits_processors: list[str] = []
    """Import paths of the operator's own; see logits_processor.py."""
    executor: str | None = None
    """Import path of what runs the model instead of our own; called with the settings and an
    OnStage."""
    profiler_dir: str | None = None
    """Folder that profiles of the core are written to; None: none can be taken."""
    structured_outputs: StructuredOutputsConfig = StructuredOutputsConfig()
    reasons: dict[str, str] = {}
    """Setting -> why it has its value, for every setting that was derived."""
