"""How bodies are read: packed ones, slow ones, and those that a drain does not wait for."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from headrace.server.app import build_app
from headrace.server.settings.server import ServerSettings
from tests.server.conftest import check_error
from tests.server.fakes import FakeEngine
from tests.waiting import PATIENCE, until

URL = "/v1/completions"
BODY = json.dumps({"prompt": "a" * 100}).encode()
PACKED = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
ClientOf = Callable[..., httpx.AsyncClient]


async def test_packed_body_is_unpacked(client: httpx.AsyncClient) -> None:
    answer = await client.post(URL, content=gzip.compress(BODY), headers=PACKED)
    assert answer.json()["choices"][0]["text"] == "Hello"
    plain = {**PACKED, "Content-Encoding": "identity"}
    assert (await client.post(URL, content=BODY, headers=plain)).status_code == 200


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (BODY, "not what gzip makes"),
        (gzip.compress(BODY)[:-9], "ends too early"),
        (gzip.compress(BODY) + b"x", "follows its end"),
        (gzip.compress(BODY) + gzip.compress(b" "), "follows its end"),
        (b"", "ends too early"),
    ],
)
async def test_packed_body_that_is_damaged_is_told_as_such(
    client: httpx.AsyncClient, content: bytes, says: str
) -> None:
    answer = await client.post(URL, content=content, headers=PACKED)
    assert says in check_error(answer, 400, "content-encoding")["message"]


@pytest.mark.parametrize("encoding", ["br", "deflate", "gzip, gzip", "x"])
async def test_other_packings_are_refused_by_name(client: httpx.AsyncClient, encoding: str) -> None:
    headers = {**PACKED, "Content-Encoding": encoding}
    error = check_error(
        await client.post(URL, content=BODY, headers=headers), 400, "content-encoding"
    )
    assert encoding in error["message"]


async def test_body_that_unpacks_to_too_much_is_a_413_and_is_not_unpacked(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    client = client_of(engine, max_body_size=1 << 20)
    bomb = gzip.compress(b" " * (256 << 20))
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    check_error(await client.post(URL, content=bomb, headers=PACKED), 413)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


class SlowClient:
    """Sends the head and a part of a body, then nothing until told."""

    def __init__(self, engine: FakeEngine, **settings: Any) -> None:
        self.app = build_app(engine, ServerSettings(**settings))
        self.sent: list[Any] = []
        self.rest = asyncio.Event()
        self._pieces = [
            {"type": "http.request", "body": BODY[:10], "more_body": True},
            {"type": "http.request", "body": BODY[10:], "more_body": False},
        ]

    async def receive(self) -> Any:
        if len(self._pieces) == 1:
            await self.rest.wait()
        if self._pieces:
            return self._pieces.pop(0)
        return await asyncio.Event().wait()

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def ask(self) -> httpx.Response:
        scope = {"type": "http", "method": "POST", "path": URL, "raw_path": URL.encode(),
                 "query_string": b"", "headers": [(b"content-type", b"application/json")],
                 "http_version": "1.1", "scheme": "http", "server": ("x", 1), "client": ("y", 2),
                 "root_path": ""}  # fmt: skip
        await self.app(scope, self.receive, self.send)
        head, *pieces = self.sent
        content = b"".join(piece.get("body", b"") for piece in pieces)
        return httpx.Response(head["status"], headers=head["headers"], content=content)


async def test_body_that_does_not_come_in_time_is_a_408_that_closes(engine: FakeEngine) -> None:
    slow = SlowClient(engine, body_timeout=0.05)
    answer = await slow.ask()
    assert "--body-timeout" in check_error(answer, 408)["message"]
    assert answer.headers["connection"] == "close"
    assert not slow.app.state.server.reading


async def test_time_limit_of_0_waits_for_the_body(engine: FakeEngine) -> None:
    slow = SlowClient(engine, body_timeout=0)
    asking = asyncio.create_task(slow.ask())
    await asyncio.sleep(0.1)
    slow.rest.set()
    assert (await asking).status_code == 200


async def test_drain_does_not_wait_for_half_sent_bodies(engine: FakeEngine) -> None:
    slow = SlowClient(engine)
    asking = asyncio.create_task(slow.ask())
    await until(lambda: bool(slow.app.state.server.reading))
    slow.app.state.server.drain()
    error = check_error(await asyncio.wait_for(asking, PATIENCE), 503)
    assert "shutting down" in error["message"]
