"""POST /invocations: one address for hosts that know only one; the body says which route it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from headrace.errors import ValidationError
from headrace.server.http.body import off_loop, parse_json, read_bytes
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
    depth = state.settings.max_json_depth
    body = await off_loop(raw, partial(parse_json, raw, depth))
    found = [field for field in answers if body.get(field) is not None]
    if not found:
        raise ValidationError(f"the body needs one of the fields {', '.join(answers)}")
    scope = dict(request.scope)
    scope["headers"] = [pair for pair in scope["headers"] if pair[0] != b"content-encoding"]
    return await answers[found[0]](state, Request(scope, _replay(raw, request)))


def _replay(raw: bytes, request: Request) -> Callable[[], Awaitable[Message]]:
    """A `receive` that gives the body once more, and then what comes after it."""
    messages: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else await request.receive()

    return receive
