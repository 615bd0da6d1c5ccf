"""What stands between the network and the routes: errors, who calls and when, CORS, root paths.

Plain ASGI, so that a client's going away reaches the handlers, and streams pass unbuffered.
"""

from __future__ import annotations

import time

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import AdmissionError, ValidationError
from headrace.logger import make_logger
from headrace.server.access.caller import CALLER, Caller, caller_of
from headrace.server.errors import KeyLimitError, error_response
from headrace.server.state import ServerState

logger = make_logger(__name__)


class ErrorBoundary:
    """Turns whatever a request raised into the one error body, if nothing was sent yet."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except ClientDisconnect:
            return
        except Exception as error:
            if started:
                raise
            if isinstance(error, AdmissionError):
                self._count_rejection(error, caller_of(scope).name)
            await error_response(error)(scope, receive, send)

    def _count_rejection(self, error: AdmissionError, key: str | None) -> None:
        metrics = self._state.metrics
        if metrics is None:
            return
        metrics.count_rejection(error.reason)
        if isinstance(error, KeyLimitError) and key is not None:
            metrics.keys.count_rejection(key, error.reason)


class CallerNote:
    """Notes in the scope of a request when it came; who it is from is noted by the guard."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[CALLER] = Caller(time.time())
        await self._app(scope, receive, send)


class RootPath:
    """Tells the router and the guard which prefix a proxy may have left on the path."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "root_path": self._root_path}, receive, send)


class Cors(CORSMiddleware):
    """Starlette's, with a refused preflight told in the one error body."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        refusal = error_response(
            ValidationError(f"preflight refused: {bytes(response.body).decode()}", param="origin")
        )
        for name, value in response.headers.items():
            if name.startswith("access-control-") or name == "vary":
                refusal.headers[name] = value
        return refusal
