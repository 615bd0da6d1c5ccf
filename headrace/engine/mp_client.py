"""A core in a process of its own, over sockets: one client that waits and one for an event loop.

What the two share (encoding, decoding, death) is in `_Connection`; they only differ in how they
wait.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import Any

import msgspec

from headrace import errors
from headrace.config.engine import EngineConfig
from headrace.engine.event_loop import running_loop
from headrace.engine.launch import (
    EXECUTOR_FACTORY,
    LAST_WORDS_SECONDS,
    STOP_SECONDS,
    EngineHandle,
    OnStage,
    launch_core,
)
from headrace.errors import EngineDeadError, EngineGenerateError, ValidationError
from headrace.ipc.codec import RecordDecoder, RecordEncoder
from headrace.logger import make_logger
from headrace.messages.outputs import CallResult, CoreOutput, EngineCoreOutputs, EngineDead
from headrace.messages.requests import AbortRequests, Call, EngineCoreRequest, Verb, Vocabulary

logger = make_logger(__name__)

IN_TRANSIT_SECONDS = 0.02
"""How long what a killed core had sent may take to be read."""
DETACH_SECONDS = 1.0
"""How long an event loop in another thread may take to let go of the sockets."""


class _Connection:
    """A core process as seen from here: what it said and nobody has taken yet, and its death."""

    def __init__(self, handle: EngineHandle) -> None:
        self.handle = handle
        self.outputs: deque[EngineCoreOutputs] = deque()
        self.results: deque[CallResult] = deque()
        self.dead_error: EngineDeadError | None = None
        self.last_word_at = time.monotonic()
        self.is_idle = True
        self._encoder = RecordEncoder()
        self._decoder: RecordDecoder[CoreOutput] = RecordDecoder(CoreOutput, "the engine core")
        self._num_calls = 0

    def add_request(self, request: EngineCoreRequest) -> None:
        self.raise_if_dead()
        try:
            frame = self._encoder.encode(request)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValidationError(f"the request cannot be sent to the engine: {error}") from None
        self.is_idle = False
        self.handle.sender.send(frame)

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        self.raise_if_dead()
        self.handle.sender.send(self._encoder.encode(vocabulary))

    def abort_requests(self, request_ids: list[str]) -> None:
        if self.is_alive():
            self.handle.sender.send(self._encoder.encode(AbortRequests(request_ids)))

    def send_call(self, verb: Verb) -> int:
        """Send a call; its id."""
        self.raise_if_dead()
        frame = _encode_call(self._encoder, Call(self._num_calls + 1, verb))
        self._num_calls += 1
        self.handle.sender.send(frame)
        return self._num_calls

    def is_alive(self) -> bool:
        child = self.handle.child
        return self.dead_error is None and child.is_ours and child.is_alive()

    def find_end(self) -> EngineDeadError | None:
        """Why it is dead, looking now; None while it is alive."""
        if not self.handle.child.is_ours:
            self.fail(
                "this engine belongs to the process that started it; "
                "a fork of that process must start one of its own"
            )
        elif self.dead_error is None and not self.handle.child.is_alive():
            self.note_end()
        return self.dead_error

    def raise_if_dead(self) -> None:
        self.find_end()
        if self.dead_error is not None:
            # A new one each time: an exception that is raised again and again grows.
            raise EngineDeadError(str(self.dead_error))

    def pump(self) -> None:
        """Take in all that has arrived."""
        if self.dead_error is not None:
            return
        for frame in self.handle.receiver.drain():
            record = self._decoder.decode(frame)
            if record is not None:
                self._take(record)

    def _take(self, record: CoreOutput) -> None:
        self.last_word_at = time.monotonic()
        match record:
            case EngineCoreOutputs():
                # Of signs of life only the last one matters.
                if self.outputs and _is_beat(self.outputs[-1]) and _is_beat(record):
                    self.outputs.pop()
                self.outputs.append(record)
                self.is_idle = not record.stats.num_running and not record.stats.num_waiting
            case CallResult():
                self.results.append(record)
            case EngineDead():
                self.fail(f"the engine core ended: {record.reason}")

    def note_end(self) -> None:
        """The process has ended: take in its last words, then be dead."""
        status = self.handle.child.exit_status()
        has_last_words = status is not None and status >= 0
        timeout = LAST_WORDS_SECONDS if has_last_words else IN_TRANSIT_SECONDS
        while self.dead_error is None and self.handle.receiver.wait(timeout):
            self.pump()
        self.fail(self.handle.child.describe_end())

    def fail(self, reason: str) -> None:
        """Be dead from now on. The first reason counts."""
        if self.dead_error is None:
            logger.error("%s", reason)
            self.dead_error = EngineDeadError(reason)

    def close(self) -> None:
        """Be dead by the owner's wish."""
        if self.dead_error is None:
            self.dead_error = EngineDeadError("the engine was shut down")


