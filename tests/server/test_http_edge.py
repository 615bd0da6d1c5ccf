"""Keys, bodies, paths, ids, CORS, health: what happens before and around a handler."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from headrace.errors import ConfigError, ValidationError
from headrace.server.http.body import check_structure
from headrace.server.settings.server import ServerSettings
from tests.server.conftest import check_error
from tests.server.fakes import FakeEngine

OPEN = ["/health", "/livez", "/readyz", "/startupz", "/ping", "/version"]
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
JSON = {"Content-Type": "application/json"}
ClientOf = Callable[..., httpx.AsyncClient]


# -- errors of the frame ---------------------------------------------------------------------


async def test_unknown_route_and_wrong_method_have_the_one_error_body(
    client: httpx.AsyncClient,
) -> None:
    assert check_error(await client.get("/nothing"), 404)["type"] == "NotFoundError"
    assert check_error(await client.get("/health/"), 404)["type"] == "NotFoundError"
    answer = await client.get("/v1/completions")
    assert check_error(answer, 405)["type"] == "MethodNotAllowedError"
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "path",
    ["/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank", "/v1/score", "/pooling",
     "/v1/audio/transcriptions", "/v1/files", "/v1/batches", "/v1/load_lora_adapter",
     "/v1/unload_lora_adapter", "/collective_rpc", "/sleep", "/reset_prefix_cache"],
)  # fmt: skip
async def test_routes_that_do_not_exist_yet_or_are_for_operators_are_absent(
    client: httpx.AsyncClient, path: str
) -> None:
    body = {"model": "tiny", "input": "a", "lora_name": "x", "lora_path": "/etc"}
    check_error(await client.post(path, json=body), 404)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b'"x"', b"null", b"\xff", b'{"temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}', b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "\\ud800"}', b'{"prompt": "a", "stop": ["\\udc00x"]}',
        b'{"model": "\\ud83d"}', b'{"prompt": "a"} x',
    ],
)  # fmt: skip
async def test_malformed_json_is_a_400_in_strict_json(
    client: httpx.AsyncClient, body: bytes
) -> None:
    answer = await client.post("/v1/completions", content=body, headers=JSON)
    check_error(answer, 400)
    answer.text.encode("ascii" if answer.text.isascii() else "utf-8")


async def test_proper_surrogate_pair_is_a_character(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body = b'{"prompt": "\\ud83d\\ude00"}'
    assert (await client.post("/v1/completions", content=body, headers=JSON)).status_code == 200
    assert engine.seen[0][1].prompt == "😀"


async def test_content_type_other_than_json_is_a_400(client: httpx.AsyncClient) -> None:
    for headers in ({}, {"Content-Type": "text/plain"}):
        answer = await client.post("/v1/completions", content=b"{}", headers=headers)
        check_error(answer, 400, "content-type")
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    answer = await client.post("/v1/completions", content=b'{"prompt":"a"}', headers=headers)
    assert answer.status_code == 200


@pytest.mark.parametrize("depth", [129, 3_000, 100_000])
async def test_deeply_nested_body_is_a_400(client: httpx.AsyncClient, depth: int) -> None:
    for opener, closer in ((b"[", b"]"), (b'{"a":', b"}")):
        body = b'{"prompt":' + opener * depth + b"1" + closer * depth + b"}"
        answer = await client.post("/v1/completions", content=body, headers=JSON)
        assert "deep" in check_error(answer, 400)["message"]


async def test_brackets_inside_strings_are_not_depth(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", json={"prompt": '\\"[{' * 100})
    assert answer.status_code == 200
    body = json.dumps({"a": ['"\\[[['], "b": {"c": []}}).encode()
    check_structure(body, 3, 5)
    with pytest.raises(ValidationError, match="more than 2 deep"):
        check_structure(body, 2, 5)
    with pytest.raises(ValidationError, match="more than 4 values"):
        check_structure(body, 3, 4)


async def test_body_over_the_limit_is_a_413(engine: FakeEngine, client_of: ClientOf) -> None:
    client = client_of(engine, max_body_size=100)
    check_error(await client.post("/v1/completions", json={"prompt": "x" * 100}), 413)

    async def pieces() -> AsyncIterator[bytes]:  # without a Content-Length
        for _ in range(10):
            yield b"x" * 20

    check_error(await client.post("/v1/completions", content=pieces(), headers=JSON), 413)
    assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200


async def test_fault_of_ours_is_a_500_that_tells_nothing(
    client: httpx.AsyncClient, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.failure, engine.fail_after = RuntimeError("/secret/path"), 0
    answer = await client.post("/v1/chat/completions", json=CHAT)
    error = check_error(answer, 500)
    assert "secret" not in error["message"]
    assert "/secret/path" in caplog.text


# -- unknown fields --------------------------------------------------------------------------


async def test_unknown_fields_are_listed_in_a_header(client: httpx.AsyncClient) -> None:
    body = {**CHAT, "temprature": 1, "a\r\nb: c": 1, "stream_options": None}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert answer.headers["X-Headrace-Warnings"] == (
        "unknown fields ignored: temprature, a%0D%0Ab%3A%20c"
    )
    nested = {**CHAT, "stream": True, "stream_options": {"includ_usage": True}}
    answer = await client.post("/v1/chat/completions", json=nested)
    assert "stream_options.includ_usage" in answer.headers["X-Headrace-Warnings"]


async def test_very_many_unknown_fields_are_not_compared_with_the_known_ones(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise AssertionError("compared")

    monkeypatch.setattr("headrace.server.http.body.nearest", fail)
    body = {**CHAT, **{f"field{i}": 1 for i in range(20_000)}}
    answer = await client.post("/v1/chat/completions", json=body)
    assert answer.headers["X-Headrace-Warnings"].endswith("and 19980 more")


async def test_strict_requests_refuse_unknown_fields_with_a_hint(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    body = {**CHAT, "temprature": 1}
    strict = client_of(engine, strict_requests=True)
    for answer in (
        await strict.post("/v1/chat/completions", json=body),
        await client_of(engine).post("/v1/chat/completions", json=body, headers={"X-Strict": "1"}),
    ):
        assert "temperature" in check_error(answer, 400, "temprature")["message"]


# -- keys ------------------------------------------------------------------------------------


async def test_every_route_but_the_open_ones_needs_a_key(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    client = client_of(engine, api_key=["right"])
    for path in OPEN:
        assert (await client.get(path)).status_code == 200, path
    paths = ["/v1/models", "/metrics", "/docs", "/openapi.json", "/nothing", "//health",
             "/health/", "/HEALTH", "/v1%2fmodels", "/x/../v1/models", "/tokenize"]  # fmt: skip
    for path in paths:
        answer = await client.get(path)
        assert check_error(answer, 401)["type"] == "AuthenticationError", path
        assert answer.headers["www-authenticate"] == "Bearer"
    answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    check_error(answer, 401)
    headers = {"Authorization": "Bearer right"}
    assert (await client.get("/v1/models", headers=headers)).status_code == 200
    check_error(await client.get("/nothing", headers=headers), 404)


@pytest.mark.parametrize(
    "value",
    [b"", b"Bearer", b"Bearer ", b"Bearer r", b"Bearer righ", b"Bearer right2", b"Bearer rights",
     b"Basic right", b"right", b"Bearer \xff\xfe", "Bearer schlüsse".encode(), b"Bearer right x"],
)  # fmt: skip
async def test_wrong_key_of_any_form_is_a_401(
    engine: FakeEngine, client_of: ClientOf, value: bytes
) -> None:
    client = client_of(engine, api_key=["right", "schlüssel"])
    answer = await client.get("/v1/models", headers=[(b"Authorization", value)])
    check_error(answer, 401)


async def test_each_of_several_keys_works_and_none_is_logged(
    engine: FakeEngine, client_of: ClientOf, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_of(engine, api_key=["right", "schlüssel"])
    for key in ("right", "schlüssel"):
        headers = [(b"Authorization", b"bearer " + key.encode())]
        assert (await client.get("/v1/models", headers=headers)).status_code == 200
    assert "right" not in caplog.text
    assert "right" not in repr(ServerSettings(api_key=["right"]))


async def test_key_from_the_environment_guards_too(
    engine: FakeEngine, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", "from-outside")
    check_error(await client_of(engine).get("/v1/models"), 401)
    monkeypatch.setenv("HEADRACE_API_KEY", " ")
    with pytest.raises(ConfigError, match="api_key"):
        ServerSettings()


async def test_metrics_are_open_only_when_configured(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    check_error(await client_of(engine, api_key=["k"]).get("/metrics"), 401)
    answer = await client_of(engine, api_key=["k"], public_metrics=True).get("/metrics")
    assert answer.status_code == 200


async def test_root_path_never_opens_a_route(engine: FakeEngine, client_of: ClientOf) -> None:
    client = client_of(engine, api_key=["k"], root_path="/api")
    for path in ("/api/v1/models", "/v1/models", "/api//v1/models", "/api/api/v1/models",
                 "/API/v1/models", "/api/v1/models/", "/api%2fv1/models"):  # fmt: skip
        answer = await client.get(path)
        assert answer.status_code in (401, 404), path
    headers = {"Authorization": "Bearer k"}
    for path in ("/api/v1/models", "/v1/models"):
        assert (await client.get(path, headers=headers)).status_code == 200
    assert (await client.get("/api/health")).status_code == 200


# -- CORS ------------------------------------------------------------------------------------

PREFLIGHT = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}


async def test_preflight_needs_no_key_and_the_request_does(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    client = client_of(engine, api_key=["k"], allowed_origins=["https://a.example"])
    answer = await client.options("/v1/chat/completions", headers=PREFLIGHT)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    assert "POST" in answer.headers["access-control-allow-methods"]
    answer = await client.post("/v1/chat/completions", json=CHAT, headers=PREFLIGHT)
    check_error(answer, 401)
    assert answer.headers["access-control-allow-origin"] == "https://a.example"


async def test_other_origins_get_no_permission(engine: FakeEngine, client_of: ClientOf) -> None:
    client = client_of(engine, allowed_origins=["https://b.example"])
    answer = await client.options("/v1/chat/completions", headers=PREFLIGHT)
    check_error(answer, 400, "origin")
    assert "access-control-allow-origin" not in answer.headers
    answer = await client_of(engine).options("/v1/models", headers=PREFLIGHT)
    assert not [name for name in answer.headers if name.startswith("access-control")]
    with pytest.raises(ConfigError, match="allow_credentials"):
        ServerSettings(allowed_origins=["*"], allow_credentials=True)


# -- ids -------------------------------------------------------------------------------------


async def test_request_id_header_is_echoed_when_configured(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    client = client_of(engine, enable_request_id_headers=True)
    answer = await client.get("/version", headers={"X-Request-Id": "mine"})
    assert answer.headers["x-request-id"] == "mine"
    assert len((await client.get("/version")).headers["x-request-id"]) == 32
    assert "x-request-id" not in (await client_of(engine).get("/version")).headers


@pytest.mark.parametrize("value", ["x" * 129, "é", "a\tb"])
@pytest.mark.parametrize("echoes", [False, True])
async def test_request_id_that_cannot_be_echoed_is_a_400_that_names_where_it_stood(
    engine: FakeEngine, client_of: ClientOf, value: str, echoes: bool
) -> None:
    client = client_of(engine, enable_request_id_headers=echoes)
    headers = [(b"X-Request-Id", value.encode())]
    answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
    check_error(answer, 400, "X-Request-Id")
    answer = await client.post("/v1/chat/completions", json={**CHAT, "request_id": value})
    check_error(answer, 400, "request_id")
    assert not engine.seen


async def test_empty_request_id_header_is_none(engine: FakeEngine, client_of: ClientOf) -> None:
    client = client_of(engine, enable_request_id_headers=True)
    answer = await client.get("/version", headers={"X-Request-Id": ""})
    assert len(answer.headers["x-request-id"]) == 32


# -- health, models, metrics -----------------------------------------------------------------


async def test_health_is_503_after_the_engine_died(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    assert (await client.get("/health")).status_code == 200
    assert (await client.post("/ping")).status_code == 200
    engine.is_dead = True
    for path in ("/health", "/readyz", "/ping"):
        assert (await client.get(path)).status_code in (500, 503)
    check_error(await client.get("/health"), 503)
    check_error(await client.post("/v1/chat/completions", json=CHAT), 500)
    answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    check_error(answer, 500)
    assert (await client.get("/livez")).status_code == 200


async def test_server_that_is_still_starting_says_so(client_of: ClientOf) -> None:
    client = client_of(None)
    assert (await client.get("/livez")).status_code == 200
    assert (await client.get("/version")).status_code == 200
    answer = await client.get("/startupz")
    assert (answer.status_code, answer.json()) == (503, {"stage": "starting", "percent": 0})
    for path in ("/health", "/readyz", "/v1/models"):
        answer = await client.get(path)
        check_error(answer, 503)
        assert int(answer.headers["retry-after"]) >= 1


async def test_models_are_listed_and_found(client_of: ClientOf) -> None:
    client = client_of(FakeEngine(served_model_name=["org/one", "two"]))
    body = (await client.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [card["id"] for card in body["data"]] == ["org/one", "two"]
    card = body["data"][0]
    assert (await client.get("/v1/models/org/one")).json() == card
    assert card["root"] == "tiny"
    assert card["max_model_len"] == 512
    check_error(await client.get("/v1/models/three"), 404, "model")
    answer = await client.post("/v1/chat/completions", json={**CHAT, "model": "two"})
    assert answer.json()["model"] == "org/one"


async def test_http_metrics_are_labelled_by_route_not_by_path(client: httpx.AsyncClient) -> None:
    await client.get("/v1/models/tiny")
    await client.get("/no/such/path")
    await client.post("/v1/chat/completions", json=CHAT)
    await client.get("/health")
    text = (await client.get("/metrics")).text
    counts = [line for line in text.splitlines() if line.startswith("http_requests_total{")]
    assert counts == [
        'http_requests_total{handler="/v1/models/{model_id:path}",method="GET",status="2xx"} 1.0',
        'http_requests_total{handler="none",method="GET",status="4xx"} 1.0',
        'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 1.0',
    ]


async def test_docs_can_be_switched_off(engine: FakeEngine, client_of: ClientOf) -> None:
    quiet = client_of(engine, disable_fastapi_docs=True)
    check_error(await quiet.get("/openapi.json"), 404)
    check_error(await quiet.get("/docs"), 404)


# -- tokenize --------------------------------------------------------------------------------


async def test_tokenize_gives_the_ids_the_engine_uses(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    answer = await client.post("/tokenize", json={"prompt": "Hi", "return_token_strs": True})
    assert answer.json() == {
        "count": 3, "max_model_len": 512, "tokens": [256, 72, 105],
        "token_strs": ["<s>", "H", "i"],
    }  # fmt: skip
    answer = await client.post("/tokenize", json={"prompt": "Hi", "add_special_tokens": False})
    assert (answer.json()["tokens"], answer.json()["token_strs"]) == ([72, 105], None)
    answer = await client.post("/tokenize", json=CHAT)
    await client.post("/v1/chat/completions", json=CHAT)
    assert answer.json()["tokens"] == engine.seen[0][1].prompt_token_ids
    for body in ({}, {"prompt": "a", **CHAT}):
        check_error(await client.post("/tokenize", json=body), 400, "prompt")


async def test_detokenize_gives_special_tokens_back(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    asked: list[bool] = []
    decode = engine.tokenizer.decode

    def noting(ids: Any, skip_special_tokens: bool = True) -> str:
        asked.append(skip_special_tokens)
        return str(decode(ids))

    engine.tokenizer.decode = noting
    answer = await client.post("/detokenize", json={"tokens": [104, 105]})
    assert (answer.json(), asked) == ({"prompt": "hi"}, [False])


async def test_detokenize_takes_ids_of_the_vocabulary_only(client: httpx.AsyncClient) -> None:
    answer = await client.post("/detokenize", json={"tokens": [72, 105]})
    assert answer.json() == {"prompt": "Hi"}
    assert (await client.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}
    for bad in (-1, 258, 2**32, 2**64, "a", True, 1.0, None):
        answer = await client.post("/detokenize", json={"tokens": [1, bad]})
        assert check_error(answer, 400)["param"].startswith("tokens")
