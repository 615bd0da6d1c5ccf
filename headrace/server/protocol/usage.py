"""What a request took, as users see it: the ledger of the engine in milliseconds and tokens."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.outputs import RequestMetrics


class UsageDetails(msgspec.Struct):
    """The ledger of one HTTP request. Times are those of the prompt that took longest; None where
    it never got so far. Counts are sums over all prompts and answers."""

    queue_ms: float | None
    """Until it was first scheduled."""
    prefill_ms: float | None
    """From then to its first token."""
    decode_ms: float | None
    """From its first token to its last."""
    time_to_first_token_ms: float | None
    """From its arrival to its first token."""
    total_ms: float | None
    """From its arrival to its end."""
    prefill_tokens: int
    """Prompt tokens that were computed, each time anew after a preemption."""
    cached_tokens: int
    """Prompt tokens that came from the prefix cache."""
    generated_tokens: int
    """With those behind a stop string, which no answer shows."""
    preemptions: int
    draft_tokens: int
    """Guessed by speculative decoding."""
    accepted_draft_tokens: int


def usage_details(metrics: Iterable[RequestMetrics]) -> UsageDetails:
    """The ledger of the prompts of one request."""
    each = list(metrics)
    return UsageDetails(
        queue_ms=_longest(one.queue_time for one in each),
        prefill_ms=_longest(one.prefill_time for one in each),
        decode_ms=_longest(one.decode_time for one in each),
        time_to_first_token_ms=_longest(one.first_token_latency for one in each),
        total_ms=_longest(one.e2e_latency for one in each),
        prefill_tokens=sum(one.num_prefill_tokens for one in each),
        cached_tokens=sum(one.num_cached_tokens for one in each),
        generated_tokens=sum(one.num_generation_tokens for one in each),
        preemptions=sum(one.num_preemptions for one in each),
        draft_tokens=sum(one.num_draft_tokens for one in each),
        accepted_draft_tokens=sum(one.num_accepted_tokens for one in each),
    )


def _longest(seconds: Iterable[float | None]) -> float | None:
    known = [one for one in seconds if one is not None]
    return round(1000 * max(known), 3) if known else None
