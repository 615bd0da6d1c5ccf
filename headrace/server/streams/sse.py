"""Server-sent events: frames of a stream, its end, and its failures after the first byte."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import aclosing
from typing import Protocol

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from headrace.logger import make_logger
from headrace.outputs import RequestOutput
from headrace.server.errors import NotReadyError, encode_error, error_info, log_fault
from headrace.server.http.direct_send import DIRECT_SEND, STREAMED_BYTES, Connection
from headrace.server.streams.live import LiveRequests, unless_disconnected

logger = make_logger(__name__)

DONE = b"data: [DONE]\n\n"
EVENT_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
KEEP_ALIVE = b": keep-alive\n\n"
"""A comment: clients read over it, and what stands between sees that the stream goes on."""
_encode = msgspec.json.Encoder().encode


def frame(record: msgspec.Struct) -> bytes:
    """One `data:` frame."""
    return b"data: " + _encode(record) + b"\n\n"


class TextFrames:
    """Frames that differ in one text only: all but that is encoded once.

    Args:
        sample: a chunk whose text is MARK.
    """

    __slots__ = ("_after", "_before")
    MARK = "\0text\0"

    def __init__(self, sample: msgspec.Struct) -> None:
        self._before, self._after = frame(sample).split(_encode(self.MARK))

    def frame(self, text: str) -> bytes:
        """The frame with this text; nothing for no text (half a character is none)."""
        return self._before + _encode(text) + self._after if text else b""


class FrameMaker(Protocol):
    """Makes the frames of one stream, whole ones, in order."""

    def take(self, job: int, output: RequestOutput) -> bytes:
        """The frames of an output of the job at this position; often none.

        Raises:
            EngineGenerateError: the answer could not be finished.
        """
        ...

    def end(self) -> bytes:
        """What comes after the last output; often nothing."""
        ...


class EventStream(Response):
    """Sends frames as they come, then one `[DONE]`; owns the engine requests behind them.

    A client that goes away, or the end of the server, releases the requests at once.

    Args:
        live: where outputs come from; released at the end, however it comes.
        cut: done when the server gives running requests no more time.
        frames: makes frames of the outputs.
        keep_alive: seconds without a byte after which a comment is sent at the latest; 0 is never.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        live: LiveRequests,
        cut: asyncio.Future[None],
        frames: FrameMaker,
        headers: Mapping[str, str] | None = None,
        keep_alive: float = 0,
    ) -> None:
        self._keep_alive = keep_alive
        self._num_sent = 0
        self._connection: Connection | None = None
        self._live = live
        self._cut = cut
        self._frames = frames
        super().__init__(headers={**EVENT_HEADERS, **(headers or {})})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._live:
            try:
                await unless_disconnected(receive, self._cut, self._send_all(scope, send))
            except ClientDisconnect:
                return
            except NotReadyError as error:
                await _send_failure(send, error)

    async def _send_all(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if DIRECT_SEND in scope:
            send = _counting(scope, scope[DIRECT_SEND])
        self._connection = connection = Connection.of(scope)
        if self._live.only_stream is not None and connection is not None:
            self._live.only_stream.push_to(_Push(self._frames, connection).take)
        try:
            if self._keep_alive:
                await self._send_kept_alive(send)
            else:
                await self._send_outputs(send)
        except ClientDisconnect:
            raise
        except Exception as error:
            await _send_failure(send, error)
        else:
            await _send_body(send, self._frames.end() + DONE, more=False)
        finally:
            if connection is not None:
                scope[STREAMED_BYTES] += connection.num_bytes

    async def _send_outputs(self, send: Send) -> None:
        take, only_stream = self._frames.take, self._live.only_stream
        if only_stream is not None:
            async for output in only_stream:
                if body := take(0, output):
                    self._num_sent += 1
                    await _send_body(send, body)
            return
        async with aclosing(self._live.outputs()) as outputs:
            async for job, output in outputs:
                if body := take(job, output):
                    self._num_sent += 1
                    await _send_body(send, body)

    async def _send_kept_alive(self, send: Send) -> None:
        """Send the outputs, and comments while none come."""
        comments = asyncio.create_task(self._send_comments(send))
        try:
            await self._send_outputs(send)
        finally:
            comments.cancel()
            await asyncio.gather(comments, return_exceptions=True)

    async def _send_comments(self, send: Send) -> None:
        """One after each half of the interval in which nothing was sent. A frame only counts up."""
        while True:
            before = self._progress()
            await asyncio.sleep(self._keep_alive / 2)
            if self._progress() == before:
                await _send_body(send, KEEP_ALIVE)

    def _progress(self) -> tuple[int, int]:
        """Pieces sent by this task, and bytes past it."""
        return self._num_sent, 0 if self._connection is None else self._connection.num_bytes


class _Push:
    """The direct way of a stream's outputs to its connection."""

    __slots__ = ("_connection", "_frames")

    def __init__(self, frames: FrameMaker, connection: Connection) -> None:
        self._frames = frames
        self._connection = connection

    def take(self, output: RequestOutput) -> bool:
        """Send an output, unless the client is slow; see `RequestOutputStream.push_to`."""
        connection = self._connection
        if connection.is_slow:
            return False
        if body := self._frames.take(0, output):
            connection.write(body)
        return True


def failure_frames(error: Exception) -> bytes:
    """The one frame that tells of a failure, and the end."""
    info = error_info(error)
    log_fault(error, info)
    return b"data: " + encode_error(info) + b"\n\n" + DONE


def _counting(scope: Scope, send: Send) -> Send:
    """`send`, with the bytes of the bodies noted where they are measured."""
    scope[STREAMED_BYTES] = 0

    def counting_send(message: Message) -> Awaitable[None]:
        scope[STREAMED_BYTES] += len(message["body"])
        return send(message)

    return counting_send


async def _send_failure(send: Send, error: Exception) -> None:
    await _send_body(send, failure_frames(error), more=False)


async def _send_body(send: Send, body: bytes, *, more: bool = True) -> None:
    """Send a piece of the answer.

    Raises:
        ClientDisconnect: the connection was closed, and we learn it by the write.
    """
    try:
        await send({"type": "http.response.body", "body": body, "more_body": more})
    except (OSError, RuntimeError) as error:  # the latter is how uvloop says it
        logger.debug("a stream could not be sent on: %s", error)
        raise ClientDisconnect from error
