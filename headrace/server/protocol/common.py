"""Shapes that several endpoint families share. Requests are pydantic, answers msgspec records.

Requests are read strictly: numbers are numbers, booleans booleans. Ranges of sampling values are
the business of `SamplingParams`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import BaseModel, ConfigDict, Field

from headrace.errors import UnsupportedError
from headrace.server.protocol.usage import UsageDetails

T = TypeVar("T")
ListOf: TypeAlias = Annotated[list[T], Field(fail_fast=True)]
"""A list of which the first wrong item is told: a million complaints take seconds and gigabytes."""

LABELS = frozenset({
    "user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "session_id",
})  # fmt: skip
"""Fields that say something about the caller, not about the answer: accepted as they are."""

REFUSED: Mapping[str, tuple[Any, ...]] = {
    "guided_json": (), "guided_regex": (), "guided_choice": (), "guided_grammar": (),
    "guided_decoding_backend": (), "guided_whitespace_pattern": (),
    "early_stopping": (False,),
    "watermarking": (),
    "kv_transfer_params": (), "ec_transfer_params": (),
    "logits_processors": ([],),
    "service_tier": ("auto", "default"),
}  # fmt: skip
"""Known fields without an implementation yet -> values (besides null) that ask for nothing."""


class RequestRecord(BaseModel):
    """A request's body."""

    model_config = ConfigDict(
        extra="allow", strict=True, protected_namespaces=(), use_attribute_docstrings=True
    )

    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    def settle_known_extras(self) -> None:
        """Take out fields that are accepted as they are; refuse those that ask for too much.

        Raises:
            UnsupportedError: a known field that this version cannot serve.
        """
        extra = self.model_extra or {}
        for name in [name for name in extra if name in LABELS or name in self.refused]:
            value = extra.pop(name)
            neutral = (None, *self.refused.get(name, (value,)))
            if not any(value is item or value == item for item in neutral):
                why = "is not supported by this version yet"
                if name.startswith("guided_"):
                    why = "is not supported; use structured_outputs"
                raise UnsupportedError(f"{name} {why}", param=name)

    def note_body(self, body: bytes) -> None:
        """Keep of the bytes of the body what is needed later; of most requests nothing."""


CacheSalt: TypeAlias = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]+$")
]


class StreamOptions(RequestRecord):
    """What else a stream shall carry."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    resumable: bool | None = None


class ResponseFormat(RequestRecord):
    """A constraint on the text of the answer."""

    type: str
    json_schema: dict[str, Any] | None = None
    structures: ListOf[Any] | None = None
    triggers: ListOf[Any] | None = None
    format: dict[str, Any] | None = None
    """With the type structural_tag: this, or structures and triggers."""


class StructuredOutputs(BaseModel):
    """A constraint on the text of the answer, in our own terms; see StructuredOutputsParams."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())

    json_: Annotated[str | dict[str, Any] | None, Field(alias="json")] = None
    regex: str | None = None
    choice: ListOf[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class GenerationRequest(RequestRecord):
    """What requests for text have in common: sampling values and extras."""

    refused = REFUSED

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | ListOf[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None

    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: ListOf[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    detokenize: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: ListOf[int] | None = None
    bad_words: ListOf[str] | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    stream_interval: int | None = None
    thinking_token_budget: int | None = None
    repetition_detection: dict[str, Any] | None = None
    logprob_token_ids: ListOf[int] | None = None
    vllm_xargs: dict[str, Any] | None = None
    """Words for custom logits processors: their `SamplingParams.extra_args`."""
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    """Of beam search: a beam's score is its log-probability over its length to this power."""
    deadline_ms: float | None = None
    max_queue_ms: float | None = None
    priority: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    request_id: str | None = None
    include_usage_details: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: CacheSalt | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None


class PromptTokensDetails(msgspec.Struct):
    """Where prompt tokens came from."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """What answers were spent on."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Tokens of one request: prompts once, answers summed over the choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType | None = UNSET
    details: UsageDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType | None = UNSET
