"""The scheduler beside its slow oracle: random lives of random requests in tiny caches."""

from __future__ import annotations

import random

import pytest

from headrace.config.engine import CacheConfig, SchedulerConfig, SpeculativeConfig
from headrace.core import fair_queue
from headrace.core.request import RequestStatus
from headrace.core.scheduler import Scheduler
from headrace.errors import ValidationError
from headrace.messages.outputs import EngineCoreOutput, FinishReason, RequestLedger
from headrace.messages.requests import EngineCoreRequest
from headrace.sampling_params import SamplingParams
from tests.fakes import RecordingExecutor, next_token, prompt_entry
from tests.oracles.scheduler import OracleScheduler

VOCAB_SIZE = 11
SCENARIOS_PER_TEST = 60


class Drill:
    """One scenario: the scheduler, the oracle and a checking executor, driven by a seed."""

    def __init__(self, seed: int, quantum: int) -> None:
        rng = self.rng = random.Random(seed)
        self.block_size = rng.choice([1, 2, 3, 4])
        self.max_model_len = rng.randint(4, 24)
        # Mostly room for one to three of the longest requests, at times for less than one.
        longest = -(-self.max_model_len // self.block_size)
        self.num_blocks = rng.randint(longest, 3 * longest)
        if rng.random() < 0.1:
            self.num_blocks = rng.randint(1, longest)
        chunked = rng.random() < 0.75
        budget = rng.randint(1, 16) if chunked else self.max_model_len + rng.randint(0, 8)
        self.config = SchedulerConfig(
            max_num_seqs=rng.randint(1, 8),
            max_num_batched_tokens=budget,
            policy=rng.choice(["fcfs", "priority"]),
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=rng.choice([0, 0, 1, 3, 5]) if chunked else 0,
        )
        shares = rng.random() < 0.75
        self.memory = rng.choice([None, 1, 2])
        speculative = _random_speculative(rng) if rng.random() < 0.6 else None
        self.time = 0.0
        self.scheduler = Scheduler(
            self.config,
            CacheConfig(block_size=self.block_size, enable_prefix_caching=shares),
            self.num_blocks,
            self.max_model_len,
            now=lambda: self.time,
            speculative=speculative,
            seed=seed,
        )
        self.oracle = OracleScheduler(
            self.config,
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            shares_prefixes=shares,
            speculative=speculative,
            quantum=quantum,
        )
        self.executor = RecordingExecutor(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            vocab_size=VOCAB_SIZE,
            memory=self.memory,
        )
        self.num_added = 0
        self.sources: dict[str, EngineCoreRequest] = {}
        self.outputs: dict[str, list[EngineCoreOutput]] = {}
        self.finished: set[str] = set()
        self.ledgers: list[RequestLedger] = []
        """The last ones of all requests that have ended."""
        self.num_preemptions = 0
        self.longest_shared = rng.choice([3, 20])
        self.tenant_rng = random.Random(f"tenants of {seed}")
        self.tenants = self.tenant_rng.choice([[None], [None, "a", "b"]])
        self.num_turns = 0
        """Requests that were started before one that came earlier, at the same priority."""
        self.roots = [[rng.randrange(VOCAB_SIZE) for _ in range(24)] for _ in range(2)]

    def add(self) -> None:
        rng = self.rng
        request_id = f"r{self.num_added}"
        self.num_added += 1
        shared = rng.choice(self.roots)[: rng.randint(0, self.longest_shared)]
        prompt = [*shared, *(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(0, 4)))]
        prompt = prompt[: self.max_model_len - 1] or [0]
        max_tokens = rng.randint(1, 20)
        params = SamplingParams(
            max_tokens=max_tokens,
            min_tokens=rng.randint(0, max_tokens) if rng.random() < 0.3 else 0,
            ignore_eos=rng.random() < 0.5,
            seed=rng.choice([None, 7]),
            prompt_logprobs=rng.choice([None, None, None, 0]),
            logprobs=rng.choice([None, 0]),
        )
        source = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling_params=params,
            eos_token_id=0,
            stop_token_ids=[1] if rng.random() < 0.3 else [],
            arrival_time=float(rng.randint(0, 3)),
            priority=rng.randint(-1, 1),
            cache_salt=rng.choice([None, None, None, "salt"]),
            tenant=self.tenant_rng.choice(self.tenants),
        )
        fits = self.oracle.add(
            request_id,
            prompt,
            max_tokens,
            priority=source.priority,
            arrival=source.arrival_time,
            salt=source.cache_salt,
            reads_cache=params.prompt_logprobs is None,
            tenant=source.tenant,
        )
        if not fits:
            with pytest.raises(ValidationError, match="KV cache holds"):
                self.scheduler.add_request(source)
            return
        self.scheduler.add_request(source)
        self.sources[request_id] = source
        self.outputs[request_id] = []
        if rng.random() < 0.05:
            self.executor.errors[request_id] = "the fake fails it"

    def abort(self) -> None:
        ids = self.rng.sample(sorted(self.sources), min(len(self.sources), self.rng.randint(1, 3)))
        for output in self.scheduler.roster.abort([*ids, "unknown"]):
            assert output.ledger is not None
            self.ledgers.append(output.ledger)
        for request_id in ids:
            self.oracle.abort(request_id)
            self.finished.add(request_id)

    def step(self) -> None:
        self.time += 1.0
        scheduler, oracle = self.scheduler, self.oracle
        best = scheduler.roster.running[0] if scheduler.roster.running else None
        chunked = self.config.enable_chunked_prefill
        limit = self.rng.randint(1, 6) if chunked and self.rng.random() < 0.5 else None
        decision = oracle.schedule(limit)
        order = scheduler.schedule(limit)
        assert [
            (n.request_id, tuple(n.token_ids), tuple(n.block_ids), n.num_computed_tokens)
            for n in order.new_requests
        ] == decision.new
        assert [
            (c.request_id, tuple(c.new_block_ids), c.num_computed_tokens)
            for c in order.cached_requests
        ] == decision.old
        for new in order.new_requests:
            started = scheduler.roster.requests[new.request_id].order
            self.num_turns += any(
                one.rank < started[-len(one.rank) :] and one.level == started[0]
                for one in oracle.waiting
            )
        assert order.draft_token_ids == decision.drafts
        assert order.num_scheduled_tokens == decision.counts
        assert list(order.num_scheduled_tokens) == list(decision.counts)
        assert order.finished_ids == decision.forgotten
        assert order.total_num_scheduled_tokens <= self.config.max_num_batched_tokens
        if best is not None:
            assert best.request_id in order.num_scheduled_tokens
        if scheduler.roster.requests:
            assert order.total_num_scheduled_tokens > 0
        self.check_state()

        result = self.executor.execute(order)
        outputs = scheduler.update(order, result)
        ended = {o.request_id for o in outputs if o.finish_reason is not None}
        failed = {o.request_id for o in outputs if o.finish_reason is FinishReason.ERROR}
        assert failed == set(result.errors)
        assert {o.request_id for o in outputs} == set(result.sampled_token_ids) | failed
        for output in outputs:
            sampled = result.sampled_token_ids.get(output.request_id, [])
            assert output.new_token_ids == sampled[: len(output.new_token_ids)]
            assert len(output.new_token_ids) == len(sampled) or output.request_id in ended
        taken = {o.request_id: o.new_token_ids for o in outputs}
        oracle.update(decision, taken, ended, failed)
        for output in outputs:
            self.outputs[output.request_id].append(output)
        for request_id in ended:
            self.finished.add(request_id)
            self.check_answer(request_id)
        self.check_state()

    def check_state(self) -> None:
        """Everything that must hold between any two calls."""
        scheduler, oracle = self.scheduler, self.oracle
        check_pool(scheduler)
        assert list(scheduler.kv_cache.pool.iter_free()) == oracle.free
        stats = scheduler.stats()
        assert stats.num_running == len(oracle.running)
        assert stats.num_waiting == len(oracle.waiting)
        assert stats.num_free_blocks == len(oracle.free)
        expected = oracle.next_waiting(foretell=True) if oracle.waiting else None
        foretold = next(scheduler.roster.waiting.in_order(), None)
        assert (foretold and foretold.request_id) == (expected and expected.request_id)
        assert stats.num_queued_tokens == sum(
            max(0, r.num_prompt - r.computed) for r in oracle.live()
        )
        assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (
            oracle.queries,
            oracle.hits,
        )
        assert set(scheduler.roster.requests) == {r.request_id for r in oracle.live()}
        assert [r.order for r in scheduler.roster.running] == sorted(
            r.order for r in scheduler.roster.running
        )
        for request in scheduler.roster.running:
            assert request.status is RequestStatus.RUNNING
        for request in oracle.live():
            mine = scheduler.roster.requests[request.request_id]
            assert mine.token_ids == request.tokens
            assert mine.block_ids == request.blocks
            assert mine.num_computed_tokens == request.computed
            assert mine.num_preemptions == request.preemptions
            assert mine.num_cached_tokens == (request.cached or 0)
        self.num_preemptions = stats.num_preemptions
        self.num_accepted = stats.num_accepted_tokens

    def check_sums(self) -> None:
        """The counters are the sums of the ledgers."""
        stats, ledgers = self.scheduler.stats(), self.ledgers
        assert stats.prompt_tokens == sum(one.num_prefill_tokens for one in ledgers)
        assert stats.generation_tokens == sum(one.num_output_tokens for one in ledgers)
        assert stats.num_draft_tokens == sum(one.num_draft_tokens for one in ledgers)
        assert stats.num_accepted_tokens == sum(one.num_accepted_tokens for one in ledgers)
        assert stats.num_accepted_tokens == sum(stats.num_accepted_tokens_per_pos)
        assert stats.num_preemptions == sum(one.num_preemptions for one in ledgers)

    def check_answer(self, request_id: str) -> None:
        """All outputs of a finished request, against a run of it alone and unhindered."""
        source, outputs = self.sources[request_id], self.outputs[request_id]
        *before, last = outputs
        assert all(o.finish_reason is None for o in before)
        assert all(o.ledger is None for o in before[1:])
        assert last.ledger is not None
        times = last.ledger
        self.ledgers.append(times)
        assert times.queued <= times.scheduled <= times.first_token <= times.last_token
        tokens = [token for o in outputs for token in o.new_token_ids]
        assert times.num_output_tokens == len(tokens)
        assert outputs[0].ledger is not None
        assert outputs[0].ledger.num_output_tokens == len(outputs[0].new_token_ids)
        assert all(o.num_cached_tokens == 0 and o.prompt_logprobs is None for o in outputs[1:])
        if last.finish_reason is FinishReason.ERROR:
            assert last.error == "the fake fails it"
            assert tokens == []
            return
        seed = self.seeds[request_id]
        expected, reason, stop_reason = run_alone(source, seed, self.max_model_len, self.memory)
        assert tokens == expected
        assert (last.finish_reason, last.stop_reason) == (reason, stop_reason)
        num_prompt = len(source.prompt_token_ids)
        if source.sampling_params.prompt_logprobs is not None:
            prompt = source.prompt_token_ids
            wanted = [prompt_entry(prompt, position) for position in range(1, num_prompt)]
            assert outputs[0].prompt_logprobs == wanted
            assert outputs[0].num_cached_tokens == 0
        else:
            assert outputs[0].prompt_logprobs is None
        if source.sampling_params.logprobs is None:
            assert all(output.logprobs is None for output in outputs)
        else:
            entries = [entry for output in outputs for entry in output.logprobs or ()]
            assert [entry.token_ids for entry in entries] == [[token] for token in tokens]
            positions = range(num_prompt, num_prompt + len(tokens))
            assert [entry.logprobs for entry in entries] == [[-float(i)] for i in positions]

    @property
    def seeds(self) -> dict[str, int]:
        """The seeds requests were sent with; the same every time a request is sent."""
        seeds: dict[str, int] = {}
        for order in self.executor.orders:
            for new in order.new_requests:
                assert seeds.setdefault(new.request_id, new.seed) == new.seed
        return seeds

    def run(self) -> None:
        """Adds, aborts and steps in random turns; then steps until nothing is left."""
        rng = self.rng
        add_rate, abort_rate = rng.random(), rng.choice([0.0, 0.02, 0.2])
        for _ in range(rng.randint(3, 25)):
            while rng.random() < add_rate * 0.7:
                self.add()
            if rng.random() < abort_rate and self.sources:
                self.abort()
                self.check_state()
            self.step()
        limit = 100 + 40 * self.num_added * (self.max_model_len + 1)
        while self.scheduler.roster.has_work():
            limit -= 1
            assert limit > 0, "the scheduler does not come to an end"
            self.step()
        assert set(self.sources) == self.finished
        assert self.executor.known_ids == set()
        self.check_sums()
        state = self.scheduler.debug_state()
        cached = state.pop("cached_blocks")
        assert set(state.values()) == {0}
        assert cached <= self.num_blocks
        assert self.scheduler.reset_prefix_cache()
        assert self.scheduler.debug_state()["cached_blocks"] == 0


