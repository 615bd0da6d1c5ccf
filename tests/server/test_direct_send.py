"""Streams that are written past the task that waits for them, over real sockets."""

from __future__ import annotations

import asyncio
import random

from starlette.types import Receive, Scope, Send

from headrace.engine.output_collector import RequestOutputCollector
from headrace.outputs import CompletionOutput, RequestOutput
from headrace.sampling_params import RequestOutputKind
from headrace.server.http.direct_send import STREAMED_BYTES, DirectSend
from headrace.server.streams.live import LiveRequests
from headrace.server.streams.sse import EventStream
from tests.server.conftest import serving_app
from tests.waiting import PATIENCE


class Frames:
    """A FrameMaker: the text as it is."""

    def take(self, _job: int, output: RequestOutput) -> bytes:
        return output.outputs[0].text.encode()

    def end(self) -> bytes:
        return b""


class Application:
    """Answers each request with the stream of a collector."""

    def __init__(self) -> None:
        self.num_released = 0
        self.num_bytes = 0
        self.has_begun = asyncio.Event()
        self.is_over = asyncio.Event()
        self.stream = self._new_stream()

    def _new_stream(self) -> RequestOutputCollector:
        return RequestOutputCollector("a", RequestOutputKind.DELTA, self._release)

    def _release(self) -> None:
        self.num_released += 1

    def put(self, text: str, *, last: bool = False) -> None:
        answer = CompletionOutput(0, text, [1], finish_reason="stop" if last else None)
        self.stream.put(RequestOutput("a", None, [1], [answer], last))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cut = asyncio.get_running_loop().create_future()
        self.has_begun.set()
        await EventStream(LiveRequests([self.stream]), cut, Frames())(scope, receive, send)
        self.num_bytes = scope[STREAMED_BYTES]
        self.is_over.set()


async def _chunks(reader: asyncio.StreamReader) -> list[bytes]:
    """Those of an answer's body."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    chunks = []
    while size := int(await reader.readline(), 16):
        chunks.append(await reader.readexactly(size))
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readexactly(2) == b"\r\n"
    return chunks


async def test_whatever_the_reader_is_at_the_client_gets_all_in_order() -> None:
    app, chance = Application(), random.Random(1)
    texts = [f"<{i}:{'x' * chance.randrange(1, 40)}>" for i in range(2000)]
    async with serving_app(DirectSend(app)) as port, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        reading = asyncio.ensure_future(_chunks(reader))
        await app.has_begun.wait()
        for text in texts:
            app.put(text)
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        app.put("", last=True)
        body = b"".join(await reading)
        await app.is_over.wait()
        writer.close()
    assert body == "".join(texts).encode() + b"data: [DONE]\n\n"
    assert app.num_bytes == len(body)
    assert app.num_released == 0


async def test_for_a_client_that_does_not_read_pieces_are_merged_and_none_is_lost() -> None:
    app = Application()
    piece = "y" * 10_000
    async with serving_app(DirectSend(app)) as port, asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await app.has_begun.wait()
        for _ in range(2000):  # 20 MB: more than sockets hold
            app.put(piece)
            await asyncio.sleep(0)
        app.put("", last=True)
        chunks = await _chunks(reader)
        writer.close()
    assert len(b"".join(chunks)) == 2000 * len(piece) + len(b"data: [DONE]\n\n")
    assert max(map(len, chunks)) > len(piece)


async def test_client_that_goes_lets_the_request_go() -> None:
    app = Application()
    async with serving_app(DirectSend(app)) as port, asyncio.timeout(PATIENCE):
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await app.has_begun.wait()
        app.put("a")
        writer.close()
        while not app.is_over.is_set():
            app.put("b")
            await asyncio.sleep(0.01)
    assert app.num_released == 1
