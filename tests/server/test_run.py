"""The life of a serving process: start, signals, drain, death, and what each leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.errors import ConfigError, EngineStartError
from headrace.metrics.prometheus import PrometheusStatLogger
from headrace.server.app import build_app
from headrace.server.http.listen import address_of, bind
from headrace.server.http.uvicorn_server import Server, uvicorn_config
from headrace.server.observe.request_log import RequestLog
from headrace.server.run import ServingProcess, StartInterrupted
from headrace.server.settings.server import ServerSettings
from headrace.server.settings.table import settings_table
from tests.server.conftest import frames_of
from tests.server.fakes import FakeEngine, make_config, say
from tests.waiting import PATIENCE, until

STREAM = {"prompt": "a", "stream": True, "max_tokens": 400}


class FakeProcess(ServingProcess):
    """A serving process whose engine is scripted."""

    build: Callable[[Callable[[str, float], None]], FakeEngine]

    def _build_engine(self, on_stage: Callable[[str, float], None]) -> Any:
        return self.build(on_stage)


class Running:
    """A process that runs as a task of the test's loop."""

    def __init__(
        self,
        build: Callable[..., FakeEngine],
        shutdown_timeout: float,
        request_log: RequestLog | None = None,
        **settings: Any,
    ):
        options = ServerSettings(host="127.0.0.1", port=0, **settings)
        config = make_config(shutdown_timeout=shutdown_timeout)
        metrics = PrometheusStatLogger(config)
        app = build_app(None, options, metrics)
        server = Server(uvicorn_config(app, options, shutdown_timeout))
        self.listener = bind(options)
        self.url = address_of(self.listener, options)
        self.process = FakeProcess(
            app.state.server, server, config, metrics, time.monotonic(), request_log
        )
        self.process.build = build
        self.task = asyncio.create_task(self.process.run(self.listener))

    @contextlib.asynccontextmanager
    async def ready(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client, once the engine answers."""
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE) as client:
            await until(lambda: self.process.state.client is not None)
            yield client


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Running]]:
    """Start processes; each ends with the test."""
    running: list[Running] = []

    def make(
        build: Callable[..., FakeEngine], *, shutdown_timeout: float = PATIENCE, **settings: Any
    ):
        running.append(Running(build, shutdown_timeout, **settings))
        return running[-1]

    yield make
    for one in running:
        one.process.server.should_exit = True
        await asyncio.gather(one.task, return_exceptions=True)
        one.listener.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_the_process_with_status_0(
    start: Callable[..., Running], number: signal.Signals
) -> None:
    engine = FakeEngine()
    running = start(lambda _tell: engine)
    async with running.ready():
        os.kill(os.getpid(), number)
        assert await asyncio.wait_for(running.task, PATIENCE) == 0
    assert engine.is_dead


async def test_drain_lets_a_stream_finish(start: Callable[..., Running]) -> None:
    engine = FakeEngine(say("x" * 30))
    engine.delay = 0.01
    running = start(lambda _tell: engine)
    async with running.ready() as client:
        asking = asyncio.create_task(client.post("/v1/completions", json=STREAM))
        await until(lambda: bool(engine.live))
        os.kill(os.getpid(), signal.SIGTERM)
        frames = frames_of((await asking).text)
    assert frames[-2]["choices"][0]["finish_reason"] == "stop"
    assert await running.task == 0


async def test_drain_does_not_wait_for_clients_that_do_not_finish_their_requests(
    start: Callable[..., Running],
) -> None:
    running = start(lambda _: FakeEngine(), shutdown_timeout=2 * PATIENCE)
    async with running.ready():
        port = running.listener.getsockname()[1]
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        halves = [b"", b"POST", head, head + b"content-length: 50\r\n\r\n{"] * 5
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in halves]
        for (_, writer), half in zip(clients, halves, strict=True):
            writer.write(half)
        await until(lambda: len(running.process.state.reading) == 5)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(running.task, PATIENCE) == 0
        texts = [(await reader.read()).decode() for reader, _ in clients]
        for _, writer in clients:
            writer.close()
        assert [text[:12] for text in texts[3::4]] == ["HTTP/1.1 503"] * 5


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("stream", [True, False])
async def test_request_beyond_the_drain_is_told_and_aborted(
    start: Callable[..., Running], signals: int, stream: bool
) -> None:
    engine = FakeEngine()
    engine.gate.clear()
    running = start(lambda _tell: engine, shutdown_timeout=0.2 if signals == 1 else 2 * PATIENCE)
    async with running.ready() as client:
        body = {**STREAM, "stream": stream}
        asking = asyncio.create_task(client.post("/v1/completions", json=body))
        await until(lambda: bool(engine.live))
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
        answer = await asyncio.wait_for(asking, PATIENCE)
    if stream:
        error, done = frames_of(answer.text)
        assert done == "[DONE]"
    else:
        error = answer.json()
        assert answer.status_code == 503
    assert error["error"]["code"] == 503
    assert "shutting down" in error["error"]["message"]
    assert await asyncio.wait_for(running.task, PATIENCE) == 0
    assert len(engine.aborted) == 1


@pytest.mark.parametrize(
    "fields",
    [{}, {"n": 2}, {"stream_options": {"resumable": True}}, {"logprobs": True}],
    ids=["plain", "several", "resumable", "logprobs"],
)
async def test_streams_under_way_beyond_the_drain_end_with_an_error_and_done(
    start: Callable[..., Running], fields: dict[str, Any]
) -> None:
    engine = FakeEngine(say("x" * 400))
    engine.delay = 0.01
    running = start(lambda _tell: engine, shutdown_timeout=0.3, sse_keep_alive_interval=0.1)
    body = {**STREAM, "messages": [{"role": "user", "content": "a"}], **fields}
    async with running.ready() as client:
        asking = [
            asyncio.create_task(client.post("/v1/chat/completions", json=body)) for _ in range(4)
        ]
        await until(lambda: sum(one.num_tokens > 10 for one in engine.streams.values()) == 4)
        os.kill(os.getpid(), signal.SIGTERM)
        texts = [answer.text for answer in await asyncio.gather(*asking)]
    for text in texts:
        *pieces, error, done, end = [
            line.rpartition("data: ")[2] for line in text.split("\n\n") if line[:1] != ":"
        ]
        assert len(pieces) > 5
        assert "shutting down" in json.loads(error)["error"]["message"]
        assert (done, end) == ("[DONE]", "")
    assert await asyncio.wait_for(running.task, PATIENCE) == 0
    assert not engine.live


async def test_dead_engine_is_told_for_a_while_and_ends_the_process_with_status_1(
    start: Callable[..., Running],
) -> None:
    engine = FakeEngine()
    running = start(lambda _tell: engine, engine_death_linger=2.0)
    async with running.ready() as client:
        engine.is_dead = True
        assert (await client.get("/health")).status_code == 503
        assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 500
        assert await asyncio.wait_for(running.task, PATIENCE) == 1


async def test_dead_engine_and_a_signal_is_status_1(start: Callable[..., Running]) -> None:
    engine = FakeEngine()
    running = start(lambda _tell: engine)
    async with running.ready():
        engine.is_dead = True
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(running.task, PATIENCE) == 1


async def test_port_answers_while_the_engine_starts(start: Callable[..., Running]) -> None:
    go = threading.Event()

    def build(tell: Callable[[str, float], None]) -> FakeEngine:
        tell("reading weights", 0.4)
        go.wait(PATIENCE)
        return FakeEngine()

    running = start(build)
    async with httpx.AsyncClient(base_url=running.url, timeout=PATIENCE) as client:
        await until(lambda: running.process.state.fraction > 0)
        answer = await client.get("/startupz")
        assert answer.status_code == 503
        assert answer.json() == {"stage": "reading weights", "percent": 40}
        assert (await client.get("/livez")).status_code == 200
        answer = await client.post("/v1/completions", json={"prompt": "a"})
        assert answer.status_code == 503
        assert "reading weights, 40%" in answer.json()["error"]["message"]
        go.set()
    async with running.ready() as client:
        assert (await client.get("/startupz")).json() == {"stage": "ready", "percent": 100}


async def test_failed_start_raises_its_reason(start: Callable[..., Running]) -> None:
    def build(_tell: object) -> FakeEngine:
        raise EngineStartError("no memory")

    running = start(build)
    with pytest.raises(EngineStartError, match="no memory"):
        await asyncio.wait_for(running.task, PATIENCE)


async def test_signal_during_the_start_interrupts_it(start: Callable[..., Running]) -> None:
    interrupted = threading.Event()

    def build(tell: Callable[[str, float], None]) -> FakeEngine:
        for _ in range(15_000):
            try:
                tell("reading weights", 0.1)
            except StartInterrupted:
                interrupted.set()
                raise
            time.sleep(0.01)
        raise AssertionError("was not interrupted")

    running = start(build)
    await until(lambda: running.process.state.fraction > 0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running.task, PATIENCE) == 0
    assert interrupted.is_set()


# -- addresses -------------------------------------------------------------------------------


def test_taken_port_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*in use") as caught:
            bind(ServerSettings(host="127.0.0.1", port=port))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["256.0.0.1", "203.0.113.1", "no.such.host.invalid"])
def test_address_that_cannot_be_used_is_one_line(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen on"):
        bind(ServerSettings(host=host, port=0))


def test_unix_socket_left_by_a_dead_server_is_replaced_and_a_live_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a whole path may be longer than the system takes
    settings = ServerSettings(uds="s")
    bind(settings).close()
    listener = bind(settings)
    with listener, pytest.raises(ConfigError, match="in use"):
        bind(settings)
    assert address_of(listener, settings) == "http+unix://s"


def test_table_of_settings_gives_reasons_and_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lines = settings_table(make_config(max_num_seqs=7), ServerSettings(api_key=["hidden"]))
    text = "\n".join(lines)
    assert "max_num_seqs            7" in text
    assert "default server" in text
    assert "hidden" not in text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "none: everybody may use it"),
        ({"api_key": ["hidden"]}, "1"),
        ({"api_key_file": "k.json"}, "those of k.json"),
        ({"api_key": ["hidden"], "api_key_file": "k.json"}, "1 and those of k.json"),
    ],
)
def test_table_of_settings_tells_who_may_use_the_server(options: dict[str, Any], told: str) -> None:
    (line,) = [
        line for line in settings_table(make_config(), ServerSettings(**options))
        if "api keys" in line
    ]  # fmt: skip
    assert line.split(maxsplit=2)[2] == told


# -- what changes while a server runs --------------------------------------------------------


async def test_running_server_reads_its_keys_again(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"keys": [{"name": "alice", "key": "old"}]}')
    running = start(lambda _: FakeEngine(), api_key_file=str(path))
    async with running.ready() as client:

        async def status(key: str) -> int:
            answer = await client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
            return answer.status_code

        assert await status("old") == 200
        path.write_text('{"keys": [{"name": "alice", "key": "new one"}]}')
        async with asyncio.timeout(PATIENCE):
            while await status("old") == 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await status("new one") == 200


async def test_running_server_writes_its_request_log_and_moves_on_at_sighup(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    path, old = tmp_path / "requests.jsonl", tmp_path / "requests.1.jsonl"
    running = start(lambda _: FakeEngine(), request_log=RequestLog(str(path)))
    async with running.ready() as client:
        assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 200
        await until(lambda: path.read_text() != "", 30)
        path.rename(old)
        os.kill(os.getpid(), signal.SIGHUP)
        assert (await client.post("/v1/completions", json={"prompt": "b"})).status_code == 200
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(running.task, PATIENCE) == 0
    assert [len(file.read_text().splitlines()) for file in (old, path)] == [1, 1]
