"""POST /invocations: one address for hosts that know only one; the body says which route it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import ValidationError
from headrace.server.http.body import DECODED, off_loop, parse_json, read_bytes
from headrace.server.state import ServerState

Answer: TypeAlias = Callable[[ServerState, Request], Awaitable[Response]]


async def invoke(state: ServerState, request: Request, answers: Mapping[str, Answer]) -> Response:
    """Answer as the route whose field is there.

    Args:
        answers: name of a field that only one route has -> that route.

    Raises:
        ValidationError: none of them is there. Else what the route raises.
    """
    raw = await read_bytes(request, state)
    body = await off_loop(raw, state, partial(parse_json, raw, state.settings))
    found = [field for field in answers if body.get(field) is not None]
    if not found:
        raise ValidationError(f"the body needs one of the fields {', '.join(answers)}")
    request.scope[DECODED] = raw, body
    del raw, body  # they need not stay until the answer is there
    return await answers[found[0]](state, request)
