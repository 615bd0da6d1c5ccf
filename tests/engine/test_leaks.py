"""After many requests that were let go at any point, both processes hold what they held before."""

import asyncio
import gc
import random
import time

import psutil

from headrace.engine.async_llm import AsyncLLM
from headrace.errors import QueueTimeoutError
from headrace.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.fakes import FACTORY, make_config
from tests.waiting import PATIENCE, until

NUM_REQUESTS = 5000
SLACK = 6 << 20
"""Bytes that an allocator may keep."""


async def test_requests_cancelled_at_random_points_leave_no_entry_and_no_memory(
    tokenizer_folder: str,
) -> None:
    config = make_config(
        tokenizer=tokenizer_folder, max_model_len=4000, num_blocks=4000, step_seconds=0.0005
    )
    with AsyncLLM(config, executor_factory=FACTORY) as engine:
        crowd = Crowd(engine, random.Random(11))
        await crowd.come_and_go(500)  # what is allocated once
        before = crowd.memory()
        await crowd.come_and_go(NUM_REQUESTS)
        after = crowd.memory()
        assert max(new - old for new, old in zip(after, before, strict=True)) < SLACK
        assert min(crowd.ends.values()) > 20, crowd.ends
        params = SamplingParams(max_tokens=3, temperature=0.0)
        outputs = [output async for output in engine.generate("a", params, "last")]
        assert outputs[-1].outputs[0].text == "bcd"


class Crowd:
    """Requests of every kind, each given a random time before it is cancelled."""

    def __init__(self, engine: AsyncLLM, rng: random.Random) -> None:
        self.engine = engine
        self.rng = rng
        self.ends = {"before any output": 0, "between outputs": 0, "not at all": 0}
        self._me = psutil.Process()
        [self._core] = self._me.children()

    def memory(self) -> tuple[int, int]:
        """Resident bytes of this process and the core's."""
        gc.collect()
        return self._me.memory_info().rss, self._core.memory_info().rss

    async def come_and_go(self, num: int) -> None:
        """Run this many, some at a time; returns when every map of both processes is empty."""
        for _ in range(0, num, 20):
            await asyncio.gather(*(self._one() for _ in range(20)))
        deadline = time.monotonic() + PATIENCE
        while True:
            state = await self.engine.debug_state()
            left = {name: size for name, size in state.items() if size and "cached" not in name}
            if not left:
                return
            assert time.monotonic() < deadline, left
            await asyncio.sleep(0.02)

    async def _one(self) -> None:
        outputs: list[object] = []
        task = asyncio.create_task(self._ask(outputs))
        for _ in range(self.rng.choice([0, 0, 1, 2, 3, 5])):
            await asyncio.sleep(0)
        # Some wait for more than the time, so that each end is seen on a slow machine too.
        match self.rng.choice(["time"] * 18 + ["output", "end"]):
            case "output":
                await until(lambda: bool(outputs) or task.done())
            case "end":
                await asyncio.wait([task])
            case _:
                await asyncio.sleep(self.rng.choice([0, 0, 0.001, 0.01, 0.05]))
        task.cancel()
        [end] = await asyncio.gather(task, return_exceptions=True)
        if end is None or isinstance(end, QueueTimeoutError):
            self.ends["not at all"] += 1
        else:
            assert isinstance(end, asyncio.CancelledError)
            self.ends["between outputs" if outputs else "before any output"] += 1

    async def _ask(self, outputs: list[object]) -> None:
        rng = self.rng
        params = SamplingParams(
            n=rng.choice([1, 1, 3]),
            max_tokens=rng.choice([1, 5, 100]),
            output_kind=rng.choice(list(RequestOutputKind)),
            logprobs=rng.choice([None, 2]),
            stop=rng.choice([[], ["ij"]]),
            deadline_ms=rng.choice([None, None, 20.0, 5000.0]),
            max_queue_ms=rng.choice([None, None, 5.0]),
        )
        prompt = "a" * rng.choice([1, 20, 3000])  # the long ones are tokenised in a thread
        async for output in self.engine.generate(prompt, params, "same"):
            outputs.append(output)  # noqa: PERF401 (what came before it was cancelled)
