"""Whether the limits of a step can work together."""

from __future__ import annotations

from headrace.config.engine import SchedulerConfig
from headrace.errors import ConfigError


def check_limits(config: SchedulerConfig, max_model_len: int) -> None:
    """Raise ConfigError, naming the limit, when no scheduler can keep them."""
    if config.max_num_seqs < 1:
        raise ConfigError(f"max_num_seqs must be at least 1, got {config.max_num_seqs}")
    if config.max_num_batched_tokens < 1:
        raise ConfigError(
            f"max_num_batched_tokens must be at least 1, got {config.max_num_batched_tokens}"
        )
    if config.long_prefill_token_threshold < 0:
        raise ConfigError(
            "long_prefill_token_threshold must be 0 (no limit) or more, "
            f"got {config.long_prefill_token_threshold}"
        )
    if not config.enable_chunked_prefill and config.max_num_batched_tokens < max_model_len:
        raise ConfigError(
            f"without chunked prefill max_num_batched_tokens ({config.max_num_batched_tokens}) "
            f"must be at least max_model_len ({max_model_len}); "
            "raise it, lower max_model_len or enable chunked prefill"
        )
