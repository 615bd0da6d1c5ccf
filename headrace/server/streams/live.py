"""The engine requests behind one HTTP request: started together, read as one, released once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from headrace.engine.client import RequestOutputStream
from headrace.inputs import EngineInput
from headrace.outputs import RequestOutput
from headrace.sampling_params import SamplingParams
from headrace.server.access.caller import caller_of
from headrace.server.access.deadline import shorter, timeout_ms
from headrace.server.access.open_requests import OpenRequest, total_tokens
from headrace.server.errors import server_is_ending
from headrace.server.state import ServerState

T = TypeVar("T")
TRACE_HEADERS = ("traceparent", "tracestate")
QUEUE_SIZE = 64
"""Outputs read ahead of a slow client; beyond them the engine's own stream merges."""


class Job(NamedTuple):
    """One prompt for the engine."""

    request_id: str
    prompt: EngineInput
    params: SamplingParams
    priority: int


Add: TypeAlias = Callable[[Job], Awaitable[RequestOutputStream]]
"""Adds a request to the engine, in the name of the caller."""


class LiveRequests:
    """Holds the streams of one HTTP request. Leaving its `async with` block releases them all,
    which aborts what has not finished."""

    def __init__(
        self,
        streams: Sequence[RequestOutputStream],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._streams = streams
        self._on_close = on_close
        self._readers: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls,
        state: ServerState,
        request: Request,
        id: str,
        jobs: Sequence[Job],
        wrap: Callable[[Add, Job], Awaitable[RequestOutputStream]] | None = None,
    ) -> LiveRequests:
        """Hand all jobs of a request to the engine, in the name of its caller.

        Args:
            id: as the answer names the request.
            wrap: makes the stream of a job, where it is not the engine's own; it is given what adds
                a request to the engine.

        Raises: what `EngineClient.add_request` raises, and KeyLimitError; then none of them stays.
        """
        engine, caller = state.engine, caller_of(request.scope)
        limit = timeout_ms(request.headers)
        opened = open_request(state, request, id, jobs)
        state.open_requests.open(opened)
        live = cls(opened.streams, partial(state.open_requests.close, opened))

        async def add(job: Job) -> RequestOutputStream:
            job_id, prompt, params, priority = job
            stream = await engine.add_request(
                job_id, prompt, params, caller.arrived, priority=priority, tenant=caller.name
            )
            if opened.is_ended:  # meanwhile, or between two rounds of a search
                await engine.abort(stream.core_ids, internal=True)
            return stream

        try:
            for job in jobs:
                job.params.deadline_ms = shorter(job.params.deadline_ms, limit)
                opened.streams.append(await (add(job) if wrap is None else wrap(add, job)))
        except BaseException:
            await live.aclose()
            raise
        return live

    @property
    def only_stream(self) -> RequestOutputStream | None:
        """The stream of the only job, to be read without a detour; None when there are several."""
        return self._streams[0] if len(self._streams) == 1 else None

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Outputs of all jobs as they come, each with the job's position."""
        if len(self._streams) == 1:
            async for output in self._streams[0]:
                yield 0, output
            return
        queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]]
        queue = asyncio.Queue(QUEUE_SIZE)
        self._readers = [
            asyncio.create_task(_read(index, stream, queue))
            for index, stream in enumerate(self._streams)
        ]
        num_open = len(self._streams)
        while num_open:
            index, item = await queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield index, item

    async def aclose(self) -> None:
        """Let go of every stream. Idempotent."""
        for reader in self._readers:
            reader.cancel()
        if self._readers:
            await asyncio.wait(self._readers)
            self._readers = []
        for stream in self._streams:
            await stream.aclose()
        self._on_close()

    async def __aenter__(self) -> LiveRequests:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


def open_request(state: ServerState, request: Request, id: str, jobs: Sequence[Job]) -> OpenRequest:
    """What jobs, handed to the engine together, will take."""
    params = jobs[0].params
    lengths = [len(job.prompt.prompt_token_ids) for job in jobs]
    return OpenRequest(
        id=id,
        route=getattr(request.scope.get("route"), "path", ""),
        caller=caller_of(request.scope),
        num_answers=len(jobs) * params.n,
        num_prompt_tokens=sum(lengths),
        params=params,
        trace_headers={
            name: request.headers[name] for name in TRACE_HEADERS if name in request.headers
        },
        max_tokens=total_tokens(lengths, params.max_tokens, params.n, state.engine.max_model_len),
    )


async def unless_disconnected(
    receive: Receive, cut: asyncio.Future[None], work: Coroutine[Any, Any, T]
) -> T:
    """The result of `work`, which is cancelled when the client goes away or the server ends.

    Args:
        cut: done when the server gives running requests no more time.

    Raises:
        ClientDisconnect: the client went.
        NotReadyError: the server ends. In both cases `work` has ended by then.
    """
    # Done in this task: another one for it, and for waiting for the first of three, would cost a
    # tenth of a millisecond.
    me = asyncio.current_task()
    assert me is not None
    num_cancels = me.cancelling()
    watch = asyncio.create_task(_disconnected(receive))
    reason: asyncio.Future[Any] | None = None
    is_over = False

    def give_up(done: asyncio.Future[Any]) -> None:
        nonlocal reason
        if reason is None and not is_over:
            reason = done
            me.cancel()

    watch.add_done_callback(give_up)
    cut.add_done_callback(give_up)
    try:
        return await work
    except asyncio.CancelledError:
        if reason is None or me.uncancel() > num_cancels:
            raise  # by others
        raise ClientDisconnect if reason is watch else server_is_ending() from None
    finally:
        is_over = True  # a callback may be on its way
        cut.remove_done_callback(give_up)
        watch.cancel()


async def _disconnected(receive: Receive) -> None:
    """Returns when the client is gone, or cannot be heard any more."""
    with contextlib.suppress(OSError, RuntimeError):
        while (await receive())["type"] != "http.disconnect":
            pass


async def _read(
    index: int,
    stream: RequestOutputStream,
    queue: asyncio.Queue[tuple[int, RequestOutput | BaseException | None]],
) -> None:
    try:
        async for output in stream:
            await queue.put((index, output))
    except Exception as error:
        await queue.put((index, error))
    else:
        await queue.put((index, None))
