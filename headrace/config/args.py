"""What a user may ask of an engine: one flat record. Holds no decisions; `resolve` makes those.

The command line is generated from the metadata of the fields, so a flag, a field and a line of
help are one thing.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self

from headrace.config.foreign import ForeignArgs


def option(
    default: Any,
    help: str,
    *,
    group: str,
    kind: str | None = None,
    choices: tuple[str, ...] | None = None,
    short: tuple[str, ...] = (),
    cli: bool = True,
    secret: bool = False,
) -> Any:
    """A field of a record of options.

    Args:
        default: the value when nothing is said; lists and dicts are copied.
        help: one or two sentences, also the text of `--help`.
        group: the heading it stands under in `--help`.
        kind: how text becomes a value: str, int, float, bool, size (an int that may be written
            1k or 1K), length (a size, or `auto`), list, json. Default: from the type of `default`.
        choices: the allowed words.
        short: other spellings of the flag.
        cli: whether it is a flag at all.
        secret: keep it out of `repr` and of tables of settings.
    """
    kind = kind or {bool: "bool", int: "int", float: "float", list: "list", dict: "json"}.get(
        type(default), "str"
    )
    metadata = {
        "help": help, "group": group, "kind": kind, "choices": choices, "short": short, "cli": cli,
        "secret": secret,
    }  # fmt: skip
    if isinstance(default, (list, dict)):
        return field(default_factory=default.copy, metadata=metadata, repr=not secret)
    return field(default=default, metadata=metadata, repr=not secret)


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean X?)`, or nothing when no known name comes near."""
    best = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" (did you mean {best[0]}?)" if best else ""


