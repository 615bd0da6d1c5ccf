"""Requests over HTTP counted and timed."""

from __future__ import annotations

import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.server.http.direct_send import STREAMED_BYTES
from headrace.server.http.paths import UNMEASURED, route_path
from headrace.server.state import ServerState

CLIENT_LEFT = 499
COUNTED = frozenset({
    "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/invocations",
})  # fmt: skip
"""Paths whose requests are the load."""


class HttpMeter:
    """Counts and times requests by the pattern of their route."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = self._state.metrics
        if scope["type"] != "http" or metrics is None or route_path(scope) in UNMEASURED:
            await self._app(scope, receive, send)
            return
        begin = time.perf_counter()
        status = CLIENT_LEFT  # every other end sends a status
        num_sent = 0

        async def send_noting_status(message: Message) -> None:
            nonlocal status, num_sent
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                num_sent += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            handler = getattr(scope.get("route"), "path", "none")
            seconds = time.perf_counter() - begin
            declared = Headers(scope=scope).get("content-length", "")
            num_received = int(declared) if declared.isdigit() and len(declared) < 16 else 0
            num_sent += scope.get(STREAMED_BYTES, 0)
            metrics.http.record(scope["method"], handler, status, seconds, num_received, num_sent)


class LoadMeter:
    """Counts a request from its head to the last byte of its answer."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in COUNTED or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        self._state.load += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._state.load -= 1
