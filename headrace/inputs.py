"""The forms a prompt may take, and the one form the engine takes."""

from __future__ import annotations

from typing import Any, NotRequired, TypeAlias, TypedDict

import msgspec


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids; `prompt` is the text they came from, if there is one."""

    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


class EncoderDecoderPrompt(TypedDict):
    """Two prompts, for models with an encoder and a decoder."""

    encoder_prompt: str | list[int] | TextPrompt | TokensPrompt
    decoder_prompt: str | list[int] | TextPrompt | TokensPrompt | None


class StreamingInput(msgspec.Struct, frozen=True):
    """A piece of a prompt that comes in pieces (an asynchronous generator of them is the prompt).

    The model answers after each piece, and goes on from what it has said.
    """

    prompt: Any
    """A PromptType."""
    sampling_params: Any = None
    """SamplingParams for the answer to this piece; None: those of the request."""


PromptType: TypeAlias = str | list[int] | TextPrompt | TokensPrompt
ChatMessage: TypeAlias = dict[str, Any]


class EngineInput(msgspec.Struct, frozen=True):
    """A rendered prompt: what `text.renderer` gives and the input processor takes."""

    prompt_token_ids: list[int]
    prompt: str | None = None
    cache_salt: str | None = None
