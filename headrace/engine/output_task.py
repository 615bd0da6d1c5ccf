"""The background task that brings what the core says to the readers.

Holds no reference to the engine object, so that the collector can free that one and end the core.
"""

from __future__ import annotations

import asyncio

from headrace.engine.admission import Admission
from headrace.engine.core_client import AsyncEngineCoreClient
from headrace.engine.event_loop import running_loop
from headrace.engine.front import EngineFront
from headrace.errors import EngineDeadError
from headrace.logger import make_logger

logger = make_logger(__name__)


class OutputTask:
    """Runs in the event loop that first asks for it; moves to another when that one is gone.

    Args:
        chunk_size: requests handled between two yields to the loop.

    Attributes:
        error: why no outputs will come any more; None while they may.
    """

    def __init__(
        self,
        client: AsyncEngineCoreClient,
        front: EngineFront,
        admission: Admission,
        chunk_size: int,
    ) -> None:
        self.error: EngineDeadError | None = None
        self._client = client
        self._front = front
        self._admission = admission
        self._chunk_size = chunk_size
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def ensure_running(self) -> None:
        """Start the task in the running loop unless it runs there.

        Raises:
            RuntimeError: it runs in the loop of another thread.
        """
        loop = asyncio.get_running_loop()
        if self.error is not None:
            return
        if self._task is not None and not self._task.done():
            if self._loop is loop:
                return
            if self._loop is not None and self._loop.is_running():
                raise RuntimeError("this engine is in use by the event loop of another thread")
        self._loop = loop
        self._task = loop.create_task(self._run(), name="headrace-outputs")

    def stop(self, reason: str) -> None:
        """End the task and every request; readers get EngineDeadError. From any thread."""
        if self.error is None:
            self.error = EngineDeadError(reason)
        loop = self._loop
        if loop is not None and loop.is_running() and loop is not running_loop():
            loop.call_soon_threadsafe(self._end)
        else:
            self._end()

    def _end(self) -> None:
        if self._task is not None and self._loop is not None and not self._loop.is_closed():
            self._task.cancel()
        self._front.output_processor.fail_all(str(self.error))

    async def _run(self) -> None:
        try:
            while True:
                await self._step()
        except asyncio.CancelledError:
            raise
        except EngineDeadError as error:
            self._fail(str(error))
        except Exception as error:
            logger.exception("the task that processes outputs failed")
            self._fail(f"the task that processes outputs failed: {error!r}")

    def _fail(self, reason: str) -> None:
        if self.error is None:
            self.error = EngineDeadError(reason)
        self._front.output_processor.fail_all(reason)

    async def _step(self) -> None:
        """Handle what one step of the core gave."""
        outputs = await self._client.get_outputs()
        processor = self._front.output_processor
        iteration = processor.start_iteration(outputs)
        items, size = outputs.outputs, self._chunk_size
        for start in range(0, len(items), size):
            if start:
                # Readers run now, and whatever else the loop has to do.
                await asyncio.sleep(0)
            to_abort = processor.process(items[start : start + size], outputs.timestamp, iteration)
            if to_abort:
                self._client.abort_requests(to_abort)
        for finished in iteration.finished:
            self._admission.note_finished(finished.num_prompt_tokens)
        self._front.stats.record(outputs.stats, iteration)
