"""Options known to programs written for other engines: what they ask for is here already, has no
meaning here, or is refused by name. None of them is a flag of the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError, shown
from headrace.logger import make_logger

logger = make_logger(__name__)


@dataclass(kw_only=True)
class ForeignArgs:
    """Such options, with the values that ask for nothing."""

    runner: Any = "auto"
    convert: Any = "auto"
    tokenizer_mode: Any = "auto"
    tokenizer_revision: Any = None
    code_revision: Any = None
    allowed_local_media_path: Any = ""
    allowed_media_domains: Any = None
    limit_mm_per_prompt: Any = None
    mm_processor_kwargs: Any = None
    cpu_offload_gb: Any = 0
    offload_group_size: Any = 0
    offload_num_in_group: Any = 1
    offload_prefetch_step: Any = 1
    offload_params: Any = None
    enable_return_routed_experts: Any = False
    return_sampling_mask: Any = False
    disable_custom_all_reduce: Any = False
    attention_config: Any = None
    compilation_config: Any = None
    optimization_level: Any = None
    quantization_config: Any = None
    pooler_config: Any = None
    kv_transfer_config: Any = None
    kv_sharing_fast_prefill: Any = False
    distributed_executor_backend: Any = None
    enable_expert_parallel: Any = False
    enable_lora: Any = False
    enable_sleep_mode: Any = False
    async_scheduling: Any = None
    renderer_num_workers: Any = 1


@dataclass(frozen=True, slots=True)
class _Rule:
    is_fine: Callable[[Any], bool]
    otherwise: str
    """What to say of other values."""


def _one_of(*values: Any, otherwise: str) -> _Rule:
    return _Rule(lambda value: any(value == one for one in values), otherwise)


_NOT_OFFERED = "is not offered by this version; leave it out"
_NO_MEDIA = "this version takes text only; leave it out"
_NO_OFFLOAD = "there is no device to offload weights from; leave it out"
_NO_SPECIALS = "models return text and log-probabilities only; leave it out"

_RULES: dict[str, _Rule] = {
    "runner": _one_of(
        "auto", "generate", otherwise="models generate text here; use --runner generate"
    ),
    "convert": _one_of("auto", "none", otherwise="models are used for what they were made for"),
    "tokenizer_mode": _one_of("auto", "hf", otherwise="tokenizers are read from tokenizer.json"),
    "tokenizer_revision": _one_of(None, otherwise=_NOT_OFFERED),
    "code_revision": _one_of(None, otherwise="code that comes with a model is never run"),
    "allowed_local_media_path": _one_of("", None, otherwise=_NO_MEDIA),
    "allowed_media_domains": _one_of(None, [], otherwise=_NO_MEDIA),
    "limit_mm_per_prompt": _Rule(lambda value: True, ""),
    "mm_processor_kwargs": _one_of(None, {}, otherwise=_NO_MEDIA),
    "cpu_offload_gb": _one_of(0, otherwise=_NO_OFFLOAD),
    "offload_group_size": _one_of(0, otherwise=_NO_OFFLOAD),
    "offload_params": _one_of(None, [], set(), otherwise=_NO_OFFLOAD),
    "enable_return_routed_experts": _one_of(False, otherwise=_NO_SPECIALS),
    "return_sampling_mask": _one_of(False, otherwise=_NO_SPECIALS),
    "quantization_config": _one_of(None, otherwise="weights are used as they are stored"),
    "pooler_config": _one_of(None, otherwise=_NOT_OFFERED),
    "kv_sharing_fast_prefill": _one_of(
        False, otherwise="it would leave out the keys that prompt_logprobs need; it is not offered"
    ),
    "distributed_executor_backend": _one_of(
        None, "uni", "mp", otherwise="this version runs one worker, in the engine core's process"
    ),
    "enable_expert_parallel": _one_of(False, otherwise=_NOT_OFFERED),
    "enable_lora": _one_of(False, otherwise=_NOT_OFFERED),
}
"""Options without a rule here have no meaning: any value of them is fine."""


def check_foreign(args: ForeignArgs) -> None:
    """Raise ConfigError for an option that asks for something that is not offered."""
    for name, rule in _RULES.items():
        value = getattr(args, name)
        if not rule.is_fine(value):
            raise ConfigError(f"{name}={shown(value)}: {rule.otherwise}")
    _check_kv_transfer(args.kv_transfer_config)
    _check_compilation(args.compilation_config)
    if args.renderer_num_workers != 1:
        logger.warning_once("renderer_num_workers has no effect: one thread renders prompts")


def _check_kv_transfer(config: Any) -> None:
    if config is None:
        return
    reason = f"Invalid 'kv_transfer_config' provided: {shown(config)}: KV caches stay in one engine"
    logger.error("%s", reason)
    raise ConfigError(reason)


def _check_compilation(config: Any) -> None:
    """A mode, or a dict of settings. There is no compile step that could be set."""
    if isinstance(config, bool) or not isinstance(config, (int, dict, type(None))):
        raise ConfigError(f"compilation_config must be a mode or a dict, got {shown(config)}")
