"""The routes that answer with text, whole or as a stream."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.server.access.caller import caller_of
from headrace.server.generation.answer import json_response
from headrace.server.http.body import with_warning
from headrace.server.routes import chat, completions
from headrace.server.routes.chat_stream import ChatFrames
from headrace.server.routes.completions_stream import CompletionFrames
from headrace.server.routes.invocations import invoke
from headrace.server.state import ServerState
from headrace.server.streams.live import LiveRequests, unless_disconnected
from headrace.server.streams.resume import EVENT_ID_HEADER, ResumableStreams
from headrace.server.streams.resume_check import asks_for_events, check_repeated, refuse_event_id
from headrace.server.streams.sse import EventStream, FrameMaker


async def create_completion(state: ServerState, request: Request) -> Response:
    """Continue prompts."""
    refuse_event_id(request)
    plan, live, headers = await completions.answer_completion(state, request)
    if plan.body.stream:
        return _stream(state, live, CompletionFrames(plan), headers)
    return await _respond_whole(
        state, request, live, completions.whole_completion(plan, live), headers
    )


async def create_chat_completion(state: ServerState, request: Request) -> Response:
    """Answer a conversation, or go on with an answer whose connection was lost."""
    resumable: ResumableStreams = request.app.state.resumable
    caller, event_id = caller_of(request.scope), request.headers.get(EVENT_ID_HEADER)
    if event_id is not None:
        digest = await check_repeated(state, request)
        return await resumable.resume(caller.name, event_id, digest)
    plan, live, headers = await chat.answer_chat(state, request)
    if plan.body.stream:
        if asks_for_events(plan.body, state.settings):
            if resumable.has_room:
                return await resumable.start(
                    caller.name, plan.body.digest, live, state.cut, ChatFrames(plan), headers
                )
            headers = with_warning(headers, "stream is not resumable: too many are kept")
        return _stream(state, live, ChatFrames(plan), headers)
    return await _respond_whole(state, request, live, chat.whole_chat(plan, live), headers)


def _stream(
    state: ServerState, live: LiveRequests, frames: FrameMaker, headers: dict[str, str]
) -> EventStream:
    return EventStream(live, state.cut, frames, headers, state.settings.sse_keep_alive_interval)


async def _respond_whole(
    state: ServerState,
    request: Request,
    live: LiveRequests,
    answer: Coroutine[Any, Any, msgspec.Struct],
    headers: dict[str, str],
) -> Response:
    """Wait for an answer; a client that goes away ends the requests behind it."""
    async with live:
        record = await unless_disconnected(request.receive, state.cut, answer)
    return json_response(record, headers)


async def invocations(state: ServerState, request: Request) -> Response:
    """Answer as the route for text whose fields the body has."""
    answers = {
        "messages": create_chat_completion,
        "prompt": create_completion,
        "prompt_embeds": create_completion,
    }
    return await invoke(state, request, answers)
