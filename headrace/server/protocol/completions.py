"""Shapes of /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field

from headrace.server.protocol.common import REFUSED, GenerationRequest, Usage

_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
PROMPT_SHAPES: list[Any] = [
    _TEXT, _IDS, {"type": "array", "items": {"anyOf": [_TEXT, _IDS]}, "minItems": 1},
    {"type": "null"},
]  # fmt: skip
EMBEDS_SHAPES: list[Any] = [{"type": "string"}, {"type": "array", "items": {"type": "string"}},
                            {"type": "null"}]  # fmt: skip
"""What the documents say of fields whose shape is checked by `server.prompts`, not by type."""


class CompletionRequest(GenerationRequest):
    """The body of a request. `prompt` is a text, a list of token ids, or a list of these;
    `prompt_embeds` is base64 (see server/generation/embeds.py), or a list of it."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **REFUSED, "suffix": ("",), "best_of": (1,),
    }  # fmt: skip

    prompt: Annotated[Any, Field(json_schema_extra={"anyOf": PROMPT_SHAPES})] = None
    prompt_embeds: Annotated[Any, Field(json_schema_extra={"anyOf": EMBEDS_SHAPES})] = None
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
