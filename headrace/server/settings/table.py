"""The settings of a server as one readable table in the log, each with its reason."""

from __future__ import annotations

from headrace.config.engine import EngineConfig
from headrace.logger import make_logger
from headrace.server.settings.server import ServerSettings

logger = make_logger(__name__)


def log_settings(config: EngineConfig, settings: ServerSettings) -> None:
    """Write the table. Keys and tokens are not in it."""
    for line in settings_table(config, settings):
        logger.info("%s", line)


def settings_table(config: EngineConfig, settings: ServerSettings) -> list[str]:
    """One line a setting: name, value, and why when it was not given."""
    model, cache, scheduler = config.model, config.cache, config.scheduler
    memory = cache.kv_cache_memory_bytes
    rows: list[tuple[str, object]] = [
        ("model", model.model),
        ("served_model_name", ", ".join(model.served_names)),
        ("format", model.format),
        ("quantization", model.quantization or "none"),
        ("max_model_len", model.max_model_len),
        ("kv_cache_dtype", cache.kv_cache_dtype),
        ("kv_cache_memory_bytes", "by share" if memory is None else memory),
        ("enable_prefix_caching", cache.enable_prefix_caching),
        ("max_num_seqs", scheduler.max_num_seqs),
        ("max_num_batched_tokens", scheduler.max_num_batched_tokens),
        ("scheduling_policy", scheduler.policy),
        ("backend", config.device.backend),
        ("num_threads", config.device.num_threads or "auto"),
        ("listens on", _listens_on(settings)),
        ("api keys", _keys(settings)),
    ]
    if model.generation_config:
        rows.insert(5, ("generation_config", "model"))
    return [_row(name, value, config.reasons.get(name, "")) for name, value in rows]


def _row(name: str, value: object, reason: str) -> str:
    return f"  {name:<24}{value!s:<24} {reason}".rstrip()


def _listens_on(settings: ServerSettings) -> str:
    if settings.uds is not None:
        return settings.uds
    return f"{settings.host or 'all interfaces'}, port {settings.port or 'any'}"


def _keys(settings: ServerSettings) -> str:
    named, path = len(settings.api_key), settings.api_key_file
    if path is None:
        return str(named or "none: everybody may use it")
    return f"{named} and those of {path}" if named else f"those of {path}"
