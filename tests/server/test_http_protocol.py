"""Bounds on connections and heads, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from headrace.server.app import build_app
from headrace.server.http.http_protocol import make_protocol
from headrace.server.settings.server import ServerSettings
from tests.server.conftest import serving_app
from tests.server.fakes import FakeEngine
from tests.waiting import PATIENCE, until

BODY = json.dumps({"prompt": "a"}).encode()
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
WHOLE = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


@contextlib.asynccontextmanager
async def listening(engine: FakeEngine, **limits: Any) -> AsyncIterator[int]:
    """A server as `run` makes one; gives its port."""
    settings = ServerSettings(**limits)
    async with serving_app(build_app(engine, settings), settings) as port:
        yield port


class Client:
    """A connection that says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def say(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], Any]:
        async with asyncio.timeout(PATIENCE):
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.strip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = await self._reader.readexactly(int(headers["content-length"]))
        return int(first.split()[1]), headers, json.loads(body)

    async def line(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readline()

    async def rest(self) -> bytes:
        """All that comes until the connection ends."""
        async with asyncio.timeout(PATIENCE):
            try:
                return await self._reader.read()
            finally:
                await self.close()

    def close_sending(self) -> None:
        self._writer.write_eof()

    async def is_closed(self) -> bool:
        async with asyncio.timeout(PATIENCE):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True
            finally:
                await self.close()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


async def refused(client: Client, status: int, says: str) -> None:
    """The answer is an error in the one shape, and the end of the connection."""
    code, headers, body = await client.answer()
    assert (code, headers["connection"]) == (status, "close")
    assert body["error"]["code"] == status
    assert says in body["error"]["message"]
    assert await client.is_closed()


async def test_head_within_the_limits_is_served_again_and_again(engine: FakeEngine) -> None:
    async with listening(engine, max_header_size=2048, max_header_count=32) as port:
        client = await Client.connect(port)
        for _ in range(3):
            await client.say(WHOLE)
            assert (await client.answer())[0] == 200
        await client.close()


@pytest.mark.parametrize(
    "head",
    [
        POST + b"x: " + b"a" * 3000 + b"\r\n\r\n",
        POST + b"".join(b"x%d: a\r\n" % i for i in range(40)) + b"\r\n",
        b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
    ids=["long value", "many headers", "long path"],
)
async def test_head_beyond_the_limits_is_refused(engine: FakeEngine, head: bytes) -> None:
    async with listening(engine, max_header_size=2048, max_header_count=32) as port:
        client = await Client.connect(port)
        await client.say(head)
        await refused(client, 431, "--max-header-size")
        again = await Client.connect(port)
        await again.say(WHOLE)
        assert (await again.answer())[0] == 200
        await again.close()
    assert [request[0].startswith("cmpl-") for request in engine.seen] == [True]


async def test_head_that_never_ends_is_refused_while_it_comes(engine: FakeEngine) -> None:
    async with listening(engine, max_header_size=2048) as port:
        client = await Client.connect(port)
        await client.say(POST + b"x: ")
        for _ in range(30):
            await client.say(b"a" * 100)
            await asyncio.sleep(0.001)
        await refused(client, 431, "--max-header-size")


@pytest.mark.parametrize("begin", [b"", b"\r\n"], ids=["nothing", "an empty line"])
async def test_connection_that_sends_no_request_is_closed(engine: FakeEngine, begin: bytes) -> None:
    async with listening(engine, header_timeout=0.1) as port:
        client = await Client.connect(port)
        await client.say(begin)
        assert await client.is_closed()


async def test_half_a_head_is_a_408(engine: FakeEngine) -> None:
    async with listening(engine, header_timeout=1.0) as port:  # for the half to come in
        client = await Client.connect(port)
        await client.say(POST)
        await refused(client, 408, "--header-timeout")


async def test_rest_of_a_refused_body_does_not_hold_the_connection(engine: FakeEngine) -> None:
    async with listening(engine, header_timeout=1.0, max_body_size=10) as port:
        client = await Client.connect(port)
        await client.say(POST + b"content-length: 1000000\r\n\r\n")
        assert (await client.answer())[0] == 413
        await client.say(b"a" * 1000)
        assert await client.is_closed()


async def test_time_limit_of_the_head_is_none_of_the_answer(engine: FakeEngine) -> None:
    engine.gate.clear()
    async with listening(engine, header_timeout=0.7) as port:
        client = await Client.connect(port)
        await client.say(WHOLE)
        await until(lambda: bool(engine.live))
        await asyncio.sleep(1.0)
        engine.gate.set()
        assert (await client.answer())[0] == 200
        await client.close()


async def test_excess_connections_are_refused_and_places_come_back(engine: FakeEngine) -> None:
    async with listening(engine, max_connections=2) as port:
        clients = [await Client.connect(port) for _ in range(2)]
        for client in clients:
            await client.say(WHOLE)
            assert (await client.answer())[0] == 200
        third = await Client.connect(port)
        status, headers, _ = await third.answer()
        assert (status, headers["retry-after"]) == (503, "1")
        assert await third.is_closed()
        await clients.pop().close()
        status = 503  # until the server has seen the other one go
        async with asyncio.timeout(PATIENCE):
            while status == 503:
                fourth = await Client.connect(port)
                await fourth.say(WHOLE)
                status, _, _ = await fourth.answer()
        assert status == 200
        for client in (*clients, fourth):
            await client.close()


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01", b"HELLO\r\n\r\n", b"GET / HTTP/9\r\n"]
)
async def test_what_is_no_http_gets_the_one_error_body(engine: FakeEngine, data: bytes) -> None:
    async with listening(engine) as port:
        client = await Client.connect(port)
        await client.say(data)
        await refused(client, 400, "not HTTP")


UPGRADES = [
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAA\r\n",
    b"Connection: keep-alive, upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    b"upgrade: a\r\nUpgrade: b/1\r\nConnection: upgrade\r\nExpect: 100-continue\r\n",
]


@pytest.mark.parametrize("upgrade", UPGRADES, ids=["h2c", "websocket", "two"])
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("size", [1, 50, 10_000])
async def test_wish_for_another_protocol_is_ignored(
    engine: FakeEngine,
    caplog: pytest.LogCaptureFixture,
    upgrade: bytes,
    is_chunked: bool,
    size: int,
) -> None:
    """RFC 9110, 7.8: Java's HttpClient and `curl --http2` ask so for HTTP/2."""
    head, body = WHOLE.split(b"\r\n\r\n")
    if is_chunked:
        head = POST + b"transfer-encoding: chunked"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    get = b"GET /version HTTP/1.1\r\nhost: x\r\n" + upgrade.partition(b"Expect")[0] + b"\r\n"
    whole = head + b"\r\n" + upgrade + b"\r\n" + body + get + WHOLE
    async with listening(engine) as port:
        client = await Client.connect(port)
        for i in range(0, len(whole), size):
            await client.say(whole[i : i + size])
        if b"Expect" in upgrade:
            assert await client.line() == b"HTTP/1.1 100 Continue\r\n"
            assert await client.line() == b"\r\n"
        status, _, answer = await client.answer()
        assert (status, answer["choices"][0]["text"]) == (200, "Hello")
        assert list((await client.answer())[2]) == ["version"]
        assert (await client.answer())[0] == 200
        await client.close()
    assert [prompt.prompt for _, prompt, *_ in engine.seen] == ["a", "a"]
    assert not caplog.records


async def test_connect_is_refused_and_what_follows_is_dropped(engine: FakeEngine) -> None:
    async with listening(engine) as port:
        client = await Client.connect(port)
        await client.say(b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n" + WHOLE)
        assert (await client.answer())[0] in (400, 404, 405)
        await client.close()
    assert not engine.seen


CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"ffffffffffffffffff\r\n", b"2\r\n{}x", b"-1\r\n"])
@pytest.mark.parametrize("before", [b"", b"5\r\n{    \r\n"])
async def test_broken_chunk_is_told(engine: FakeEngine, before: bytes, chunk: bytes) -> None:
    async with listening(engine) as port:
        client = await Client.connect(port)
        await client.say(WHOLE)
        assert (await client.answer())[0] == 200
        await client.say(CHUNKED + before)
        await asyncio.sleep(0.02)
        await client.say(chunk)
        await refused(client, 400, "not HTTP")


