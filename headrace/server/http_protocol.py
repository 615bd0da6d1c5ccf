"""The HTTP protocol with bounds: heads of requests, the time they take, and connections.

What is refused here has not become a request yet: it gets the one error body, and its connection is
closed.
"""

from __future__ import annotations

import asyncio
import http
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.server.errors import ErrorInfo, encode_error
from headrace.server.listen_settings import ListenSettings

_TYPES = {
    400: "BadRequestError",
    408: "RequestTimeoutError",
    431: "RequestTooLargeError",
    503: "ServiceUnavailableError",
}
LINGER_SECONDS = 1.0
"""How long the rest of a refused request is read, and forgotten."""


class HeadRefused(Exception):
    """The head of a request passes a limit."""


def bounded_protocol(settings: ListenSettings) -> type[HttpToolsProtocol]:
    """The protocol class of a server with these limits."""
    limits = {
        "max_header_size": settings.max_header_size,
        "max_header_count": settings.max_header_count,
        "head_seconds": settings.request_head_timeout,
        "max_connections": settings.max_connections,
    }
    return cast(type[HttpToolsProtocol], type("BoundedProtocol", (_BoundedProtocol,), limits))


class _BoundedProtocol(HttpToolsProtocol):
    max_header_size: int
    max_header_count: int
    head_seconds: float
    max_connections: int

    _refusal: tuple[int, str] | None = None
    _is_in_head = False
    _num_fed = 0
    """Bytes that came while the head was not complete."""
    _head_size = 0
    """Bytes of it that were parsed."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            limit = self.max_connections
            self._refuse(503, f"there are {limit} connections already (--max-connections)")
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return  # the rest of what was refused
        if self._is_in_head:
            self._num_fed += len(data)
        super().data_received(data)
        # Part of a header that has not come to its end is kept by the parser, unseen.
        if self._is_in_head and self._num_fed > self.max_header_size and self._refusal is None:
            self._refuse(*self._too_large())

    # Called by the parser; what is raised here ends its work on this connection.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._num_fed = self._head_size = 0
        if self._timer is None:
            self._start_timer()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))
        if len(self.headers) > self.max_header_count:
            limit = self.max_header_count
            self._refusal = (431, f"the request has more than {limit} headers (--max-header-count)")
            raise HeadRefused

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """The parser could not go on: for a reason of ours, or because this is no HTTP."""
        self._refuse(*(self._refusal or (400, "this is not a valid HTTP request")))

    # Ours

    def _count(self, num_bytes: int) -> None:
        self._head_size += num_bytes
        if self._head_size > self.max_header_size:
            self._refusal = self._too_large()
            raise HeadRefused

    def _too_large(self) -> tuple[int, str]:
        limit = self.max_header_size
        return 431, f"the head of the request is larger than {limit} bytes (--max-header-size)"

    def _start_timer(self) -> None:
        if self.head_seconds:
            self._timer = self.loop.call_later(self.head_seconds, self._note_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _note_late(self) -> None:
        self._timer = None
        if self._is_in_head or self.scope is None:
            seconds = self.head_seconds
            message = f"the head of the request did not come within {seconds:g} s"
            self._refuse(408, f"{message} (--request-head-timeout)")

    def _refuse(self, status: int, message: str) -> None:
        """Send the one error body and close."""
        self._refusal = (status, message)
        self._stop_timer()
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # an answer is on its way: nothing can be said beside it
            return
        body = encode_error(ErrorInfo(message, _TYPES[status], None, status))
        head = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            "connection: close\r\n"
        )
        if status == 503:
            head += "retry-after: 1\r\n"
        self.transport.write(head.encode() + b"\r\n" + body)
        if status == 503 or not self.transport.can_write_eof():
            self.transport.close()
            return
        # Were it closed while more comes, the client might never see what it is told.
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)
