"""From what a user says about speculative decoding to its settings."""

from __future__ import annotations

from typing import Any

from headrace.config.args import EngineArgs, nearest
from headrace.config.engine import SpeculativeConfig
from headrace.errors import ConfigError, shown

MAX_SPECULATIVE_TOKENS = 64
MAX_LOOKUP_TOKENS = 32
DEFAULT_LOOKUP_MAX, DEFAULT_LOOKUP_MIN = 5, 2
DEFAULT_BATCH_SIZE = 4
"""On CPUs some eight rows come at the price of two: with more requests every guess costs."""

_SHORT_FORMS = {
    "spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens",
}  # fmt: skip
_KEYS = (
    "method", "model", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min",
    "disable_by_batch_size",
)  # fmt: skip


def resolve_speculative(args: EngineArgs, reasons: dict[str, str]) -> SpeculativeConfig | None:
    """The settings; None when nothing is said.

    Raises:
        ConfigError: a value that cannot work; the message names it.
    """
    given = _given(args)
    if given is None:
        return None
    _check_method(given)
    num_tokens = given.get("num_speculative_tokens")
    if num_tokens is None:
        raise ConfigError(
            "speculative_config needs num_speculative_tokens: how many tokens are guessed at once, "
            "for example 5"
        )
    low, high = _lookup(given)
    config = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=_count(
            "num_speculative_tokens", num_tokens, 1, MAX_SPECULATIVE_TOKENS
        ),
        prompt_lookup_min=low,
        prompt_lookup_max=high,
        disable_by_batch_size=_count(
            "disable_by_batch_size", given.get("disable_by_batch_size", DEFAULT_BATCH_SIZE), 1, None
        ),
    )
    reasons["speculative_config"] = (
        f"up to {config.num_speculative_tokens} tokens guessed where the last {low} to {high} "
        f"stood before, with at most {config.disable_by_batch_size} requests running"
    )
    return config


def _given(args: EngineArgs) -> dict[str, Any] | None:
    """The dict, with the short forms in it."""
    config = args.speculative_config
    if config is not None and not isinstance(config, dict):
        raise ConfigError(f"speculative_config must be a dict (a JSON object), got {shown(config)}")
    given = None if config is None else dict(config)
    for option, key in _SHORT_FORMS.items():
        value = getattr(args, option)
        if value is None:
            continue
        given = {} if given is None else given
        if given.get(key, value) != value:
            raise ConfigError(
                f"{option}={shown(value)} and speculative_config's {key}={shown(given[key])} "
                "contradict each other; say one of them"
            )
        given[key] = value
    for key in given or ():
        if key not in _KEYS:
            raise ConfigError(
                f"speculative_config has no key {key!r}{nearest(key, _KEYS)}; "
                f"known: {', '.join(_KEYS)}"
            )
    return given


def _check_method(given: dict[str, Any]) -> None:
    method, model = given.get("method"), given.get("model")
    if model in ("ngram", "[ngram]"):
        model, method = None, "ngram" if method is None else method
    if model is not None:
        raise ConfigError(
            f"speculative_config: model={shown(model)}: draft models are not offered by this "
            'version; it guesses by n-gram look-up, {"method": "ngram"}, which needs no model'
        )
    if method is None:
        raise ConfigError('speculative_config needs method, which is "ngram"')
    if method != "ngram":
        raise ConfigError(
            f"speculative_config: method={shown(method)} is not offered by this version; use "
            '"ngram", which guesses from the tokens of the request itself'
        )


def _lookup(given: dict[str, Any]) -> tuple[int, int]:
    """Fewest and most tokens that must have stood before."""
    low, high = given.get("prompt_lookup_min"), given.get("prompt_lookup_max")
    if high is not None:
        high = _count("prompt_lookup_max", high, 1, MAX_LOOKUP_TOKENS)
    if low is not None:
        low = _count("prompt_lookup_min", low, 1, MAX_LOOKUP_TOKENS)
    if high is None:
        high = DEFAULT_LOOKUP_MAX if low is None else max(low, DEFAULT_LOOKUP_MAX)
    if low is None:
        low = min(high, DEFAULT_LOOKUP_MIN)
    if low > high:
        raise ConfigError(
            f"speculative_config: prompt_lookup_min ({low}) must not be above prompt_lookup_max "
            f"({high})"
        )
    return low, high


def _count(key: str, value: object, low: int, high: int | None) -> int:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < low or (high is not None and value > high):  # type: ignore[operator]
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ConfigError(
            f"speculative_config: {key} must be an integer {bounds}, got {shown(value)}"
        )
    return int(value)  # type: ignore[call-overload,no-any-return]
