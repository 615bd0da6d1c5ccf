"""POST .../render: the prompts that a request comes to, without an answer to them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from headrace.inputs import EngineInput
from headrace.server.generation.answer import json_response
from headrace.server.http.body import read_body
from headrace.server.protocol.chat import ChatRequest
from headrace.server.protocol.completions import CompletionRequest
from headrace.server.protocol.tokenize import RenderedPrompt
from headrace.server.routes.chat import plan_chat
from headrace.server.routes.completions import plan_completion
from headrace.server.state import ServerState


async def render_chat(state: ServerState, request: Request) -> Response:
    """Run the chat template over a conversation and tokenise it, after all checks of a chat."""
    body, headers = await read_body(request, ChatRequest, state)
    plan = await plan_chat(state, request, body)
    rendered = _rendered(state, plan.head.id, plan.head.model, plan.prompt)
    return json_response(rendered, headers)


async def render_completion(state: ServerState, request: Request) -> Response:
    """Tokenise prompts, after all checks of a completion."""
    body, headers = await read_body(request, CompletionRequest, state)
    plan = await plan_completion(state, request, body)
    rendered = [
        _rendered(state, f"{plan.head.id}-{index}", plan.head.model, prompt)
        for index, prompt in enumerate(plan.prompts)
    ]
    return json_response(rendered, headers)


def _rendered(
    state: ServerState, request_id: str, model: str, prompt: EngineInput
) -> RenderedPrompt:
    return RenderedPrompt(
        request_id=request_id,
        model=model,
        token_ids=prompt.prompt_token_ids,
        prompt=prompt.prompt,
        cache_salt=prompt.cache_salt,
        max_model_len=state.engine.max_model_len,
    )
