"""What operators set: middleware, logs, TLS that is renewed, admin routes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.engine.async_llm import AsyncLLM
from headrace.errors import ConfigError
from headrace.logger import LINE_FIELDS, JsonFormatter
from headrace.messages.outputs import SchedulerStats
from headrace.server.app import build_app
from headrace.server.http.listen import bind
from headrace.server.http.tls import reload_certificate, tls_files
from headrace.server.http.uvicorn_server import Server, uvicorn_config
from headrace.server.settings.server import ServerSettings
from tests.engine.fakes import FACTORY, make_config, save_tokenizer
from tests.server.conftest import check_error, frames_of
from tests.server.fakes import FakeEngine, say
from tests.waiting import PATIENCE, until

ClientOf = Callable[..., httpx.AsyncClient]
PROMPT = {"prompt": "ab", "max_tokens": 5}
HERE = "tests.server.test_operations"


@contextlib.asynccontextmanager
async def serving(engine: FakeEngine, **options: Any) -> AsyncIterator[tuple[Server, int]]:
    """A server as `headrace serve` has it, on loopback; with its port."""
    settings = ServerSettings(host="127.0.0.1", port=0, **options)
    server = Server(uvicorn_config(build_app(engine, settings), settings, 1.0))
    listener = bind(settings)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started)
    try:
        yield server, listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task


# -- middleware ------------------------------------------------------------------------------


class Shouting:
    """An ASGI middleware that changes every piece of an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def shout(message: Message) -> None:
            if message["type"] == "http.response.body":
                message["body"] = message["body"].upper()
            await send(message)

        await self._app(scope, receive, shout if scope["type"] == "http" else send)


async def tag(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    response.headers["x-tag"] = "yes"
    return response


def plain(_request: Request) -> None:
    pass


@pytest.mark.parametrize("stream", [False, True])
async def test_middleware_by_import_path_sees_all_of_an_answer(
    engine: FakeEngine, stream: bool
) -> None:
    engine.script = say("quiet")
    names = [f"{HERE}.Shouting", f"{HERE}:tag"]
    async with (
        serving(engine, middleware=names) as (_, port),
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        url = f"http://127.0.0.1:{port}/v1/completions"
        answer = await client.post(url, json={**PROMPT, "stream": stream})
    assert answer.headers["x-tag"] == "yes"
    assert answer.status_code == 200
    assert "Q" in answer.text
    assert not any(letter.islower() for letter in answer.text)


@pytest.mark.parametrize("path", [f"{HERE}.plain", f"{HERE}.PROMPT", f"{HERE}.nothing", "x"])
def test_middleware_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="middleware: "):
        build_app(None, ServerSettings(middleware=[path]))


# -- logs ------------------------------------------------------------------------------------


async def test_access_log_names_keys_and_tells_neither_keys_nor_queries(
    engine: FakeEngine, client_of: ClientOf, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    path = tmp_path / "keys.json"
    path.write_text('{"keys": [{"name": "alice", "key": "sk-secret"}]}')
    client = client_of(
        engine, api_key_file=str(path), disable_access_log_for_endpoints=["/health,/ping", "/livez"]
    )
    headers = {"Authorization": "Bearer sk-secret"}
    await client.get("/v1/models?token=sk-secret", headers=headers)
    await client.get("/v1/x%0Ay")
    for quiet in ("/health", "/ping", "/livez"):
        assert (await client.get(quiet)).status_code == 200
    lines = [one for one in caplog.records if one.name == "headrace.server.http.access_log"]
    assert [getattr(one, LINE_FIELDS)["status"] for one in lines] == [200, 401]
    assert "GET /v1/models -> 200" in lines[0].getMessage()
    assert lines[0].getMessage().endswith("key alice)")
    assert "/v1/x%0Ay" in lines[1].getMessage()
    assert "sk-secret" not in caplog.text
    caplog.clear()
    await client_of(engine, disable_uvicorn_access_log=True).get("/v1/models")
    assert "access_log" not in caplog.text


def test_json_lines_hold_fields_and_traces() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        info = (type(error), error, error.__traceback__)
    record = logging.LogRecord("headrace.x", logging.ERROR, "f.py", 1, "a %s\n", ("b",), info)
    setattr(record, LINE_FIELDS, {"status": 200})
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert (line["level"], line["message"], line["status"]) == ("ERROR", "a b\n", 200)
    assert "ValueError: no" in line["exception"]


# -- TLS -------------------------------------------------------------------------------------


def make_certificate(folder: Path, name: str) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "1", "-subj", f"/CN={name}", "-keyout", key, "-out", certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(key), str(certificate)


def shown_certificate(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port))


async def test_renewed_certificate_is_shown_and_a_broken_one_is_not(
    engine: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, certificate = (Path(path) for path in make_certificate(tmp_path, "first"))
    new_key, new_certificate = (Path(path) for path in make_certificate(tmp_path, "second"))
    first = certificate.read_text()
    options = {"ssl_keyfile": str(key), "ssl_certfile": str(certificate)}
    async with serving(engine, **options) as (server, port):
        settings = ServerSettings(**options)
        assert tls_files(settings) == [str(certificate), str(key)]
        context = server.config.ssl
        assert context is not None
        assert await asyncio.to_thread(shown_certificate, port) == first
        certificate.write_text(new_certificate.read_text())  # its key is not there yet
        reload_certificate(context, settings)
        assert "the TLS certificate stays as it was" in caplog.text
        assert await asyncio.to_thread(shown_certificate, port) == first
        key.write_text(new_key.read_text())
        reload_certificate(context, settings)
        assert await asyncio.to_thread(shown_certificate, port) == new_certificate.read_text()


async def open_silently(port: int, number: int) -> list[socket.socket]:
    """Connections that never begin their handshake."""
    made = [socket.create_connection(("127.0.0.1", port)) for _ in range(number)]
    await asyncio.sleep(0.05)
    return made


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


async def test_handshakes_count_as_connections_and_have_their_time_limit(
    engine: FakeEngine, tmp_path: Path
) -> None:
    key, certificate = make_certificate(tmp_path, "localhost")
    options = {"ssl_keyfile": key, "ssl_certfile": certificate}
    async with serving(engine, **options, max_connections=3, header_timeout=600) as (_, port):
        silent = await open_silently(port, 6)
        try:
            await until(lambda: sum(map(is_open, silent)) == 3)
            with pytest.raises(OSError):
                await asyncio.to_thread(shown_certificate, port)
        finally:
            for connection in silent:
                connection.close()
    async with serving(engine, **options, max_connections=3, header_timeout=0.6) as (_, port):
        silent = await open_silently(port, 3)
        try:
            await until(lambda: not any(map(is_open, silent)))
        finally:
            for connection in silent:
                connection.close()
        context = ssl.create_default_context(cafile=certificate)
        async with httpx.AsyncClient(verify=context, timeout=PATIENCE) as client:
            answer = await client.get(f"https://localhost:{port}/version")
            assert answer.status_code == 200
        # A handshake that fails gives its place back at once.
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)) as broken:
                broken.sendall(b"GET / HTTP/1.1\r\n\r\n")
                await until(lambda one=broken: not is_open(one))  # type: ignore[misc]
        assert await asyncio.to_thread(shown_certificate, port)


