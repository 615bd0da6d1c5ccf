"""Streamed answers from a scripted server: times, counts, and everything that can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import pytest

from headrace.bench.datasets import BenchRequest
from headrace.bench.http_client import HttpClient, RequestError, Target
from headrace.bench.settings import ServeSettings
from headrace.bench.stream import RequestResult, encode_body, send_streamed
from tests.bench.scripted import (
    STREAM_END,
    STREAM_HEAD,
    Act,
    Asked,
    answer,
    delta,
    event,
    piece,
    says,
    scripted_server,
    streams,
    text,
    usage,
)
from tests.waiting import PATIENCE


async def ask(act: Act, limit: float = PATIENCE) -> RequestResult:
    async with scripted_server(act) as server:
        client = server.client(limit)
        try:
            return await send_streamed(client, "/v1/completions", b"{}", 5)
        finally:
            client.close()


async def test_pieces_and_usage_of_a_completion() -> None:
    act = streams(text("a"), text("b"), text("", "length"), usage(7, 3, cached=4), pause=0.02)
    result = await ask(act)
    assert result.error is None
    assert (result.num_prompt_tokens, result.num_output_tokens) == (7, 3)
    assert result.num_cached_tokens == 4
    assert len(result.token_times) == 2
    assert result.ttft >= 0.02
    assert result.itl == [pytest.approx(result.e2e_latency - result.ttft)]
    assert result.tpot == pytest.approx((result.e2e_latency - result.ttft) / 2)


async def test_without_usage_pieces_are_counted_and_the_prompt_is_as_known() -> None:
    result = await ask(streams(text("a"), text("b", "length")))
    assert (result.num_prompt_tokens, result.num_output_tokens) == (5, 2)


async def test_first_piece_of_a_completion_counts_even_without_text() -> None:
    result = await ask(streams(text(""), text("é"), text("", "stop")))
    assert len(result.token_times) == 2


async def test_role_of_a_chat_is_no_token_but_reasoning_and_tools_are() -> None:
    values = [
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(content="a"),
        delta(tool_calls=[{"index": 0}]),
        delta(content=None, tool_calls=[]),
        delta("stop"),
    ]
    result = await ask(streams(*values))
    assert (result.error, len(result.token_times)) == (None, 3)


async def test_events_in_one_piece_and_events_cut_in_many_are_read_alike() -> None:
    values = (text("a"), text("b", "stop"), usage(1, 2))
    events = b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)
    whole = STREAM_HEAD + piece(events + b"data: [DONE]\n\n") + STREAM_END
    together = await ask(says(whole))
    apart = await ask(says(*(whole[i : i + 9] for i in range(0, len(whole), 9)), pause=0.001))
    for result in (together, apart):
        assert (result.error, len(result.token_times), result.num_output_tokens) == (None, 2, 2)
    assert together.itl == [0.0]
    assert apart.itl[0] > 0


async def test_stream_without_done_is_whole_if_it_gave_a_reason_to_finish() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"  # no length: it ends with the connection
    chunk = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n'
    assert (await ask(says(head, chunk, close=True))).error is None


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (says(answer(503, b'{"error": {"message": "the queue\\nis full"}}')),
         "HTTP 503: the queue is full"),
        (says(answer(404, b'{"detail": "Not Found"}')), "HTTP 404: Not Found"),
        (says(answer(500, b"oops")), "HTTP 500: oops"),
        (says(answer(400, b"x" * 500)), f"HTTP 400: {'x' * 200}..."),
        (streams(text("a"), {"error": {"message": "the engine died"}}),
         "an error in the stream: the engine died"),
        (streams(text("a"), b"{no json"), "an event that is no chunk: {no json"),
        (streams(text("a"), b'{"choices": 5}'), 'an event that is no chunk: {"choices": 5}'),
        (streams(usage(1, 0)), "the answer has no text"),
        (says(STREAM_HEAD, event(text("a")), STREAM_END), "the stream ended before the answer did"),
        (says(STREAM_HEAD, event(text("a")), close=True),
         "the connection was closed in the middle of the answer"),
        (says(STREAM_HEAD, piece(b"data: {")[:-4], close=True),
         "the connection was closed in the middle of the answer"),
        (says(b"HTTP/1.1 200 OK\r\n\r\n", b'data: {"choices": [{"text": "a"}]}\n\n', close=True),
         "the stream ended before the answer did"),
        (says(close=True), "the connection was closed before an answer"),
        (says(b"hello\r\n\r\n"), "the answer is not HTTP"),
    ],
)  # fmt: skip
async def test_what_goes_wrong_is_told(act: Act, said: str) -> None:
    assert (await ask(act)).error == said


async def test_slow_start_of_an_answer_is_waited_for_until_the_limit() -> None:
    result = await ask(streams(text("a", "stop"), pause=0.2))
    assert result.error is None
    assert result.ttft >= 0.2

    async def act(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD + event(text("a")))
        await writer.drain()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()  # by the client, which has waited long enough

    for limit in (0.3, 3, 30):  # on a busy machine the first piece itself may be late
        result = await ask(act, limit)
        assert result.error == f"no whole answer after {limit} s"
        if result.token_times:
            break
    assert len(result.token_times) == 1


async def test_nobody_there_is_an_error_of_the_request() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        client = HttpClient(Target.from_url(f"http://127.0.0.1:{port}"), {}, 5)
        result = await send_streamed(client, "/x", b"", None)
    assert result.error == f"cannot connect to http://127.0.0.1:{port}: Connection refused"


# -- connections -----------------------------------------------------------------------------


async def test_connections_are_used_again_and_requests_carry_headers() -> None:
    async with scripted_server(streams(text("a", "stop"))) as server:
        client = server.client(Authorization="Bearer key")
        for _ in range(3):
            assert (await send_streamed(client, "/v1/completions", b'{"a":1}', 1)).error is None
        client.close()
    assert [asked.connection for asked in server.asked] == [0, 0, 0]
    assert server.asked[0].line == "POST /v1/completions HTTP/1.1"
    assert server.asked[0].headers["authorization"] == "Bearer key"
    assert server.asked[0].headers["host"] == f"127.0.0.1:{server.port}"
    assert server.asked[2].json() == {"a": 1}


async def test_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    async def act(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.connection == 0 and asked.number == 1:
            writer.close()  # when the second request is on its way already
        else:
            await streams(text("a", "stop"))(asked, writer)

    async with scripted_server(act) as server:
        client = server.client()
        for _ in range(2):
            assert (await send_streamed(client, "/x", b"", 1)).error is None
        client.close()
    assert [asked.connection for asked in server.asked] == [0, 0, 1]


async def test_connection_is_not_used_after_a_failure_or_when_told_to_close() -> None:
    pieces = [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"]
    async with scripted_server(says(*pieces)) as server:
        client = server.client()
        for _ in range(2):
            assert await client.get("/") == (200, b"ok")
    assert [asked.connection for asked in server.asked] == [0, 1]


async def test_what_a_sink_raises_reaches_the_caller() -> None:
    def sink(_body: bytes) -> None:
        raise KeyError("mine")

    async with scripted_server(says(answer(200, b"ok"))) as server:
        with pytest.raises(KeyError, match="mine"):
            await server.client().post("/", b"", sink)


async def test_provisional_answers_are_passed_over() -> None:
    act = says(b"HTTP/1.1 100 Continue\r\n\r\n", answer(201, b"made"))
    async with scripted_server(act) as server:
        client = server.client()
        assert await client.get("/") == (201, b"made")
        client.close()


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://a", Target("a", 80, False, "")),
        ("https://a/", Target("a", 443, True, "")),
        ("http://a:5/v1", Target("a", 5, False, "")),
        ("http://a:5/x/v1/", Target("a", 5, False, "/x")),
        ("http://[::1]:5/x", Target("::1", 5, False, "/x")),
    ],
)
def test_urls_may_be_written_as_users_do(url: str, target: Target) -> None:
    assert Target.from_url(url) == target


async def test_error_of_a_name_that_does_not_exist_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_args: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # a real one may ask for a long time
    client = HttpClient(Target.from_url("http://no-such-host.invalid"), {}, 20)
    with pytest.raises(RequestError, match="cannot connect") as caught:
        await client.get("/")
    assert "\n" not in str(caught.value)


# -- bodies ----------------------------------------------------------------------------------


def body_of(prompt: Any, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        encode_body(BenchRequest(prompt, None, 9), "m", ServeSettings(**options))
    )
    return found


def test_bodies_ask_for_a_stream_with_usage() -> None:
    assert body_of([1, 2]) == {
        "model": "m", "prompt": [1, 2], "max_tokens": 9, "temperature": 0.0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def test_chats_and_extras_and_ignored_ends() -> None:
    body = body_of(
        "hi", endpoint="/v1/chat/completions", ignore_eos=True,
        extra_body={"top_k": 3, "temperature": 1},
    )  # fmt: skip
    assert body["messages"] == [{"role": "user", "content": "hi"}]
    assert "prompt" not in body
    assert (body["ignore_eos"], body["top_k"], body["temperature"]) == (True, 3, 1)
