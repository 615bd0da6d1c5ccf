"""Which routes there are, and what a key needs to use them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from headrace.server.access.keys import Scope
from headrace.server.protocol.chat import BatchChatRequest, ChatRequest
from headrace.server.protocol.common import RequestRecord
from headrace.server.protocol.completions import CompletionRequest
from headrace.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from headrace.server.routes import (
    admin,
    batch,
    health,
    load,
    models,
    render,
    requests,
    text,
    tokenize,
)
from headrace.server.state import ServerState

Handler: TypeAlias = Callable[[ServerState, Request], Awaitable[Response]]
RouteRow: TypeAlias = tuple[str, str, Handler, type[RequestRecord] | None]
"""Method, path, what answers, and the record of its body."""

ROUTES: tuple[RouteRow, ...] = (
    ("POST", "/v1/completions", text.create_completion, CompletionRequest),
    ("POST", "/v1/chat/completions", text.create_chat_completion, ChatRequest),
    ("POST", "/v1/chat/completions/batch", batch.create_chat_batch, BatchChatRequest),
    ("POST", "/v1/completions/render", render.render_completion, CompletionRequest),
    ("POST", "/v1/chat/completions/render", render.render_chat, ChatRequest),
    ("POST", "/invocations", text.invocations, None),
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