def _encode_call(encoder: RecordEncoder, call: Call) -> bytes:
    """A call as it is sent. Read once here: the core drops what it cannot read, and never answers.

    Raises:
        ValidationError: it holds a value of the wrong kind, or one that cannot be sent.
    """
    try:
        frame = encoder.encode(call)
        msgspec.msgpack.decode(frame, type=Call)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValidationError(f"{type(call.verb).__name__}: {error}") from None
    return bytes(frame)


def _is_beat(outputs: EngineCoreOutputs) -> bool:
    return not outputs.outputs and not outputs.num_step_tokens


class _MPClient:
    """What both clients do alike: everything that does not wait."""

    def __init__(
        self,
        config: EngineConfig,
        on_stage: OnStage | None = None,
        executor_factory: str = EXECUTOR_FACTORY,
    ) -> None:
        handle = launch_core(config, on_stage=on_stage, executor_factory=executor_factory)
        self.ready = handle.ready
        self._connection = _Connection(handle)

    @property
    def dead_error(self) -> BaseException | None:
        """Why the core is not running any more; None while it is."""
        return self._connection.find_end()

    def add_request(self, request: EngineCoreRequest) -> None:
        """Send a request."""
        self._connection.add_request(request)

    def set_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Send the tokens' bytes."""
        self._connection.set_vocabulary(vocabulary)

    def abort_requests(self, request_ids: list[str]) -> None:
        """Let the core forget these; a core that ended is not told."""
        self._connection.abort_requests(request_ids)


class SyncMPClient(_MPClient):
    """A core process for a caller that waits. See SyncEngineCoreClient.

    Raises:
        ConfigError, ModelError, EngineStartError: it cannot be started.
    """

    worker = None
    """It lives in the process of the core."""

    def get_outputs(self) -> EngineCoreOutputs:
        """Wait for the next outputs."""
        connection = self._connection
        while not connection.outputs:
            self._wait(None)
        return connection.outputs.popleft()

    def call(self, verb: Verb, timeout: float | None = None) -> Any:
        """Carry out a control verb and wait for its result."""
        call_id = self._connection.send_call(verb)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            while self._connection.results:
                result = self._connection.results.popleft()
                if result.call_id == call_id:  # else the answer to a call given up on
                    return _value_of(result)
            self._wait(deadline)

    def shutdown(self, timeout: float | None = None) -> None:
        """End the core. Idempotent."""
        self._connection.close()
        self._connection.handle.stop(STOP_SECONDS if timeout is None else timeout)

    def _wait(self, deadline: float | None) -> None:
        """Wait until something has been taken in.

        Raises:
            EngineDeadError, TimeoutError: the core ended; it is past the deadline.
        """
        connection = self._connection
        if connection.dead_error is not None:
            connection.raise_if_dead()
        timeout = None if deadline is None else deadline - time.monotonic()
        child = connection.handle.child
        if connection.handle.receiver.wait(timeout, other=child.life):
            connection.pump()
        elif not child.is_alive():
            connection.note_end()
        elif deadline is not None:
            raise TimeoutError("the engine core did not answer in time")


