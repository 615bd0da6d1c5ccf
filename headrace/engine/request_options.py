"""What may come with a request beside its prompt and its sampling parameters, at every door.

What has no meaning here is accepted when it asks for nothing, and refused by name otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.errors import UnsupportedError, ValidationError, shown
from headrace.inputs import EngineInput, PromptType
from headrace.logger import make_logger
from headrace.messages.requests import EngineCoreRequest
from headrace.text.renderer import Renderer

logger = make_logger(__name__)

TOKENIZATION_KEYS = ("add_special_tokens", "truncation", "max_length", "truncate_prompt_tokens",
                     "truncation_side")  # fmt: skip


def check_options(
    *,
    lora_request: object = None,
    mm_processor_kwargs: Mapping[str, Any] | None = None,
    trace_headers: Mapping[str, str] | None = None,
    data_parallel_rank: int | None = None,
) -> None:
    """Refuse what this version cannot do.

    Raises:
        UnsupportedError, ValidationError: names the option.
    """
    if lora_request is not None:
        raise UnsupportedError(
            "lora_request is not supported by this version yet", param="lora_request"
        )
    if mm_processor_kwargs:
        raise UnsupportedError(
            "mm_processor_kwargs: this model takes text only", param="mm_processor_kwargs"
        )
    if trace_headers:
        logger.warning_once("trace headers are dropped: no place for traces is configured")
    if data_parallel_rank not in (None, 0):
        raise ValidationError(
            f"data_parallel_rank {data_parallel_rank} is out of range: there is one engine, 0",
            param="data_parallel_rank",
            value=data_parallel_rank,
        )


@dataclass(frozen=True, slots=True)
class Tokenization:
    """How a prompt's text becomes tokens.

    Attributes:
        add_special_tokens: None is the door's own default.
        max_tokens: how many are kept; None is all, -1 what the context has room for.
        keeps_end: whether the end is kept, else the beginning.
    """

    add_special_tokens: bool | None = None
    max_tokens: int | None = None
    keeps_end: bool = True

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, Any] | None) -> Tokenization:
        """Read `tokenization_kwargs`.

        Raises:
            UnsupportedError: an unknown key. ValidationError: a bad value.
        """
        kwargs = kwargs or {}
        for key in kwargs:
            if key not in TOKENIZATION_KEYS:
                raise UnsupportedError(
                    f"tokenization_kwargs: {shown(key)} is not known; there are "
                    f"{', '.join(TOKENIZATION_KEYS)}",
                    param="tokenization_kwargs",
                )
        max_tokens = kwargs.get("truncate_prompt_tokens")
        if max_tokens is None and kwargs.get("truncation"):
            max_tokens = kwargs.get("max_length", -1)
        is_count = isinstance(max_tokens, int) and not isinstance(max_tokens, bool)
        if max_tokens is not None and not (is_count and (max_tokens >= 1 or max_tokens == -1)):
            raise ValidationError(
                f"tokenization_kwargs: a prompt cannot be cut to {shown(max_tokens)} tokens",
                param="tokenization_kwargs",
            )
        side = kwargs.get("truncation_side", "left")
        if side not in ("left", "right"):
            raise ValidationError(
                "tokenization_kwargs: truncation_side must be left or right",
                param="tokenization_kwargs",
            )
        return cls(kwargs.get("add_special_tokens"), max_tokens, side == "left")

    def render(self, renderer: Renderer, prompt: PromptType, max_model_len: int) -> EngineInput:
        """The prompt as tokens.

        Raises: what `Renderer.render_prompt` raises.
        """
        adds = True if self.add_special_tokens is None else bool(self.add_special_tokens)
        rendered = renderer.render_prompt(
            prompt, add_special_tokens=adds, limit_length=self.max_tokens is None
        )
        return self.cut(rendered, max_model_len)

    def cut(self, rendered: EngineInput, max_model_len: int) -> EngineInput:
        """The prompt with as many tokens as shall be kept."""
        if self.max_tokens is None:
            return rendered
        count = max_model_len - 1 if self.max_tokens == -1 else self.max_tokens
        ids = rendered.prompt_token_ids
        if len(ids) <= count:
            return rendered
        kept = ids[-count:] if self.keeps_end else ids[:count]
        return msgspec.structs.replace(rendered, prompt_token_ids=kept)


def take_core_request(
    request_id: str, prompt: PromptType | EngineInput | EngineCoreRequest
) -> tuple[str, PromptType | EngineInput]:
    """A request made for the core, where programs of old give one as a prompt: its id wins."""
    if not isinstance(prompt, EngineCoreRequest):
        return request_id, prompt
    if prompt.request_id != request_id:
        logger.warning_once(
            "a request of the core was given under another id than its own; its own wins"
        )
    rendered = EngineInput(
        prompt.prompt_token_ids, cache_salt=prompt.cache_salt, prompt_embeds=prompt.prompt_embeds
    )
    return prompt.request_id, rendered


def with_text(rendered: EngineInput, prompt_text: str | None) -> EngineInput:
    """The prompt, with the text it is said to come from."""
    if prompt_text is None:
        return rendered
    return msgspec.structs.replace(rendered, prompt=prompt_text)
