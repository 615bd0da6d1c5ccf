"""The HTTP application: routes, and what stands before them."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from headrace.engine.client import EngineClient
from headrace.metrics.prometheus import PrometheusStatLogger
from headrace.server.docs.pages import Document, redoc_page, swagger_page
from headrace.server.errors import error_response
from headrace.server.http.access_log import AccessLog
from headrace.server.http.key_guard import KeyGuard
from headrace.server.http.load_report import LoadReport
from headrace.server.http.meters import HttpMeter, LoadMeter
from headrace.server.http.middleware import CallerNote, Cors, ErrorBoundary, RootPath
from headrace.server.http.paths import OPEN_PATHS
from headrace.server.http.request_ids import RequestIdHeader
from headrace.server.http.user_middleware import add_user_middleware
from headrace.server.routes import admin
from headrace.server.routes.table import ROUTES, SCOPES, Handler
from headrace.server.settings.server import ServerSettings
from headrace.server.state import ServerState
from headrace.server.streams.resume import ResumableStreams


def build_app(
    engine: EngineClient | None,
    settings: ServerSettings,
    metrics: PrometheusStatLogger | None = None,
) -> Starlette:
    """The application around one engine.

    Args:
        engine: what answers; None while it still starts, then `app.state.server.attach` it.
        metrics: what /metrics shows.
    """
    state = ServerState(settings, metrics)
    if engine is not None:
        state.attach(engine)
    rows = ROUTES + (admin.ROUTES if settings.enable_admin_routes else ())
    routes = [_route(state, method, path, handler) for method, path, handler, _body in rows]
    if not settings.disable_fastapi_docs:
        document = Document(rows)
        for path, handler in (
            ("/openapi.json", document.answer), ("/docs", swagger_page), ("/redoc", redoc_page),
        ):  # fmt: skip
            routes.append(_route(state, "GET", path, handler))
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    app.state.server = state
    app.state.resumable = ResumableStreams(settings)
    _add_middleware(app, state)
    app.add_exception_handler(HTTPException, _answer_error)
    app.add_exception_handler(Exception, _answer_error)
    return app


class Endpoint:
    """A handler as an application."""

    def __init__(self, state: ServerState, handler: Handler) -> None:
        self._state = state
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._handler(self._state, Request(scope, receive, send))
        await response(scope, receive, send)


class NotedRoute(Route):
    """Noted in the scope of its requests, for measurements."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        if match is not Match.NONE:
            child_scope["route"] = self
        return match, child_scope


def _route(state: ServerState, method: str, path: str, handler: Handler) -> Route:
    return NotedRoute(path, Endpoint(state, handler), methods=[method], name=handler.__name__)


def _add_middleware(app: Starlette, state: ServerState) -> None:
    """Each call goes around the ones before: the last one is outermost."""
    settings = state.settings
    app.add_middleware(LoadReport, state=state)  # behind the keys
    app.add_middleware(LoadMeter, state=state)
    if state.keys is not None:
        open_paths = OPEN_PATHS | ({"/metrics"} if settings.public_metrics else set())
        app.add_middleware(KeyGuard, keys=state.keys, open_paths=open_paths, scopes=SCOPES)
    app.add_middleware(ErrorBoundary, state=state)
    if settings.allowed_origins:
        app.add_middleware(
            Cors,
            allow_origins=settings.allowed_origins,
            allow_methods=settings.allowed_methods,
            allow_headers=settings.allowed_headers,
            allow_credentials=settings.allow_credentials,
        )
    if settings.enable_request_id_headers:
        app.add_middleware(RequestIdHeader)
    add_user_middleware(app, settings.middleware)
    app.add_middleware(HttpMeter, state=state)
    if not settings.disable_uvicorn_access_log:
        app.add_middleware(AccessLog, quiet_paths=settings.quiet_paths)
    app.add_middleware(CallerNote)
    if settings.root_path:
        app.add_middleware(RootPath, root_path=settings.root_path)


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        allowed = _methods_of(request)
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"Allow": ", ".join([*allowed, "OPTIONS"])})
        error = HTTPException(405, headers={"Allow": ", ".join(allowed)})
    return error_response(error)


def _methods_of(request: Request) -> list[str]:
    """Every method that a route of this path takes."""
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return sorted(found)
