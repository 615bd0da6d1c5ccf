"""One live request as the scheduler sees it: its tokens, its blocks, how far it is.

Holds no policy: when it runs is the scheduler's business.
"""

from __future__ import annotations

from enum import Enum

from headrace.core.block_hash import BlockHashChain
from headrace.core.drafter import Drafter
from headrace.core.repetition import RepetitionDetector
from headrace.messages.outputs import (
    EngineCoreOutput,
    FinishReason,
    RequestLedger,
    TokenLogprobs,
)
from headrace.messages.requests import EngineCoreRequest
from headrace.messages.step import NewRequest


class RequestStatus(Enum):
    """Where a request is."""

    WAITING = 0
    """Holds no blocks; the worker does not know it (never did, or forgot it)."""
    RUNNING = 1
    """Holds blocks; the worker knows it."""
    FINISHED = 2


class Request:
    """State of one request from add to end.

    Args:
        source: what the front process sent.
        max_model_len: most tokens of prompt and answer together.
        seed: of its random numbers; the same over preemptions.
        order: sorts requests, best first; no two are equal.
        queued_at: core clock, seconds.
        age: how long ago it had arrived in the front process, in seconds; its time runs from there.
        chain: digests of its blocks; None without prefix caching.
        drafter: guesses its next tokens; None without speculative decoding.
    """

    __slots__ = (
        "block_ids", "chain", "drafter", "ends_at", "eos_token_id", "first_token_at", "grammar",
        "has_answered", "is_endless", "is_watched", "last_token_at", "max_num_tokens", "min_tokens",
        "num_accepted_tokens", "num_answer_tokens", "num_cached_tokens", "num_charged",
        "num_computed_tokens", "num_draft_tokens", "num_expected_tokens", "num_preemptions",
        "num_prefill_tokens", "num_prompt_tokens",
        "num_registered_blocks", "order", "params", "prompt_embeds", "prompt_logprobs",
        "queued_at", "repetition", "request_id", "scheduled_at", "seed", "skips_prefix_cache",
        "starts_by", "status", "stop_token_ids", "tenant", "token_ids",
    )  # fmt: skip

    def __init__(
        self,
        source: EngineCoreRequest,
        *,
        max_model_len: int,
        seed: int,
        order: tuple[int, float, int],
        queued_at: float,
        chain: BlockHashChain | None,
        age: float = 0.0,
        drafter: Drafter | None = None,
    ) -> None:
        params = source.sampling_params
        self.request_id = source.request_id
        self.tenant = source.tenant
        self.num_charged = 0
        """Tokens its tenant was charged for its start; see FairQueue."""
        self.token_ids = list(source.prompt_token_ids)
        """Prompt and answer."""
        self.num_prompt_tokens = len(self.token_ids)
        self.max_num_tokens = longest_length(source, max_model_len)
        """The request ends when it has this many tokens."""
        self.params = params
        self.prompt_embeds = source.prompt_embeds
        self.min_tokens = params.min_tokens
        self.is_watched = source.is_watched
        wanted = params.repetition_detection
        self.repetition = None if wanted is None else RepetitionDetector(wanted)
        # With a grammar EOS comes only where the text is complete: then nothing may follow it.
        ignores_eos = params.ignore_eos and source.grammar is None
        self.eos_token_id = None if ignores_eos else source.eos_token_id
        self.stop_token_ids = frozenset(source.stop_token_ids)
        may_end = self.eos_token_id is not None or self.stop_token_ids or self.repetition
        self.is_endless = not may_end and source.grammar is None
        """Nothing but its length ends it, as far as the core knows: stop strings are the front's
        business."""
        self.num_expected_tokens = 0
        """What it may come to have, prompt and answer, as one that lasts; see Crowd."""
        self.grammar = source.grammar
        self.num_answer_tokens = source.num_answer_tokens
        self.seed = seed
        self.order = order
        # Log-probabilities of the prompt exist only where the prompt is computed.
        wants_prompt_logprobs = params.prompt_logprobs is not None
        self.skips_prefix_cache = bool(params.skip_reading_prefix_cache) or wants_prompt_logprobs
        self.prompt_logprobs: list[TokenLogprobs] | None = [] if wants_prompt_logprobs else None
        """Collected until the first token; None when not wanted or sent."""
        self.chain = chain
        self.drafter = drafter
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.status = RequestStatus.WAITING
        self.block_ids: list[int] = []
        self.num_computed_tokens = 0
        """Leading tokens whose keys and values are in the cache."""
        self.num_registered_blocks = 0
        """Leading blocks that have been offered to the prefix cache."""
        self.num_cached_tokens = 0
        """Prompt tokens the prefix cache held when it was first scheduled."""
        self.num_preemptions = 0
        self.has_answered = False
        self.queued_at = queued_at
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.num_prefill_tokens = 0
        """Prompt tokens computed, each time anew after a preemption."""
        arrived_at = queued_at - age
        self.ends_at = _after(arrived_at, params.deadline_ms)
        """When its time is over; None without a limit."""
        self.starts_by = _after(arrived_at, params.max_queue_ms)
        """When it must have been started."""

    def append_token(self, token_id: int) -> FinishReason | None:
        """Take in a sampled token. Returns why the request ends with it, or None."""
        self.token_ids.append(token_id)
        length = len(self.token_ids)
        num_output_tokens = length - self.num_prompt_tokens
        may_stop = num_output_tokens >= self.min_tokens
        if may_stop and (token_id == self.eos_token_id or token_id in self.stop_token_ids):
            return FinishReason.STOP
        if length >= self.max_num_tokens:
            return FinishReason.LENGTH
        if self.repetition is not None:
            repeats = self.repetition.append(self.token_ids, num_output_tokens)
            if repeats and may_stop:
                return FinishReason.REPETITION
        return None

    def forget_computed(self) -> None:
        """Back to the start, tokens kept: its blocks are gone and all is to be computed again."""
        self.block_ids = []
        self.num_computed_tokens = 0
        self.num_registered_blocks = 0
        if self.prompt_logprobs:
            self.prompt_logprobs = []

    def to_new_request(self) -> NewRequest:
        """What the worker needs to know of it. Lists are copies: those here go on growing."""
        stop_token_ids = set(self.stop_token_ids)
        if self.eos_token_id is not None:
            stop_token_ids.add(self.eos_token_id)
        return NewRequest(
            request_id=self.request_id,
            token_ids=self.token_ids.copy(),
            num_prompt_tokens=self.num_prompt_tokens,
            sampling_params=self.params,
            stop_token_ids=sorted(stop_token_ids),
            seed=self.seed,
            block_ids=self.block_ids.copy(),
            num_computed_tokens=self.num_computed_tokens,
            grammar=self.grammar,
            prompt_embeds=self.prompt_embeds,
            num_answer_tokens=self.num_answer_tokens,
        )

    def to_output(
        self,
        token_ids: list[int],
        now: float,
        *,
        logprobs: list[TokenLogprobs] | None = None,
        finish_reason: FinishReason | None = None,
        stop_reason: int | None = None,
        error: str | None = None,
        error_param: str | None = None,
        ends_with_text: bool = False,
    ) -> EngineCoreOutput:
        """Its next output; the first one carries what is told once."""
        prompt_logprobs = None
        num_cached_tokens = 0
        is_first, self.has_answered = not self.has_answered, True
        if is_first:
            num_cached_tokens = self.num_cached_tokens
            if token_ids:  # else the prompt has not been computed to its end
                prompt_logprobs, self.prompt_logprobs = self.prompt_logprobs, None
        return EngineCoreOutput(
            request_id=self.request_id,
            new_token_ids=token_ids,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            num_cached_tokens=num_cached_tokens,
            num_preemptions=self.num_preemptions,
            ledger=self.ledger(now) if is_first or finish_reason is not None else None,
            error=error,
            error_param=error_param,
            ends_with_text=ends_with_text,
        )

    def ledger(self, now: float) -> RequestLedger:
        """What it has taken until now."""
        return RequestLedger(
            queued=self.queued_at,
            scheduled=now if self.scheduled_at is None else self.scheduled_at,
            first_token=now if self.first_token_at is None else self.first_token_at,
            last_token=now if self.last_token_at is None else self.last_token_at,
            num_prefill_tokens=self.num_prefill_tokens,
            num_cached_tokens=self.num_cached_tokens,
            num_output_tokens=len(self.token_ids) - self.num_prompt_tokens,
            num_preemptions=self.num_preemptions,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )


def _after(start: float, milliseconds: float | None) -> float | None:
    return None if milliseconds is None else start + milliseconds / 1000


def longest_length(source: EngineCoreRequest, max_model_len: int) -> int:
    """Most tokens a request can come to, prompt and answer together."""
    max_tokens = source.sampling_params.max_tokens
    if max_tokens is None:
        return max_model_len
    return min(len(source.prompt_token_ids) + max_tokens, max_model_len)
