"""Requests under way: who sees and ends them, limits of keys, deadlines in a header."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.metrics.prometheus import PrometheusStatLogger
from headrace.server.access.deadline import shorter, timeout_ms
from headrace.server.app import build_app
from headrace.server.http.direct_send import DirectSend
from headrace.server.settings.server import ServerSettings
from tests.server.conftest import check_error, frames_of
from tests.server.fakes import FakeEngine
from tests.waiting import PATIENCE, until

ClientOf = Callable[..., httpx.AsyncClient]
PROMPT = {"prompt": "ab", "max_tokens": 50}


def keys(tmp_path: Path, **limits: int) -> str:
    path = tmp_path / "keys.json"
    records = [
        {"name": "alice", "key": "a", "limits": limits},
        {"name": "bob", "key": "b"},
        {"name": "root", "key": "r", "scopes": ["admin"]},
    ]
    path.write_text(json.dumps({"keys": records}))
    return str(path)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@asynccontextmanager
async def asking(
    client: httpx.AsyncClient, engine: FakeEngine, key: str | None = None, **body: Any
) -> AsyncIterator[asyncio.Task[httpx.Response]]:
    """A request under way, held up by the engine's gate."""
    headers = {} if key is None else bearer(key)
    num_seen = len(engine.seen)
    sent = client.post("/v1/completions", json={**PROMPT, **body}, headers=headers)
    task = asyncio.create_task(sent)
    await until(lambda: len(engine.seen) > num_seen)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_requests_under_way_are_listed_with_stage_and_tokens(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    client = client_of(engine)
    engine.gate.clear()
    assert (await client.get("/v1/requests")).json() == {"data": [], "object": "list"}
    async with asking(client, engine, request_id="mine", n=2):
        (found,) = (await client.get("/v1/requests")).json()["data"]
        assert found.pop("age") >= 0
        assert found.pop("arrived") > 1e9
        assert found.pop("handle").startswith("req-")
        assert found == {
            "id": "cmpl-mine", "object": "request", "key": None, "route": "/v1/completions",
            "stage": "decode", "position": None, "num_answers": 2, "prompt_tokens": 3,
            "computed_prompt_tokens": 3, "completion_tokens": 0, "num_preemptions": 0,
        }  # fmt: skip
    await until(lambda: not engine.live)
    assert (await client.get("/v1/requests")).json()["data"] == []


async def test_a_prompt_counts_once_however_many_answers_it_gets(
    engine: FakeEngine, client_of: ClientOf, tmp_path: Path
) -> None:
    client = client_of(engine, api_key_file=keys(tmp_path), public_metrics=True)
    engine.gate.clear()
    async with asking(client, engine, "a", prompt=["ab", "c"], n=3) as task:
        await until(lambda: len(engine.live) == 2)
        for stream in list(engine.streams.values()):
            for key in (f"{stream.key}-1", f"{stream.key}-2"):  # as the core has them
                engine.streams[key] = stream
                engine.live.add(key)
                stream.core_ids.append(key)
        (found,) = (await client.get("/v1/requests", headers=bearer("a"))).json()["data"]
        assert (found["prompt_tokens"], found["computed_prompt_tokens"]) == (5, 5)
        engine.gate.set()
        usage = (await task).json()["usage"]
        assert usage["prompt_tokens"] == 5
    text = (await client.get("/metrics")).text
    assert 'headrace:key_prompt_tokens_total{key="alice",model_name="tiny"} 5.0' in text


@pytest.mark.parametrize("stream", [False, True])
async def test_ended_request_gets_what_there_is_and_finish_reason_abort(
    engine: FakeEngine, client_of: ClientOf, stream: bool
) -> None:
    client = client_of(engine)
    engine.gate.clear()
    async with asking(client, engine, request_id="x", stream=stream) as task:
        answer = await client.delete("/v1/requests/cmpl-x")
        ended = answer.json()
        assert ended.pop("handle").startswith("req-")
        assert ended == {"id": "cmpl-x", "object": "request.deleted", "deleted": True}
        engine.gate.set()
        answer = await asyncio.wait_for(task, PATIENCE)
    assert answer.status_code == 200
    if stream:
        *_, last, done = frames_of(answer.text)
        assert done == "[DONE]"
        assert last["choices"][0]["finish_reason"] == "abort"
    else:
        assert answer.json()["choices"][0]["finish_reason"] == "abort"
    error = check_error(await client.delete("/v1/requests/cmpl-x"), 404, "request_id")
    assert error["type"] == "NotFoundError"


async def test_a_key_sees_and_ends_its_own_requests_and_admin_all(
    engine: FakeEngine, client_of: ClientOf, tmp_path: Path
) -> None:
    client = client_of(engine, api_key_file=keys(tmp_path))
    engine.gate.clear()
    ask = {"request_id": "same"}
    async with asking(client, engine, "a", **ask) as first, asking(client, engine, "b", **ask):
        seen = {
            key: [
                one["key"]
                for one in (await client.get("/v1/requests", headers=bearer(key))).json()["data"]
            ]
            for key in "abr"
        }
        assert seen == {"a": ["alice"], "b": ["bob"], "r": ["alice", "bob"]}
        assert engine.tenants == ["alice", "bob"]
        # Two requests have the same id: alice ends hers only.
        answer = await client.delete("/v1/requests/cmpl-same", headers=bearer("a"))
        assert answer.status_code == 200
        engine.gate.set()
        assert (await first).json()["choices"][0]["finish_reason"] == "abort"
        engine.gate.clear()
    check_error(await client.get("/v1/requests"), 401)
    check_error(await client.post("/v1/completions", json=PROMPT, headers=bearer("r")), 403)


@pytest.mark.parametrize("key", ["a", "r"], ids=["of one key", "for admin"])
async def test_of_several_with_one_id_only_the_one_named_by_its_handle_is_ended(
    engine: FakeEngine, client_of: ClientOf, tmp_path: Path, key: str
) -> None:
    client = client_of(engine, api_key_file=keys(tmp_path), enable_admin_routes=True)
    engine.gate.clear()
    ask, headers = {"request_id": "same"}, bearer(key)
    async with (
        asking(client, engine, "a", **ask) as first,
        asking(client, engine, "a", **ask) as (second),
    ):
        listed = (await client.get("/v1/requests", headers=headers)).json()["data"]
        handles = [one["handle"] for one in listed]
        assert len(set(handles)) == 2
        answer = await client.delete("/v1/requests/cmpl-same", headers=headers)
        error = check_error(answer, 400, "request_id")
        assert all(handle in error["message"] for handle in handles)
        for names in (["cmpl-same"], [handles[0], "cmpl-same"]):
            body = {"request_ids": names}
            answer = await client.post("/abort_requests", json=body, headers=bearer("r"))
            check_error(answer, 400, "request_id")
        answer = await client.delete(f"/v1/requests/{handles[1]}", headers=headers)
        assert (answer.json()["id"], answer.json()["handle"]) == ("cmpl-same", handles[1])
        engine.gate.set()
        reasons = [(await one).json()["choices"][0]["finish_reason"] for one in (first, second)]
        assert reasons == ["stop", "abort"]


@pytest.mark.parametrize(
    ("limits", "body", "name"),
    [
        ({"max_num_reqs": 2}, {"n": 2}, "max_num_reqs"),
        ({"max_num_tokens": 3 + 50 + 52}, {}, "max_num_tokens"),
        ({"max_num_queued_reqs": 1}, {}, "max_num_queued_reqs"),
        ({"max_num_queued_tokens": 5}, {}, "max_num_queued_tokens"),
    ],
)
async def test_key_at_its_limit_gets_a_429_and_others_go_on(
    engine: FakeEngine,
    client_of: ClientOf,
    tmp_path: Path,
    limits: dict[str, int],
    body: dict[str, Any],
    name: str,
) -> None:
    client = client_of(engine, api_key_file=keys(tmp_path, **limits))
    engine.gate.clear()
    async with asking(client, engine, "a") as first:
        ask = {**PROMPT, "stream": True, **body}
        answer = await client.post("/v1/completions", json=ask, headers=bearer("a"))
        error = check_error(answer, 429)
        assert error["type"] == "RateLimitError"
        assert name in error["message"]
        assert 1 <= int(answer.headers["retry-after"]) <= 120
        async with asking(client, engine, "b"):
            pass
        engine.gate.set()
        assert (await first).status_code == 200
        engine.gate.clear()
    metrics = (await client.get("/metrics", headers=bearer("a"))).status_code
    assert metrics == 403
    async with asking(client, engine, "a"):
        pass  # what ended counts no more


@pytest.mark.parametrize(
    ("limits", "body", "param"),
    [
        ({"max_num_reqs": 0}, {}, "n"),
        ({"max_num_reqs": 2}, {"n": 3}, "n"),
        ({"max_num_reqs": 2}, {"prompt": ["a", "b", "c"]}, "n"),
        ({"max_num_queued_reqs": 2}, {"n": 3}, "n"),
        ({"max_num_tokens": 52}, {}, "max_tokens"),
        ({"max_num_tokens": 0}, {}, "max_tokens"),
        ({"max_num_queued_tokens": 2}, {}, None),
    ],
)
async def test_request_that_a_key_can_never_make_is_a_400_that_is_not_tried_again(
    engine: FakeEngine,
    client_of: ClientOf,
    tmp_path: Path,
    limits: dict[str, int],
    body: dict[str, Any],
    param: str | None,
) -> None:
    client = client_of(engine, api_key_file=keys(tmp_path, **limits))
    answer = await client.post("/v1/completions", json={**PROMPT, **body}, headers=bearer("a"))
    error = check_error(answer, 400, param)
    assert next(iter(limits)) in error["message"]
    assert "retry-after" not in answer.headers
    assert not engine.seen


async def test_requests_that_are_being_read_count_for_a_key(
    engine: FakeEngine, client_of: ClientOf, tmp_path: Path
) -> None:
    client = client_of(engine, api_key_file=keys(tmp_path, max_num_reqs=1))
    engine.gate.clear()
    ask = client.post("/v1/completions", json=PROMPT, headers=bearer("a"))
    other = client.post("/v1/completions", json=PROMPT, headers=bearer("a"))
    first = asyncio.create_task(ask)
    second = asyncio.create_task(other)
    await until(lambda: first.done() or second.done())
    engine.gate.set()
    answers = await asyncio.gather(first, second)
    assert sorted(answer.status_code for answer in answers) == [200, 429]


# -- deadlines -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "header", "wanted"),
    [({}, "1500", 1500), ({"deadline_ms": 9}, "15", 9), ({"deadline_ms": 900}, "250.5", 250.5),
     ({"deadline_ms": 900}, None, 900), ({}, None, None)],
)  # fmt: skip
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
async def test_header_gives_a_request_a_deadline(
    engine: FakeEngine,
    client: httpx.AsyncClient,
    body: dict[str, Any],
    header: str | None,
    wanted: float | None,
    route: str,
) -> None:
    headers = {} if header is None else {"X-Request-Timeout-Ms": header}
    ask = {"prompt": "a"} if route == "/v1/completions" else {
        "messages": [{"role": "user", "content": "a"}]
    }  # fmt: skip
    answer = await client.post(route, json={**ask, **body}, headers=headers)
    assert answer.status_code == 200
    (_, _, params, _) = engine.seen[-1]
    assert params.deadline_ms == wanted


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf", "1_000", "", "1e999"])
async def test_header_that_is_no_time_is_a_400_before_any_work(
    engine: FakeEngine, client: httpx.AsyncClient, value: str
) -> None:
    headers = {"X-Request-Timeout-Ms": value}
    answer = await client.post("/v1/completions", json=PROMPT, headers=headers)
    check_error(answer, 400, "X-Request-Timeout-Ms")
    assert not engine.seen


