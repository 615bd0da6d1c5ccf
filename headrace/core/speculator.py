"""What speculative decoding adds to a step: drafts for running requests, and their account.

Drafts only get what nobody else wants in the step. Which tokens they are is the drafter's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from headrace.config.engine import SpeculativeConfig
from headrace.core.drafter import Drafter
from headrace.core.kv_cache import KVCacheManager
from headrace.core.request import Request
from headrace.messages.outputs import SchedulerStats
from headrace.messages.step import CachedRequest


class Speculator:
    """Drafts of all requests of one engine. Counters are totals since the start."""

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config
        self._num_drafts = 0
        self._num_draft_tokens = 0
        self._num_accepted_tokens = 0
        self._num_accepted_at = [0] * config.num_speculative_tokens
        """By place in the draft."""

    def make_drafter(self) -> Drafter:
        """For a new request."""
        return Drafter(self._config)

    def add_drafts(
        self,
        counts: dict[str, int],
        cached: Sequence[CachedRequest],
        requests: Mapping[str, Request],
        kv_cache: KVCacheManager,
        budget: int,
        num_running: int,
    ) -> dict[str, list[int]]:
        """Put drafts behind the tokens of requests that decode, first come, first served.

        A draft takes tokens of the budget, and blocks as long as one stays free for every request:
        so it never makes another one wait or give way.

        Args:
            counts, cached: the step's running requests; drafts and blocks are added to them.
            budget: tokens that are left.
            num_running: requests that run, with those that have nothing in this step.

        Returns:
            Request id -> its draft; none is empty.
        """
        drafts: dict[str, list[int]] = {}
        if num_running > self._config.disable_by_batch_size:
            return drafts
        for record in cached:
            request = requests[record.request_id]
            num_known = len(request.token_ids)
            is_decoding = num_known > request.num_prompt_tokens
            if request.drafter is None or not is_decoding:
                continue
            if request.num_computed_tokens != num_known - 1:
                continue
            # The last token of an answer is sampled and never computed with.
            limit = min(budget, request.max_num_tokens - num_known - 1)
            draft = request.drafter.draft(request.token_ids, limit, num_running)
            if not draft:
                continue
            block_ids = kv_cache.allocate(request, num_known + len(draft), keep_free=num_running)
            if block_ids is None:
                del draft[len(request.block_ids) * kv_cache.block_size - num_known :]
                if not draft:
                    continue
            else:
                record.new_block_ids.extend(block_ids)
            drafts[request.request_id] = draft
            counts[request.request_id] += len(draft)
            budget -= len(draft)
        return drafts

    def note(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """A draft was checked; the request has grown by what was right."""
        request.num_draft_tokens += num_drafted
        request.num_accepted_tokens += num_accepted
        if request.drafter is not None:
            request.drafter.note(num_drafted, num_accepted, len(request.token_ids))
        self._num_drafts += 1
        self._num_draft_tokens += num_drafted
        self._num_accepted_tokens += num_accepted
        for place in range(num_accepted):
            self._num_accepted_at[place] += 1

    def add_to(self, stats: SchedulerStats) -> SchedulerStats:
        """The same state with the counters of drafts."""
        return msgspec.structs.replace(
            stats,
            num_drafts=self._num_drafts,
            num_draft_tokens=self._num_draft_tokens,
            num_accepted_tokens=self._num_accepted_tokens,
            num_accepted_tokens_per_pos=self._num_accepted_at.copy(),
        )
