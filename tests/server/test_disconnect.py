"""Clients that go away, over real sockets: nothing of their requests stays."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest
from starlette.types import Message

from headrace.server.app import build_app
from headrace.server.settings.server import ServerSettings
from headrace.server.streams.live import LiveRequests
from headrace.server.streams.sse import EventStream
from tests.server.conftest import frames_of, serving, serving_app
from tests.server.fakes import FakeEngine, NumberedFrames, ScriptedStream, say
from tests.waiting import PATIENCE, until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("path", "body", "num"),
    [
        ("/v1/chat/completions", {**CHAT, "stream": True}, 1),
        ("/v1/completions", {"prompt": "a", "stream": True, "n": 2}, 1),
        ("/v1/completions", {"prompt": ["a", "b", "c"], "stream": True}, 3),
    ],
)
async def test_closed_stream_is_aborted(path: str, body: dict[str, object], num: int) -> None:
    engine = FakeEngine(say("x" * 400))
    engine.delay = 0.01
    async with serving(engine) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        async with client.stream("POST", path, json={**body, "max_tokens": 400}) as answer:
            async for _line in answer.aiter_lines():
                break
            assert len(engine.live) == num
        await until(lambda: not engine.live)
        assert len(engine.aborted) == num
        assert (await client.get("/health")).status_code == 200


async def test_stream_closed_before_its_first_token_is_aborted() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with serving(engine) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        async with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}):
            await until(lambda: bool(engine.live))
        await until(lambda: not engine.live)
    assert len(engine.aborted) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_within_its_body_leaves_nothing(stream: bool) -> None:
    engine = FakeEngine()
    app = build_app(engine, ServerSettings())
    data = json.dumps({"prompt": "a" * 50, "stream": stream}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    async with serving_app(app) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"content-length: %d\r\n\r\n" % len(data) + data[:20])
        state = app.state.server
        await until(lambda: len(state.reading) == 1)
        assert state.load == 1
        writer.close()
        await until(lambda: not state.reading and not state.load)
    assert not engine.seen


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("path", "body", "method"),
    [
        ("/v1/chat/completions", CHAT, "render_chat"),
        ("/v1/completions", {"prompt": "a" * 5000, "truncate_prompt_tokens": 5}, "render_prompt"),
        ("/v1/chat/completions/batch", {"messages": [CHAT["messages"]] * 2}, "render_chat"),
    ],
)
async def test_client_that_leaves_while_its_prompt_is_rendered_leaves_nothing(
    path: str, body: dict[str, object], method: str, stream: bool
) -> None:
    engine = FakeEngine()
    engine.gate.clear()
    go, is_rendering = threading.Event(), threading.Event()
    render = getattr(engine.renderer, method)

    def held(*args: object, **options: object) -> object:
        is_rendering.set()
        assert go.wait(PATIENCE)
        return render(*args, **options)

    setattr(engine.renderer, method, held)
    if "batch" not in path:
        body = {**body, "stream": stream}
    app = build_app(engine, ServerSettings())
    async with (
        serving_app(app) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
    ):
        asking = asyncio.create_task(client.post(path, json=body))
        await until(is_rendering.is_set)
        asking.cancel()
        await asyncio.sleep(0.05)
        go.set()
        await until(lambda: not app.state.server.load)
        assert not app.state.server.open_requests.all()
        assert not engine.live
        assert len(engine.aborted) == len(engine.seen)


@pytest.mark.parametrize(
    ("path", "body", "num"),
    [
        ("/v1/chat/completions", CHAT, 1),
        ("/v1/chat/completions", {**CHAT, "n": 3}, 1),
        ("/v1/completions", {"prompt": ["a", "b"]}, 2),
    ],
)
async def test_client_that_leaves_a_whole_answer_aborts_it(
    path: str, body: dict[str, object], num: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine()
    engine.gate.clear()
    async with serving(engine) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        asking = asyncio.create_task(client.post(path, json=body))
        await until(lambda: len(engine.live) == num)
        asking.cancel()
        await until(lambda: not engine.live)
        assert len(engine.aborted) == num
        metrics = (await client.get("/metrics")).text
        assert f'handler="{path}",method="POST",status="4xx"' in metrics
    assert "Exception" not in caplog.text


async def test_connection_that_closes_under_a_write_is_a_client_that_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent: list[bytes] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def send(message: Message) -> None:
        if sent:
            raise RuntimeError("the handler is closed")
        sent.append(message.get("body", b""))

    cut = asyncio.get_running_loop().create_future()
    stream = ScriptedStream(3)
    frames = NumberedFrames()
    await EventStream(LiveRequests([stream]), cut, frames)({"type": "http"}, receive, send)
    assert sent == [b""]
    assert frames.num_taken == 1
    assert stream.is_closed
    assert caplog.records == []


async def test_stream_reaches_the_client_as_it_comes() -> None:
    engine = FakeEngine(say("abc"))
    async with serving(engine) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        body = {"prompt": "a", "stream": True}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.aiter_lines()
            assert '"text":"a"' in await anext(lines)
            engine.gate.clear()
            pending = asyncio.ensure_future(anext(lines))
            await asyncio.sleep(0.05)
            engine.gate.set()
            rest = [await pending] + [line async for line in lines]
        assert rest[-2:] == ["data: [DONE]", ""]
    assert engine.aborted == []


async def test_many_streams_at_once_are_each_complete() -> None:
    engine = FakeEngine(say("hello world"))
    async with serving(engine) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        body = {**CHAT, "stream": True}
        answers = await asyncio.gather(
            *(client.post("/v1/chat/completions", json=body) for _ in range(50))
        )
    for answer in answers:
        chunks = frames_of(answer.text)[:-1]
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
        assert text == "hello world"
    assert not engine.live


async def test_health_answers_while_a_long_prompt_is_rendered() -> None:
    engine = FakeEngine()
    render = engine.renderer.render_prompt
    go = threading.Event()
    in_thread: list[bool] = []

    def slow(*args: object, **kwargs: object) -> object:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            in_thread.append(True)
        assert go.wait(PATIENCE)
        return render(*args, **kwargs)

    engine.renderer.render_prompt = slow
    async with serving(engine) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        asking = asyncio.create_task(client.post("/v1/completions", json={"prompt": "x" * 10_000}))
        await until(lambda: bool(in_thread))
        assert (await client.get("/health")).status_code == 200
        assert not asking.done()
        go.set()
        assert (await asking).status_code == 400
    assert in_thread == [True]
