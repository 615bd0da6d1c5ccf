"""GET /load: how many requests for text are being answered right now."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from headrace.server.answer import json_response
from headrace.server.state import ServerState

COUNTED = frozenset({
    "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/invocations",
})  # fmt: skip


class Load(msgspec.Struct):
    """The body of /load."""

    server_load: int
    """HTTP requests for text that have come and are not answered to the end."""


async def load(state: ServerState, _request: Request) -> Response:
    """How many requests for text are being answered, waiting ones included."""
    return json_response(Load(state.load))


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