class AsyncMPClient(_MPClient):
    """A core process for the tasks of one event loop. See AsyncEngineCoreClient.

    It reads only while a loop runs that has used it; with another loop it moves to that one.

    Raises:
        ConfigError, ModelError, EngineStartError: it cannot be started.
    """

    def __init__(
        self,
        config: EngineConfig,
        on_stage: OnStage | None = None,
        executor_factory: str = EXECUTOR_FACTORY,
    ) -> None:
        super().__init__(config, on_stage, executor_factory)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._calls: dict[int, asyncio.Future[CallResult]] = {}

    @property
    def dead_error(self) -> BaseException | None:
        """Why the core is not running any more; None while it is, as far as the loop has been told
        where it runs: to look at each question would cost a request a tenth of a millisecond."""
        connection, loop = self._connection, self._loop
        if loop is not None and loop is running_loop() and connection.handle.child.is_ours:
            return connection.dead_error
        return connection.find_end()

    async def get_outputs(self) -> EngineCoreOutputs:
        """Wait for the next outputs. One task at a time. The loop has a turn even when outputs are
        there already."""
        loop = self._attach()
        connection = self._connection
        if connection.outputs:
            await asyncio.sleep(0)
        while not connection.outputs:
            if connection.dead_error is not None:
                connection.raise_if_dead()
            self._waiter = loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return connection.outputs.popleft()

    async def call(self, verb: Verb) -> Any:
        """Carry out a control verb and wait for its result."""
        loop = self._attach()
        call_id = self._connection.send_call(verb)
        future: asyncio.Future[CallResult] = loop.create_future()
        self._calls[call_id] = future
        try:
            return _value_of(await future)
        finally:
            del self._calls[call_id]

    @property
    def is_idle(self) -> bool:
        """Whether the core had nothing to do at its last word, and got nothing since."""
        return self._connection.is_idle

    def silence(self) -> float:
        """Seconds since the core's last word."""
        self._on_readable()
        return time.monotonic() - self._connection.last_word_at

    def shutdown(self, timeout: float | None = None) -> None:
        """End the core; who waits gets EngineDeadError. Idempotent; from any thread."""
        self._connection.close()
        self._detach()
        self._connection.handle.stop(STOP_SECONDS if timeout is None else timeout)

    # Reading, by callbacks of the loop: no task, no thread

    def _attach(self) -> asyncio.AbstractEventLoop:
        """Read in the running loop from now on."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop and self._connection.is_alive():
            self._detach()
            self._loop = loop
            loop.add_reader(self._connection.handle.receiver.fileno(), self._on_readable)
            loop.add_reader(self._connection.handle.child.life, self._on_end)
            self._on_readable()  # the descriptor tells only of what comes after
        return loop

    def _detach(self) -> None:
        """Read in no loop any more, and tell those who wait in the last one if all is over."""
        loop, self._loop = self._loop, None
        if loop is None or loop.is_closed():
            return
        handle = self._connection.handle
        descriptors = (handle.receiver.fileno(), handle.child.life)
        done = threading.Event()

        def leave() -> None:
            for descriptor in descriptors:
                loop.remove_reader(descriptor)
            self._wake()
            done.set()

        if loop.is_running() and loop is not running_loop():
            loop.call_soon_threadsafe(leave)
            done.wait(DETACH_SECONDS)
        else:
            leave()

    def _on_readable(self) -> None:
        self._connection.pump()
        self._wake()

    def _on_end(self) -> None:
        self._connection.note_end()
        self._detach()
        self._wake()

    def _wake(self) -> None:
        """Tell those who wait what has come in."""
        connection = self._connection
        while connection.results:
            result = connection.results.popleft()
            future = self._calls.get(result.call_id)
            if future is not None and not future.done():
                future.set_result(result)
        is_dead = connection.dead_error is not None
        if is_dead:
            for future in self._calls.values():
                if not future.done():
                    future.set_exception(EngineDeadError(str(connection.dead_error)))
        if self._waiter is not None and not self._waiter.done() and (connection.outputs or is_dead):
            self._waiter.set_result(None)


def _value_of(result: CallResult) -> Any:
    if result.error is not None:
        kind = getattr(errors, result.error_type or "", None)
        if isinstance(kind, type) and issubclass(kind, errors.HeadraceError):
            raise kind(result.error)
        raise EngineGenerateError(f"the engine core refused: {result.error}")
    return result.value
