"""Streams that are resumed: every event once, whoever is cut off when; their bounds."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import check_error, serving
from tests.server.fakes import FakeEngine, say
from tests.waiting import PATIENCE, until

ClientOf = Callable[..., httpx.AsyncClient]
URL = "/v1/chat/completions"
BODY = {
    "messages": [{"role": "user", "content": "a"}],
    "stream": True,
    "stream_options": {"resumable": True},
}
EVENT = re.compile(r"id: (\S+)\ndata: (.*)\n\n")


def events_of(text: str) -> list[tuple[str, str]]:
    events = EVENT.findall(text)
    assert "".join(f"id: {i}\ndata: {data}\n\n" for i, data in events) == text
    return events


def text_of(events: list[tuple[str, str]]) -> str:
    chunks = [json.loads(data) for _, data in events if data != "[DONE]"]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


@asynccontextmanager
async def cut_after(client: httpx.AsyncClient, num_events: int) -> AsyncIterator[str]:
    """A stream whose client goes away after some events; what it had got."""
    got = ""
    async with client.stream("POST", URL, json=BODY) as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_text():
            got += piece
            if len(EVENT.findall(got)) >= num_events:
                break
    yield got


async def resume(client: httpx.AsyncClient, event_id: str, **headers: str) -> httpx.Response:
    return await client.post(URL, headers={"Last-Event-ID": event_id, **headers})


async def test_whole_stream_has_numbered_events(client: httpx.AsyncClient) -> None:
    answer = await client.post(URL, json=BODY)
    events = events_of(answer.text)
    stems, numbers = zip(*(event_id.split(":") for event_id, _ in events), strict=True)
    assert len(set(stems)) == 1
    assert [int(number) for number in numbers] == list(range(1, len(events) + 1))
    assert events[-1][1] == "[DONE]"
    assert text_of(events) == "Hello"
    plain = await client.post(URL, json={**BODY, "stream_options": {}})
    assert "id: " not in plain.text


async def test_silent_stream_is_kept_alive_by_comments_that_are_no_events(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    engine.gate.clear()
    client = client_of(engine, sse_keep_alive_interval=0.04)
    asking = asyncio.create_task(client.post(URL, json=BODY))
    for _ in range(6):  # a comment at least in each, also on a loop that was stopped for long
        await asyncio.sleep(0.05)
    engine.gate.set()
    text = (await asking).text
    assert text.count(": keep-alive\n\n") >= 2
    events = events_of(text.replace(": keep-alive\n\n", ""))
    assert text_of(events) == "Hello"


async def test_resumed_after_each_event_the_rest_comes_once(client: httpx.AsyncClient) -> None:
    events = events_of((await client.post(URL, json=BODY)).text)
    stem = events[0][0].split(":")[0]
    for number in range(len(events) + 1):
        answer = await resume(client, f"{stem}:{number}")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert events_of(answer.text) == events[number:]


async def test_cut_connection_is_resumed_while_the_answer_goes_on(engine: FakeEngine) -> None:
    engine.script = say("The quick brown fox jumps over the lazy dog")
    engine.delay = 0.005
    async with (
        serving(engine) as url,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client,
        cut_after(client, 5) as got,
    ):
        seen = events_of(got[: got.rindex("\n\n") + 2])
        assert engine.live
        answer = await resume(client, seen[-1][0])
        rest = events_of(answer.text)
        assert text_of(seen + rest) == "The quick brown fox jumps over the lazy dog"
        assert rest[-1][1] == "[DONE]"
        assert not engine.aborted
        await until(lambda: not engine.live)


async def test_stream_that_nobody_resumes_in_time_is_aborted(engine: FakeEngine) -> None:
    engine.script = say("x" * 300)
    engine.delay = 0.01
    async with (
        serving(engine, stream_resume_seconds=0.2) as url,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client,
        cut_after(client, 2) as got,
    ):
        await until(lambda: bool(engine.aborted), 10)
        event_id = EVENT.findall(got)[0][0]
        error = check_error(await resume(client, event_id), 404, "Last-Event-ID")
        assert "--stream-resume-seconds" in error["message"]


async def test_new_reader_takes_over_from_an_old_one(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    engine.script = say("abcdefgh")
    client = client_of(engine)
    engine.gate.clear()
    first = asyncio.create_task(client.post(URL, json=BODY))
    await until(lambda: bool(engine.live))
    streams = client._transport.app.state.resumable  # type: ignore[attr-defined]
    (token,) = streams._replays
    second = asyncio.create_task(resume(client, f"{token}:0"))
    await asyncio.wait_for(first, PATIENCE)
    engine.gate.set()
    assert text_of(events_of((await second).text)) == "abcdefgh"
    assert text_of(events_of((await first).text)) == ""


async def test_gone_reader_holds_the_stream_up_and_memory_stays_bounded(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    engine.script = say("y" * 400)
    client = client_of(engine, stream_resume_size=2000)
    answer = await client.post(URL, json={**BODY, "max_tokens": 300})
    events = events_of(answer.text)
    streams = client._transport.app.state.resumable  # type: ignore[attr-defined]
    (replay,) = streams._replays.values()
    assert sum(map(len, replay._events)) <= 4000
    stem = events[0][0].split(":")[0]
    error = check_error(await resume(client, f"{stem}:1"), 404, "Last-Event-ID")
    assert "--stream-resume-size" in error["message"]
    # A stream without a reader is made until as much is unread as may be kept.
    engine.script = say("z" * 400)
    engine.gate.clear()
    reading = asyncio.create_task(client.post(URL, json=BODY))
    await until(lambda: bool(engine.live))
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    engine.gate.set()
    replay = list(streams._replays.values())[-1]
    await until(lambda: replay._unread_size > 2000)
    await asyncio.sleep(0.05)
    assert replay._unread_size < 3000
    assert not replay.is_done
    answer = await resume(client, f"{replay.token}:0")
    assert text_of(events_of(answer.text)) == "z" * 400


@pytest.mark.parametrize("value", ["", "x", "x:", ":5", "x:-1", "x:1.5", "x:" + "9" * 40])
async def test_bad_event_id_is_a_400(client: httpx.AsyncClient, value: str) -> None:
    check_error(await resume(client, value), 400, "Last-Event-ID")


async def test_event_that_is_still_to_come_is_a_400(client: httpx.AsyncClient) -> None:
    events = events_of((await client.post(URL, json=BODY)).text)
    stem = events[0][0].split(":")[0]
    check_error(await resume(client, f"{stem}:999"), 400, "Last-Event-ID")
    check_error(await resume(client, "another:1"), 404, "Last-Event-ID")


async def test_stream_of_another_key_is_not_there(
    engine: FakeEngine, client_of: ClientOf, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{"name": n, "key": n} for n in ("a", "b")]}))
    client = client_of(engine, api_key_file=str(path))
    answer = await client.post(URL, json=BODY, headers={"Authorization": "Bearer a"})
    event_id = events_of(answer.text)[0][0]
    check_error(await resume(client, event_id, Authorization="Bearer b"), 404)
    assert (await resume(client, event_id, Authorization="Bearer a")).status_code == 200


async def test_number_of_kept_streams_is_bounded(engine: FakeEngine, client_of: ClientOf) -> None:
    client = client_of(engine, max_resumable_streams=2, enable_resumable_streams=True)
    ask: dict[str, Any] = {**BODY, "stream_options": None}
    answers = [await client.post(URL, json=ask) for _ in range(4)]
    stems = [events_of(answer.text)[0][0].split(":")[0] for answer in answers]
    streams = client._transport.app.state.resumable  # type: ignore[attr-defined]
    assert list(streams._replays) == stems[2:]
    engine.gate.clear()
    held = [asyncio.create_task(client.post(URL, json=ask)) for _ in range(3)]
    await until(lambda: len(engine.live) == 3)
    assert len(streams) == 2
    engine.gate.set()
    kept = ["id: " in (await task).text for task in held]
    assert sorted(kept) == [False, True, True]
    for task, is_kept in zip(held, kept, strict=True):
        warning = task.result().headers.get("x-headrace-warnings", "")
        assert ("not resumable" in warning) is not is_kept


async def test_stream_without_room_warns_beside_other_warnings(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    client = client_of(engine, max_resumable_streams=0)
    answer = await client.post(URL, json={**BODY, "unheard_of": 1})
    assert "id: " not in answer.text
    warnings = answer.headers["x-headrace-warnings"]
    assert "unheard_of; stream is not resumable" in warnings


async def test_completions_that_shall_be_resumable_are_a_400(
    engine: FakeEngine, client: httpx.AsyncClient
) -> None:
    ask = {"prompt": "a", "stream": True, "stream_options": {"resumable": True}}
    answer = await client.post("/v1/completions", json=ask)
    check_error(answer, 400, "stream_options.resumable")
    assert not engine.seen


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"stream": False, "stream_options": None}, "stream"),
        ({"stream_options": None}, "stream_options.resumable"),
        ({"messages": 1}, "messages"),
    ],
)
@pytest.mark.parametrize("route", [URL, "/invocations"])
async def test_event_id_with_a_body_that_wants_no_such_stream_is_a_400(
    engine: FakeEngine, client: httpx.AsyncClient, changes: dict[str, Any], param: str, route: str
) -> None:
    event_id = events_of((await client.post(URL, json=BODY)).text)[1][0]
    headers = {"Last-Event-ID": event_id}
    check_error(await client.post(route, json={**BODY, **changes}, headers=headers), 400, param)
    answer = await client.post(route, json=BODY, headers=headers)
    assert events_of(answer.text)[0][0].endswith(":3")
    assert len(engine.seen) == 1


async def test_event_id_with_the_same_body_resumes_and_with_another_is_a_400(
    client: httpx.AsyncClient,
) -> None:
    """It was once answered with the rest of the other conversation."""
    events = events_of((await client.post(URL, json=BODY)).text)
    headers = {"Last-Event-ID": events[1][0], "Content-Type": "application/json"}
    for path in (URL, "/invocations"):
        again = await client.post(path, json=BODY, headers=headers)
        assert events_of(again.text) == events[2:]
    for other in ({"messages": [{"role": "user", "content": "b"}]}, {"n": 2}, {"logprobs": True}):
        answer = await client.post(URL, json={**BODY, **other}, headers=headers)
        error = check_error(answer, 400, "Last-Event-ID")
        assert "another body" in error["message"]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/invocations", {"prompt": "a"}),
        (URL + "/batch", {"messages": [BODY["messages"]]}),
    ],
)
async def test_event_id_where_nothing_can_be_resumed_is_a_400(
    client: httpx.AsyncClient, engine: FakeEngine, path: str, body: dict[str, Any], is_stream: bool
) -> None:
    """The whole answer came anew, behind the half that the client had."""
    answer = await client.post(
        path, json={**body, "stream": is_stream}, headers={"Last-Event-ID": "a:1"}
    )
    check_error(answer, 400, "Last-Event-ID")
    assert not engine.seen


async def test_all_streams_resumable_by_option_need_no_field(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    client = client_of(engine, enable_resumable_streams=True)
    body = {**BODY, "stream_options": None}
    event_id = events_of((await client.post(URL, json=body)).text)[1][0]
    answer = await client.post(URL, json=body, headers={"Last-Event-ID": event_id})
    assert events_of(answer.text)[0][0].endswith(":3")


async def test_failure_is_the_last_event(engine: FakeEngine, client: httpx.AsyncClient) -> None:
    engine.fail_after = 2
    *_, failure, done = events_of((await client.post(URL, json=BODY)).text)
    assert json.loads(failure[1])["error"]["code"] == 500
    assert done[1] == "[DONE]"
