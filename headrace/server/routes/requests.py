"""/v1/requests: what is under way, for whoever sent it and for operators; and how to end it."""

from __future__ import annotations

import time
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.client import RequestOutputStream
from headrace.messages.outputs import RequestProgress
from headrace.server.access.caller import caller_of
from headrace.server.access.open_requests import OpenRequest, find_request
from headrace.server.errors import NotFoundError
from headrace.server.generation.answer import json_response
from headrace.server.state import ServerState


class RequestInfo(msgspec.Struct, kw_only=True):
    """One request under way. With several prompts or answers: the stage of the one that is
    furthest, the place of the one that is next, and the sums of their tokens; a prompt counts
    once, however many answers it gets."""

    id: str
    """As its answer names it; others may have the same."""
    handle: str
    """What only this one is called."""
    object: Literal["request"] = "request"
    key: str | None
    route: str
    arrived: float
    age: float
    stage: Literal["starting", "waiting", "prefill", "decode", "ending"]
    position: int | None
    num_answers: int
    prompt_tokens: int
    computed_prompt_tokens: int
    completion_tokens: int
    num_preemptions: int


class RequestList(msgspec.Struct):
    """The body of GET /v1/requests."""

    data: list[RequestInfo]
    object: Literal["list"] = "list"


class RequestEnded(msgspec.Struct):
    """The body of DELETE /v1/requests/{id}."""

    id: str
    handle: str
    object: Literal["request.deleted"] = "request.deleted"
    deleted: Literal[True] = True


async def list_requests(state: ServerState, request: Request) -> Response:
    """The requests under way, the oldest first: the caller's own; all of them, for `admin`."""
    opened = sorted(state.open_requests.of(caller_of(request.scope)), key=lambda one: one.began)
    async with state.progress_lock:  # each look costs the core: one at a time
        core_ids = [core_id for one in opened for core_id in one.core_ids]
        progress = await state.engine.progress(core_ids) if core_ids else {}
    return json_response(RequestList([_info(one, progress) for one in opened]))


async def delete_request(state: ServerState, request: Request) -> Response:
    """End a request under way, named by its handle, or by its id where no other has the same: its
    client gets what there is, and finish_reason `abort`."""
    wanted = request.path_params["request_id"]
    found = find_request(state.open_requests.of(caller_of(request.scope)), wanted)
    if found is None:
        raise NotFoundError(
            f"there is no request {wanted!r} under way", param="request_id", value=wanted
        )
    await found.end(state.engine)
    return json_response(RequestEnded(found.id, found.handle))


def _info(opened: OpenRequest, progress: dict[str, RequestProgress]) -> RequestInfo:
    # Beams have their beginnings as prompts, too: hence the bound below.
    num_computed = sum(_num_computed(one, progress) for one in opened.streams)
    metrics = [stream.metrics for stream in opened.streams]
    parts = [progress[core_id] for core_id in opened.core_ids if core_id in progress]
    places = [part.position for part in parts if part.position]
    stage: Literal["starting", "waiting", "prefill", "decode", "ending"]
    if parts:
        stage = max((part.stage for part in parts), key=("waiting", "prefill", "decode").index)
    elif any(one.first_token_ts is not None and not one.finish_reasons for one in metrics):
        stage = "decode"  # between two rounds of a search
    else:
        stage = "ending" if any(one.finish_reasons for one in metrics) else "starting"
    return RequestInfo(
        id=opened.id,
        handle=opened.handle,
        key=opened.caller.name,
        route=opened.route,
        arrived=opened.caller.arrived,
        age=round(time.time() - opened.caller.arrived, 3),
        stage=stage,
        position=min(places, default=None) if stage == "waiting" else None,
        num_answers=opened.num_answers,
        prompt_tokens=opened.num_prompt_tokens,
        computed_prompt_tokens=min(num_computed, opened.num_prompt_tokens),
        completion_tokens=sum(one.num_generation_tokens for one in metrics),
        num_preemptions=sum(part.num_preemptions for part in parts),
    )


def _num_computed(stream: RequestOutputStream, progress: dict[str, RequestProgress]) -> int:
    """Prompt tokens of one prompt that are computed, for the answer that is furthest."""
    parts = [progress[core_id] for core_id in stream.core_ids if core_id in progress]
    return max((part.num_computed_tokens for part in parts), default=0)
