"""Shapes of /v1/chat/completions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import Field

from headrace.errors import ValidationError
from headrace.server.protocol.common import REFUSED, GenerationRequest, ListOf, Usage

MESSAGE_SHAPE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {
                    "type": "object",
                    "properties": {"type": {"type": "string"}, "text": {"type": "string"}},
                    "required": ["type"],
                }},
                {"type": "null"},
            ],
        },
        "name": {"type": ["string", "null"]},
        "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
        "tool_call_id": {"type": ["string", "null"]},
    },
    "required": ["role"],
}  # fmt: skip
"""What the documents say of a message; `text.messages` checks it."""


class ChatRequest(GenerationRequest):
    """The body of a request. Messages are checked by the renderer."""

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **REFUSED,
        "functions": (), "function_call": (), "modalities": (["text"],), "audio": (),
        "prediction": (), "web_search_options": (), "verbosity": (),
        "media_io_kwargs": (), "mm_processor_kwargs": (),
    }  # fmt: skip

    messages: Annotated[ListOf[dict[str, Any]], Field(json_schema_extra={"items": MESSAGE_SHAPE})]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: ListOf[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    documents: ListOf[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_prompt_text: bool | None = None
    include_reasoning: bool | None = None
    _digest: bytes | None = None

    @property
    def digest(self) -> bytes | None:
        """What tells the body of a stream from others; None of other requests."""
        return self._digest

    def note_body(self, body: bytes) -> None:
        """Keep a digest, should the stream be resumed with the same body."""
        if self.stream:
            self._digest = hashlib.sha256(body).digest()

    def settle_known_extras(self) -> None:
        """As of every request; asking for the log-probabilities of tokens is asking for some."""
        super().settle_known_extras()
        if self.logprob_token_ids is not None:
            if self.logprobs is False:
                raise ValidationError("logprob_token_ids needs logprobs=true", param="logprobs")
            self.logprobs = True
            if self.top_logprobs is None:
                self.top_logprobs = len(self.logprob_token_ids)


class BatchChatRequest(ChatRequest):
    """Several conversations with the options of one."""

    messages: Annotated[  # type: ignore[assignment]
        ListOf[ListOf[dict[str, Any]]],
        Field(json_schema_extra={"items": {"type": "array", "items": MESSAGE_SHAPE}}),
    ]


class TokenLogprob(msgspec.Struct):
    """One token with its log-probability; `bytes` joined over an answer are its UTF-8."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(msgspec.Struct):
    """A token of the answer, and what else could have stood there."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities in the shape of this route."""

    content: list[ChatTokenLogprob]
    refusal: list[ChatTokenLogprob] | None = None


class CalledFunction(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What a call calls; in a stream the name stands in its first piece only."""

    name: str | None = None
    arguments: str


class ToolCallRecord(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A call, or a piece of one: `index` in streams only, `id` and `type` in first pieces only."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: CalledFunction


class ChatMessage(msgspec.Struct, kw_only=True):
    """An answer."""

    role: str
    content: str | None
    refusal: str | None = None
    annotations: list[dict[str, Any]] | None = None
    audio: dict[str, Any] | None = None
    function_call: dict[str, Any] | None = None
    tool_calls: list[ToolCallRecord] | UnsetType = UNSET
    reasoning: str | None = None
    reasoning_content: str | UnsetType | None = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of n answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """A whole answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: str | None = None
    system_fingerprint: str | None
    usage: Usage
    prompt_logprobs: list[dict[str, dict[str, Any]] | None] | None
    prompt_token_ids: list[int] | None
    prompt_text: str | UnsetType | None = UNSET


class Delta(msgspec.Struct, omit_defaults=True):
    """What is new in an answer; the role only in the first one."""

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallRecord] | None = None


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """A piece of one answer; `finish_reason` is there in every chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | UnsetType | None = UNSET
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One frame of a stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
