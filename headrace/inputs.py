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


PromptType: TypeAlias = str | list[int] | TextPrompt | TokensPrompt
ChatMessage: TypeAlias = dict[str, Any]


class EngineInput(msgspec.Struct, frozen=True):
    """A rendered prompt: what `text.renderer` gives and the input processor takes."""

    prompt_token_ids: list[int]
    prompt: str | None = None
    cache_salt: str | None = None