async def test_end_of_a_server_does_not_wait_for_handshakes(
    engine: FakeEngine, tmp_path: Path
) -> None:
    key, certificate = make_certificate(tmp_path, "localhost")
    options = {"ssl_keyfile": key, "ssl_certfile": certificate}
    async with asyncio.timeout(PATIENCE):  # of the 600 s of --header-timeout
        async with serving(engine, **options, header_timeout=600) as (_, port):
            (silent,) = await open_silently(port, 1)
        with silent:
            await until(lambda: not is_open(silent))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"ssl_certfile": "x"}, "must be given together"),
        ({"ssl_cert_reqs": 2}, "needs ssl_ca_certs"),
        ({"ssl_cert_reqs": 3}, "0, 1 or 2"),
        ({"log_format": "xml"}, "log_format"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ServerSettings(**options)


# -- admin routes ----------------------------------------------------------------------------


async def test_admin_routes_are_there_only_when_switched_on(
    engine: FakeEngine, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_error(await client_of(engine).post("/sleep"), 404)
    assert (await client_of(engine, enable_admin_routes=True).post("/sleep")).status_code == 200
    monkeypatch.setenv("HEADRACE_SERVER_DEV_MODE", "1")
    assert (await client_of(engine).get("/is_sleeping")).json() == {"is_sleeping": True}


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("POST", "/sleep?level=2&mode=wait", {"status": "sleeping", "level": 2}),
        ("POST", "/wake_up?tags=weights&tags=kv_cache",
         {"status": "awake", "tags": ["weights", "kv_cache"]}),
        ("POST", "/wake_up", {"status": "awake", "tags": None}),
        ("POST", "/pause?mode=keep&clear_cache=false", {"status": "paused"}),
        ("POST", "/resume", {"status": "resumed"}),
        ("POST", "/reset_prefix_cache?reset_running_requests=true", {"success": True}),
        ("POST", "/start_profile", {"status": "profiling"}),
    ],
)  # fmt: skip
async def test_admin_routes_do_what_their_names_say(
    engine: FakeEngine, client_of: ClientOf, method: str, path: str, answer: dict[str, Any]
) -> None:
    client = client_of(engine, enable_admin_routes=True)
    assert (await client.request(method, path)).json() == answer
    assert len(engine.verbs) == 1