def check_pool(scheduler: Scheduler) -> None:
    """Counts equal users; a block is shared only as the same, known prefix at the same place."""
    pool = scheduler.kv_cache.pool
    users: dict[int, list[tuple[int, bytes | None]]] = {}
    for request in scheduler.roster.running:
        assert len(set(request.block_ids)) == len(request.block_ids)
        for idx, block in enumerate(request.block_ids):
            digests = request.chain.digests if request.chain is not None else []
            users.setdefault(block, []).append((idx, digests[idx] if idx < len(digests) else None))
    free = list(pool.iter_free())
    assert len(free) == len(set(free)) == pool.num_free_blocks
    for block in range(pool.num_blocks):
        holders = users.get(block, [])
        assert pool.ref_count(block) == len(holders)
        assert (block in free) == (not holders)
        digest = pool.digest_of(block)
        if digest is not None:
            assert pool.find(digest) == block
        if len(holders) > 1:
            assert digest is not None
            assert len({idx for idx, _ in holders}) == 1
            assert {held for _, held in holders} == {digest}


def run_alone(
    source: EngineCoreRequest, seed: int, max_model_len: int, memory: int | None
) -> tuple[list[int], FinishReason, int | None]:
    """The answer a request must get, whatever happens around it."""
    params = source.sampling_params
    tokens = list(source.prompt_token_ids)
    answer: list[int] = []
    assert params.max_tokens is not None
    while True:
        token = next_token(tokens if memory is None else tokens[-memory:], seed, VOCAB_SIZE)
        tokens.append(token)
        answer.append(token)
        if len(answer) >= params.min_tokens:
            if token == source.eos_token_id and not params.ignore_eos:
                return answer, FinishReason.STOP, None
            if token in source.stop_token_ids:
                return answer, FinishReason.STOP, token
        if len(answer) >= params.max_tokens or len(tokens) >= max_model_len:
            return answer, FinishReason.LENGTH, None


