"""What comes up from the engine core to the front process: a closed union of records."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Literal, TypeAlias

import msgspec


class FinishReason(IntEnum):
    """Why a request ended. `str()` gives the word users see."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4
    TIMEOUT = 5

    def __str__(self) -> str:
        return self.name.lower()


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Log-probabilities at one position.

    `token_ids[0]` is the token that was chosen (or, for prompts, that stands there); the rest
    are the most likely ones, best first (the chosen one may come again among them).
    """

    token_ids: list[int]
    logprobs: list[float]
    rank: int
    """Rank of the chosen token in the vocabulary, from 1."""


class RequestLedger(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What a request has taken so far. Over all requests the counts add up to the counters of
    `SchedulerStats`.

    Times are on the core's monotonic clock, in seconds; what has not happened is put at the time
    of the record.
    """

    queued: float
    scheduled: float
    first_token: float
    last_token: float
    num_prefill_tokens: int = 0
    """Prompt tokens that were computed, each time anew after a preemption."""
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache held when the request was first scheduled."""
    num_output_tokens: int = 0
    """Tokens that were generated, with those the caller never saw."""
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    """Tokens guessed for it by speculative decoding."""
    num_accepted_tokens: int = 0
    """Those of them that are part of the answer."""


class RequestProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a live request is."""

    stage: Literal["waiting", "prefill", "decode"]
    position: int
    """Among those that wait, from 1, if nothing else comes; 0 when it does not wait."""
    num_prompt_tokens: int
    num_computed_tokens: int
    """Of its prompt."""
    num_output_tokens: int
    num_preemptions: int


class EngineCoreOutput(
    msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False
):
    """What one step gave one request. The garbage collector need not know: nothing in it leads back
    to it."""

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    """The stop token id that ended it; None for EOS."""
    logprobs: list[TokenLogprobs] | None = None
    """One entry per new token, when asked for."""
    prompt_logprobs: list[TokenLogprobs] | None = None
    """One entry per prompt token but the first, sent once, complete, with the first token."""
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache; set on the first output."""
    num_preemptions: int = 0
    ledger: RequestLedger | None = None
    """Set on the first output and on the last."""
    error: str | None = None
    """With finish_reason ERROR: what went wrong, fit for the caller to read. With TIMEOUT: why the
    request was refused; None when it had been started."""
    ends_with_text: bool = False
    """With finish_reason STOP: the last token is text, the end of a grammar, and no stop token."""
    error_param: str | None = None
    """With finish_reason ERROR: the field of the request that asks for what cannot be; None when
    the request is not at fault."""


KV_BLOCK_SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 1200.0, 1800.0,
)  # fmt: skip
"""Upper bounds of the buckets of `Durations`; one without a bound comes behind them."""


class Durations(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """How many there were by length (see KV_BLOCK_SECONDS), and their sum in seconds."""

    counts: list[int]
    sum: float = 0.0


class KVBlockTimes(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What sampled KV blocks went through since the core started."""

    lifetimes: Durations
    """From being given out until the cached prefix in them was evicted."""
    idle_times: Durations
    """From being let go by their last user until then."""
    reuse_gaps: Durations
    """From being taken by a request until being taken by another."""


class SchedulerStats(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """State and work of the scheduler. Counters are totals since the core started."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    prefix_cache_queries: int = 0
    """Tokens looked up."""
    prefix_cache_hits: int = 0
    """Tokens found."""
    num_preemptions: int = 0
    num_steps: int = 0
    prompt_tokens: int = 0
    """Prompt tokens computed."""
    generation_tokens: int = 0
    num_queued_tokens: int = 0
    """Prompt tokens not yet computed of all live requests."""
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = []
    """By place in the draft; empty without speculative decoding."""
    num_held: int = 0
    """Of those that wait: behind a gate that closes."""
    num_corrupted: int = 0
    """Requests ended because the model gave logits that are no numbers."""
    kv_block_times: KVBlockTimes | None = None
    """None: they are not sampled."""

    @property
    def kv_cache_usage(self) -> float:
        """Share of KV blocks in use, 0 to 1."""
        return 1.0 - self.num_free_blocks / self.num_blocks if self.num_blocks else 0.0


class EngineCoreOutputs(
    msgspec.Struct, array_like=True, tag="outputs", frozen=True, forbid_unknown_fields=True
):
    """What one step gave all requests. Without outputs it is a sign of life with fresh stats."""

    outputs: list[EngineCoreOutput]
    stats: SchedulerStats
    timestamp: float
    """The core's monotonic clock."""
    num_step_tokens: int = 0
    """Tokens computed in this step (iteration size)."""


class CallResult(
    msgspec.Struct, array_like=True, tag="result", frozen=True, forbid_unknown_fields=True
):
    """The answer to a `Call`."""

    call_id: int
    value: Any = None
    error: str | None = None
    error_type: str | None = None
    """The class in `headrace.errors` to raise; None: EngineGenerateError."""


class EngineDead(
    msgspec.Struct, array_like=True, tag="dead", frozen=True, forbid_unknown_fields=True
):
    """The core's last word."""

    reason: str


CoreOutput: TypeAlias = EngineCoreOutputs | CallResult | EngineDead
