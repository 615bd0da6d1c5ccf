"""What the documents say of each route beyond its code: what it answers, and examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.server.protocol.chat import ChatChunk, ChatCompletion
from headrace.server.protocol.completions import Completion, CompletionChunk
from headrace.server.protocol.models import ModelCard, ModelList
from headrace.server.protocol.tokenize import (
    DetokenizeResponse,
    RenderedPrompt,
    TokenizeResponse,
)
from headrace.server.routes import admin
from headrace.server.routes.health import Startup, Version
from headrace.server.routes.load import Load
from headrace.server.routes.requests import RequestEnded, RequestList

TEXT, TOKENS, STATE = "Text", "Tokens and templates", "State of the server"
OPERATORS = "For operators"


@dataclass(frozen=True)
class Query:
    """One query parameter: its JSON schema, with a default, and what it does."""

    name: str
    schema: Mapping[str, Any]
    text: str


@dataclass(frozen=True)
class RouteDoc:
    """One route.

    Attributes:
        tag: the heading it stands under.
        answer: type of a JSON answer (a record, or a list of records), or several of which it is
            one; None for an empty one.
        chunk: type of the frames, where the answer may be a stream.
        media_type: of an answer that is no JSON.
        examples: name -> request body.
        body: type of the request body, where the route's row does not say it.
        queries: what may stand behind the `?`.
        errors: statuses besides those that every route may answer with.
    """

    tag: str
    answer: Any = None
    chunk: type[msgspec.Struct] | None = None
    media_type: str | None = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    body: type[msgspec.Struct] | None = None
    queries: tuple[Query, ...] = ()
    errors: tuple[int, ...] = ()


_HELLO = [{"role": "user", "content": "What is the capital of France?"}]
_CHATS = {
    "a question": {"messages": _HELLO, "max_tokens": 32},
    "a stream with its usage": {
        "messages": _HELLO, "stream": True, "stream_options": {"include_usage": True},
    },
    "log-probabilities": {
        "messages": _HELLO, "max_tokens": 4, "logprobs": True, "top_logprobs": 2,
    },
    "an answer in a form": {
        "messages": [{"role": "user", "content": "Name a city and its country."}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "city",
                "schema": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
                    "required": ["city", "country"],
                    "additionalProperties": False,
                },
            },
        },
    },
}  # fmt: skip
_COMPLETIONS = {
    "a text to go on with": {"prompt": "The capital of France is", "max_tokens": 8},
    "several prompts, two answers each": {
        "prompt": ["One", "Two"], "n": 2, "temperature": 1.0, "seed": 1, "max_tokens": 4,
    },
    "the likeliest answers": {
        "prompt": "Once upon a time", "use_beam_search": True, "n": 3, "max_tokens": 8,
    },
    "how likely a text is": {"prompt": "Paris is in France.", "echo": True, "max_tokens": 0,
                             "logprobs": 1},
}  # fmt: skip
_TOKENIZE = {
    "a text": {"prompt": "Hello there", "return_token_strs": True},
    "a conversation": {"messages": _HELLO},
}

_MODE = Query(
    "mode",
    {"type": "string", "enum": ["abort", "wait", "keep"], "default": "abort"},
    "What becomes of requests under way: ended, waited for, or kept.",
)


def _switch(name: str, default: bool, text: str) -> Query:
    return Query(name, {"type": "boolean", "default": default}, text)


DOCS: Mapping[str, RouteDoc] = {
    "/v1/completions": RouteDoc(
        TEXT, Completion, CompletionChunk, examples=_COMPLETIONS, errors=(404, 503)
    ),
    "/v1/chat/completions": RouteDoc(
        TEXT, ChatCompletion, ChatChunk, examples=_CHATS, errors=(404, 503)
    ),
    "/v1/chat/completions/batch": RouteDoc(
        TEXT,
        ChatCompletion,
        examples={"two conversations": {"messages": [_HELLO, _HELLO], "max_tokens": 16}},
        errors=(404, 503),
    ),
    "/invocations": RouteDoc(
        TEXT,
        (ChatCompletion, Completion),
        ChatChunk,
        examples={"as a chat": _CHATS["a question"],
                  "as a completion": _COMPLETIONS["a text to go on with"]},
        errors=(404, 503),
    ),
    "/v1/chat/completions/render": RouteDoc(
        TOKENS, RenderedPrompt, examples={"a question": _CHATS["a question"]}, errors=(404, 503)
    ),
    "/v1/completions/render": RouteDoc(
        TOKENS,
        list[RenderedPrompt],
        examples={"a text": {"prompt": "Hello there"}},
        errors=(404, 503),
    ),
    "/tokenize": RouteDoc(TOKENS, TokenizeResponse, examples=_TOKENIZE, errors=(404, 503)),
    "/detokenize": RouteDoc(
        TOKENS, DetokenizeResponse, examples={"ids": {"tokens": [1, 2, 3]}}, errors=(404, 503)
    ),
    "/tokenizer_info": RouteDoc(TOKENS, dict[str, Any], errors=(404, 503)),
    "/v1/models": RouteDoc(STATE, ModelList, errors=(503,)),
    "/v1/models/{model_id:path}": RouteDoc(STATE, ModelCard, errors=(404, 503)),
    "/v1/requests": RouteDoc(STATE, RequestList, errors=(503,)),
    "/v1/requests/{request_id:path}": RouteDoc(STATE, RequestEnded, errors=(400, 404, 503)),
    "/load": RouteDoc(STATE, Load),
    "/health": RouteDoc(STATE, errors=(503,)),
    "/livez": RouteDoc(STATE),
    "/readyz": RouteDoc(STATE, errors=(503,)),
    "/startupz": RouteDoc(STATE, Startup),
    "/ping": RouteDoc(STATE, errors=(503,)),
    "/version": RouteDoc(STATE, Version),
    "/metrics": RouteDoc(STATE, media_type="text/plain"),
    "/sleep": RouteDoc(
        OPERATORS,
        admin.Sleeping,
        queries=(
            Query(
                "level",
                {"type": "integer", "minimum": 0, "maximum": 2, "default": 1},
                "What is given back: 0 nothing, 1 the KV cache, 2 the weights, too.",
            ),
            _MODE,
        ),
        errors=(400, 503),
    ),
    "/wake_up": RouteDoc(
        OPERATORS,
        admin.Waking,
        queries=(
            Query(
                "tags",
                {
                    "type": "array",
                    "items": {"type": "string", "enum": ["weights", "kv_cache", "scheduling"]},
                },
                "What wakes; all of it, when none is given.",
            ),
        ),
        errors=(400, 503),
    ),
    "/is_sleeping": RouteDoc(OPERATORS, admin.SleepState, errors=(503,)),
    "/pause": RouteDoc(
        OPERATORS,
        admin.Done,
        queries=(_MODE, _switch("clear_cache", True, "Whether cached prefixes are forgotten.")),
        errors=(400, 503),
    ),
    "/resume": RouteDoc(OPERATORS, admin.Done, errors=(503,)),
    "/is_paused": RouteDoc(OPERATORS, admin.PauseState, errors=(503,)),
    "/reset_prefix_cache": RouteDoc(
        OPERATORS,
        admin.CacheReset,
        queries=(
            _switch("reset_running_requests", False, "Also where requests must be computed again."),
            _switch("reset_external", False, "Also a cache outside of the engine; there is none."),
        ),
        errors=(400, 503),
    ),
    "/start_profile": RouteDoc(OPERATORS, admin.Done, errors=(400, 503)),
    "/stop_profile": RouteDoc(OPERATORS, admin.Profile, errors=(503,)),
    "/server_info": RouteDoc(OPERATORS, admin.ServerInfo, errors=(503,)),
    "/abort_requests": RouteDoc(
        OPERATORS,
        admin.Aborted,
        body=admin.AbortBody,
        examples={"one of them": {"request_ids": ["chatcmpl-1"]}, "all": {}},
        errors=(503,),
    ),
}  # fmt: skip
