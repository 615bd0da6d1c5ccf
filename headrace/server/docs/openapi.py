"""The document /openapi.json: what each route takes and answers, from the records themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
from pydantic.json_schema import models_json_schema

import headrace
from headrace.server.docs.route_docs import DOCS, TEXT, RouteDoc
from headrace.server.errors import ErrorBody
from headrace.server.http.paths import OPEN_PATHS
from headrace.server.protocol.common import RequestRecord

REFS = "#/components/schemas/{}"
WITH_BODY = (400, 408, 413)
_STATUS_TEXTS = {
    400: "The request is not what the route takes; `param` names the field.",
    401: "A key is needed: `Authorization: Bearer KEY`.",
    403: "The key is good, but not for this route.",
    404: "The model, or the thing named in the path, is not here.",
    408: "The body did not come to its end in time.",
    413: "The body is larger than the server takes.",
    429: "The key has as much under way as it may; `Retry-After` says when to ask again.",
    500: "A fault of the server, or of the engine while it answered.",
    503: "The queue is full, or the server is starting or ending; `Retry-After` says when to "
    "ask again.",
}


class Route(NamedTuple):
    """A route as the application knows it."""

    method: str
    path: str
    name: str
    description: str
    body: type[RequestRecord] | None


def openapi_document(
    routes: Iterable[Route], *, needs_key: bool, root_path: str = ""
) -> dict[str, Any]:
    """The document over these routes.

    Args:
        needs_key: whether the server guards its routes.
        root_path: what a proxy puts before all paths.
    """
    routes = list(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, DOCS[route.path], needs_key)
        path = route.path.replace(":path}", "}")
        paths.setdefault(path, {})[route.method.lower()] = operation
    components: dict[str, Any] = {"schemas": _schemas(routes)}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "headrace",
            "version": headrace.__version__,
            "description": "An engine for language models, as OpenAI's API describes one. "
            "Fields that a route does not know are listed in the header X-Headrace-Warnings, or "
            "refused with `X-Strict: 1`. HEAD works wherever GET does.",
        },
        "paths": paths,
        "components": components,
    }
    if root_path:
        document["servers"] = [{"url": root_path}]
    if needs_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _operation(route: Route, doc: RouteDoc, needs_key: bool) -> dict[str, Any]:
    place = re.sub(r"\W+", "_", route.path.replace(":path", "")).strip("_")
    needs_key = needs_key and route.path not in OPEN_PATHS
    operation: dict[str, Any] = {
        "operationId": f"{route.method.lower()}_{place}",
        "summary": route.name.replace("_", " ").capitalize(),
        "description": route.description,
        "tags": [doc.tag],
        "responses": _responses(route, doc, needs_key),
    }
    if needs_key:
        operation["security"] = [{"key": []}]
    parameters = _parameters(route, doc)
    if parameters:
        operation["parameters"] = parameters
    if doc.examples:
        record = route.body or doc.body
        schema = {"type": "object"} if record is None else _ref(record)
        content: dict[str, Any] = {"schema": schema}
        content["examples"] = {name: {"value": body} for name, body in doc.examples.items()}
        operation["requestBody"] = {
            "required": doc.body is None,
            "content": {"application/json": content},
        }
    return operation


def _parameters(route: Route, doc: RouteDoc) -> list[dict[str, Any]]:
    found = [
        _parameter("path", name.partition(":")[0], "string", "As it is listed.", required=True)
        for name in _names_in(route.path)
    ]
    found += [
        {"in": "query", "name": query.name, "description": query.text, "schema": query.schema}
        for query in doc.queries
    ]
    if doc.examples and doc.body is None:
        found.append(
            _parameter("header", "X-Strict", "string", "`1`: refuse fields that are not known.")
        )
    if doc.tag == TEXT:
        found += [
            _parameter("header", "X-Request-Id", "string",
                       "What the id of the answer ends with; 1 to 128 printable characters."),
            _parameter("header", "X-Headrace-Priority", "integer",
                       "In place of the field `priority`."),
        ]  # fmt: skip
    return found


def _names_in(path: str) -> list[str]:
    return [part.partition("}")[0] for part in path.split("{")[1:]]


def _parameter(
    where: str, name: str, kind: str, text: str, *, required: bool = False
) -> dict[str, Any]:
    return {
        "in": where,
        "name": name,
        "required": required,
        "description": text,
        "schema": {"type": kind},
    }


def _responses(route: Route, doc: RouteDoc, needs_key: bool) -> dict[str, Any]:
    statuses = {500, *doc.errors, *(WITH_BODY if doc.examples else ())}
    if needs_key:
        statuses |= {401, 403} | ({429} if doc.tag == TEXT else set())
    whole: dict[str, Any] = {"description": "The answer."}
    content: dict[str, Any] = {}
    if doc.answer is not None:
        content["application/json"] = {"schema": _schema_of(doc.answer)}
    if doc.chunk is not None:
        content["text/event-stream"] = {
            "schema": _event(doc.chunk),
            "example": 'data: {"id": ...}\n\ndata: [DONE]\n\n',
        }
        whole["description"] = (
            "The answer; with `stream: true` server-sent events. Each `data:` holds a chunk as "
            "described here; the last one is `[DONE]`. A failure after the first byte is a chunk "
            "with `error`, in the shape of all errors, and the end. Lines that begin with a colon "
            "keep the connection open and mean nothing."
        )
    if doc.media_type is not None:
        content[doc.media_type] = {"schema": {"type": "string"}}
    if content:
        whole["content"] = content
    if doc.examples:
        text = "Fields that were not known and left out."
        whole["headers"] = {"X-Headrace-Warnings": _header("string", text)}
    responses = {"200": whole, **{str(status): _error(status) for status in sorted(statuses)}}
    if route.path == "/startupz":
        responses["503"] = {**whole, "description": "How far the start is."}
    return responses


def _error(status: int) -> dict[str, Any]:
    error = {"message": _STATUS_TEXTS[status], "type": HTTPStatus(status).phrase.replace(" ", ""),
             "param": None, "code": status}  # fmt: skip
    content = {"schema": _ref(ErrorBody), "example": {"error": error}}
    told: dict[str, Any] = {
        "description": _STATUS_TEXTS[status],
        "content": {"application/json": content},
    }
    if status in (429, 503):
        told["headers"] = {"Retry-After": _header("integer", "Seconds to wait.")}
    if status == 401:
        told["headers"] = {"WWW-Authenticate": _header("string", "`Bearer`.")}
    return told


def _header(kind: str, text: str) -> dict[str, Any]:
    return {"description": text, "schema": {"type": kind}}


# -- schemas ------------------------------------------------------------------------------------


def _ref(record: type) -> dict[str, Any]:
    return {"$ref": REFS.format(record.__name__)}


def _event(record: type) -> dict[str, Any]:
    """One event of a stream, as tools for OpenAPI see them."""
    content = {"anyOf": [_ref(record), _ref(ErrorBody)]}
    chunk = {"type": "string", "contentMediaType": "application/json", "contentSchema": content}
    data = {"anyOf": [{"const": "[DONE]"}, chunk]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _schema_of(answer: Any) -> dict[str, Any]:
    kinds = _kinds(answer)
    schemas, _ = msgspec.json.schema_components(kinds, ref_template=REFS.format("{name}"))
    return dict(schemas[0]) if len(kinds) == 1 else {"anyOf": list(schemas)}


def _kinds(answer: Any) -> tuple[Any, ...]:
    return answer if isinstance(answer, tuple) else (answer,)


def _schemas(routes: Sequence[Route]) -> dict[str, Any]:
    """The records of all requests and answers."""
    docs = [DOCS[route.path] for route in routes]
    answers = [kind for doc in docs if doc.answer is not None for kind in _kinds(doc.answer)]
    chunks = [doc.chunk for doc in docs if doc.chunk is not None]
    _, schemas = msgspec.json.schema_components(
        [*answers, *chunks, *(doc.body for doc in docs if doc.body), ErrorBody],
        ref_template=REFS.format("{name}"),
    )
    bodies = {route.body: None for route in routes if route.body is not None}
    _, definitions = models_json_schema(
        [(body, "validation") for body in bodies], ref_template=REFS.format("{model}")
    )
    taken: Mapping[str, Any] = definitions.get("$defs", {})
    both = set(taken) & set(schemas)
    assert not both, f"requests and answers have records of the same name: {both}"
    return {**taken, **schemas}