async def test_broken_head_does_not_answer_the_request_before_it(engine: FakeEngine) -> None:
    engine.gate.clear()
    async with listening(engine) as port:
        client = await Client.connect(port)
        await client.say(WHOLE + b"\x16\x03 no HTTP\r\n\r\n")
        assert await client.is_closed()  # without a byte: it would be taken for the answer


def _is_frame(line: bytes) -> bool:
    return line.startswith(b"data: ") or line == b"\n"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_stream_to_a_client_of_http_1_0_is_ended_by_the_connection(
    engine: FakeEngine, path: str
) -> None:
    """RFC 9112, 6.1: no chunks for who does not know them."""
    body = json.dumps(
        {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "stream": True}
    ).encode()
    head = b"POST %b HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    async with listening(engine) as port:
        client = await Client.connect(port)
        await client.say(head % (path.encode(), len(body)) + body)
        answer = await client.rest()
    head, _, stream = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert all(map(_is_frame, stream.splitlines(keepends=True)))
    assert stream.endswith(b"data: [DONE]\n\n")


async def test_whole_answer_to_a_client_of_http_1_0_has_its_length(engine: FakeEngine) -> None:
    async with listening(engine) as port:
        client = await Client.connect(port)
        await client.say(WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"))
        status, headers, _ = await client.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await client.is_closed()


async def test_client_that_closes_its_side_has_gone(engine: FakeEngine) -> None:
    """A FIN is all that is seen of a client that closed, until something is written to it; to end
    what nobody waits for matters more than the few clients that would still read."""
    engine.gate.clear()
    async with listening(engine) as port:
        client = await Client.connect(port)
        await client.say(WHOLE)
        await until(lambda: bool(engine.live))
        client.close_sending()
        assert await client.is_closed()
        await until(lambda: len(engine.aborted) == 1)


def test_limit_of_connections_follows_the_limit_of_open_files() -> None:
    protocol: Any = make_protocol(ServerSettings())
    assert protocol.max_connections > 0
    assert make_protocol(ServerSettings(max_connections=7)).max_connections == 7  # type: ignore[attr-defined]
