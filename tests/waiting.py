"""Waiting for what other threads and processes do, however slow the machine is."""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 150.0
"""Seconds that something which takes milliseconds may take: a busy machine may stop a process for
minutes."""


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Return as soon as it holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """The same, beside the event loop."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
