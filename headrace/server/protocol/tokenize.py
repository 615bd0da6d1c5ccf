"""Shapes of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.server.protocol.common import ListOf, RequestRecord


class TokenizeRequest(RequestRecord):
    """A `prompt`, or `messages` with the options of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: ListOf[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: ListOf[dict[str, Any]] | None = None


class TokenizeResponse(msgspec.Struct):
    """The ids that the engine would compute."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class RenderedPrompt(msgspec.Struct, kw_only=True):
    """A prompt as the engine would get it."""

    request_id: str
    model: str
    token_ids: list[int]
    prompt: str | None
    """Its text; null where it came as token ids."""
    cache_salt: str | None
    max_model_len: int


class DetokenizeRequest(RequestRecord):
    """Token ids."""

    model: str | None = None
    tokens: ListOf[Any]


class DetokenizeResponse(msgspec.Struct):
    """Their text."""

    prompt: str
