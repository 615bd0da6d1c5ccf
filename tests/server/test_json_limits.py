"""Bounds on the values of a body's JSON, and on what reading it takes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pydantic
import pytest

from headrace.errors import ValidationError
from headrace.server.http.body import check_structure
from headrace.server.protocol.chat import BatchChatRequest, ChatRequest
from headrace.server.protocol.completions import CompletionRequest
from headrace.server.protocol.tokenize import TokenizeRequest
from tests.server.conftest import check_error
from tests.server.fakes import FakeEngine

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
JSON = {"Content-Type": "application/json"}
ClientOf = Callable[..., httpx.AsyncClient]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/invocations"])
@pytest.mark.parametrize(
    "values",
    ["{}", "[]", '""', "null", '{"a":1}', '"[\\"",1', "{},-1"],
)
async def test_body_of_too_many_values_is_a_400_that_names_the_option(
    engine: FakeEngine, client_of: ClientOf, path: str, values: str
) -> None:
    client = client_of(engine, max_json_values=1000)
    for field in ("messages", "prompt", "unknown"):
        content = f'{{"{field}":[{",".join([values] * 1000)}]}}'.encode()
        error = check_error(await client.post(path, content=content, headers=JSON), 400)
        assert "--max-json-values" in error["message"]


async def test_prompts_as_token_ids_are_no_values_to_be_counted(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    client = client_of(engine, max_json_values=2100)
    prompts = [[1, 2, 30, 4] * 20] * 1000
    for text in (json.dumps({"prompt": prompts}), json.dumps({"prompt": prompts}, indent=1)):
        answer = await client.post("/v1/completions", content=text, headers=JSON)
        assert answer.status_code == 200
        assert len(answer.json()["choices"]) == 1000


@pytest.mark.parametrize("text", ['"\\"', '"', '"a', "\\", "[1,", "{},", '{"":', '"",'], ids=repr)
def test_structure_is_counted_in_time_linear_in_the_length(text: str) -> None:
    """Quotes that are never closed once took an hour for each megabyte."""
    body = b"[" * 10 + text.encode() * (200_000 // len(text))
    with contextlib.suppress(ValidationError):
        check_structure(body, 200_000, 200_000)  # the test's time limit, were it not linear


@pytest.mark.parametrize(
    ("model", "field"),
    [(m, f) for m in (ChatRequest, BatchChatRequest, CompletionRequest, TokenizeRequest)
     for f, about in m.model_fields.items() if "ListOf" in str(about) or "list" in str(about)],
)  # fmt: skip
def test_only_the_first_of_many_wrong_items_is_told(model: Any, field: str) -> None:
    """A million complaints took seconds of the event loop, and gigabytes."""
    with pytest.raises(pydantic.ValidationError) as raised:
        model.model_validate({field: [object()] * 1000})
    assert raised.value.error_count() < 10


async def test_large_bodies_are_parsed_one_at_a_time(
    engine: FakeEngine, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, num_parsing, most = threading.Lock(), 0, 0

    def slow_decode(body: bytes) -> Any:
        nonlocal num_parsing, most
        with lock:
            num_parsing += 1
            most = max(most, num_parsing)
        time.sleep(0.02)
        with lock:
            num_parsing -= 1
        return json.loads(body)

    monkeypatch.setattr("headrace.server.http.body.msgspec.json.decode", slow_decode)
    client = client_of(engine)
    body = {"prompt": "x", "user": "y" * (1 << 20)}
    answers = await asyncio.gather(*[client.post("/v1/completions", json=body) for _ in range(4)])
    assert [answer.status_code for answer in answers] == [200] * 4
    assert most == 1


async def test_invocations_decodes_a_body_once(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, bodies = msgspec.json.decode, []
    monkeypatch.setattr(
        "headrace.server.http.body.msgspec.json.decode",
        lambda body: bodies.append(body) or decode(body),
    )
    assert (await client.post("/invocations", json=CHAT)).status_code == 200
    assert len(bodies) == 1
