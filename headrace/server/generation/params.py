"""From the fields of a request to SamplingParams, and the rules that are the server's own."""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request

from headrace.config.engine import EngineConfig
from headrace.engine.client import EngineClient
from headrace.errors import ValidationError
from headrace.sampling_params import RequestOutputKind, SamplingParams
from headrace.server.generation.beams import check_beams
from headrace.server.generation.response_format import fields_as_sent, structured_outputs
from headrace.server.protocol.common import GenerationRequest
from headrace.server.settings.server import ServerSettings

PRIORITY_HEADER = "X-Headrace-Priority"
_TAKEN_AS_THEY_ARE = (
    "n", "seed", "stop", "temperature", "top_p", "presence_penalty", "frequency_penalty",
    "logit_bias", "top_k", "min_p", "repetition_penalty", "stop_token_ids",
    "include_stop_str_in_output", "ignore_eos", "min_tokens", "detokenize", "skip_special_tokens",
    "spaces_between_special_tokens", "allowed_token_ids", "bad_words", "stream_interval",
    "thinking_token_budget", "repetition_detection", "deadline_ms", "max_queue_ms",
    "logprob_token_ids",
)  # fmt: skip
_DEFAULT_KEYS = frozenset(_TAKEN_AS_THEY_ARE)


def check_request(
    body: GenerationRequest, settings: ServerSettings, *, num_prompts: int, max_logprobs: int = -1
) -> int:
    """The rules every request for text must keep; gives the number of answers it asks for.

    Args:
        max_logprobs: the engine's limit; -1 is none.

    Raises:
        ValidationError, UnsupportedError: names the field.
    """
    n = 1 if body.n is None else body.n
    if n < 1 or n * num_prompts > settings.max_choices:
        raise ValidationError(
            f"n must be at least 1, and prompts times n at most {settings.max_choices} "
            f"(--max-choices), got n={n} with {num_prompts} prompts",
            param="n",
            value=n,
        )
    stop = body.stop if isinstance(body.stop, list) else []
    if len(stop) > settings.max_stop_strings:
        raise ValidationError(
            f"stop may hold {settings.max_stop_strings} strings (--max-stop-strings), "
            f"got {len(stop)}",
            param="stop",
        )
    _check_sizes(body, settings)
    if body.truncate_prompt_tokens == 0:
        raise ValidationError(
            "truncate_prompt_tokens must be at least 1, or -1 for what the context has room for",
            param="truncate_prompt_tokens",
            value=0,
        )
    if not body.stream and body.stream_options is not None:
        raise ValidationError(
            "stream_options is only allowed with stream=true", param="stream_options"
        )
    if body.stream and body.prompt_logprobs is not None:
        raise ValidationError(
            "prompt_logprobs cannot be streamed; send stream=false", param="prompt_logprobs"
        )
    check_beams(body, max_logprobs)
    return n * num_prompts


def _check_sizes(body: GenerationRequest, settings: ServerSettings) -> None:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    for name, words in (("stop", stops), ("bad_words", body.bad_words or [])):
        longest = max(map(len, words), default=0)
        if longest > settings.max_stop_length:
            raise ValidationError(
                f"each of {name} may have {settings.max_stop_length} characters "
                f"(--max-stop-length), one has {longest}",
                param=name,
            )
    for name in ("logit_bias", "stop_token_ids", "allowed_token_ids"):
        num = len(getattr(body, name) or ())
        if num > settings.max_token_entries:
            raise ValidationError(
                f"{name} may hold {settings.max_token_entries} entries (--max-token-entries), "
                f"got {num}",
                param=name,
            )


def sampling_params(
    body: GenerationRequest,
    engine: EngineClient,
    *,
    max_tokens: int | None,
    max_tokens_field: str = "max_tokens",
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """The request's values over the server's defaults over the neutral ones.

    Raises:
        ValidationError: a value outside its rule.
    """
    if max_tokens is not None and max_tokens > engine.max_model_len:
        raise ValidationError(
            f"{max_tokens_field} ({max_tokens}) is more than the model's context of "
            f"{engine.max_model_len} tokens",
            param=max_tokens_field,
            value=max_tokens,
        )
    defaults = engine.config.model.generation_config
    values: dict[str, Any] = {k: v for k, v in defaults.items() if k in _DEFAULT_KEYS}
    for name in _TAKEN_AS_THEY_ARE:
        value = getattr(body, name)
        if value is not None:
            values[name] = value
    if body.vllm_xargs is not None:
        values["extra_args"] = body.vllm_xargs
    if body.logprob_token_ids is not None:
        # Those and no others; they have a bound of their own.
        if logprobs != len(body.logprob_token_ids):
            raise ValidationError(
                "with logprob_token_ids the number of log-probabilities must be left out or be "
                f"the number of ids, {len(body.logprob_token_ids)}",
                param="logprob_token_ids",
            )
        logprobs = None
    kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    constraint = structured_outputs(body)
    with fields_as_sent(body):
        return SamplingParams(
            **values,
            max_tokens=max_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            output_kind=kind,
            structured_outputs=constraint,
        )


def default_max_tokens(config: EngineConfig) -> int | None:
    """The limit for requests that name none: the operator's, or None for the whole context."""
    value: int | None = config.model.generation_config.get("max_tokens")
    return value


def priority_of(request: Request, body: GenerationRequest, config: EngineConfig) -> int:
    """The header's priority, else the body's.

    Raises:
        ValidationError: not an integer, or a priority on a server that goes by arrival.
    """
    priority, param = body.priority or 0, "priority"
    header = request.headers.get(PRIORITY_HEADER)
    if header is not None:
        param = PRIORITY_HEADER
        if not re.fullmatch("-?[0-9]{1,19}", header) or not -(2**63) <= int(header) < 2**63:
            raise ValidationError(f"the header {param} must be an integer of 64 bits", param=param)
        priority = int(header)
    if priority and config.scheduler.policy != "priority":
        raise ValidationError(
            "this server goes by arrival; priorities need --scheduling-policy priority",
            param=param,
            value=priority,
        )
    return priority
