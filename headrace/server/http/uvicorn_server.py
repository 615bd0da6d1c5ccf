"""Uvicorn as we use it: which protocol, which limits, whose logs and signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette

from headrace.server.http.direct_send import DirectSend
from headrace.server.http.handshake import Handshake
from headrace.server.http.http_protocol import Bounded, make_protocol
from headrace.server.settings.server import ServerSettings

DEFAULT_CIPHERS = "TLSv1"
"""As uvicorn has it: what OpenSSL holds to be good."""
SLOW_CLIENT_SECONDS = 5
"""How long clients get to take in the end of their answers, once the server ends."""


def uvicorn_config(
    app: Starlette, settings: ServerSettings, shutdown_timeout: float
) -> uvicorn.Config:
    """The server around an application.

    Args:
        shutdown_timeout: seconds running requests get at the end.
    """
    _set_up_uvicorn_logging(settings)
    return uvicorn.Config(
        # What users put between shall see all of an answer.
        app if settings.middleware else DirectSend(app),
        http=make_protocol(settings),
        log_config=None,
        log_level=None,
        access_log=False,  # ours knows more
        lifespan="off",
        timeout_graceful_shutdown=math.ceil(shutdown_timeout) + SLOW_CLIENT_SECONDS,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_certfile=settings.ssl_certfile,
        ssl_ca_certs=settings.ssl_ca_certs,
        ssl_cert_reqs=settings.ssl_cert_reqs,
        ssl_ciphers=settings.ssl_ciphers or DEFAULT_CIPHERS,
        server_header=False,
    )


def _set_up_uvicorn_logging(settings: ServerSettings) -> None:
    """Let uvicorn's lines look like ours and go where ours go; we tell of start and end."""
    ours = logging.getLogger("headrace")
    theirs = logging.getLogger("uvicorn.error")
    theirs.handlers = list(ours.handlers)
    theirs.propagate = False
    level = settings.uvicorn_log_level.upper()
    if level == "INFO":
        level = "WARNING"
    theirs.addFilter(_is_no_cancellation)
    theirs.setLevel(logging.DEBUG if level == "TRACE" else level)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """A request that is cancelled because the server ends is no fault worth a trace."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class Server(uvicorn.Server):
    """Uvicorn, with the signals left to us: it would end by the signal, we end with a status. And
    with TLS handshakes that are bounded as connections are."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._handshakes: set[Handshake] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Handshakes are ours: uvicorn is not told that there is TLS while it binds."""
        context = self.config.ssl
        if context is not None:
            make: Any = _shaking_hands(self.config.http_protocol_class, context, self._handshakes)
            self.config.http_protocol_class = make
            self.config.ssl = None
        try:
            await super().startup(sockets)
        finally:
            self.config.ssl = context

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End. Who has not even shaken hands is not waited for."""
        for handshake in self._handshakes:
            handshake.cancel()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _shaking_hands(
    make_inner: Any, context: ssl.SSLContext, pending: set[Handshake]
) -> Callable[..., Handshake]:
    def make(**options: Any) -> Handshake:
        inner: Bounded = make_inner(**options)
        return Handshake(inner, context, pending)

    return make
