"""A small HTTP client for many streams at once: one parser call per piece that arrives.

Holds connections open between requests. Follows no redirects and keeps no cookies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

MAX_ERROR_BYTES = 1 << 16

Sink = Callable[[bytes], None]
"""Takes a piece of an answer's body when it arrives, in the event loop."""


class RequestError(Exception):
    """A request without a whole answer; the text says why, the same for the same cause."""


class ConnectError(RequestError):
    """Nobody answers there."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server is.

    Attributes:
        prefix: of every path, without a slash at its end.
    """

    host: str
    port: int
    is_tls: bool
    prefix: str

    @classmethod
    def from_url(cls, url: str) -> Target:
        """Of http://host:port/prefix; a /v1 at the end, which paths bring themselves, is taken off.

        Args:
            url: checked already.
        """
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname or "", parts.port or (80, 443)[is_tls], is_tls, prefix)

    @property
    def url(self) -> str:
        """As a user writes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{('http', 'https')[self.is_tls]}://{host}:{self.port}{self.prefix}"


class HttpClient:
    """Requests to one server. For one event loop.

    Args:
        headers: of every request, besides Host, Content-Type and Content-Length.
        timeout: seconds a request may take.
    """

    def __init__(self, target: Target, headers: dict[str, str], timeout: float) -> None:
        self.target = target
        self._timeout = timeout
        host = f"[{target.host}]" if ":" in target.host else target.host
        lines = {"Host": f"{host}:{target.port}", "Content-Type": "application/json", **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._tls = ssl.create_default_context() if target.is_tls else None
        self._idle: list[_Connection] = []

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body.

        Raises:
            RequestError: no whole answer.
        """
        body: list[bytes] = []
        status, error = await self._send("GET", path, b"", body.append)
        return status, b"".join(body) or error

    async def post(self, path: str, body: bytes, sink: Sink) -> tuple[int, bytes]:
        """Status, and the body unless the status is 200; then `sink` got it, piece by piece.

        Raises:
            RequestError: no whole answer, in time.
        """
        return await self._send("POST", path, body, sink)

    def close(self) -> None:
        """Close the connections that wait for further requests."""
        while self._idle:
            self._idle.pop().close()

    async def _send(self, method: str, path: str, body: bytes, sink: Sink) -> tuple[int, bytes]:
        head = (
            f"{method} {self.target.prefix}{path} HTTP/1.1\r\n{self._head}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        request = head.encode() + body
        try:
            async with asyncio.timeout(self._timeout):
                return await self._exchange(request, sink)
        except TimeoutError:
            raise RequestError(f"no whole answer after {self._timeout:g} s") from None

    async def _exchange(self, request: bytes, sink: Sink) -> tuple[int, bytes]:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                with contextlib.suppress(_StaleError):  # the server had just closed it
                    return await self._use(connection, request, sink)
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                _Connection, self.target.host, self.target.port, ssl=self._tls
            )
        except OSError as error:
            reason = error.strerror or str(error)
            if isinstance(error, ConnectionError) and error.errno is not None:
                reason = os.strerror(error.errno)  # event loops word it in their own ways
            raise ConnectError(f"cannot connect to {self.target.url}: {reason}") from None
        try:
            return await self._use(connection, request, sink)
        except _StaleError:
            raise RequestError("the connection was closed before an answer") from None

    async def _use(self, connection: _Connection, request: bytes, sink: Sink) -> tuple[int, bytes]:
        is_reusable = False
        try:
            status, error = await connection.send(request, sink)
            is_reusable = connection.is_reusable
            return status, error
        finally:
            if is_reusable:
                self._idle.append(connection)
            else:
                connection.close()


class _StaleError(Exception):
    """The connection ended before the first byte of an answer."""


class _Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self.is_reusable = False
        self._transport: asyncio.Transport
        self._has_begun = False
        self._has_length = False
        self._status = 0
        self._done: asyncio.Future[None] | None = None

    async def send(self, request: bytes, sink: Sink) -> tuple[int, bytes]:
        """Send, and hand on what comes; status, and the body of what is not a 200."""
        self._parser = httptools.HttpResponseParser(self)
        self._sink = sink
        self._error = b""
        self._status = 0
        self._has_begun = self._has_length = False
        self.is_reusable = False
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            await self._done
        finally:
            self._done = None
        return self._status, self._error

    def close(self) -> None:
        self._transport.close()

    # -- from the transport -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._done is None:  # nobody asked
            self.is_open = False
            self._transport.close()
            return
        self._has_begun = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ or error)  # what the sink raised
        except httptools.HttpParserError:
            self._fail(RequestError("the answer is not HTTP"))

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if not self._has_begun:
            self._fail(_StaleError())
        elif self._status and not self._has_length:
            self._finish()  # such an answer ends with its connection
        else:
            self._fail(RequestError("the connection was closed in the middle of the answer"))

    # -- from the parser ----------------------------------------------------------------------

    def on_header(self, name: bytes, _value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._has_length = True

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._status == 200:
            self._sink(body)
        elif len(self._error) < MAX_ERROR_BYTES:
            self._error += body

    def on_message_complete(self) -> None:
        if self._status >= 200:  # 100 Continue and its like are not the answer
            self.is_reusable = self.is_open and self._parser.should_keep_alive()
            self._finish()

    # -----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: BaseException) -> None:
        self.is_reusable = False
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