def test_of_two_limits_the_shorter_counts() -> None:
    assert timeout_ms({"x-request-timeout-ms": " 5 "}) == 5
    assert (shorter(None, None), shorter(1, None), shorter(2, 1)) == (None, 1, 1)


# -- measurements ----------------------------------------------------------------------------


async def test_what_keys_take_is_counted_by_their_names(
    engine: FakeEngine, client_of: ClientOf, tmp_path: Path
) -> None:
    client = client_of(engine, api_key_file=keys(tmp_path, max_num_tokens=60), public_metrics=True)
    answer = await client.post("/v1/completions", json=PROMPT, headers=bearer("a"))
    assert answer.status_code == 200
    engine.gate.clear()
    async with asking(client, engine, "a"):
        check_error(await client.post("/v1/completions", json=PROMPT, headers=bearer("a")), 429)
        text = (await client.get("/metrics")).text
    for line in (
        'headrace:key_requests_total{key="alice",model_name="tiny"} 1.0',
        'headrace:key_prompt_tokens_total{key="alice",model_name="tiny"} 3.0',
        'headrace:key_generation_tokens_total{key="alice",model_name="tiny"} 6.0',
        'headrace:key_rejections_total{key="alice",model_name="tiny",reason="key_max_num_tokens"}',
        'http_request_size_bytes_count{handler="/v1/completions"} 2.0',
    ):
        assert line in text


@pytest.mark.parametrize("stream", [False, True])
async def test_bytes_of_answers_are_counted_also_of_streams(
    engine: FakeEngine, client_of: ClientOf, stream: bool
) -> None:
    client = client_of(engine)
    answer = await client.post("/v1/completions", json={**PROMPT, "stream": stream})
    text = (await client.get("/metrics")).text
    size = f"{float(len(answer.content))}"
    assert f'http_response_size_bytes_sum{{handler="/v1/completions"}} {size}' in text


async def test_bytes_that_go_straight_to_the_server_are_counted(engine: FakeEngine) -> None:
    app = build_app(engine, ServerSettings(), PrometheusStatLogger(engine.config))
    transport = httpx.ASGITransport(app=DirectSend(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post("/v1/completions", json={**PROMPT, "stream": True})
        text = (await client.get("/metrics")).text
    size = f"{float(len(answer.content))}"
    assert f'http_response_size_bytes_sum{{handler="/v1/completions"}} {size}' in text
