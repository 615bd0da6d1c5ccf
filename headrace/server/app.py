"""The HTTP application: which routes there are, and what stands before them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope as AsgiScope

import headrace
from headrace.engine.client import EngineClient
from headrace.metrics.prometheus import PrometheusStatLogger
from headrace.server import (
    admin,
    batch,
    chat,
    completions,
    health,
    load,
    models,
    render,
    requests,
    tokenize,
)
from headrace.server.access_log import AccessLog
from headrace.server.answer import json_response
from headrace.server.body import with_warning
from headrace.server.caller import caller_of
from headrace.server.chat_stream import ChatFrames
from headrace.server.completions_stream import CompletionFrames
from headrace.server.errors import error_response
from headrace.server.invocations import invoke
from headrace.server.keys import Scope
from headrace.server.live import LiveRequests, unless_disconnected
from headrace.server.load_report import LoadReport
from headrace.server.middleware import (
    OPEN_PATHS,
    CallerNote,
    Cors,
    ErrorBoundary,
    HttpMeter,
    KeyGuard,
    RequestIdHeader,
    RootPath,
)
from headrace.server.openapi import Route as Documented
from headrace.server.openapi import openapi_document
from headrace.server.protocol.chat import BatchChatRequest, ChatRequest
from headrace.server.protocol.common import RequestRecord
from headrace.server.protocol.completions import CompletionRequest
from headrace.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from headrace.server.resume import EVENT_ID_HEADER, ResumableStreams
from headrace.server.resume_check import asks_for_events, check_repeated
from headrace.server.settings import ServerSettings
from headrace.server.sse import EventStream, FrameMaker
from headrace.server.state import ServerState
from headrace.server.user_middleware import add_user_middleware

Handler: TypeAlias = Callable[[ServerState, Request], Awaitable[Response]]
RouteRow: TypeAlias = tuple[str, str, Handler, type[RequestRecord] | None]


async def create_completion(state: ServerState, request: Request) -> Response:
    """Continue prompts."""
    plan, live, headers = await completions.answer_completion(state, request)
    if plan.body.stream:
        return _stream(state, live, CompletionFrames(plan), headers)
    return await _respond_whole(
        state, request, live, completions.whole_completion(plan, live), headers
    )


async def create_chat_completion(state: ServerState, request: Request) -> Response:
    """Answer a conversation, or go on with an answer whose connection was lost."""
    resumable: ResumableStreams = request.app.state.resumable
    caller, event_id = caller_of(request.scope), request.headers.get(EVENT_ID_HEADER)
    if event_id is not None:
        await check_repeated(state, request)
        return await resumable.resume(caller.name, event_id)
    plan, live, headers = await chat.answer_chat(state, request)
    if plan.body.stream:
        if asks_for_events(plan.body, state.settings):
            if resumable.has_room:
                frames = ChatFrames(plan)
                return await resumable.start(caller.name, live, state.cut, frames, headers)
            headers = with_warning(headers, "stream is not resumable: too many are kept")
        return _stream(state, live, ChatFrames(plan), headers)
    return await _respond_whole(state, request, live, chat.whole_chat(plan, live), headers)


def _stream(
    state: ServerState, live: LiveRequests, frames: FrameMaker, headers: dict[str, str]
) -> EventStream:
    return EventStream(live, state.cut, frames, headers, state.settings.sse_keep_alive_interval)


async def _respond_whole(
    state: ServerState,
    request: Request,
    live: LiveRequests,
    answer: Coroutine[Any, Any, msgspec.Struct],
    headers: dict[str, str],
) -> Response:
    """Wait for an answer; a client that goes away ends the requests behind it."""
    async with live:
        record = await unless_disconnected(request.receive, state.cut, answer)
    return json_response(record, headers)


async def invocations(state: ServerState, request: Request) -> Response:
    """Answer as the route for text whose fields the body has."""
    answers = {
        "messages": create_chat_completion,
        "prompt": create_completion,
        "prompt_embeds": create_completion,
    }
    return await invoke(state, request, answers)


ROUTES: tuple[RouteRow, ...] = (
    ("POST", "/v1/completions", create_completion, CompletionRequest),
    ("POST", "/v1/chat/completions", create_chat_completion, ChatRequest),
    ("POST", "/v1/chat/completions/batch", batch.create_chat_batch, BatchChatRequest),
    ("POST", "/v1/completions/render", render.render_completion, CompletionRequest),
    ("POST", "/v1/chat/completions/render", render.render_chat, ChatRequest),
    ("POST", "/invocations", invocations, None),
    ("POST", "/tokenize", tokenize.tokenize, TokenizeRequest),
    ("POST", "/detokenize", tokenize.detokenize, DetokenizeRequest),
    ("GET", "/tokenizer_info", tokenize.tokenizer_info, None),
    ("GET", "/v1/models", models.list_models, None),
    ("GET", "/v1/models/{model_id:path}", models.get_model, None),
    ("GET", "/v1/requests", requests.list_requests, None),
    ("DELETE", "/v1/requests/{request_id:path}", requests.delete_request, None),
    ("GET", "/load", load.load, None),
    ("GET", "/health", health.health, None),
    ("GET", "/livez", health.live, None),
    ("GET", "/readyz", health.health, None),
    ("GET", "/startupz", health.startup, None),
    ("GET", "/ping", health.health, None),
    ("POST", "/ping", health.health, None),
    ("GET", "/version", health.version, None),
    ("GET", "/metrics", health.metrics, None),
)

SCOPES: Mapping[str, frozenset[Scope]] = {
    "/metrics": frozenset({"metrics"}),
    "/v1/requests": frozenset({"infer", "admin"}),
    **{path: frozenset({"admin"}) for _, path, _, _ in admin.ROUTES},
}
"""What a key needs to use a path, and what is below it; `infer`, where nothing is said."""


def build_app(
    engine: EngineClient | None,
    settings: ServerSettings,
    metrics: PrometheusStatLogger | None = None,
) -> FastAPI:
    """The application around one engine.

    Args:
        engine: what answers; None while it still starts, then `app.state.server.attach` it.
        metrics: what /metrics shows.
    """
    state = ServerState(settings, metrics)
    if engine is not None:
        state.attach(engine)
    docs: dict[str, Any] = {}
    if settings.disable_fastapi_docs:
        docs = {"openapi_url": None, "docs_url": None, "redoc_url": None}
    app = FastAPI(
        title="headrace",
        version=headrace.__version__,
        redirect_slashes=False,
        **docs,
    )
    app.state.server = state
    app.state.resumable = ResumableStreams(settings)
    routes = ROUTES + (admin.ROUTES if settings.enable_admin_routes else ())
    for method, path, handler, _body in routes:
        _add_route(app, state, method, path, handler)
    _add_middleware(app, state)
    app.add_exception_handler(HTTPException, _answer_error)
    app.add_exception_handler(Exception, _answer_error)
    app.openapi = lambda: _openapi(app, state, routes)  # type: ignore[method-assign]
    return app


class PlainRoute(Route):
    """A route that reads its request itself: what FastAPI would do around it takes longer than all
    of ours. It is noted in the scope, as FastAPI does, for measurements."""

    def matches(self, scope: AsgiScope) -> tuple[Match, AsgiScope]:
        match, child_scope = super().matches(scope)
        if match is not Match.NONE:
            child_scope["route"] = self
        return match, child_scope


def _add_route(
    app: FastAPI,
    state: ServerState,
    method: str,
    path: str,
    handler: Handler,
) -> None:
    async def endpoint(request: Request) -> Response:
        return await handler(state, request)

    app.router.routes.append(PlainRoute(path, endpoint, methods=[method], name=handler.__name__))


def _add_middleware(app: FastAPI, state: ServerState) -> None:
    """Each call goes around the ones before: the last one is outermost."""
    settings = state.settings
    app.add_middleware(LoadReport, state=state)  # behind the keys
    app.add_middleware(load.LoadMeter, state=state)
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


def _openapi(app: FastAPI, state: ServerState, routes: Sequence[RouteRow]) -> dict[str, Any]:
    """The document, made when it is first asked for."""
    if app.openapi_schema is None:
        described = [
            Documented(method, path, handler.__name__, handler.__doc__ or "", body)
            for method, path, handler, body in routes
        ]
        app.openapi_schema = openapi_document(described, needs_key=state.keys is not None)
    return app.openapi_schema
