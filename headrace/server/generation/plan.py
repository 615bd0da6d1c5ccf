"""What is decided about every request for text before the engine gets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from headrace.engine.client import EngineClient
from headrace.server.generation.answer import Head, Tally, UsagePlan
from headrace.server.generation.logprobs import LogprobWriter
from headrace.server.generation.prompts import tokenizer_of
from headrace.server.protocol.chat import ChatChunk
from headrace.server.protocol.common import GenerationRequest
from headrace.server.protocol.completions import CompletionChunk
from headrace.server.settings.server import ServerSettings

Chunk = TypeVar("Chunk", ChatChunk, CompletionChunk)


@dataclass(kw_only=True)
class AnswerPlan:
    """Of one request; the routes add what only they know.

    Attributes:
        tally: counts its tokens.
        usage: where a stream of it carries that count.
    """

    body: GenerationRequest
    engine: EngineClient
    head: Head
    settings: ServerSettings
    tally: Tally = field(init=False)
    usage: UsagePlan = field(init=False)

    def __post_init__(self) -> None:
        asks = bool(self.body.include_usage_details)
        self.tally = Tally(
            tells_cached=self.settings.enable_prompt_tokens_details,
            tells_details=asks or self.settings.enable_usage_details,
        )
        self.usage = UsagePlan.of(self.body.stream_options, self.settings, wants_details=asks)

    @property
    def as_ids(self) -> bool:
        """Whether tokens are named by their ids."""
        return self.settings.return_tokens_as_token_ids or bool(
            self.body.return_tokens_as_token_ids
        )

    def writer(self) -> LogprobWriter:
        """A writer for one choice."""
        return LogprobWriter(
            tokenizer_of(self.engine),
            as_ids=self.as_ids,
            hides_special=self.body.skip_special_tokens is not False,
        )

    def complete(self, chunk: Chunk, *, finished: bool = False) -> Chunk:
        """Give a chunk what only some of a stream carry: fingerprint, usage.

        Args:
            finished: whether it ends a choice; one without choices ends the stream.
        """
        is_end = not chunk.choices
        if is_end or (finished and not self.usage.at_end):
            chunk.system_fingerprint = self.head.fingerprint
        if is_end or self.usage.in_every_chunk:
            chunk.usage = self.tally.usage()
        return chunk
