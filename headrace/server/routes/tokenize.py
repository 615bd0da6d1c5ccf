"""POST /tokenize and /detokenize: text and token ids as the engine sees them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.client import EngineClient
from headrace.errors import ValidationError
from headrace.inputs import EngineInput
from headrace.server.generation.answer import json_response
from headrace.server.generation.prompts import (
    THREAD_FROM,
    check_chat_options,
    check_token_ids,
    off_loop,
    rendered_chat,
)
from headrace.server.http.body import read_body
from headrace.server.protocol.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from headrace.server.settings.server import ServerSettings
from headrace.server.state import ServerState

NAMES_OF_PLACES = ("name_or_path", "auto_map")
"""What a configuration file may say that is of this machine, or would have clients run code."""


async def tokenize(state: ServerState, request: Request) -> Response:
    """The token ids of a prompt, or of a conversation through the chat template."""
    body, headers = await read_body(request, TokenizeRequest, state)
    engine = state.engine
    state.model_name(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise ValidationError("send either prompt or messages", param="prompt")
    if body.messages is not None:
        check_chat_options(body, state.settings)
    most = state.settings.max_tokenize_length
    if body.prompt is not None and len(body.prompt) > most:
        raise ValidationError(
            f"prompt may have {most} characters (--max-tokenize-length), it has {len(body.prompt)}",
            param="prompt",
        )

    def work() -> TokenizeResponse:
        rendered = _render(engine, body, state.settings)
        strings = None
        if body.return_token_strs:
            tokenizer = engine.tokenizer
            strings = [tokenizer.token_text(token_id) for token_id in rendered.prompt_token_ids]
        ids = rendered.prompt_token_ids
        return TokenizeResponse(len(ids), engine.max_model_len, ids, strings)

    size = THREAD_FROM if body.prompt is None else len(body.prompt)
    return json_response(await off_loop(size, work, state.text_slots), headers)


async def tokenizer_info(state: ServerState, _request: Request) -> Response:
    """What is known about the tokenizer: its configuration file, where the model has one."""
    if not state.settings.enable_tokenizer_info_endpoint:
        raise HTTPException(404)
    model, tokenizer = state.engine.config.model, state.engine.tokenizer
    given = await asyncio.to_thread(_config_file, model.tokenizer)
    known = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.max_model_len,
        **{name: value for name, value in given.items() if name not in NAMES_OF_PLACES},
        "vocab_size": tokenizer.vocab_size,
        "chat_template": model.chat_template or tokenizer.chat_template,
    }
    for role in ("bos_token", "eos_token", "pad_token", "unk_token"):
        known[role] = getattr(tokenizer, role)
    return json_response(known)


def _config_file(place: str | None) -> dict[str, Any]:
    """The file tokenizer_config.json of a model's folder; nothing where there is none."""
    try:
        text = (Path(place or "") / "tokenizer_config.json").read_text(encoding="utf-8")
        found = json.loads(text)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _render(engine: EngineClient, body: TokenizeRequest, settings: ServerSettings) -> EngineInput:
    if body.messages is None:
        special = body.add_special_tokens is not False
        # Not through the renderer: its limit of length is for prompts of the engine.
        ids = engine.tokenizer.encode(body.prompt or "", add_special_tokens=special)
        return EngineInput(prompt_token_ids=ids)
    return rendered_chat(engine, body, settings)


async def detokenize(state: ServerState, request: Request) -> Response:
    """The text of token ids."""
    body, headers = await read_body(request, DetokenizeRequest, state)
    engine = state.engine
    state.model_name(body.model)
    tokenizer = engine.tokenizer
    most = state.settings.max_tokenize_length
    if len(body.tokens) > most:
        raise ValidationError(
            f"tokens may hold {most} ids (--max-tokenize-length), got {len(body.tokens)}",
            param="tokens",
        )

    def work() -> DetokenizeResponse:
        check_token_ids(body.tokens, "tokens")
        largest = max(body.tokens, default=0)
        if largest >= tokenizer.vocab_size:
            raise ValidationError(
                f"{largest} is not in the vocabulary of {tokenizer.vocab_size} tokens",
                param="tokens",
                value=largest,
            )
        # Special tokens too: what /tokenize gave comes back.
        return DetokenizeResponse(tokenizer.decode(body.tokens, skip_special_tokens=False))

    return json_response(await off_loop(len(body.tokens), work, state.text_slots), headers)
