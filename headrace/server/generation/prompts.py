"""From the prompts of a request to rendered ones. Long texts are tokenised off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from types import NoneType
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from headrace.config.engine import ModelConfig
from headrace.engine.client import EngineClient
from headrace.errors import UnsupportedError, ValidationError
from headrace.inputs import EngineInput
from headrace.server.generation.embeds import EncodedEmbeds, decode_embeds, parse_embeds
from headrace.server.protocol.chat import ChatRequest
from headrace.server.protocol.common import GenerationRequest
from headrace.server.protocol.completions import CompletionRequest
from headrace.server.protocol.tokenize import TokenizeRequest
from headrace.server.settings.server import ServerSettings
from headrace.server.state import ServerState
from headrace.text.prompt_embeds import check_takes_embeds
from headrace.text.tokenizer import Tokenizer

RawPrompt: TypeAlias = str | list[int] | EncodedEmbeds
T = TypeVar("T")
MAX_TOKEN_ID = 2**31
THREAD_FROM = 4096
"""Characters from which on rendering leaves the event loop."""
SLOT_FROM = 256 << 10
"""Characters from which on rendering takes so long that it needs one of few slots."""


async def completion_prompts(
    body: CompletionRequest, model: ModelConfig, max_prompts: int
) -> list[RawPrompt]:
    """The prompts of a completion request: those of embeddings, then the others.

    Raises:
        ValidationError: a prompt that cannot be one, or no prompt, or more than allowed.
        UnsupportedError: embeddings on an engine that takes none, or to be echoed.
    """
    prompt = body.prompt
    items = prompt if isinstance(prompt, list) else ()
    size = len(items) + sum(len(item) for item in items[:max_prompts] if isinstance(item, list))
    return await off_loop(size, partial(_completion_prompts, body, model, max_prompts))


def _completion_prompts(
    body: CompletionRequest, model: ModelConfig, max_prompts: int
) -> list[RawPrompt]:
    if body.prompt_embeds is None:
        return parse_prompts(body.prompt, max_prompts)
    check_takes_embeds(model)
    if body.echo:
        raise UnsupportedError(
            "echo is not possible with prompt_embeds: such a prompt has no text", param="echo"
        )
    found: list[RawPrompt] = list(parse_embeds(body.prompt_embeds, max_prompts))
    if not body.prompt and isinstance(body.prompt, (str, list, NoneType)):
        return found  # clients that must send a prompt send an empty one
    return found + parse_prompts(body.prompt, max_prompts - len(found))


def parse_prompts(value: object, max_prompts: int) -> list[RawPrompt]:
    """A text, token ids, or a list of either, as prompts.

    Raises:
        ValidationError: another shape, an empty prompt, an element that is no token id, or more
            prompts than allowed.
    """
    if value is None:
        raise ValidationError("prompt is missing", param="prompt")
    if isinstance(value, str) or _is_ids(value):
        prompts: list[Any] = [value]
    elif isinstance(value, list) and value:
        prompts = value
    else:
        raise ValidationError(
            "prompt must be a text, a list of token ids, or a non-empty list of these",
            param="prompt",
        )
    if len(prompts) > max_prompts:
        raise ValidationError(
            f"a request may hold {max_prompts} prompts (--max-prompts), got {len(prompts)}",
            param="prompt",
        )
    for index, prompt in enumerate(prompts):
        param = "prompt" if prompts is not value else f"prompt.{index}"
        _check_prompt(prompt, param)
    return prompts


def _is_ids(value: object) -> bool:
    """A list that begins like token ids (whether all are is checked later)."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], (int, float))


def _check_prompt(prompt: object, param: str) -> None:
    if not isinstance(prompt, (str, list)):
        raise ValidationError(f"{param} must be a text or a list of token ids", param=param)
    if not prompt:
        raise ValidationError(f"{param} must not be empty", param=param)
    if isinstance(prompt, list):
        check_token_ids(prompt, param)


def check_token_ids(ids: Sequence[object], param: str) -> None:
    """Refuse what is not a token id in any vocabulary.

    Raises:
        ValidationError: names the first bad position.
    """
    if not ids:
        return
    if set(map(type, ids)) == {int}:
        numbers = cast("Sequence[int]", ids)
        if min(numbers) >= 0 and max(numbers) < MAX_TOKEN_ID:
            return
    for index, item in enumerate(ids):
        if type(item) is not int or not 0 <= item < MAX_TOKEN_ID:
            raise ValidationError(
                f"{param}.{index} is not a token id: {str(item)[:40]}", param=f"{param}.{index}"
            )


async def render_prompts(
    state: ServerState, prompts: Sequence[RawPrompt], body: GenerationRequest, *, special: bool
) -> list[EngineInput]:
    """Tokenise prompts.

    Args:
        special: whether to add the model's special tokens (BOS) to texts.

    Raises:
        ValidationError: as the renderer says.
    """
    engine = state.engine

    def render() -> list[EngineInput]:
        rendered = [_render(engine, prompt, special) for prompt in prompts]
        return [_finish(one, body, engine) for one in rendered]

    size = sum(len(prompt) for prompt in prompts)
    return await off_loop(size, render, state.text_slots if size >= SLOT_FROM else None)


