"""Decides what each step computes: continuous batching, chunked prefill, preemption, stops.

Bookkeeping only: no arrays of the model, no sockets, no clock of its own.

The rules, in the order they are applied (`order` of a request: by arrival, or by priority first):

1. Running requests come before waiting ones, both in `order`. A prefill takes what is left of the
   step's token budget, but leaves one token for every running request after it.
2. A running request that needs a block when none is free preempts the last running request in
   `order`, itself if it comes to that. The first one thus always goes on. A preempted request
   gives back its blocks, keeps its tokens and waits ahead of all that came after it.
3. The first waiting request (of the tenant whose turn it is, see `FairQueue`) is admitted when a
   place, budget and blocks for all its known tokens are free, so that prefills under way never wait
   for each other's blocks. One block is kept free for each running request that may still grow, so
   that an admission is not undone at once. It is never overtaken. A step that preempted admits
   nothing.
4. All prefills of a step together may be limited further (`schedule`): then a running request whose
   prompt is not computed yet may have to wait a step, but never the first one in `order`.
5. With speculative decoding, what is left of budget and blocks goes to tokens guessed for running
   requests; see `Speculator`.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.config.engine import CacheConfig, SchedulerConfig, SpeculativeConfig
from headrace.core.block_times import BlockSampler
from headrace.core.kv_cache import KVCacheManager
from headrace.core.pace import StepPace
from headrace.core.request import Request
from headrace.core.request_maker import RequestMaker
from headrace.core.roster import Roster
from headrace.core.speculator import Speculator
from headrace.core.step_limits import check_limits
from headrace.messages.outputs import (
    EngineCoreOutput,
    FinishReason,
    SchedulerStats,
    TokenLogprobs,
)
from headrace.messages.requests import EngineCoreRequest
from headrace.messages.step import CachedRequest, ModelRunnerOutput, NewRequest, SchedulerOutput

LONGER = 2
"""How many times longer than the mean a prompt is that holds up those behind it."""


class Scheduler:
    """The steps of one engine. Call `schedule`, run the order, then `update`, in turn.

    Requests are added here, and found, aborted and told of their time's end in `roster`.

    Args:
        config: limits of a step. As each running request gets a token in every step,
            max_num_batched_tokens limits how many of them run, too.
        cache: block size, and whether prefixes are shared.
        num_blocks: KV blocks there are.
        max_model_len: most tokens of a request, prompt and answer together.
        now: monotonic clock, seconds.
        speculative: how to guess tokens; None: no token is guessed.
        seed: of the generator that seeds requests without a seed of their own.

    Raises:
        ConfigError: limits that cannot work together.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        num_blocks: int,
        max_model_len: int,
        *,
        now: Callable[[], float],
        speculative: SpeculativeConfig | None = None,
        seed: int = 0,
    ) -> None:
        check_limits(config, max_model_len)
        self._max_step_tokens = config.max_num_batched_tokens
        self._max_running = config.max_num_seqs
        self._chunks_prefill = config.enable_chunked_prefill
        self._max_chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self._now = now
        self._speculator = None if speculative is None else Speculator(speculative)
        share = cache.kv_cache_metrics_sample
        self._block_sampler = None if share is None else BlockSampler(share, now, seed)
        self.kv_cache = KVCacheManager(
            num_blocks, cache.block_size, cache.enable_prefix_caching, self._block_sampler
        )
        self.maker = RequestMaker(
            self.kv_cache,
            max_model_len,
            by_priority=config.policy == "priority",
            now=now,
            seed=seed,
            speculator=self._speculator,
        )
        self.roster = Roster(self.kv_cache, config.policy, now)
        self.has_news = False
        """Whether somebody waits for an output of the last update: a first or a last one, or one
        of a request whose every token is watched."""
        self.num_decodes = 0
        """Requests that get the token after their last one in the step that was scheduled."""
        self._has_rest = False
        """Whether that step left known tokens of running requests for later ones."""
        self._prefill_left = 0
        """Of the step being scheduled."""
        self._num_steps = 0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._prefix_queries = 0
        self._prefix_hits = 0
        self._num_corrupted = 0

    def add_request(
        self, source: EngineCoreRequest, age: float = 0.0, *, drawn_seed: int | None = None
    ) -> None:
        """Queue a request whose id is not live; see RequestMaker.make.

        Raises:
            ValidationError: it could never run: at its longest it does not fit the KV cache.
        """
        self.roster.add(self.maker.make(source, age, drawn_seed))

    # A step begins

    def prefill_limit(self, pace: StepPace) -> int | None:
        """Most tokens of prefill for the next step; None where no watched token is to come."""
        roster = self.roster
        has_prefill = roster.num_queued_tokens or len(roster.waiting) or self._has_rest
        if not has_prefill or not self._chunks_prefill:
            return None
        num_decodes, is_watched = 0, False
        first: Request | None = None
        for request in roster.running:
            if len(request.token_ids) - request.num_computed_tokens == 1:
                num_decodes += 1
                is_watched |= request.is_watched
            elif first is None:
                first = request
        if not is_watched:
            return None
        if first is None and len(roster.waiting):
            first = roster.waiting.peek()
        num_lasting = 0
        # Behind prompts much longer than theirs, they would not run side by side soon.
        num_left = roster.num_present - num_decodes
        if first and len(first.token_ids) * num_left <= LONGER * roster.num_queued_tokens:
            pool, block_size = self.kv_cache.pool, self.kv_cache.block_size
            num_lasting = roster.crowd.size(self._max_running, pool.num_blocks, block_size)
        return pace.prefill_tokens(num_decodes, roster.num_present, num_lasting)

    def schedule(self, max_prefill_tokens: int | None = None) -> SchedulerOutput:
        """The next step's order; its result goes to `update` before the next call.

        Args:
            max_prefill_tokens: at least 1; None is no limit but that of all tokens.
        """
        roster = self.roster
        self._prefill_left = max_prefill_tokens or self._max_step_tokens
        self.num_decodes, self._has_rest = 0, False
        counts: dict[str, int] = {}
        cached: list[CachedRequest] = []
        new: list[NewRequest] = []
        drafts: dict[str, list[int]] = {}
        budget = self._max_step_tokens
        if not roster.gate.is_shut:
            num_preemptions = roster.num_preemptions
            budget, num_growing = self._schedule_running(counts, cached)
            if roster.num_preemptions == num_preemptions and len(roster.waiting):
                budget = self._schedule_waiting(counts, new, budget, num_growing)
            if self._speculator is not None and budget > 0:
                drafts = self._speculator.add_drafts(
                    counts, cached, roster.requests, self.kv_cache, budget, len(roster.running)
                )
        self._num_steps += 1
        num_tokens = self._max_step_tokens - budget + sum(map(len, drafts.values()))
        return SchedulerOutput(new, cached, counts, num_tokens, roster.take_finished_ids(), drafts)

    def _schedule_running(
        self, counts: dict[str, int], cached: list[CachedRequest]
    ) -> tuple[int, int]:
        """Rules 1 and 2. Returns the budget left and how many requests may still need blocks."""
        running, block_size = self.roster.running, self.kv_cache.block_size
        budget = self._max_step_tokens
        num_growing = 0
        idx = 0
        while idx < len(running):
            request = running[idx]
            num_computed = request.num_computed_tokens
            num = len(request.token_ids) - num_computed
            if num > 1:
                left = min(budget - (len(running) - idx - 1), self._prefill_left)
                chunk = min(num, self._max_chunk, left)
                self._has_rest |= chunk < num
                if not self._prefill_left:
                    idx += 1
                    continue
                num = chunk
                self._prefill_left -= num
            else:
                self.num_decodes += 1
            num_slots = len(request.block_ids) * block_size
            new_block_ids: list[int] = []
            if num_computed + num > num_slots:
                found = self._grow(request, num_computed + num)
                if found is None:
                    break
                new_block_ids = found
                num_slots += len(found) * block_size
            if num_slots < request.max_num_tokens - 1:
                num_growing += 1
            counts[request.request_id] = num
            cached.append(CachedRequest(request.request_id, new_block_ids, num_computed))
            budget -= num
            idx += 1
        return budget, num_growing

    def _grow(self, request: Request, num_tokens: int) -> list[int] | None:
        """More blocks for a running request; None when it was the last and had to give way."""
        while True:
            block_ids = self.kv_cache.allocate(request, num_tokens)
            if block_ids is not None:
                return block_ids
            if self.roster.preempt_last() is request:
                return None

    def _schedule_waiting(
        self, counts: dict[str, int], new: list[NewRequest], budget: int, num_growing: int
    ) -> int:
        """Rule 3. Returns the budget left."""
        block_size = self.kv_cache.block_size
        running, waiting = self.roster.running, self.roster.waiting
        while len(waiting) and len(running) < self._max_running:
            left = min(budget, self._prefill_left)
            if left <= 0:
                break
            request = waiting.peek()
            prefix = self.kv_cache.find_prefix(request)
            num_computed = len(prefix) * block_size
            num_known = len(request.token_ids)
            num = num_known - num_computed
            if self._chunks_prefill:
                chunk = min(num, self._max_chunk, left)
                self._has_rest |= chunk < num
                num = chunk
            elif num > left:
                break
            if self.kv_cache.allocate(request, num_known, prefix, num_growing) is None:
                break
            waiting.pop()
            self._admit(request, num_computed)
            if len(request.block_ids) * block_size < request.max_num_tokens - 1:
                num_growing += 1
            counts[request.request_id] = num
            new.append(request.to_new_request())
            budget -= num
            self._prefill_left -= num
        return budget

    def _admit(self, request: Request, num_computed: int) -> None:
        if request.scheduled_at is None:
            request.scheduled_at = self._now()
            request.num_cached_tokens = min(num_computed, request.num_prompt_tokens)
            # A resumed request finds its own blocks: that says nothing about sharing.
            if request.chain is not None and not request.skips_prefix_cache:
                self._prefix_queries += request.num_prompt_tokens
                self._prefix_hits += request.num_cached_tokens
        self.roster.start(request, num_computed)

    # A step ends

    def update(self, order: SchedulerOutput, result: ModelRunnerOutput) -> list[EngineCoreOutput]:
        """Take in what a step computed; returns what there is to tell the callers."""
        now = self._now()
        self.has_news = False
        outputs: list[EngineCoreOutput] = []
        requests = self.roster.requests
        for request_id, num in order.num_scheduled_tokens.items():
            request = requests.get(request_id)
            if request is None:  # aborted while the step ran
                continue
            error = result.errors.get(request_id)
            if error is not None:
                param = result.error_params.get(request_id)
                self._num_corrupted += request_id in result.corrupted
                ended = self._end(
                    request, [], FinishReason.ERROR, now, error=error, error_param=param
                )
                outputs.append(ended)
                continue
            draft = order.draft_token_ids.get(request_id, ())
            self._advance(request, num - len(draft))
            if request.prompt_logprobs is not None and request_id in result.prompt_logprobs:
                request.prompt_logprobs += result.prompt_logprobs[request_id]
            if request.num_computed_tokens == len(request.token_ids):
                outputs.append(self._take_tokens(request, len(draft), result, now))
        if self.has_news and any(output.finish_reason is not None for output in outputs):
            self.roster.sweep()
        return outputs

    def _advance(self, request: Request, num: int) -> None:
        """Note that a request's next `num` tokens have been computed."""
        before = request.num_computed_tokens
        request.num_computed_tokens = before + num
        if before < request.num_prompt_tokens:
            num_prompt = min(num, request.num_prompt_tokens - before)
            self._prompt_tokens += num_prompt
            request.num_prefill_tokens += num_prompt
            self.roster.num_queued_tokens -= num_prompt
        self.kv_cache.cache_computed(request)

    def _take_tokens(
        self, request: Request, num_drafted: int, result: ModelRunnerOutput, now: float
    ) -> EngineCoreOutput:
        """Append what was sampled, one token after the other, and end the request where it ends.

        Of a draft's tokens, those that were right count as computed.
        """
        if request.first_token_at is None:
            request.first_token_at = now
            self.has_news = True
        elif request.is_watched:
            self.has_news = True
        request.last_token_at = now
        tokens = result.sampled_token_ids[request.request_id]
        logprobs = result.logprobs.get(request.request_id)
        num_taken, num_sampled = 1, len(tokens)
        finish_reason = request.append_token(tokens[0])
        while num_taken < num_sampled and finish_reason is None:
            self._advance(request, 1)
            finish_reason = request.append_token(tokens[num_taken])
            num_taken += 1
        self._generation_tokens += num_taken
        if num_taken < num_sampled:
            tokens = tokens[:num_taken]
            logprobs = None if logprobs is None else logprobs[:num_taken]
        stop_reason = None
        ends_with_text = False
        if finish_reason is FinishReason.STOP:
            stop_reason = None if tokens[-1] == request.eos_token_id else tokens[-1]
        elif request.request_id in result.grammar_ended and num_taken == num_sampled:
            # Nothing follows the end of a grammar, whatever min_tokens and ignore_eos say.
            finish_reason = FinishReason.STOP
            ends_with_text = True
        if num_drafted and self._speculator is not None:
            self._speculator.note(request, num_drafted, min(num_taken, num_sampled - 1))
        if finish_reason is not None:
            return self._end(
                request, tokens, finish_reason, now,
                stop_reason=stop_reason, ends_with_text=ends_with_text, logprobs=logprobs,
            )  # fmt: skip
        return request.to_output(tokens, now, logprobs=logprobs)

    def _end(
        self,
        request: Request,
        tokens: list[int],
        finish_reason: FinishReason,
        now: float,
        *,
        stop_reason: int | None = None,
        ends_with_text: bool = False,
        logprobs: list[TokenLogprobs] | None = None,
        error: str | None = None,
        error_param: str | None = None,
    ) -> EngineCoreOutput:
        """End a running request; its last output. `running` is left for the caller to sweep."""
        self.has_news = True
        self.roster.end(request)
        if finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.roster.crowd.note_answer(len(request.token_ids) - request.num_prompt_tokens)
        return request.to_output(
            tokens,
            now,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            logprobs=logprobs,
            error=error,
            error_param=error_param,
            ends_with_text=ends_with_text,
        )

    # State

    def stats(self) -> SchedulerStats:
        """State now, and counters since the start."""
        pool, roster = self.kv_cache.pool, self.roster
        stats = SchedulerStats(
            num_running=len(roster.running),
            num_waiting=roster.num_waiting,
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free_blocks,
            prefix_cache_queries=self._prefix_queries,
            prefix_cache_hits=self._prefix_hits,
            num_preemptions=roster.num_preemptions,
            num_steps=self._num_steps,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generation_tokens,
            num_queued_tokens=roster.num_queued_tokens,
            num_held=roster.gate.num_held,
            num_corrupted=self._num_corrupted,
            kv_block_times=None if self._block_sampler is None else self._block_sampler.times,
        )
        return stats if self._speculator is None else self._speculator.add_to(stats)

    def debug_state(self) -> dict[str, int]:
        """Sizes of all that grows with requests, for leak checks."""
        pool = self.kv_cache.pool
        return {
            **self.roster.debug_state(),
            "blocks_in_use": pool.num_blocks - pool.num_free_blocks,
            "cached_blocks": pool.num_cached_blocks,
        }

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False, and nothing changes, while blocks are in use."""
        return self.kv_cache.pool.reset()
