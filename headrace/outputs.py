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

    def finished(self) -> bool:
        """Whether this answer is complete."""
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Timings of a request, in seconds; None until known. `arrival_time` is wall clock."""

    arrival_time: float
    queue_time: float | None = None
    prefill_time: float | None = None
    decode_time: float | None = None
    first_token_latency: float | None = None
    e2e_latency: float | None = None
    num_generation_tokens: int = 0
    num_preemptions: int = 0


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