@dataclass
class EngineArgs(ForeignArgs):
    """The options of one engine; None means: decide for me.

    Raises:
        TypeError: an option that does not exist; the message names the nearest one.
    """

    model: str | None = option(
        None,
        "Folder, .gguf file or hub id of the model. Without it the packaged model is used.",
        group="Model",
        cli=False,
    )
    tokenizer: str | None = option(
        None,
        "Folder or .gguf file with the tokenizer, when it is not the model's own.",
        group="Model",
    )
    skip_tokenizer_init: bool = option(
        False, "Load no tokenizer: prompts are token ids and answers have no text.", group="Model"
    )
    revision: str | None = option(
        None, "Branch, tag or commit of a model from the hub.", group="Model"
    )
    hf_token: str | None = option(
        None, "Token for models on the hub that need one. Never logged.", group="Model",
        secret=True,
    )  # fmt: skip
    download_dir: str | None = option(
        None, "Where models from the hub are kept; default is the hub's own cache.", group="Model"
    )
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = option(
        "auto",
        "Format of the weights; `dummy` makes random ones, for speed trials.",
        group="Model",
        choices=("auto", "safetensors", "gguf", "dummy"),
    )
    hf_overrides: dict[str, Any] = option(  # noqa: RUF009 - a fresh copy
        {}, "Keys that replace or add to the model's config.json, as JSON.", group="Model"
    )
    dtype: str = option(
        "auto",
        "Type of the KV cache when --kv-cache-dtype is auto. Weights stay as they are stored and "
        "arithmetic accumulates in float32 in any case.",
        group="Model",
        choices=("auto", "half", "float16", "bfloat16", "float", "float32"),
    )
    quantization: Literal["int8"] | None = option(
        None,
        "int8 rounds float weights to 8 bits at load, and activations as they come: half the "
        "memory of bfloat16, faster, less exact. Weights in blocks (Q4_K, Q8_0, ..) stay as "
        "stored. Default: nothing is rounded to 8 bits.",
        group="Model",
        choices=("int8",),
    )
    max_model_len: int | str | None = option(
        None,
        "Most tokens of a prompt and its answer together; may be written 1k (1000) or 1K (1024). "
        "`auto`, -1 or nothing: what the model allows, less if the KV cache holds less.",
        group="Model",
        kind="length",
    )
    served_model_name: str | list[str] = option(  # noqa: RUF009 - a fresh copy
        [],
        "Names of the model in the API; the first is reported. Default: as given.",
        group="Model",
    )
    chat_template: str | None = option(
        None, "File with a chat template, or the template itself.", group="Model"
    )
    chat_template_timeout: float = option(
        5.0, "Seconds a chat template may take for one conversation.", group="Model"
    )
    chat_template_max_chars: int = option(
        8 << 20, "Most characters a chat template may make of one conversation.", group="Model",
        kind="size",
    )  # fmt: skip
    generation_config: str = option(
        "auto",
        "Where sampling defaults come from: `auto` is the model's generation_config.json, "
        "`headrace` the neutral ones.",
        group="Model",
        choices=("auto", "headrace", "vllm"),
    )
    override_generation_config: dict[str, Any] = option(  # noqa: RUF009 - a fresh copy
        {}, 'Sampling defaults that win over the model\'s, as JSON: {"temperature": 0.5}.',
        group="Model",
    )  # fmt: skip
    seed: int = option(0, "Seed of requests that bring none of their own.", group="Model")
    logits_processors: list[str | type] = option(  # noqa: RUF009 - a fresh copy
        [],
        "Import paths (package.module:Class) of custom logits processors; see LogitsProcessor.",
        group="Model",
    )
    enable_prompt_embeds: bool = option(
        False,
        "Take prompts as embeddings, too (prompt_embeds). They reach the model unseen by any "
        "tokenizer or template: leave it off for callers you do not trust.",
        group="Model",
    )
    max_logprobs: int = option(
        20, "Most log-probabilities per token a request may ask for; -1: no limit.", group="Model"
    )

    block_size: int | None = option(
        None, "Tokens per block of the KV cache: 8, 16, 32, 64, 128 or 256.",
        group="Cache", kind="int",
    )  # fmt: skip
    kv_cache_dtype: Literal["auto", "float16", "bfloat16", "float32"] = option(
        "auto",
        "Number type of the KV cache. auto is --dtype, else float16: as small as bfloat16 and "
        "eight times finer.",
        group="Cache",
        choices=("auto", "float16", "bfloat16", "float32"),
    )
    kv_cache_memory_bytes: int | None = option(
        None, "Memory for the KV cache; wins over --gpu-memory-utilization.",
        group="Cache", kind="size",
    )  # fmt: skip
    gpu_memory_utilization: float = option(
        0.5,
        "Share of the memory that is free once the weights are loaded (of the device, here the "
        "machine) that the KV cache may take.",
        group="Cache",
    )
    num_gpu_blocks_override: int | None = option(
        None, "Exact number of KV blocks, for tests.", group="Cache", kind="int"
    )
    enable_prefix_caching: bool = option(
        True, "Keep the KV blocks of prompts and reuse them for equal beginnings.", group="Cache"
    )
    kv_cache_metrics: bool = option(
        False,
        "Measure how long KV blocks live, lie idle before they are evicted, and wait to be used "
        "again (metrics kv_block_*).",
        group="Cache",
    )
    kv_cache_metrics_sample: float = option(
        0.01, "With --kv-cache-metrics: the share of KV blocks that is measured.", group="Cache"
    )

    max_num_seqs: int | None = option(
        None, "Most requests computed in one step. Default: 128 in a server, 256 offline.",
        group="Scheduler", kind="size",
    )  # fmt: skip
    max_num_batched_tokens: int | None = option(
        None,
        "Most tokens computed in one step. Smaller: a long prompt delays other answers less. "
        "Default: 1024 in a server, 4096 offline.",
        group="Scheduler",
        kind="size",
    )
    scheduling_policy: Literal["fcfs", "priority"] = option(
        "fcfs",
        "Who goes first: who came first, or who has the lower priority number.",
        group="Scheduler",
        choices=("fcfs", "priority"),
    )
    enable_chunked_prefill: bool = option(
        True, "Compute long prompts in pieces, between the tokens of others.", group="Scheduler"
    )
    long_prefill_token_threshold: int = option(
        0, "Most tokens of one prompt in one step; 0 is no such limit.",
        group="Scheduler", kind="size",
    )  # fmt: skip
    max_num_queued_reqs: int | None = option(
        None,
        "Requests (waiting and running) from which on further ones are refused with 503.",
        group="Scheduler",
        kind="size",
    )
    max_num_queued_tokens: int | None = option(
        None,
        "Prompt tokens not yet computed from which on further requests are refused with 503.",
        group="Scheduler",
        kind="size",
    )
    stream_interval: int = option(1, "Tokens per streamed piece of an answer.", group="Scheduler")

    structured_outputs_max_bytes: int = option(
        262_144,
        "Longest schema, pattern, list of choices or grammar of a request, as text.",
        group="Structured output",
        kind="size",
    )
    structured_outputs_max_depth: int = option(
        64, "Levels of lists and objects a schema may have.", group="Structured output"
    )
    structured_outputs_timeout: float = option(
        1.5,
        "Seconds of processor time it may take to check and compile a schema, pattern or grammar; "
        "the process that does it is ended then, and the request refused.",
        group="Structured output",
    )
    structured_outputs_preload: bool = option(
        False,
        "Prepare the vocabulary for grammars at the start, which takes longer then: up to a second "
        "and a half with 262,144 tokens. Else the first request with a grammar halts all others "
        "for that time.",
        group="Structured output",
    )
    speculative_config: dict[str, Any] | None = option(  # noqa: RUF009 - a plain value
        None,
        "Speculative decoding, as JSON: tokens are guessed where the last ones stood before, and "
        "checked many at once; answers stay the same, repetitive ones come sooner. "
        '{"method": "ngram", "num_speculative_tokens": 5} and, if need be, prompt_lookup_max and '
        "prompt_lookup_min (how many of the last tokens must have stood before; 5 and 2) and "
        "disable_by_batch_size (with more running requests nothing is guessed; 4).",
        group="Speculative decoding",
        kind="json",
        short=("-sc",),
    )
    spec_method: str | None = option(
        None, "Short for the key method of --speculative-config.", group="Speculative decoding"
    )
    spec_model: str | None = option(
        None, "Short for the key model of --speculative-config: only ngram.",
        group="Speculative decoding",
    )  # fmt: skip
    spec_tokens: int | None = option(
        None, "Short for the key num_speculative_tokens of --speculative-config.",
        group="Speculative decoding", kind="int",
    )  # fmt: skip

    backend: Literal["native", "torch"] = option(
        "native",
        "What computes: our own kernels, or PyTorch (extra `headrace[torch]`).",
        group="Device",
        choices=("native", "torch"),
    )
    device: str = option(
        "cpu", "Device of the torch backend: cpu, cuda, cuda:1, ...", group="Device"
    )
    num_threads: int = option(0, "Threads that compute; 0: one per core.", group="Device")
    cpu_affinity: str = option(
        "none",
        "Processors that these threads stay on: `none` leaves it to the system, `auto` gives each "
        "its own, different cores first, and a list such as 0-3,8 names them. For machines that "
        "do nothing else; beside other work, bound threads wait where others could move on.",
        group="Device",
    )

    disable_log_stats: bool = option(
        False, "Take no measurements: no metrics and no line in the log.", group="Observability"
    )
    stats_interval: float = option(
        10.0, "Seconds between two lines of measurements in the log.", group="Observability"
    )
    profiler_dir: str | None = option(
        None, "Folder for profiles of the engine core; without it none can be taken.",
        group="Observability",
    )  # fmt: skip
    profiler_config: dict[str, Any] = option(  # noqa: RUF009 - a fresh copy
        {}, "Only the key `dir` (or torch_profiler_dir): the same as profiler_dir.",
        group="Observability", cli=False,
    )  # fmt: skip
    ready_timeout: float = option(600.0, "Seconds the engine may take to start.", group="Lifecycle")
    shutdown_timeout: float = option(
        30.0, "Seconds running requests get to finish after SIGTERM; 0 aborts them at once.",
        group="Lifecycle",
    )  # fmt: skip

    # Known to programs written for other engines. One value works; the rest is refused.
    trust_remote_code: bool = option(
        False, "Only False: code that comes with a model is never run.", group="Model", cli=False
    )
    enforce_eager: bool = option(
        False, "Either value: there is no compile step to leave out.", group="Device", cli=False
    )
    tensor_parallel_size: int = option(1, "Only 1.", group="Device", cli=False)
    pipeline_parallel_size: int = option(1, "Only 1.", group="Device", cli=False)
    data_parallel_size: int = option(1, "Only 1.", group="Device", cli=False)
    worker_cls: str | type = option(  # noqa: RUF009 - a plain value
        "auto",
        "Import path (package.module:Class) of an Executor to run the model with.",
        group="Device", cli=False,
    )  # fmt: skip
    swap_space: float | None = option(
        None, "Deprecated and without effect: preempted requests are recomputed.",
        group="Cache", cli=False,
    )  # fmt: skip

    is_server: ClassVar[bool] = False
    """Which set of defaults `resolve` takes."""

    def __new__(cls, *_args: Any, **options: Any) -> Self:
        """Refuse unknown names with a hint, before the generated constructor sees them."""
        known = [item.name for item in fields(cls)]
        for name in options:
            if name not in known:
                raise TypeError(f"{cls.__name__} has no option {name!r}{nearest(name, known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.served_model_name = self.served_model_name or []
        self.hf_overrides = self.hf_overrides or {}
        self.profiler_config = self.profiler_config or {}
        self.logits_processors = list(self.logits_processors or [])
        self.override_generation_config = self.override_generation_config or {}
        if self.swap_space is not None:
            warnings.warn(
                "swap_space is deprecated and has no effect: preempted requests are recomputed",
                DeprecationWarning,
                stacklevel=3,
            )
            self.swap_space = None


@dataclass
class AsyncEngineArgs(EngineArgs):
    """The same options, with the defaults of an engine that serves many users at once."""

    is_server: ClassVar[bool] = True
