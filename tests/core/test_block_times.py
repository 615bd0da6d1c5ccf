"""How long sampled KV blocks live, lie idle and wait: told once each, at no cost when off."""

from __future__ import annotations

import random

import pytest

from headrace.config.engine import CacheConfig, SchedulerConfig
from headrace.core.block_pool import BlockPool
from headrace.core.block_times import BlockSampler
from headrace.core.scheduler import Scheduler
from headrace.messages.outputs import KV_BLOCK_SECONDS, Durations
from tests.fakes import RecordingExecutor, make_core_request


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


def told(durations: Durations) -> tuple[int, float]:
    return sum(durations.counts), durations.sum


def test_life_of_a_cached_block_ends_when_its_prefix_makes_way(clock: Clock) -> None:
    sampler = BlockSampler(1.0, clock)
    pool = BlockPool(1, sampler)
    [block] = pool.allocate(1)
    pool.register(block, b"prefix")
    clock.time = 3.0
    pool.free([block])
    clock.time = 10.0
    pool.touch([block])
    clock.time = 12.0
    pool.touch([block])
    pool.free([block])
    clock.time = 15.0
    pool.free([block])
    assert told(sampler.times.lifetimes) == (0, 0.0)
    clock.time = 19.0
    pool.allocate(1)
    assert told(sampler.times.lifetimes) == (1, 19.0)
    assert told(sampler.times.idle_times) == (1, 4.0)
    assert told(sampler.times.reuse_gaps) == (2, 12.0)
    bucket = next(i for i, bound in enumerate(KV_BLOCK_SECONDS) if bound >= 19.0)
    assert sampler.times.lifetimes.counts[bucket] == 1


def test_block_that_held_no_prefix_has_not_lived(clock: Clock) -> None:
    sampler = BlockSampler(1.0, clock)
    pool = BlockPool(1, sampler)
    for time in (1.0, 2.0, 3.0):
        clock.time = time
        pool.free(pool.allocate(1))
    assert told(sampler.times.lifetimes) == (0, 0.0)
    # What a later owner of the block sees is its own time.
    [block] = pool.allocate(1)
    pool.register(block, b"prefix")
    pool.free([block])
    clock.time = 3.5
    pool.allocate(1)
    assert told(sampler.times.lifetimes) == (1, 0.5)


def test_reset_of_the_cache_is_no_eviction(clock: Clock) -> None:
    sampler = BlockSampler(1.0, clock)
    pool = BlockPool(1, sampler)
    [block] = pool.allocate(1)
    pool.register(block, b"prefix")
    pool.free([block])
    assert pool.reset()
    pool.free(pool.allocate(1))
    assert told(sampler.times.lifetimes) == (0, 0.0)


def test_share_of_the_blocks_is_sampled(clock: Clock) -> None:
    sampler = BlockSampler(0.1, clock)
    pool = BlockPool(1000, sampler)
    for turn in range(11):
        blocks = pool.allocate(1000)
        for block in blocks:
            pool.register(block, b"%d %d" % (turn, block))
        pool.free(blocks)
        clock.time += 1.0
    num, total = told(sampler.times.lifetimes)
    assert 850 < num < 1150
    assert total == num


def test_sampling_changes_nothing_in_the_pool(clock: Clock) -> None:
    rng = random.Random(7)
    plain, sampled = BlockPool(8), BlockPool(8, BlockSampler(0.5, clock))
    held: list[int] = []
    for step in range(500):
        clock.time += 0.1
        if rng.random() < 0.5 and plain.num_free_blocks:
            blocks = plain.allocate(1)
            assert sampled.allocate(1) == blocks
            for pool in (plain, sampled):
                pool.register(blocks[0], bytes([step % 256]))
            held += blocks
        elif held:
            block = held.pop(rng.randrange(len(held)))
            for pool in (plain, sampled):
                pool.free([block])
        assert list(plain.iter_free()) == list(sampled.iter_free())


@pytest.mark.parametrize("share", [None, 1.0])
def test_scheduler_tells_of_blocks_where_it_is_asked_to(clock: Clock, share: float | None) -> None:
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64),
        CacheConfig(block_size=4, kv_cache_metrics_sample=share), 4, 16, now=clock,
    )  # fmt: skip
    executor = RecordingExecutor(num_blocks=4, block_size=4, max_model_len=16)
    for number in range(4):
        scheduler.add_request(make_core_request(f"r{number}", [number] * 9, max_tokens=3))
        while scheduler.roster.has_work():
            clock.time += 1.0
            order = scheduler.schedule()
            scheduler.update(order, executor.execute(order))
    times = scheduler.stats().kv_block_times
    if share is None:
        assert times is None
        return
    assert times is not None
    num, total = told(times.lifetimes)
    assert num >= 2
    assert total > told(times.idle_times)[1] > 0
