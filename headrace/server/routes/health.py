"""Whether the server lives, is ready, and what it measured."""

from __future__ import annotations

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

import headrace
from headrace.errors import EngineDeadError, UnsupportedError
from headrace.server.errors import UnhealthyError
from headrace.server.generation.answer import json_response
from headrace.server.state import ServerState


class Version(msgspec.Struct):
    """The body of /version."""

    version: str


class Startup(msgspec.Struct):
    """The body of /startupz."""

    stage: str
    percent: int


async def health(state: ServerState, _request: Request) -> Response:
    """200 while the engine serves; 503 before, and after it died."""
    try:
        await state.engine.check_health()
    except EngineDeadError as error:
        raise UnhealthyError(str(error)) from error
    return Response()


async def live(_state: ServerState, _request: Request) -> Response:
    """200 while this process answers at all."""
    return Response()


async def startup(state: ServerState, _request: Request) -> Response:
    """How far start-up is; 200 once it is done."""
    answer = json_response(Startup(state.stage, round(100 * state.fraction)))
    answer.status_code = 503 if state.client is None else 200
    return answer


async def version(_state: ServerState, _request: Request) -> Response:
    """The version of headrace."""
    return json_response(Version(headrace.__version__))


async def metrics(state: ServerState, _request: Request) -> Response:
    """Everything measured, for Prometheus."""
    if state.metrics is None:
        raise UnsupportedError("this server takes no measurements")
    return Response(state.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})
