"""A loopback HTTP server that says exactly what it is told to, piece by piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from headrace.bench.http_client import HttpClient, Target
from tests.waiting import PATIENCE

Act = Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Asked:
    """A request as it came. `number` counts them from 0; `connection` counts connections."""

    number: int
    connection: int
    line: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class ScriptedServer:
    """What it heard."""

    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    num_connections: int = 0

    def client(self, timeout: float = PATIENCE, **headers: str) -> HttpClient:
        return HttpClient(Target.from_url(f"http://127.0.0.1:{self.port}"), headers, timeout)


@asynccontextmanager
async def scripted_server(act: Act) -> AsyncIterator[ScriptedServer]:
    """Serve; after `act` returns the connection is kept, unless `act` closed it."""
    heard = ScriptedServer()
    open_ones: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones[writer] = asyncio.current_task()
        connection = heard.num_connections
        heard.num_connections += 1
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                pairs = (line.split(": ", 1) for line in head[1:] if line)
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers["content-length"]))
                asked = Asked(len(heard.asked), connection, head[0], headers, body)
                heard.asked.append(asked)
                await act(asked, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client went away
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    heard.port = server.sockets[0].getsockname()[1]
    try:
        yield heard
    finally:
        server.close()
        for writer in open_ones:
            writer.close()
        await asyncio.gather(*filter(None, open_ones.values()))
        await server.wait_closed()


def answer(status: int, body: bytes) -> bytes:
    """A whole answer."""
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


def piece(data: bytes) -> bytes:
    """A chunk of the transfer encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    """An event, in a chunk of its own."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return piece(b"data: " + data + b"\n\n")


def text(word: str, finish: str | None = None) -> dict[str, Any]:
    """A chunk of a completion."""
    return {"choices": [{"index": 0, "text": word, "finish_reason": finish}]}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of a chat."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def usage(prompt: int, output: int, cached: int | None = None) -> dict[str, Any]:
    """The chunk that counts."""
    counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return {"choices": [], "usage": counts}


def streams(*values: Any, pause: float = 0.0) -> Act:
    """Answer with these events and a [DONE]."""

    async def act(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        for value in values:
            await asyncio.sleep(pause)
            writer.write(event(value))
            await writer.drain()
        writer.write(event(b"[DONE]") + STREAM_END)

    return act


def says(*pieces: bytes, close: bool = False, pause: float = 0.0) -> Act:
    """Answer with these bytes."""

    async def act(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        for data in pieces:
            await asyncio.sleep(pause)
            writer.write(data)
            await writer.drain()
        if close:
            writer.close()

    return act