def _random_speculative(rng: random.Random) -> SpeculativeConfig:
    low = rng.randint(1, 3)
    return SpeculativeConfig(
        num_speculative_tokens=rng.randint(1, 6),
        prompt_lookup_min=low,
        prompt_lookup_max=rng.randint(low, 4),
        disable_by_batch_size=rng.choice([1, 3, 100]),
    )


@pytest.mark.parametrize("batch", range(10))
def test_decisions_over_random_lives_equal_those_of_the_oracle(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantum = (1, 3, 16, fair_queue.QUANTUM)[batch % 4]
    monkeypatch.setattr(fair_queue, "QUANTUM", quantum)
    num_preemptions = num_hits = num_accepted = num_turns = 0
    for seed in range(batch * SCENARIOS_PER_TEST, (batch + 1) * SCENARIOS_PER_TEST):
        drill = Drill(seed, quantum)
        try:
            drill.run()
        except Exception as error:
            error.add_note(f"scenario {seed}")
            raise
        num_preemptions += drill.num_preemptions
        num_hits += drill.oracle.hits
        num_accepted += drill.num_accepted
        num_turns += drill.num_turns
    # The scenarios are worth something only when they reach the rare paths.
    assert num_preemptions > 10
    assert num_hits > 100
    assert num_accepted > 50
    assert num_turns > 10
