"""Routes beside the two great ones: batches, rendering, /invocations, /load, and all methods."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from headrace.server.routes.table import ROUTES
from tests.server.conftest import check_error, frames_of
from tests.server.fakes import FakeEngine, say
from tests.waiting import until

ClientOf = Callable[..., httpx.AsyncClient]
HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
HO: list[dict[str, Any]] = [{"role": "user", "content": "Ho"}]
BATCH = "/v1/chat/completions/batch"
GZIPPED = {"content-type": "application/json", "content-encoding": "gzip"}


async def test_batch_has_a_choice_for_each_conversation(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    alone = (await client.post("/v1/chat/completions", json={"messages": HI})).json()
    answer = (await client.post(BATCH, json={"messages": [HI, HO, HI], "logprobs": True})).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert {choice["message"]["content"] for choice in answer["choices"]} == {"Hello"}
    assert all(choice["logprobs"]["content"] for choice in answer["choices"])
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][name] == 3 * alone["usage"][name]
    assert sorted(answer) == sorted(alone)
    prompts = [prompt.prompt for _, prompt, _, _ in engine.seen[1:]]
    assert prompts == ["user: Hi\n", "user: Ho\n", "user: Hi\n"]
    assert not engine.live


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": HI}, "messages.0"),
        ({"messages": [HI] * 5}, "messages"),
        ({"messages": [HI, []]}, "messages.1"),
        ({"messages": [HI, [{"role": "refused", "content": ""}]]}, "messages.1"),
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"temperature": 3}, "temperature"),
    ],
)
async def test_batch_is_refused_whole(
    engine: FakeEngine, client_of: ClientOf, fields: dict[str, Any], param: str
) -> None:
    client = client_of(engine, max_prompts=4)
    check_error(await client.post(BATCH, json={"messages": [HI], **fields}), 400, param)
    assert not engine.seen


async def test_batch_with_an_unknown_model_or_a_full_queue_is_refused_before_rendering(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body = {"messages": [HI, HO]}
    check_error(await client.post(BATCH, json={**body, "model": "x"}), 404, "model")
    engine.limit = 1
    check_error(await client.post(BATCH, json=body), 503)
    assert not engine.renderer.calls


@pytest.mark.parametrize(
    ("limits", "param"),
    [({"max_num_reqs": 2}, "messages"), ({"max_num_queued_reqs": 2}, "messages"),
     ({"max_num_tokens": 60}, "max_tokens"), ({"max_num_queued_tokens": 20}, None)],
)  # fmt: skip
@pytest.mark.filterwarnings("error")
async def test_batch_that_a_key_may_never_ask_is_refused_before_the_first_is_begun(
    engine: FakeEngine, client_of: ClientOf, tmp_path: Path, limits: dict[str, int], param: Any
) -> None:
    """The first ones fitted, ran, and were aborted with the one too many, for ever."""
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [{"name": "bob", "key": "kb", "limits": limits}]}))
    client = client_of(engine, api_key_file=str(file))
    key = {"Authorization": "Bearer kb"}
    body = {"messages": [HI] * 3, "max_tokens": 15}
    error = check_error(await client.post(BATCH, json=body, headers=key), 400, param)
    assert next(iter(limits)) in error["message"]
    assert not engine.seen
    fits = {**body, "messages": [HI]}
    assert (await client.post(BATCH, json=fits, headers=key)).status_code == 200


async def test_batch_whose_key_has_too_much_under_way_is_begun_by_none(
    engine: FakeEngine, client_of: ClientOf, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    limits = {"max_num_reqs": 3}
    file.write_text(json.dumps({"keys": [{"name": "bob", "key": "kb", "limits": limits}]}))
    client = client_of(engine, api_key_file=str(file))
    key = {"Authorization": "Bearer kb"}
    engine.gate.clear()
    first = asyncio.create_task(client.post(BATCH, json={"messages": [HI] * 2}, headers=key))
    await until(lambda: len(engine.live) == 2)
    check_error(await client.post(BATCH, json={"messages": [HI] * 2}, headers=key), 429)
    assert len(engine.seen) == 2
    engine.gate.set()
    assert (await first).status_code == 200


async def test_failure_of_one_in_a_batch_releases_all(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.fail_after = 2
    check_error(await client.post(BATCH, json={"messages": [HI, HO]}), 500)
    assert not engine.live


async def test_chat_is_rendered_without_an_answer(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body = {"messages": HI, "request_id": "r", "cache_salt": "s"}
    answer = await client.post("/v1/chat/completions/render", json=body)
    ids = engine.tokenizer.encode("user: Hi\n")
    assert answer.json() == {
        "request_id": "chatcmpl-r", "model": "tiny", "token_ids": ids, "prompt": "user: Hi\n",
        "cache_salt": "s", "max_model_len": 512,
    }  # fmt: skip
    assert not engine.seen
    refused = await client.post("/v1/chat/completions/render", json={**body, "temperature": 3})
    check_error(refused, 400, "temperature")


async def test_prompts_are_rendered_without_an_answer(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    body = {"prompt": ["ab", "c"], "truncate_prompt_tokens": 1, "request_id": "r"}
    answer = await client.post("/v1/completions/render", json=body)
    got = [(one["request_id"], one["token_ids"], one["prompt"]) for one in answer.json()]
    assert got == [("cmpl-r-0", [98], None), ("cmpl-r-1", [99], None)]
    assert not engine.seen


@pytest.mark.parametrize("stream", [False, True])
async def test_invocations_answer_as_the_route_whose_fields_are_there(
    client: httpx.AsyncClient, stream: bool
) -> None:
    for fields, kind in (({"messages": HI}, "chat.completion"), ({"prompt": "a"}, "text_")):
        answer = await client.post("/invocations", json={**fields, "stream": stream, "x": 1})
        first = frames_of(answer.text)[0] if stream else answer.json()
        assert first["object"].startswith(kind)
        assert "x" in answer.headers["x-headrace-warnings"]


async def test_invocations_unpack_and_refuse_like_the_routes(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    packed = gzip.compress(json.dumps({"prompt": "a"}).encode())
    answer = await client.post("/invocations", content=packed, headers=GZIPPED)
    assert answer.json()["choices"][0]["text"] == "Hello"
    check_error(await client.post("/invocations", json={"prompt": "a", "n": 0}), 400, "n")
    assert "messages, prompt" in (await client.post("/invocations", json={})).text
    check_error(await client.post("/invocations", content=b"{}"), 400, "content-type")


async def test_load_counts_requests_until_their_last_byte(
    client: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.gate.clear()
    asking = [
        asyncio.create_task(client.post("/v1/completions", json={"prompt": "a", "stream": stream}))
        for stream in (False, True)
    ]
    await until(lambda: len(engine.live) == 2)
    assert (await client.get("/load")).json() == {"server_load": 2}
    engine.gate.set()
    await asyncio.gather(*asking)
    assert (await client.get("/load")).json() == {"server_load": 0}
    check_error(await client.post("/v1/completions", json={"n": 0}), 400)
    assert (await client.get("/load")).json() == {"server_load": 0}


async def test_tokenizer_is_told_only_when_configured(
    engine: FakeEngine, client_of: ClientOf, tmp_path: Path
) -> None:
    check_error(await client_of(engine).get("/tokenizer_info"), 404)
    folder = FakeEngine()
    model = msgspec.structs.replace(folder.config.model, tokenizer=str(tmp_path))
    folder.config = msgspec.structs.replace(folder.config, model=model)
    for role in ("bos_token", "eos_token", "pad_token", "unk_token"):
        setattr(folder.tokenizer, role, role[:3])
    folder.tokenizer.chat_template = "{{ messages }}"
    config = {"tokenizer_class": "X", "name_or_path": "/secret", "auto_map": {}, "bos_token": {}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    client = client_of(folder, enable_tokenizer_info_endpoint=True)
    assert (await client.get("/tokenizer_info")).json() == {
        "tokenizer_class": "X", "model_max_length": 512, "vocab_size": 258,
        "chat_template": "{{ messages }}", "bos_token": "bos", "eos_token": "eos",
        "pad_token": "pad", "unk_token": "unk",
    }  # fmt: skip


GETS = [path for method, path, _, _ in ROUTES if method == "GET" and "{" not in path]


@pytest.mark.parametrize("path", GETS)
async def test_head_is_the_head_of_get(client: httpx.AsyncClient, path: str) -> None:
    got, head = await client.get(path), await client.head(path)
    assert head.status_code == got.status_code
    assert head.headers.get("content-type") == got.headers.get("content-type")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [("/v1/completions", "OPTIONS, POST"), ("/v1/models", "GET, HEAD, OPTIONS"),
     ("/ping", "GET, HEAD, OPTIONS, POST")],
)  # fmt: skip
async def test_options_tell_the_methods_of_a_route(
    client: httpx.AsyncClient, path: str, allowed: str
) -> None:
    answer = await client.options(path)
    assert (answer.status_code, answer.content) == (204, b"")
    assert sorted(answer.headers["allow"].split(", ")) == allowed.split(", ")
    wrong = await client.delete(path)
    check_error(wrong, 405)
    assert sorted(wrong.headers["allow"].split(", ")) == sorted(
        set(allowed.split(", ")) - {"OPTIONS"}
    )


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [("/tokenize", "prompt", "é"), ("/detokenize", "tokens", [97])],
)
async def test_text_to_tokenise_is_bounded(
    engine: FakeEngine, client_of: ClientOf, path: str, field: str, value: Any
) -> None:
    client = client_of(engine, max_tokenize_length=100)
    error = check_error(await client.post(path, json={field: value * 101}), 400, field)
    assert "--max-tokenize-length" in error["message"]
    assert (await client.post(path, json={field: value * 100})).status_code == 200


async def test_options_of_no_route_or_without_a_key_tell_nothing(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    client = client_of(engine, api_key=["k"])
    check_error(await client.options("/v1/models"), 401)
    key = {"Authorization": "Bearer k"}
    assert (await client.options("/v1/models", headers=key)).status_code == 204
    check_error(await client.options("/nothing", headers=key), 404)


async def test_no_answer_of_a_batch_is_lost_when_texts_differ(client_of: ClientOf) -> None:
    engine = FakeEngine(say("été"))
    answer = await client_of(engine).post(BATCH, json={"messages": [HI] * 3})
    assert [c["message"]["content"] for c in answer.json()["choices"]] == ["été"] * 3
