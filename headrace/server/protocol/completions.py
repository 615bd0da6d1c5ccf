"""Shapes of /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from headrace.server.protocol.common import REFUSED, GenerationRequest, Usage


class CompletionRequest(GenerationRequest):
    """The body of a request. `prompt` is a text, a list of token ids, or a list of these;
    `prompt_embeds` is base64 (see server/embeds.py), or a list of it."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **REFUSED, "suffix": ("",), "best_of": (1,),
    }  # fmt: skip

    prompt: Any = None
    prompt_embeds: Any = None
    max_tokens: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None

    def settle_known_extras(self) -> None:
        """As of every request; asking for the log-probabilities of tokens is asking for some."""
        super().settle_known_extras()
        if self.logprob_token_ids is not None and self.logprobs is None:
            self.logprobs = len(self.logprob_token_ids)


class CompletionLogprobs(msgspec.Struct):
    """Log-probabilities in the shape of this route: four lists, one entry per token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One answer."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    prompt_logprobs: list[dict[str, dict[str, Any]] | None] | None
    prompt_token_ids: list[int] | None


class Completion(msgspec.Struct, kw_only=True):
    """A whole answer."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    service_tier: str | None = None
    system_fingerprint: str | None
    usage: Usage


class CompletionChunkChoice(msgspec.Struct, kw_only=True):
    """A piece of one answer; `finish_reason` is there in every chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | UnsetType | None = UNSET
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionChunk(msgspec.Struct, kw_only=True):
    """One frame of a stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    system_fingerprint: str | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET
