"""What stands between the network and the routes: keys, errors, ids, measurements, CORS.

Plain ASGI, so that a client's going away reaches the handlers, and streams pass unbuffered.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import AdmissionError, ValidationError
from headrace.logger import make_logger
from headrace.server.caller import CALLER, Caller, caller_of
from headrace.server.errors import (
    AuthenticationError,
    KeyLimitError,
    PermissionDeniedError,
    error_response,
)
from headrace.server.keys import Key, KeyRing
from headrace.server.keys import Scope as KeyScope
from headrace.server.state import ServerState

logger = make_logger(__name__)

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/startupz", "/ping", "/version"})
INFER: frozenset[KeyScope] = frozenset({"infer"})
CLIENT_LEFT = 499
REQUEST_ID_HEADER = "X-Request-Id"
UNMEASURED = OPEN_PATHS | {"/metrics"}
DIRECT_SEND = "headrace.direct_send"
"""Key of a request's scope: the server's own `send`. Once an answer has begun, what stands between
only passes its pieces on; a stream hands them over here. Not there in an application that others
serve or add to: only `run` wraps its own, to which nothing can be added."""
STREAMED_BYTES = "headrace.streamed_bytes"
"""Key of a request's scope: how many bytes a stream has handed over there."""


class DirectSend:
    """Outermost: keeps the server's `send` for streams."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[DIRECT_SEND] = send
        await self._app(scope, receive, send)


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


class KeyGuard:
    """Lets a request pass only with a key of the right scope, except on a short list of open paths.

    Works on the path the router will see, and denies by default: a new route is guarded, by the
    scope `infer`, without further code.

    Args:
        scopes: path -> the scopes of which one is needed there and below, where it is not `infer`.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing,
        open_paths: frozenset[str],
        scopes: Mapping[str, frozenset[KeyScope]],
    ) -> None:
        self._app = app
        self._keys = keys
        self._open_paths = open_paths
        self._scopes = scopes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        key = self._key(scope)
        caller_of(scope).key = key
        try:
            self._check(key, route_path(scope))
        except (AuthenticationError, PermissionDeniedError):
            if scope["type"] != "websocket":
                raise
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._app(scope, receive, send)

    def _key(self, scope: Scope) -> Key | None:
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, token = (values[0] if len(values) == 1 else b"").partition(b" ")
        return self._keys.find(token) if scheme.lower() == b"bearer" else None

    def _check(self, key: Key | None, path: str) -> None:
        if path in self._open_paths:
            return
        if key is None:
            raise AuthenticationError(
                "this route needs a valid key: send the header 'Authorization: Bearer KEY'"
            )
        needed = self._needed(path)
        if not key.scopes & needed:
            raise PermissionDeniedError(
                f"the key {key.name!r} may not use this route: it needs the scope "
                f"{' or '.join(sorted(needed))}"
            )

    def _needed(self, path: str) -> frozenset[KeyScope]:
        while path:
            if path in self._scopes:
                return self._scopes[path]
            path = path.rpartition("/")[0]
        return INFER


class RequestIdHeader:
    """Answers with an X-Request-Id header: the client's, or a new one. One that cannot be echoed is
    refused."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            request_id = _id_in_header(Headers(scope=scope)) or uuid.uuid4().hex
        except ValidationError as error:
            await error_response(error)(scope, receive, send)
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", []),
                    (b"x-request-id", request_id.encode("latin-1")),
                ]
            await send(message)

        await self._app(scope, receive, send_with_id)


class RootPath:
    """Tells the router and the guard which prefix a proxy may have left on the path."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "root_path": self._root_path}, receive, send)


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


def route_path(scope: Scope) -> str:
    """The path as the router sees it: without the root path, when it stands there."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and (path == root or path.startswith(root + "/")):
        return path[len(root) :]
    return path


def request_id_stem(request: Request, from_body: str | None) -> str:
    """The id a request's answer is named after: the header's, the body's, or a new one.

    Raises:
        ValidationError: an id that cannot be echoed; names the header, or the field.
    """
    given = _id_in_header(request.headers)
    if given is not None:
        return given
    return uuid.uuid4().hex if from_body is None else _checked_id(from_body, "request_id")


def _id_in_header(headers: Headers) -> str | None:
    given = headers.get(REQUEST_ID_HEADER)
    return _checked_id(given, REQUEST_ID_HEADER) if given else None


def _checked_id(text: str, param: str) -> str:
    """A client's id that is fit to be echoed."""
    if 0 < len(text) <= 128 and text.isascii() and text.isprintable():
        return text
    raise ValidationError(f"{param} must be 1 to 128 printable ASCII characters", param=param)
