"""When requests are sent, and how many at a time. Sends them through a function it is given."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from headrace.bench.stream import RequestResult

Send = Callable[[bytes, int | None], Awaitable[RequestResult]]
"""Sends a body; the second value is the prompt's length, if known."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A load.

    Attributes:
        bodies: of the requests, each with the length of its prompt, if known.
        arrivals: seconds after the start at which each is due, rising.
        max_concurrency: most requests under way; None: no such limit.
    """

    bodies: list[tuple[bytes, int | None]]
    arrivals: list[float]
    max_concurrency: int | None


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a load: results in the order of the plan, and seconds to the last of them.

    Attributes:
        client_seconds: processor time this process took meanwhile.
    """

    results: list[RequestResult]
    duration: float
    client_seconds: float


def arrival_times(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds from the start: gaps of a gamma distribution of shape `burstiness`, mean 1/rate.

    The first request goes at once.
    """
    if math.isinf(rate):
        return [0.0] * count
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(burstiness, 1 / (rate * burstiness), count - 1)
    times: list[float] = [0.0, *np.cumsum(gaps).tolist()]
    return times


async def run_load(plan: Plan, send: Send, on_done: Callable[[], object]) -> Run:
    """Send everything as planned and wait for all answers.

    Args:
        on_done: called after each answer.
    """
    seats = asyncio.Semaphore(plan.max_concurrency) if plan.max_concurrency else nullcontext()

    async def one(body: bytes, num_prompt_tokens: int | None) -> RequestResult:
        async with seats:
            result = await send(body, num_prompt_tokens)
        on_done()
        return result

    start, client_start = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for body, due in zip(plan.bodies, plan.arrivals, strict=True):
            ahead = start + due - time.perf_counter()
            if ahead > 0:
                await asyncio.sleep(ahead)
            tasks.append(group.create_task(one(*body)))
    duration = time.perf_counter() - start
    return Run([task.result() for task in tasks], duration, time.process_time() - client_start)
