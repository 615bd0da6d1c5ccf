"""The application over a scripted engine, asked without a network or over loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp

from headrace.metrics.prometheus import PrometheusStatLogger
from headrace.server.app import build_app
from headrace.server.http.http_protocol import make_protocol
from headrace.server.settings.server import ServerSettings
from headrace.structured.compiler import GrammarCompiler
from tests.server.fakes import FakeEngine
from tests.structured.fakes import make_compiler


@pytest.fixture(autouse=True)
def _no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_API_KEY", raising=False)


@pytest.fixture(scope="session")
def compiler() -> GrammarCompiler:
    """Of grammars, for a small vocabulary."""
    return make_compiler()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def client_of() -> Callable[..., httpx.AsyncClient]:
    """A client of an application, in this process."""

    def make(engine: FakeEngine | None, **settings: Any) -> httpx.AsyncClient:
        metrics = PrometheusStatLogger(engine.config) if engine is not None else None
        app = build_app(engine, ServerSettings(**settings), metrics)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
        return httpx.AsyncClient(transport=transport, base_url="http://test")

    return make


@pytest.fixture
def client(engine: FakeEngine, client_of: Callable[..., httpx.AsyncClient]) -> httpx.AsyncClient:
    return client_of(engine)


@contextlib.asynccontextmanager
async def serving(engine: FakeEngine, **settings: Any) -> AsyncIterator[str]:
    """A real server on loopback; gives its address."""
    app = build_app(engine, ServerSettings(**settings), PrometheusStatLogger(engine.config))
    async with serving_app(app) as port:
        yield f"http://127.0.0.1:{port}"


@contextlib.asynccontextmanager
async def serving_app(app: ASGIApp, settings: ServerSettings | None = None) -> AsyncIterator[int]:
    """A real server of this application; gives its port.

    Args:
        settings: whose bounds it keeps.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        cast(Any, app),
        http=make_protocol(settings or ServerSettings()),
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


def frames_of(text: str) -> list[Any]:
    """The records of a stream; the end mark as it stands."""
    assert text.endswith("\n\n")
    frames = text[:-2].split("\n\n")
    assert all(frame.startswith("data: ") for frame in frames)
    return [one if one == "[DONE]" else json.loads(one) for one in (f[6:] for f in frames)]


def check_error(answer: httpx.Response, status: int, param: str | None = None) -> dict[str, Any]:
    """The answer is an error in the one shape; gives the inside."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["error"]
    error: dict[str, Any] = body["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    assert error["code"] == status
    assert error["message"]
    if param is not None:
        assert error["param"] == param
    return error
