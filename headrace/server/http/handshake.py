"""TLS handshakes under the limits of connections: they count, and their time is limited.

Asyncio's own servers tell nobody of a connection before its handshake is over.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from headrace.logger import make_logger
from headrace.server.http.http_protocol import Bounded

logger = make_logger(__name__)


class Handshake(asyncio.Protocol):
    """A connection until it speaks TLS; from then on it is `inner`'s.

    Args:
        inner: what speaks HTTP on it.
        context: the certificate.
        pending: all connections of the server that are as far as this one.
    """

    def __init__(self, inner: Bounded, context: ssl.SSLContext, pending: set[Handshake]) -> None:
        self._inner = inner
        self._context = context
        self._pending = pending
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        """Shake hands, unless there are too many connections: then nothing is said."""
        if len(self._inner.connections) + len(self._pending) >= self._inner.max_connections:
            self._inner.warn_of_too_many()
            transport.abort()
            return
        self._pending.add(self)
        self._transport = transport
        transport.pause_reading()  # the first bytes are for TLS
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    def cancel(self) -> None:
        """Give it up, and close the connection."""
        if self._task is not None and self._transport is not None:
            self._task.cancel()
            self._transport.abort()  # the task may not have begun

    async def _shake_hands(self, transport: Any) -> None:
        seconds = self._inner.limits.header_timeout or None
        try:
            async with asyncio.timeout(seconds):
                secured = await asyncio.get_running_loop().start_tls(
                    transport, self._inner, self._context, server_side=True,
                    ssl_handshake_timeout=seconds,
                )  # fmt: skip
        except (OSError, TimeoutError) as error:  # SSLError is an OSError
            logger.debug("a TLS handshake failed: %s", error)
            transport.abort()
            return
        except BaseException:
            transport.abort()
            raise
        finally:
            self._pending.discard(self)
        if secured is not None:
            self._inner.connection_made(secured)
