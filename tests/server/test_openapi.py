"""/openapi.json against what the server really takes and answers."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from headrace.server.docs.route_docs import DOCS
from headrace.server.routes import admin
from headrace.server.routes.table import ROUTES
from tests.server.conftest import frames_of
from tests.server.fakes import FakeEngine, say

ClientOf = Callable[..., httpx.AsyncClient]
HI = [{"role": "user", "content": "Hi"}]
ALL_EXTRAS = {
    "logprobs": True, "top_logprobs": 2, "return_token_ids": True, "n": 2, "temperature": 1.0,
}  # fmt: skip
STREAMED = {"stream": True, "stream_options": {"include_usage": True,
                                               "continuous_usage_stats": True}}  # fmt: skip
CASES: list[tuple[str, str, Any, int]] = [
    *((path, "post", body, 200) for path, doc in DOCS.items() for body in doc.examples.values()),
    ("/v1/chat/completions", "post", {"messages": HI, **ALL_EXTRAS}, 200),
    ("/v1/chat/completions", "post", {"messages": HI, **ALL_EXTRAS, **STREAMED}, 200),
    ("/v1/chat/completions", "post",
     {"messages": HI, "prompt_logprobs": 1, "return_prompt_text": True}, 200),
    ("/v1/completions", "post", {"prompt": "a", "logprobs": 2, "return_token_ids": True}, 200),
    ("/v1/completions", "post",
     {"prompt": "a", "logprobs": 2, "return_token_ids": True, "echo": True, **STREAMED}, 200),
    ("/v1/completions", "post", {"prompt": "a", "prompt_logprobs": 1}, 200),
    ("/v1/completions", "post", {"prompt": ""}, 400),
    ("/v1/completions", "post", {"prompt": "a", "model": "x"}, 404),
    ("/v1/chat/completions", "post", {"messages": 5}, 400),
    ("/v1/models", "get", None, 200),
    ("/v1/models/tiny", "get", None, 200),
    ("/v1/models/x", "get", None, 404),
    *((path, "get", None, 200) for path in ("/load", "/startupz", "/version", "/metrics",
                                            "/health", "/ping")),
    *((path, method.lower(), None, 200) for method, path, _, _ in admin.ROUTES),
    ("/sleep?mode=wait&level=2", "post", None, 200),
    ("/sleep?mode=x", "post", None, 400),
]  # fmt: skip


@pytest.fixture
def strict() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A document after which no answer has a key that is not described."""

    def make(document: dict[str, Any]) -> dict[str, Any]:
        document = copy.deepcopy(document)
        for schema in document["components"]["schemas"].values():
            if "properties" in schema:
                schema["additionalProperties"] = False
        return document

    return make


def records_of(answer: httpx.Response) -> Iterator[Any]:
    if answer.headers["content-type"].startswith("text/event-stream"):
        yield from (frame for frame in frames_of(answer.text) if isinstance(frame, dict))
    else:
        yield answer.json()


@pytest.mark.parametrize(("path", "method", "body", "status"), CASES, ids=lambda v: str(v)[:60])
async def test_answers_are_as_described(
    client_of: ClientOf, strict: Any, path: str, method: str, body: Any, status: int
) -> None:
    client = client_of(
        FakeEngine(say("é!"), max_logprobs=40),
        enable_prompt_tokens_details=True,
        enable_admin_routes=True,
    )
    document = strict((await client.get("/openapi.json")).json())
    answer = await client.request(method, path, json=body)
    assert answer.status_code == status, answer.text
    described = path.partition("?")[0]
    described = described if described in document["paths"] else "/v1/models/{model_id}"
    told = document["paths"][described][method]["responses"][str(status)]
    if "content" not in told:
        assert answer.content == b""
        return
    kind = answer.headers["content-type"].partition(";")[0]
    schema = told["content"][kind]["schema"]
    if kind == "text/event-stream":
        end, chunk = schema["properties"]["data"]["anyOf"]
        assert (end["const"], frames_of(answer.text)[-1]) == ("[DONE]", "[DONE]")
        schema = chunk["contentSchema"]["anyOf"][0]
    schema = {**schema, "components": document["components"]}
    if kind == "text/plain":
        return
    for record in records_of(answer):
        jsonschema.validate(record, schema, cls=jsonschema.Draft202012Validator)
    assert set(told.get("headers", {})) >= {
        name for name in ("X-Headrace-Warnings", "Retry-After") if name.lower() in answer.headers
    }


async def test_a_record_that_is_not_described_would_be_found(
    client: httpx.AsyncClient, strict: Any
) -> None:
    document = strict((await client.get("/openapi.json")).json())
    answer = (await client.get("/v1/models")).json()
    schema = {"$ref": "#/components/schemas/ModelList", "components": document["components"]}
    jsonschema.validate(answer, schema)
    answer["data"][0]["surprise"] = 1
    with pytest.raises(jsonschema.ValidationError, match="surprise"):
        jsonschema.validate(answer, schema)


async def test_requests_are_as_described(client_of: ClientOf, engine: FakeEngine) -> None:
    client = client_of(engine, enable_admin_routes=True)
    document = (await client.get("/openapi.json")).json()
    for path, method, body, status in CASES:
        if body is None or status != 200:
            continue
        content = document["paths"][path][method]["requestBody"]["content"]["application/json"]
        schema = {**content["schema"], "components": document["components"]}
        jsonschema.validate(body, schema, cls=jsonschema.Draft202012Validator)


async def test_document_is_sound(client_of: ClientOf, engine: FakeEngine) -> None:
    document = (await client_of(engine, api_key=["k"]).get(
        "/openapi.json", headers={"Authorization": "Bearer k"})).json()  # fmt: skip
    text = json.dumps(document)
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= set(document["components"]["schemas"])
    operations = [one for path in document["paths"].values() for one in path.values()]
    ids = [one["operationId"] for one in operations]
    assert len(ids) == len(set(ids))
    assert all(one["description"] for one in operations)
    assert "401" in document["paths"]["/load"]["get"]["responses"]
    assert "401" not in document["paths"]["/health"]["get"]["responses"]
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_route_is_described() -> None:
    rows = ROUTES + admin.ROUTES
    assert {path for _, path, _, _ in rows} == set(DOCS)
    assert all(handler.__doc__ for _, _, handler, _ in rows)
    for _, path, _, body in rows:
        assert body is None or DOCS[path].examples, path


async def test_pages_read_the_document_that_lies_beside_them(
    engine: FakeEngine, client_of: Callable[..., httpx.AsyncClient]
) -> None:
    client = client_of(engine)
    for path in ("/docs", "/redoc"):
        page = await client.get(path)
        assert page.headers["content-type"].startswith("text/html")
        assert '"openapi.json"' in page.text
    behind_a_proxy = client_of(engine, root_path="/llm")
    document = (await behind_a_proxy.get("/llm/openapi.json")).json()
    assert document["servers"] == [{"url": "/llm"}]
    assert "servers" not in (await client.get("/openapi.json")).json()
