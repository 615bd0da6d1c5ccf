"""What users get back."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.logprobs import PromptLogprobs, TokenLogprobs


@dataclass(slots=True)
class CompletionOutput:
    """One of the n answers to a prompt.

    `text` and `token_ids` hold everything so far, or only what is new (RequestOutputKind.DELTA).
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: TokenLogprobs | None = None
    finish_reason: str | None = None
    """`stop`, `length`, `abort`, `error`, `repetition` or `timeout`; None while it goes on."""
    stop_reason: int | str | None = None
    """The stop string or stop token id; None for EOS or another reason."""
    error: str | None = None
    error_param: str | None = None
    """With an error: the field of the request that asks for what cannot be, if one does."""

    def finished(self) -> bool:
        """Whether this answer is complete."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """What a request took: its ledger. With n > 1 all answers together.

    Complete with the last output; of a request that was aborted, or ended by a stop string, a
    moment later, when the engine core has let go of it. Over all requests the counts add up to the
    counters of the engine.
    """

    arrival_time: float
    """Wall clock, seconds."""
    queued_ts: float | None = None
    """This and the others on the core's monotonic clock, seconds; None until known. What never
    happened is put at the end of the request."""
    scheduled_ts: float | None = None
    first_token_ts: float | None = None
    last_token_ts: float | None = None
    first_token_latency: float | None = None
    """Arrival to first token, as seen here, seconds."""
    e2e_latency: float | None = None
    num_prefill_tokens: int = 0
    """Prompt tokens that were computed, each time anew after a preemption."""
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache."""
    num_generation_tokens: int = 0
    """Tokens that were generated, with those behind a stop string."""
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    """Tokens guessed by speculative decoding."""
    num_accepted_tokens: int = 0
    """Those of them that were generated."""
    finish_reasons: list[str] = field(default_factory=list)
    """Of the answers that have ended, in the order in which they did."""

    @property
    def queue_time(self) -> float | None:
        """Seconds until it was first scheduled."""
        return _between(self.queued_ts, self.scheduled_ts)

    @property
    def prefill_time(self) -> float | None:
        """Seconds from then to its first token."""
        return _between(self.scheduled_ts, self.first_token_ts)

    @property
    def decode_time(self) -> float | None:
        """Seconds from its first token to its last."""
        return _between(self.first_token_ts, self.last_token_ts)

    @property
    def inference_time(self) -> float | None:
        """Seconds from its first scheduling to its last token."""
        return _between(self.scheduled_ts, self.last_token_ts)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


@dataclass(slots=True)
class RequestOutput:
    """The answer, or a part of it, to one request. `request_id` is the caller's."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: PromptLogprobs | None = None
    """One entry per prompt token, the first None."""
    num_cached_tokens: int | None = None
    metrics: RequestMetrics | None = None
    lora_request: object | None = field(default=None, repr=False)
