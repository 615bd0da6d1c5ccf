"""Server-sent events: frames of a stream, its end, and its failures after the first byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headrace.logger import make_logger
from headrace.server.errors import NotReadyError, encode_error, error_info, log_fault
from headrace.server.live import LiveRequests, unless_disconnected

logger = make_logger(__name__)

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def frame(record: msgspec.Struct) -> bytes:
    """One `data:` frame."""
    return b"data: " + _encode(record) + b"\n\n"


class EventStream(Response):
    """Sends frames as they come, then one `[DONE]`; owns the engine requests behind them.

    A client that goes away, or the end of the server, releases the requests at once.

    Args:
        live: what to release at the end, however it comes.
        cut: done when the server gives running requests no more time.
        frames: bytes of one or more whole frames each.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        live: LiveRequests,
        cut: asyncio.Future[None],
        frames: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._live = live
        self._cut = cut
        self._frames = frames
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no",
                                  **(headers or {})})  # fmt: skip
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._live:
            try:
                await unless_disconnected(receive, self._cut, self._send_all(send))
            except ClientDisconnect:
                return
            except NotReadyError as error:
                await _send_failure(send, error)

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with aclosing(self._frames) as frames:
                async for body in frames:
                    await _send_body(send, body)
        except ClientDisconnect:
            raise
        except Exception as error:
            await _send_failure(send, error)
        else:
            await _send_body(send, DONE, more=False)


async def _send_failure(send: Send, error: Exception) -> None:
    """The one frame that tells of a failure, and the end."""
    info = error_info(error)
    log_fault(error, info)
    await _send_body(send, b"data: " + encode_error(info) + b"\n\n" + DONE, more=False)


async def _send_body(send: Send, body: bytes, *, more: bool = True) -> None:
    """Send a piece of the answer.

    Raises:
        ClientDisconnect: the connection was closed, and we learn it by the write.
    """
    message: dict[str, Any] = {"type": "http.response.body", "body": body, "more_body": more}
    try:
        await send(message)
    except (OSError, RuntimeError) as error:  # the latter is how uvloop says it
        logger.debug("a stream could not be sent on: %s", error)
        raise ClientDisconnect from error
