"""Frames of a stream, and the way they take to the client."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from headrace.server.http.direct_send import DirectSend
from headrace.server.protocol.chat import ChatChunk, ChatChunkChoice, Delta
from headrace.server.protocol.completions import CompletionChunk, CompletionChunkChoice
from headrace.server.streams.live import LiveRequests
from headrace.server.streams.sse import EventStream, TextFrames, frame
from tests.server.fakes import FakeEngine, NumberedFrames, ScriptedStream, say

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def _chat(text: str, index: int, id: str) -> ChatChunk:
    choice = ChatChunkChoice(index=index, delta=Delta(content=text))
    return ChatChunk(id=id, created=7, model="a/b", choices=[choice])


def _completion(text: str, index: int, id: str) -> CompletionChunk:
    choice = CompletionChunkChoice(index=index, text=text)
    return CompletionChunk(id=id, created=7, model="a/b", choices=[choice])


@given(text=TEXT, id=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40))
def test_text_frames_are_the_frames_of_their_chunks(text: str, id: str) -> None:
    for make in (_chat, _completion):
        frames = TextFrames(make(TextFrames.MARK, 3, id))
        assert frames.frame(text) == frame(make(text, 3, id))
        assert frames.frame("") == b""


def test_an_id_that_looks_like_the_mark_does_no_harm() -> None:
    id = r"\u0000text\u0000"
    assert TextFrames(_chat(TextFrames.MARK, 0, id)).frame("x") == frame(_chat("x", 0, id))


async def _run(streams: int, *, direct: bool) -> tuple[list[Message], list[Message]]:
    """What the server was sent, and what passed the layers before it."""
    to_server: list[Message] = []
    through_layers: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def layered(message: Message) -> None:
            through_layers.append(message)
            await send(message)

        live = LiveRequests([ScriptedStream(3) for _ in range(streams)])
        cut = asyncio.get_running_loop().create_future()
        await EventStream(live, cut, NumberedFrames())(scope, receive, layered)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def send(message: Message) -> None:
        to_server.append(message)

    whole: Any = DirectSend(app) if direct else app
    await whole({"type": "http"}, receive, send)
    return to_server, through_layers


async def test_pieces_of_a_stream_go_straight_to_the_server_and_its_head_does_not() -> None:
    for streams in (1, 2):
        to_server, through_layers = await _run(streams, direct=True)
        assert [message["type"] for message in through_layers] == ["http.response.start"]
        expected = [b"data: %d\n\n" % i for i in range(1, 3 * streams + 1, 2)]
        bodies = [message["body"] for message in to_server[1:]]
        assert bodies == [*expected, b"data: end\n\ndata: [DONE]\n\n"]
        more = [message["more_body"] for message in to_server[1:]]
        assert more == [True] * len(expected) + [False]


async def test_without_a_direct_way_the_pieces_pass_the_layers() -> None:
    to_server, through_layers = await _run(1, direct=False)
    assert to_server == through_layers
    assert len(to_server) == 4


@pytest.mark.parametrize("num_prompts", [1, 2])
async def test_silent_stream_is_kept_alive_by_comments_that_change_nothing(
    engine: FakeEngine, client_of: Callable[..., httpx.AsyncClient], num_prompts: int
) -> None:
    body = {"prompt": ["a"] * num_prompts, "stream": True, "request_id": "r"}
    plain = (await client_of(engine).post("/v1/completions", json=body)).text
    engine.gate.clear()
    client = client_of(engine, sse_keep_alive_interval=0.04)
    asking = asyncio.create_task(client.post("/v1/completions", json=body))
    for _ in range(6):  # a comment at least in each, also on a loop that was stopped for long
        await asyncio.sleep(0.05)
    engine.gate.set()
    kept = (await asking).text
    assert kept.startswith(": keep-alive\n\n" * 2)
    frames = [part for part in kept.split("\n\n") if part != ": keep-alive"]
    created = re.compile(r'"created":\d+')
    assert created.sub("", "\n\n".join(frames)) == created.sub("", plain)
    assert kept.endswith("data: [DONE]\n\n")


async def test_outputs_that_make_no_frame_do_not_count_as_a_sign_of_life(
    client_of: Callable[..., httpx.AsyncClient],
) -> None:
    engine = FakeEngine(say("é" * 30))
    engine.delay = 0.03  # a frame comes with each second token
    client = client_of(engine, sse_keep_alive_interval=0.08)
    answer = await client.post("/v1/completions", json={"prompt": "a", "stream": True})
    assert answer.text.count("keep-alive") >= 2


async def test_busy_stream_has_no_comments(
    client_of: Callable[..., httpx.AsyncClient],
) -> None:
    engine = FakeEngine(say("a" * 40))
    engine.delay = 0.01
    client = client_of(engine, sse_keep_alive_interval=1.0)
    answer = await client.post("/v1/completions", json={"prompt": "a", "stream": True,
                                                        "max_tokens": 40})  # fmt: skip
    assert "keep-alive" not in answer.text


async def test_failure_of_a_kept_stream_is_one_frame_and_the_end(
    engine: FakeEngine, client_of: Callable[..., httpx.AsyncClient]
) -> None:
    engine.fail_after = 1
    client = client_of(engine, sse_keep_alive_interval=5.0)
    answer = await client.post("/v1/completions", json={"prompt": "a", "stream": True})
    *_, failure, end = answer.text.strip().split("\n\n")
    assert (end, '"error"' in failure) == ("data: [DONE]", True)
    assert not engine.live
