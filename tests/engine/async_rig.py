"""What tests of the asynchronous engine ask of it, again and again."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from headrace.engine.async_llm import AsyncLLM
from headrace.outputs import RequestOutput
from headrace.sampling_params import SamplingParams
from tests.waiting import PATIENCE

MakeEngine = Callable[..., AsyncLLM]


def make_params(**options: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 10, "temperature": 0.0, **options})


async def collect(
    engine: AsyncLLM, prompt: Any, request_id: str = "a", **options: Any
) -> list[RequestOutput]:
    params = make_params(**options)
    return [output async for output in engine.generate(prompt, params, request_id)]


async def begin(
    engine: AsyncLLM, prompt: Any, request_id: str = "a", **options: Any
) -> "asyncio.Task[list[RequestOutput]]":
    """Collect in a task of its own; the first output has come."""
    outputs = engine.generate(prompt, make_params(**options), request_id)
    first = await anext(outputs)

    async def rest() -> list[RequestOutput]:
        return [first, *[output async for output in outputs]]

    return asyncio.create_task(rest())


def core_pid(engine: AsyncLLM) -> int:
    pid: int = engine._client._connection.handle.child.pid  # type: ignore[attr-defined]
    return pid


def text_of(outputs: list[RequestOutput]) -> str:
    return "".join(output.outputs[0].text for output in outputs)


async def assert_nothing_stays(engine: AsyncLLM) -> None:
    """All maps of both processes become empty."""
    deadline = time.monotonic() + PATIENCE
    while True:
        state = await engine.debug_state()
        left = {name: size for name, size in state.items() if size and "cached" not in name}
        if not left:
            return
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.02)
