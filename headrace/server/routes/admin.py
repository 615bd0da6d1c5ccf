"""Routes for operators: stop and go on, give memory back, profile. Only where switched on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any, Literal, TypeAlias, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import headrace
from headrace.errors import ConfigError, UnsupportedError, ValidationError
from headrace.messages.requests import PauseMode
from headrace.server.access.open_requests import find_request
from headrace.server.generation.answer import json_response
from headrace.server.protocol.common import RequestRecord
from headrace.server.settings.server import ServerSettings
from headrace.server.state import ServerState

Handler: TypeAlias = Callable[[ServerState, Request], Awaitable[Response]]
MAX_BODY = 1 << 20


class AbortBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of /abort_requests; without ids all are ended."""

    request_ids: list[str] | None = None


class Sleeping(msgspec.Struct):
    """The answer of /sleep."""

    level: int
    status: Literal["sleeping"] = "sleeping"


class Waking(msgspec.Struct):
    """The answer of /wake_up."""

    status: Literal["awake", "sleeping"]
    """`sleeping` while something of it still does."""
    tags: list[str] | None


class SleepState(msgspec.Struct):
    """The answer of /is_sleeping."""

    is_sleeping: bool


class PauseState(msgspec.Struct):
    """The answer of /is_paused."""

    is_paused: bool


class Done(msgspec.Struct):
    """The answer of /pause, /resume and /start_profile."""

    status: Literal["paused", "resumed", "profiling"]


class CacheReset(msgspec.Struct):
    """The answer of /reset_prefix_cache."""

    success: bool
    """Whether nothing was in use that stood in the way."""


class Profile(msgspec.Struct):
    """The answer of /stop_profile."""

    files: list[str]
    status: Literal["stopped"] = "stopped"


class ServerInfo(msgspec.Struct):
    """The answer of /server_info."""

    version: str
    engine: dict[str, Any]
    """The engine's settings, by group."""
    server: dict[str, Any]
    """The server's settings, without secrets."""


class Aborted(msgspec.Struct):
    """The answer of /abort_requests."""

    num_ended: int
    status: Literal["aborted"] = "aborted"


async def sleep(state: ServerState, request: Request) -> Response:
    """Stop, and give memory back: `level` 0 none, 1 the KV cache, 2 the weights too; `mode` abort,
    wait or keep says what becomes of requests under way."""
    level = _number(request, "level", 1)
    mode = _mode(request)
    with _measured(state, "sleep"):
        await state.engine.sleep(level, mode)
    if state.metrics is not None:
        state.metrics.sleep.set_level(level)
    return json_response(Sleeping(level))


async def wake_up(state: ServerState, request: Request) -> Response:
    """Take back what sleeps: `tags` of weights, kv_cache and scheduling; all without them."""
    tags = request.query_params.getlist("tags") or None
    with _measured(state, "wake_up"):
        is_awake = await state.engine.wake_up(tags)
    if is_awake and state.metrics is not None:
        state.metrics.sleep.set_level(None)
    return json_response(Waking("awake" if is_awake else "sleeping", tags))


async def is_sleeping(state: ServerState, _request: Request) -> Response:
    """Whether anything sleeps."""
    return json_response(SleepState(await state.engine.is_sleeping()))


async def pause(state: ServerState, request: Request) -> Response:
    """Schedule nothing more; new requests are queued. `mode` as for /sleep, `clear_cache`."""
    clear_cache = _switch(request, "clear_cache", True)
    await state.engine.pause_generation(mode=_mode(request), clear_cache=clear_cache)
    return json_response(Done("paused"))


async def resume(state: ServerState, _request: Request) -> Response:
    """Undo /pause."""
    await state.engine.resume_generation()
    return json_response(Done("resumed"))


async def is_paused(state: ServerState, _request: Request) -> Response:
    """Whether nothing is scheduled, by pause or by sleep."""
    return json_response(PauseState(await state.engine.is_paused()))


async def reset_prefix_cache(state: ServerState, request: Request) -> Response:
    """Forget all cached prefixes; not while blocks are in use, unless `reset_running_requests`."""
    running = _switch(request, "reset_running_requests", False)
    external = _switch(request, "reset_external", False)
    return json_response(CacheReset(await state.engine.reset_prefix_cache(running, external)))


async def start_profile(state: ServerState, _request: Request) -> Response:
    """Profile the steps to come into `--profiler-dir`."""
    try:
        await state.engine.start_profile()
    except ConfigError as error:  # no folder: the server cannot do it, as it was started
        raise UnsupportedError(str(error)) from None
    return json_response(Done("profiling"))


async def stop_profile(state: ServerState, _request: Request) -> Response:
    """End the profile; the files it is in."""
    return json_response(Profile(await state.engine.stop_profile()))


async def server_info(state: ServerState, _request: Request) -> Response:
    """Version and settings, without secrets."""
    config = msgspec.to_builtins(state.engine.config)
    settings = {
        field.name: getattr(state.settings, field.name)
        for field in fields(ServerSettings)
        if not field.metadata.get("secret")
    }
    return json_response(ServerInfo(headrace.__version__, config, settings))


async def abort_requests(state: ServerState, request: Request) -> Response:
    """End requests under way by their handles, or ids that no two have; all of them, when none are
    given."""
    wanted = None
    if body := await _body(request):
        try:
            wanted = msgspec.json.decode(body, type=AbortBody).request_ids
        except msgspec.DecodeError as error:
            raise ValidationError(f"the body is not valid: {error}", param="request_ids") from None
    ended = state.open_requests.all()
    if wanted is not None:
        known = {name for one in ended for name in (one.handle, one.id)}
        # All are found before the first is ended.
        found = {find_request(ended, name) for name in known.intersection(wanted)}
        ended = [one for one in ended if one in found]
    for one in ended:
        await one.end(state.engine)
    return json_response(Aborted(len(ended)))


ROUTES: tuple[tuple[str, str, Handler, type[RequestRecord] | None], ...] = (
    ("POST", "/sleep", sleep, None),
    ("POST", "/wake_up", wake_up, None),
    ("GET", "/is_sleeping", is_sleeping, None),
    ("POST", "/pause", pause, None),
    ("POST", "/resume", resume, None),
    ("GET", "/is_paused", is_paused, None),
    ("POST", "/reset_prefix_cache", reset_prefix_cache, None),
    ("POST", "/start_profile", start_profile, None),
    ("POST", "/stop_profile", stop_profile, None),
    ("GET", "/server_info", server_info, None),
    ("POST", "/abort_requests", abort_requests, None),
)


def _measured(state: ServerState, operation: str) -> AbstractContextManager[None]:
    return nullcontext() if state.metrics is None else state.metrics.sleep.operation(operation)


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValidationError(f"{name} must be a whole number, got {text[:20]!r}", param=name)
    return int(text)


def _switch(request: Request, name: str, default: bool) -> bool:
    text = request.query_params.get(name, str(default)).lower()
    if text not in ("true", "false", "1", "0"):
        raise ValidationError(f"{name} must be true or false", param=name)
    return text in ("true", "1")


def _mode(request: Request) -> PauseMode:
    mode = request.query_params.get("mode", "abort")
    if mode not in ("abort", "wait", "keep"):
        raise ValidationError(f"mode must be abort, wait or keep, got {mode[:20]!r}", param="mode")
    return cast(PauseMode, mode)


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise ValidationError(f"the body is larger than {MAX_BODY} bytes")
    return body
