"""Which requests ask for a stream that can be resumed, and which for the rest of one."""

from __future__ import annotations

from starlette.requests import Request

from headrace.errors import ValidationError
from headrace.server.http.body import read_body
from headrace.server.protocol.chat import ChatRequest
from headrace.server.protocol.common import GenerationRequest
from headrace.server.settings.server import ServerSettings
from headrace.server.state import ServerState
from headrace.server.streams.resume import EVENT_ID_HEADER


def asks_for_events(body: GenerationRequest, settings: ServerSettings) -> bool:
    """Whether a stream is to be one that can be resumed."""
    options = body.stream_options
    return settings.enable_resumable_streams or bool(options is not None and options.resumable)


def refuse_event_id(request: Request) -> None:
    """Refuse a Last-Event-ID where no stream can be resumed: its client would take an answer from
    the start for the rest of one.

    Raises:
        ValidationError: names the header.
    """
    if EVENT_ID_HEADER in request.headers:
        raise ValidationError(
            f"only streams of /v1/chat/completions can be resumed: leave out {EVENT_ID_HEADER}",
            param=EVENT_ID_HEADER,
        )


async def check_repeated(state: ServerState, request: Request) -> bytes | None:
    """Refuse a request with a Last-Event-ID that does not ask for a stream of events: the answer
    would not be what it wants. One without a body wants what the header says.

    Returns:
        The digest of the body; None without one.

    Raises:
        ValidationError: names the field. Else what `read_body` raises.
    """
    headers = request.headers
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return None
    body, _warnings = await read_body(request, ChatRequest, state)
    if not body.stream:
        raise ValidationError(
            f"the header {EVENT_ID_HEADER} goes on with a stream: send stream=true, or no such "
            "header",
            param="stream",
        )
    if not asks_for_events(body, state.settings):
        raise ValidationError(
            f"the header {EVENT_ID_HEADER} goes on with a stream whose events have ids: send "
            "stream_options.resumable=true, or no such header",
            param="stream_options.resumable",
        )
    return body.digest
