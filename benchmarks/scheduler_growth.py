"""How the cost of a scheduler step grows: with the queue, the pool, the prompt, the batch.

Prints a table per question, with the slope of log(time) over log(size): 0 is flat, 1 is linear.
No model runs; the sampled tokens are made up. Usage: python benchmarks/scheduler_growth.py
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence

from headrace.config.engine import CacheConfig, SchedulerConfig
from headrace.core.block_pool import BlockPool
from headrace.core.scheduler import Scheduler
from headrace.messages.requests import EngineCoreRequest
from headrace.messages.step import ModelRunnerOutput
from headrace.sampling_params import SamplingParams

BLOCK_SIZE = 16
NUM_STEPS = 300
NUM_REPEATS = 5


def make_scheduler(
    num_running: int, num_waiting: int, num_blocks: int, policy: str, num_tenants: int = 1
) -> Scheduler:
    """A scheduler in the middle of its work: all seats taken by decodes, the rest waiting."""
    config = SchedulerConfig(
        max_num_seqs=num_running,
        max_num_batched_tokens=max(2048, num_running),
        policy=policy,  # type: ignore[arg-type]
    )
    scheduler = Scheduler(
        config, CacheConfig(block_size=BLOCK_SIZE), num_blocks, 100_000, now=time.monotonic
    )
    params = SamplingParams(max_tokens=NUM_STEPS * NUM_REPEATS * 2, ignore_eos=True)
    for number in range(num_running + num_waiting):
        prompt = [number % 50_000, *range(7)]
        tenant = str(number % num_tenants)
        source = EngineCoreRequest(str(number), prompt, params, None, [], 0.0, tenant=tenant)
        scheduler.add_request(source)
    while len(scheduler.roster.running) < num_running:
        step(scheduler)
    return scheduler


def step(scheduler: Scheduler) -> None:
    order = scheduler.schedule()
    scheduler.update(order, ModelRunnerOutput({i: [5] for i in order.num_scheduled_tokens}))


def step_time(scheduler: Scheduler) -> float:
    """Seconds of one schedule and update: the best of the repeats' medians."""
    medians = []
    for _ in range(NUM_REPEATS):
        times = []
        for _ in range(NUM_STEPS):
            start = time.perf_counter()
            step(scheduler)
            times.append(time.perf_counter() - start)
        medians.append(statistics.median(times))
    return min(medians)


def best_of(action: Callable[[], object], repeats: int = NUM_REPEATS) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def slope(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Least-squares slope of log(time) over log(size)."""
    xs, ys = [math.log(size) for size in sizes], [math.log(t) for t in times]
    return statistics.linear_regression(xs, ys).slope


def table(title: str, sizes: Sequence[int], times: Sequence[float]) -> None:
    print(f"\n{title}")
    for size, seconds in zip(sizes, times, strict=True):
        print(f"  {size:>9,}  {seconds * 1e6:>12.1f} us")
    print(f"  slope {slope(sizes, times):+.2f}")


def prefix_time(num_prompt_blocks: int, *, is_known: bool) -> float:
    """Seconds of a prefix lookup, with the digests still to compute or at hand; all blocks hit."""
    scheduler = make_scheduler(1, 0, 4 * num_prompt_blocks + 1000, "fcfs")
    cache = scheduler.kv_cache
    prompt = [token % 50_000 for token in range(num_prompt_blocks * BLOCK_SIZE + 1)]
    chain = cache.make_chain(None)
    assert chain is not None
    blocks = cache.pool.allocate(num_prompt_blocks)
    for block, digest in zip(blocks, chain.extend(prompt, num_prompt_blocks), strict=True):
        cache.pool.register(block, digest)
    params = SamplingParams(max_tokens=1)
    times = []
    for number in range(NUM_REPEATS):
        source = EngineCoreRequest(f"probe {number}", prompt, params, None, [], 0.0)
        scheduler.add_request(source)
        request = scheduler.roster.requests[source.request_id]
        if is_known:
            cache.find_prefix(request)
        start = time.perf_counter()
        found = cache.find_prefix(request)
        times.append(time.perf_counter() - start)
        assert len(found) == num_prompt_blocks
    return min(times)


def abort_time(num_waiting: int, policy: str) -> float:
    """Seconds per abort of a waiting request, in a mixed order."""
    scheduler = make_scheduler(1, num_waiting, 100_000, policy)
    ids = [str(1 + (number * 7919) % num_waiting) for number in range(num_waiting)]
    start = time.perf_counter()
    for request_id in ids:
        scheduler.roster.abort([request_id])
    return (time.perf_counter() - start) / num_waiting


def turn_time(num_waiting: int, num_tenants: int) -> float:
    """Seconds to start a waiting request of the tenant whose turn it is."""
    queue = make_scheduler(1, num_waiting, 100_000, "fcfs", num_tenants).roster.waiting
    num_popped = min(num_waiting, 1000)
    start = time.perf_counter()
    for _ in range(num_popped):
        queue.pop()
    return (time.perf_counter() - start) / num_popped


def main() -> None:
    gc.disable()
    for policy in ("fcfs", "priority"):
        sizes: Sequence[int] = (16, 100, 1000, 10_000)
        times = [step_time(make_scheduler(64, size, 100_000, policy)) for size in sizes]
        table(f"step of 64 decodes over waiting requests ({policy})", sizes, times)
        times = [abort_time(size, policy) for size in sizes]
        table(f"abort of a waiting request over waiting requests ({policy})", sizes, times)
    sizes = (100, 1000, 10_000, 100_000)
    table(
        "turn of one of 10 tenants over waiting requests", sizes, [turn_time(n, 10) for n in sizes]
    )
    sizes = (10_000, 100_000, 1_000_000)
    times = [step_time(make_scheduler(64, 16, size, "fcfs")) for size in sizes]
    table("step of 64 decodes over blocks in the pool", sizes, times)
    sizes = (1000, 10_000, 100_000, 1_000_000)
    table(
        "making a pool over its blocks",
        sizes,
        [best_of(lambda n=size: BlockPool(n)) for size in sizes],
    )
    times = []
    for size in sizes:
        pool = BlockPool(size)

        def use(pool: BlockPool = pool) -> None:
            for _ in range(100):
                blocks = pool.allocate(100)
                pool.touch(blocks)
                pool.free(blocks)
                pool.free(blocks)

        times.append(best_of(use) / 10_000)
    table("allocate, touch, free twice: per block, over blocks in the pool", sizes, times)
    sizes = (1, 8, 64, 256)
    times = [step_time(make_scheduler(size, 16, 100_000, "fcfs")) for size in sizes]
    table("step over running decodes", sizes, times)
    sizes = (10, 100, 1000, 8000)
    table(
        "prefix lookup, digests new, over blocks",
        sizes,
        [prefix_time(n, is_known=False) for n in sizes],
    )
    table(
        "prefix lookup, digests known, over blocks",
        sizes,
        [prefix_time(n, is_known=True) for n in sizes],
    )


if __name__ == "__main__":
    main()
