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


class EmbedsPrompt(TypedDict):
    """A prompt as embeddings, in place of tokens; for engines with enable_prompt_embeds.

    `prompt` is the text they stand for, if there is one.
    """

    prompt_embeds: Any
    """An array of floats [tokens, hidden size], of NumPy or PyTorch: what the model's embedding
    gives, scaled where the model scales it (as `inputs_embeds` elsewhere)."""
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


class EncoderDecoderPrompt(TypedDict):
    """Two prompts, for models with an encoder and a decoder; others refuse it."""

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


PromptType: TypeAlias = (
    str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt | EncoderDecoderPrompt
)
ChatMessage: TypeAlias = dict[str, Any]
CONTENT_FORMATS = ("auto", "string", "openai")
"""How a chat template may see content: as one text, or (`openai`) as a list of parts."""


class PromptEmbeds(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Embeddings as they cross the process line."""

    num_tokens: int
    width: int
    data: bytes = b""
    """Native float32, a row of `width` numbers for each token; all of them finite."""


class EngineInput(msgspec.Struct, frozen=True):
    """A rendered prompt: what `text.renderer` gives and the input processor takes."""

    prompt_token_ids: list[int]
    """With embeddings a zero for each of their rows."""
    prompt: str | None = None
    cache_salt: str | None = None
    prompt_embeds: PromptEmbeds | None = None
    num_answer_tokens: int | None = None
    """For beam search under a grammar: how many of the last tokens the grammar has taken; the
    log-probabilities asked for are then among the tokens it allows next. None: the prompt alone."""
