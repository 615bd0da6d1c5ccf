"""Ids that clients give their requests, in a header or in the body, and the header of answers."""

from __future__ import annotations

import uuid

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.errors import ValidationError
from headrace.server.errors import error_response

REQUEST_ID_HEADER = "X-Request-Id"


class RequestIdHeader:
    """Answers with an X-Request-Id header: the client's, or a new one. One that cannot be echoed is
    refused."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            request_id = _id_in_header(Headers(scope=scope)) or uuid.uuid4().hex
        except ValidationError as error:
            await error_response(error)(scope, receive, send)
            return

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", []),
                    (b"x-request-id", request_id.encode("latin-1")),
                ]
            await send(message)

        await self._app(scope, receive, send_with_id)


def request_id_stem(request: Request, from_body: str | None) -> str:
    """The id a request's answer is named after: the header's, the body's, or a new one.

    Raises:
        ValidationError: an id that cannot be echoed; names the header, or the field.
    """
    given = _id_in_header(request.headers)
    if given is not None:
        return given
    return uuid.uuid4().hex if from_body is None else _checked_id(from_body, "request_id")


def _id_in_header(headers: Headers) -> str | None:
    given = headers.get(REQUEST_ID_HEADER)
    return _checked_id(given, REQUEST_ID_HEADER) if given else None


def _checked_id(text: str, param: str) -> str:
    """A client's id that is fit to be echoed."""
    if 0 < len(text) <= 128 and text.isascii() and text.isprintable():
        return text
    raise ValidationError(f"{param} must be 1 to 128 printable ASCII characters", param=param)
