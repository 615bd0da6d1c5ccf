"""The HTTP application: which routes there are, and what stands before them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeAlias

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import headrace
from headrace.engine.client import EngineClient
from headrace.metrics.prometheus import PrometheusStatLogger
from headrace.server import admin, chat, completions, health, models, requests, tokenize
from headrace.server.access_log import AccessLog
from headrace.server.answer import json_response
from headrace.server.caller import caller_of
from headrace.server.chat_stream import ChatFrames
from headrace.server.completions_stream import CompletionFrames
from headrace.server.errors import error_response
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
from headrace.server.protocol.chat import ChatRequest
from headrace.server.protocol.common import RequestRecord
from headrace.server.protocol.completions import CompletionRequest
from headrace.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from headrace.server.resume import EVENT_ID_HEADER, ResumableStreams
from headrace.server.settings import ServerSettings
from headrace.server.sse import EventStream
from headrace.server.state import ServerState
from headrace.server.user_middleware import add_user_middleware

Handler: TypeAlias = Callable[[ServerState, Request], Awaitable[Response]]
BODIES: tuple[type[RequestRecord], ...] = (
    CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest,
)  # fmt: skip


async def create_completion(state: ServerState, request: Request) -> Response:
    """Continue prompts."""
    plan, live, headers = await completions.answer_completion(state, request)
    if plan.body.stream:
        return EventStream(live, state.cut, CompletionFrames(plan), headers)
    return await _respond_whole(
        state, request, live, completions.whole_completion(plan, live), headers
    )


async def create_chat_completion(state: ServerState, request: Request) -> Response:
    """Answer a conversation, or go on with an answer whose connection was lost."""
    resumable: ResumableStreams = request.app.state.resumable
    caller, event_id = caller_of(request.scope), request.headers.get(EVENT_ID_HEADER)
    if event_id is not None:
        return await resumable.resume(caller.name, event_id)
    plan, live, headers = await chat.answer_chat(state, request)
    if plan.body.stream:
        options = plan.body.stream_options
        asked = options is not None and options.resumable
        if (asked or state.settings.enable_resumable_streams) and resumable.has_room:
            return await resumable.start(caller.name, live, state.cut, ChatFrames(plan), headers)
        return EventStream(live, state.cut, ChatFrames(plan), headers)
    return await _respond_whole(state, request, live, chat.whole_chat(plan, live), headers)


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


ROUTES: tuple[tuple[str, str, Handler, type[RequestRecord] | None], ...] = (
    ("POST", "/v1/completions", create_completion, CompletionRequest),
    ("POST", "/v1/chat/completions", create_chat_completion, ChatRequest),
    ("POST", "/tokenize", tokenize.tokenize, TokenizeRequest),
    ("POST", "/detokenize", tokenize.detokenize, DetokenizeRequest),
    ("GET", "/v1/models", models.list_models, None),
    ("GET", "/v1/models/{model_id:path}", models.get_model, None),
    ("GET", "/v1/requests", requests.list_requests, None),
    ("DELETE", "/v1/requests/{request_id:path}", requests.delete_request, None),
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
    for method, path, handler, body in routes:
        _add_route(app, state, method, path, handler, body)
    _add_middleware(app, state)
    app.add_exception_handler(HTTPException, _answer_error)
    app.add_exception_handler(Exception, _answer_error)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _add_route(
    app: FastAPI,
    state: ServerState,
    method: str,
    path: str,
    handler: Handler,
    body: type[RequestRecord] | None,
) -> None:
    async def endpoint(request: Request) -> Response:
        return await handler(state, request)

    app.add_api_route(
        path,
        endpoint,
        methods=[method],
        name=handler.__name__,
        operation_id=f"{method.lower()}_{handler.__name__}_{path.strip('/').split('/')[0]}",
        description=handler.__doc__,
        openapi_extra=_body_docs(body),
    )


def _add_middleware(app: FastAPI, state: ServerState) -> None:
    """Each call goes around the ones before: the last one is outermost."""
    settings = state.settings
    app.add_middleware(LoadReport, state=state)  # behind the keys
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


async def _answer_error(_request: Request, error: Exception) -> Response:
    return error_response(error)


def _body_docs(body: type[RequestRecord] | None) -> dict[str, Any] | None:
    if body is None:
        return None
    schema = {"$ref": f"#/components/schemas/{body.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the bodies that we read ourselves."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, definitions = models_json_schema(
            [(body, "validation") for body in BODIES],
            ref_template="#/components/schemas/{model}",
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(definitions["$defs"])
        app.openapi_schema = document
    return app.openapi_schema
