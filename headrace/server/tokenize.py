"""POST /tokenize and /detokenize: text and token ids as the engine sees them."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.client import EngineClient
from headrace.errors import ValidationError
from headrace.inputs import EngineInput
from headrace.server.answer import json_response
from headrace.server.body import read_body
from headrace.server.prompts import THREAD_FROM, check_chat_options, check_token_ids, text_size
from headrace.server.protocol.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from headrace.server.state import ServerState


async def tokenize(state: ServerState, request: Request) -> Response:
    """The token ids of a prompt, or of a conversation through the chat template."""
    body, headers = await read_body(request, TokenizeRequest, state.settings)
    engine = state.engine
    state.model_name(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ValidationError("send either prompt or messages", param="prompt")
    if body.messages is not None:
        check_chat_options(body, state.settings)

    def work() -> TokenizeResponse:
        rendered = _render(engine, body)
        strings = None
        if body.return_token_strs:
            tokenizer = engine.tokenizer
            strings = [tokenizer.token_text(token_id) for token_id in rendered.prompt_token_ids]
        ids = rendered.prompt_token_ids
        return TokenizeResponse(len(ids), engine.max_model_len, ids, strings)

    size = len(body.prompt) if body.prompt is not None else text_size(body.messages or [])
    answer = await asyncio.to_thread(work) if size >= THREAD_FROM else work()
    return json_response(answer, headers)


def _render(engine: EngineClient, body: TokenizeRequest) -> EngineInput:
    if body.messages is None:
        special = body.add_special_tokens is not False
        # Not through the renderer: its limit of length is for prompts of the engine.
        ids = engine.tokenizer.encode(body.prompt or "", add_special_tokens=special)
        return EngineInput(prompt_token_ids=ids)
    continues = bool(body.continue_final_message)
    return engine.renderer.render_chat(
        body.messages,
        chat_template=body.chat_template,
        add_generation_prompt=not continues and body.add_generation_prompt is not False,
        continue_final_message=continues,
        tools=body.tools,
        chat_template_kwargs=body.chat_template_kwargs,
        add_special_tokens=bool(body.add_special_tokens),
    )


async def detokenize(state: ServerState, request: Request) -> Response:
    """The text of token ids."""
    body, headers = await read_body(request, DetokenizeRequest, state.settings)
    engine = state.engine
    state.model_name(body.model)
    check_token_ids(body.tokens, "tokens")
    tokenizer = engine.tokenizer
    too_large = [token_id for token_id in body.tokens if token_id >= tokenizer.vocab_size]
    if too_large:
        raise ValidationError(
            f"{too_large[0]} is not in the vocabulary of {tokenizer.vocab_size} tokens",
            param="tokens",
            value=too_large[0],
        )
    if len(body.tokens) >= THREAD_FROM:
        text = await asyncio.to_thread(tokenizer.decode, body.tokens)
    else:
        text = tokenizer.decode(body.tokens)
    return json_response(DetokenizeResponse(text), headers)
