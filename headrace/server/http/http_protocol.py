"""Uvicorn's HTTP/1.1 with bounds where it has none: connections, heads of requests, their time.

What is refused here has not reached the application; it gets the one error body all the same.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from headrace.logger import make_logger
from headrace.server.errors import ErrorInfo, encode_error
from headrace.server.http.http_1_0 import EndedByClose
from headrace.server.settings.limits import LimitSettings

logger = make_logger(__name__)

OTHER_FILES = 128
"""Files and sockets a server needs besides those of its clients."""
LINGER_SECONDS = 1.0
"""How long the rest of a refused request is read, and forgotten."""
BYTES_AROUND_A_HEADER = 4
"""The colon, the space and the end of the line."""


def make_protocol(settings: LimitSettings) -> type[asyncio.Protocol]:
    """The protocol of a server with these limits, for `uvicorn.Config(http=...)`."""
    most = settings.max_connections
    if not most:
        soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = 2**31 if soft == resource.RLIM_INFINITY else max(1, soft - OTHER_FILES)
    bounds = {"limits": settings, "max_connections": most}
    return type("BoundedProtocol", (Bounded,), bounds)


class Bounded(HttpToolsProtocol):
    """One connection."""

    limits: ClassVar[LimitSettings]
    max_connections: ClassVar[int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_in_head = False
        self._head_size = 0
        self._is_refused = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self.warn_of_too_many()
            self._refuse(503, "ServiceUnavailableError", "there are too many connections")
        else:
            self._wait_for_head()

    def warn_of_too_many(self) -> None:
        """Tell the log, once, that connections are refused."""
        logger.warning_once(
            "more than %d connections: further ones are refused (--max-connections)",
            self.max_connections,
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_has_come()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        was_in_head = self._is_in_head
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if was_in_head and self._is_in_head:
            # The first piece is not counted: it may hold the end of what came before.
            self._head_size += len(data)
            if self._head_size > self.limits.max_header_size:
                self._refuse_head()
        elif self._head_timer is None and (self.cycle is None or self.cycle.response_complete):
            # Bytes that are no request, or the rest of one that has its answer.
            self._wait_for_head()

    def _parse(self, data: bytes) -> None:
        """Feed the parser, which stops where another protocol would begin. We know no other, so it
        is to go on in this one (RFC 9110, 7.8): from the same head, without its wish."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stop:
                if not self._asks_for_upgrade:
                    return
                data = self._head_without_upgrade() + data[stop.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % pair for pair in self.headers if pair[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    @property
    def _asks_for_upgrade(self) -> bool:
        """Whether the head that is read ends in such a wish. CONNECT, which is one as well, is
        for the application to refuse."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._head_size = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._head_has_come()
        limits, headers = self.limits, self.headers
        size = len(self.url) + sum(
            len(name) + len(value) + BYTES_AROUND_A_HEADER for name, value in headers
        )
        if size > limits.max_header_size or len(headers) > limits.max_header_count:
            self._refuse_head()
        elif not self._is_refused and not self._asks_for_upgrade:
            super().on_headers_complete()
            if self.scope["http_version"] < "1.1":
                EndedByClose.take_over(self.cycle)

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_refused and not self._asks_for_upgrade:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "BadRequestError", f"this is not HTTP as the server knows it: {msg}")

    # -- bounds --------------------------------------------------------------------------------

    def _wait_for_head(self) -> None:
        if self.limits.header_timeout and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.limits.header_timeout, self._head_is_late)

    def _head_has_come(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._is_in_head:
            seconds = self.limits.header_timeout
            self._refuse(
                408,
                "RequestTimeoutError",
                f"the head of the request did not come within {seconds:g} s (--header-timeout)",
            )
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse_head(self) -> None:
        limits = self.limits
        self._refuse(
            431,
            "RequestTooLargeError",
            f"the request line and the headers may have {limits.max_header_size} bytes "
            f"(--max-header-size) in {limits.max_header_count} headers (--max-header-count)",
        )

    def _refuse(self, status: int, kind: str, message: str) -> None:
        """Answer without the application, and close."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        self._head_has_come()
        if self._end_unanswered():  # else an answer of another request would be cut into
            body = encode_error(ErrorInfo(message, kind, None, status))
            lines = [b"content-type: application/json", b"content-length: %d" % len(body),
                     b"connection: close"]  # fmt: skip
            if status == 503:
                lines.append(b"retry-after: 1")
            head = STATUS_LINE[status] + b"\r\n".join(lines) + b"\r\n\r\n"
            self.transport.write(head + body)
            if status != 503 and self.transport.can_write_eof():
                # Were it closed while more comes, the client might never see what it is told.
                self.transport.write_eof()
                self.loop.call_later(LINGER_SECONDS, self.transport.close)
                return
        self.transport.close()

    def _end_unanswered(self) -> bool:
        """Whether it is our turn to answer: no answer is under way or due, or only that of the
        request whose body is refused, which ends here as if its client had gone."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        if self.pipeline or cycle.response_started or not cycle.more_body:
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        return True
