"""The direct way of streams to their connections, past what stands between and past their tasks."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from headrace.logger import make_logger

logger = make_logger(__name__)

DIRECT_SEND = "headrace.direct_send"
"""Key of a request's scope: the server's own `send`. Once an answer has begun, what stands between
only passes its pieces on; a stream hands them over here. Not there in an application that others
serve or add to: only `run` wraps its own, to which nothing can be added."""
STREAMED_BYTES = "headrace.streamed_bytes"
"""Key of a request's scope: how many bytes a stream has handed over there."""
BURST = "headrace.burst"
"""Key of a request's scope: the `Burst` of its server."""


class DirectSend:
    """Outermost: keeps the server's `send` for streams."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._burst = Burst()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[DIRECT_SEND] = send
        scope[BURST] = self._burst
        await self._app(scope, receive, send)


class Burst:
    """Writes the pieces of one turn of the event loop together, when all are made.

    A step of the engine gives each stream a piece. A system call between any two of them would
    cost the next one its place in the processor's caches.
    """

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: list[tuple[asyncio.Transport, bytes]] = []

    def add(self, transport: asyncio.Transport, piece: bytes) -> None:
        """Write this, before anything that is scheduled from now on."""
        if not self._pieces:
            asyncio.get_running_loop().call_soon(self._write_all)
        self._pieces.append((transport, piece))

    def _write_all(self) -> None:
        pieces, self._pieces = self._pieces, []
        for transport, piece in pieces:
            if transport.is_closing():
                continue
            try:
                transport.write(piece)
            except (OSError, RuntimeError) as error:  # the latter is how uvloop says it
                logger.debug("a stream could not be sent on: %s", error)


class Connection:
    """Writes what `send` would, soon: for an answer in chunks that has begun.

    A task that waits for a piece and sends it costs more than all that makes the piece.

    Args:
        cycle: of the request, and its answer, in uvicorn.
        burst: what it is written with.

    Attributes:
        num_bytes: written so far, without what marks the chunks.
    """

    __slots__ = ("_burst", "_flow", "_transport", "num_bytes")

    def __init__(self, cycle: RequestResponseCycle, burst: Burst) -> None:
        self._flow = cycle.flow
        self._transport = cycle.transport
        self._burst = burst
        self.num_bytes = 0

    @classmethod
    def of(cls, scope: Scope) -> Connection | None:
        """That of a request; None where others stand between, or it is not uvicorn that serves."""
        cycle = getattr(scope.get(DIRECT_SEND), "__self__", None)
        if isinstance(cycle, RequestResponseCycle) and cycle.chunked_encoding:
            return cls(cycle, scope[BURST])
        return None

    @property
    def is_slow(self) -> bool:
        """Whether so much is unsent that no more shall be written."""
        return self._flow.write_paused

    def write(self, body: bytes) -> None:
        """Write a piece, not an empty one. For a client that has gone it is dropped."""
        num_bytes = len(body)
        self.num_bytes += num_bytes
        self._burst.add(self._transport, b"%x\r\n%b\r\n" % (num_bytes, body))
