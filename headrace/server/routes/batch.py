"""POST /v1/chat/completions/batch: several conversations in, the next message of each out."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, TypeVar

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from headrace.errors import ValidationError
from headrace.server.generation.answer import json_response, sum_usages
from headrace.server.generation.beams import start_requests
from headrace.server.generation.response_format import fields_as_sent
from headrace.server.http.body import read_body
from headrace.server.protocol.chat import BatchChatRequest, ChatCompletion, ChatRequest
from headrace.server.routes.chat import ChatPlan, plan_chat, whole_chat
from headrace.server.state import ServerState
from headrace.server.streams.live import open_request, unless_disconnected
from headrace.server.streams.resume_check import refuse_event_id

T = TypeVar("T")
_NOT_IN_A_BATCH = {
    "stream": (False,), "n": (1,), "use_beam_search": (False,), "tools": (),
    "prompt_logprobs": (), "return_prompt_text": (False,),
}  # fmt: skip
"""Fields that the one answer to a batch has no place for -> values that ask for nothing."""


async def create_chat_batch(state: ServerState, request: Request) -> Response:
    """Answer several conversations, with one choice for each; all of them or none."""
    refuse_event_id(request)
    body, headers = await read_body(request, BatchChatRequest, state)
    plans = await _plan(state, request, body)
    async with AsyncExitStack() as stack:
        started = []
        with fields_as_sent(body), _limits_name_conversations():
            # Their sum, before the first is begun: one by one they might pass, and fail, for ever.
            state.engine.check_admission(len(plans))
            state.open_requests.check(
                [open_request(state, request, plan.head.id, [plan.job]) for plan in plans]
            )
            for plan in plans:
                live = await start_requests(state, request, plan.head.id, plan.body, [plan.job])
                started.append((plan, await stack.enter_async_context(live)))
        answers = [whole_chat(plan, live) for plan, live in started]
        done = await unless_disconnected(request.receive, state.cut, _all(answers))
    return json_response(_joined(done), headers)


async def _plan(state: ServerState, request: Request, body: BatchChatRequest) -> list[ChatPlan]:
    """Check and render all of them before the first is begun.

    Raises:
        ValidationError: names the field, and the conversation where it is one's fault.
    """
    for name, neutral in _NOT_IN_A_BATCH.items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            raise ValidationError(f"{name} is not possible in a batch", param=name)
    most = state.settings.max_prompts
    if not 1 <= len(body.messages) <= most:
        raise ValidationError(
            f"messages must hold 1 to {most} conversations (--max-prompts), "
            f"got {len(body.messages)}",
            param="messages",
        )
    state.model_name(body.model)
    with _limits_name_conversations(), state.admit(request, len(body.messages)):
        pass  # refused now, or each when it is rendered
    plans = []
    for index, conversation in enumerate(body.messages):
        try:
            plans.append(await plan_chat(state, request, _one(body, conversation)))
        except ValidationError as error:
            if not (error.param or "").startswith("messages"):
                raise
            raise ValidationError(
                f"conversation {index}: {error}", param=f"messages.{index}"
            ) from None
    return plans


@contextmanager
def _limits_name_conversations() -> Iterator[None]:
    """The number of answers is that of the conversations here.

    Raises: what is raised inside.
    """
    try:
        yield
    except ValidationError as error:
        if error.param == "n":
            error.param = "messages"
        raise


def _one(body: BatchChatRequest, conversation: list[dict[str, Any]]) -> ChatRequest:
    """The request for one conversation alone."""
    fields = {**dict(body), "messages": conversation}
    return ChatRequest.model_construct(body.model_fields_set, **fields)


async def _all(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results; the first failure ends the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def _joined(answers: Sequence[ChatCompletion]) -> ChatCompletion:
    """One answer with a choice for each conversation, in their order."""
    first = answers[0]
    choices = []
    for index, answer in enumerate(answers):
        [choice] = answer.choices
        choice.index = index
        choices.append(choice)
    first.choices = choices
    first.usage = sum_usages([answer.usage for answer in answers])
    first.prompt_token_ids, first.prompt_text = None, UNSET
    return first