@pytest.mark.parametrize(
    ("path", "param"),
    [("/sleep?level=x", "level"), ("/sleep?mode=now", "mode"), ("/pause?clear_cache=maybe",
     "clear_cache"), ("/sleep?level=-1", "level")],
)  # fmt: skip
async def test_bad_values_of_admin_routes_name_the_field(
    engine: FakeEngine, client_of: ClientOf, path: str, param: str
) -> None:
    check_error(await client_of(engine, enable_admin_routes=True).post(path), 400, param)
    assert not engine.verbs


async def test_profile_without_a_folder_is_a_400_that_names_the_option(
    client_of: ClientOf, tmp_path: Path
) -> None:
    config = make_config(tokenizer=save_tokenizer(tmp_path / "tokenizer"))
    counting = AsyncLLM(config, executor_factory=FACTORY)
    try:
        client = client_of(cast(Any, counting), enable_admin_routes=True)
        error = check_error(await client.post("/start_profile"), 400)
        assert "--profiler-dir" in error["message"]
    finally:
        counting.shutdown()


async def test_admin_routes_need_the_scope_and_info_tells_no_secret(
    engine: FakeEngine, client_of: ClientOf, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    keys = [{"name": "a", "key": "sk-a"}, {"name": "r", "key": "sk-r", "scopes": ["admin"]}]
    path.write_text(json.dumps({"keys": keys}))
    client = client_of(
        engine, api_key=["sk-plain"], api_key_file=str(path), enable_admin_routes=True
    )
    for route in ("/sleep", "/abort_requests"):
        check_error(await client.post(route), 401)
        check_error(await client.post(route, headers={"Authorization": "Bearer sk-a"}), 403)
    answer = await client.get("/server_info", headers={"Authorization": "Bearer sk-r"})
    assert answer.json()["server"]["enable_admin_routes"] is True
    assert "sk-" not in answer.text


async def test_abort_requests_ends_those_named_or_all(
    engine: FakeEngine, client_of: ClientOf
) -> None:
    client = client_of(engine, enable_admin_routes=True)
    engine.gate.clear()
    asked = [
        asyncio.create_task(
            client.post("/v1/completions", json={**PROMPT, "request_id": name, "stream": True})
        )
        for name in ("x", "y", "z")
    ]
    await until(lambda: len(engine.live) == 3)
    answer = await client.post("/abort_requests", json={"request_ids": ["cmpl-x", "cmpl-no"]})
    assert answer.json() == {"status": "aborted", "num_ended": 1}
    check_error(await client.post("/abort_requests", content=b"{"), 400, "request_ids")
    assert (await client.post("/abort_requests")).json()["num_ended"] == 3
    engine.gate.set()
    for task in asked:
        last = frames_of((await task).text)[-2]
        assert last["choices"][0]["finish_reason"] == "abort"


# -- load in headers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("TEXT",
         "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=7"),
        ("json",
         'JSON {"named_metrics": {"kv_cache_usage_perc": 0.25, "num_requests_waiting": 7}}'),
        ("XML", None),
        (None, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
async def test_load_is_told_in_a_header_to_those_who_ask(
    engine: FakeEngine,
    client_of: ClientOf,
    monkeypatch: pytest.MonkeyPatch,
    form: str | None,
    wanted: str | None,
    stream: bool,
) -> None:
    stats = SchedulerStats(num_waiting=7, num_blocks=8, num_free_blocks=6)
    monkeypatch.setattr(FakeEngine, "scheduler_stats", property(lambda _: stats))
    headers = {} if form is None else {"endpoint-load-metrics-format": form}
    client = client_of(engine, api_key=["k"])
    body = {**PROMPT, "stream": stream}
    known = {**headers, "Authorization": "Bearer k"}
    answer = await client.post("/v1/completions", json=body, headers=known)
    assert answer.headers.get("endpoint-load-metrics") == wanted
    stranger = await client.post("/v1/completions", json=body, headers=headers)
    assert "endpoint-load-metrics" not in stranger.headers
