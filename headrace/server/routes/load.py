"""GET /load: how many requests for text are being answered right now."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.server.generation.answer import json_response
from headrace.server.state import ServerState


class Load(msgspec.Struct):
    """The body of /load."""

    server_load: int
    """HTTP requests for text that have come and are not answered to the end."""


async def load(state: ServerState, _request: Request) -> Response:
    """How many requests for text are being answered, waiting ones included."""
    return json_response(Load(state.load))
