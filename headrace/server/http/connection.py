"""The connection of an answer that is streamed, for whoever writes without being a task."""

from __future__ import annotations

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from headrace.server.http.middleware import DIRECT_SEND, STREAMED_BYTES


class Connection:
    """Writes what `send` would, at once: for an answer in chunks that has begun.

    A task that waits for a piece and sends it costs more than all that makes the piece.

    Args:
        cycle: of the request, and its answer, in uvicorn.
        scope: where the bytes are noted.
    """

    __slots__ = ("_cycle", "_flow", "_scope")

    def __init__(self, cycle: RequestResponseCycle, scope: Scope) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._scope = scope

    @classmethod
    def of(cls, scope: Scope) -> Connection | None:
        """That of a request; None where others stand between, or it is not uvicorn that serves."""
        cycle = getattr(scope.get(DIRECT_SEND), "__self__", None)
        if isinstance(cycle, RequestResponseCycle) and cycle.chunked_encoding:
            return cls(cycle, scope)
        return None

    @property
    def is_slow(self) -> bool:
        """Whether so much is unsent that no more shall be written."""
        return self._flow.write_paused

    def write(self, body: bytes) -> None:
        """Write a piece, not an empty one. For a client that has gone it is dropped."""
        if not self._cycle.disconnected:
            self._scope[STREAMED_BYTES] += len(body)
            self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