def _render(engine: EngineClient, prompt: RawPrompt, special: bool) -> EngineInput:
    if not isinstance(prompt, EncodedEmbeds):
        return engine.renderer.render_prompt(prompt, add_special_tokens=special)
    return engine.renderer.render_prompt({"prompt_embeds": decode_embeds(prompt)})


async def render_chat(
    engine: EngineClient, body: ChatRequest, settings: ServerSettings
) -> EngineInput:
    """Run the chat template and tokenise.

    Raises:
        ValidationError: a message, or the template's own complaint.
    """

    def render() -> EngineInput:
        return _finish(rendered_chat(engine, body, settings), body, engine)

    # Always in a thread: a template is a program, and how long it takes nobody knows before.
    return await asyncio.to_thread(render)


def rendered_chat(
    engine: EngineClient, body: ChatRequest | TokenizeRequest, settings: ServerSettings
) -> EngineInput:
    """A conversation as the engine takes it: the same for every route."""
    continues = bool(body.continue_final_message)
    hides_tools = (
        isinstance(body, ChatRequest)
        and body.tool_choice == "none"
        and settings.exclude_tools_when_tool_choice_none
    )
    return engine.renderer.render_chat(
        body.messages or [],
        chat_template=body.chat_template,
        content_format=settings.chat_template_content_format,
        add_generation_prompt=not continues and body.add_generation_prompt is not False,
        continue_final_message=continues,
        tools=None if hides_tools else body.tools,
        chat_template_kwargs=template_kwargs(body, settings),
        add_special_tokens=bool(body.add_special_tokens),
    )


async def off_loop(size: int, work: Callable[[], T], slots: asyncio.Semaphore | None = None) -> T:
    """The result of work on so many characters or ids; much of it goes to a thread.

    Args:
        slots: how much of such work may take threads at a time.
    """
    if size < THREAD_FROM:
        return work()
    if slots is None:
        return await asyncio.to_thread(work)
    async with slots:
        return await asyncio.to_thread(work)


def check_chat_options(body: ChatRequest | TokenizeRequest, settings: ServerSettings) -> None:
    """Refuse combinations that make no sense before anything is rendered.

    Raises:
        ValidationError: names the field.
    """
    if not body.messages:
        raise ValidationError("messages must not be empty", param="messages")
    if body.continue_final_message and body.add_generation_prompt:
        raise ValidationError(
            "continue_final_message and add_generation_prompt cannot both be true",
            param="continue_final_message",
        )
    in_kwargs = "chat_template" in (body.chat_template_kwargs or {})
    if (body.chat_template is not None or in_kwargs) and not settings.trust_request_chat_template:
        raise ValidationError(
            "this server takes no chat_template from requests (--trust-request-chat-template)",
            param="chat_template",
        )
    if in_kwargs:
        raise ValidationError(
            "chat_template is a field of its own, not one of chat_template_kwargs",
            param="chat_template_kwargs",
        )


def template_kwargs(
    body: ChatRequest | TokenizeRequest, settings: ServerSettings
) -> dict[str, Any] | None:
    """What the template gets besides messages; the caller's own words win."""
    kwargs = dict(settings.default_chat_template_kwargs)
    if isinstance(body, ChatRequest):
        if body.reasoning_effort is not None:
            kwargs["reasoning_effort"] = body.reasoning_effort
            # One name or the other, as the template has it.
            kwargs["enable_thinking"] = kwargs["thinking"] = body.reasoning_effort != "none"
        if body.documents is not None:
            kwargs["documents"] = body.documents
    kwargs.update(body.chat_template_kwargs or {})
    return kwargs or None


def text_of(rendered_text: str | None, ids: Sequence[int], engine: EngineClient) -> str:
    """The text of a prompt; decoded when it came as token ids."""
    if rendered_text is not None:
        return rendered_text
    return engine.tokenizer.decode(list(ids))


def tokenizer_of(engine: EngineClient) -> Tokenizer | None:
    """The tokenizer, or None on a server without one."""
    try:
        return engine.tokenizer
    except UnsupportedError:
        return None


def _finish(rendered: EngineInput, body: GenerationRequest, engine: EngineClient) -> EngineInput:
    """Cut as asked, and add the cache salt."""
    keep = body.truncate_prompt_tokens
    if keep is not None:
        # One token of the context stays free for the answer.
        keep = engine.max_model_len - 1 if keep == -1 else keep
        ids = rendered.prompt_token_ids
        if keep < len(ids):
            ids = ids[:keep] if body.truncation_side == "right" else ids[len(ids) - keep :]
            rendered = msgspec.structs.replace(rendered, prompt_token_ids=ids, prompt=None)
    if body.cache_salt is not None:
        rendered = msgspec.structs.replace(rendered, cache_salt=body.cache_salt)
    return rendered
