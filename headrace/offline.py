"""What callers of the offline class give in lists, and the bars that show how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar, cast

from tqdm import tqdm

from headrace.checks import plain
from headrace.engine.request_options import Tokenization
from headrace.errors import ValidationError
from headrace.inputs import CONTENT_FORMATS, ChatMessage, EngineInput, PromptType
from headrace.outputs import RequestOutput
from headrace.text.renderer import Renderer

Conversation: TypeAlias = list[ChatMessage]
Progress: TypeAlias = bool | Callable[..., Any]
"""Whether to show a progress bar, or something to call in tqdm's place."""
T = TypeVar("T")


def as_prompts(prompts: PromptType | Sequence[PromptType]) -> list[PromptType]:
    """One prompt or several as a list. A list (or an array) of integers is one."""
    given = plain(prompts)
    if isinstance(given, (str, dict, bytes)) or not isinstance(given, Sequence):
        return [cast(PromptType, given)]  # one, or nothing the renderer lets pass
    if given and all(isinstance(plain(item), int) for item in given):
        return [cast(PromptType, list(given))]
    return list(cast("Sequence[PromptType]", given))


def as_conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """One conversation or several as a list."""
    if messages and isinstance(messages[0], dict):
        return [cast(Conversation, messages)]
    return list(cast("Sequence[Conversation]", messages))


def one_for_each(name: str, given: T | Sequence[T], prompts: Sequence[object]) -> list[T]:
    """A value for each prompt: one for all, or as many as prompts.

    Raises:
        ValidationError: another number of values.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        return [given] * len(prompts)
    if len(given) != len(prompts):
        raise ValidationError(
            f"the lengths of prompts ({len(prompts)}) and {name} ({len(given)}) must be the same",
            param=name,
        )
    return list(given)


def render_chats(
    renderer: Renderer,
    max_model_len: int,
    messages: Conversation | Sequence[Conversation],
    chat_template: str | None,
    content_format: str,
    add_generation_prompt: bool,
    continue_final_message: bool,
    tools: list[dict[str, Any]] | None,
    chat_template_kwargs: dict[str, Any] | None,
    tokenization_kwargs: Mapping[str, Any] | None,
    use_tqdm: Progress,
) -> list[EngineInput]:
    """Conversations as prompts, through the chat template; see `LLM.chat`.

    Raises: what `Renderer.render_chat` raises.
    """
    if content_format not in CONTENT_FORMATS:
        raise ValidationError(
            f"chat_template_content_format must be one of {', '.join(CONTENT_FORMATS)}, "
            f"got {content_format!r}",
            param="chat_template_content_format",
        )
    how = Tokenization.from_kwargs(tokenization_kwargs)
    rendered = (
        renderer.render_chat(
            conversation,
            chat_template=chat_template,
            content_format=content_format,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            chat_template_kwargs=chat_template_kwargs,
            add_special_tokens=bool(how.add_special_tokens),
            limit_length=how.max_tokens is None,
        )
        for conversation in rendering_bar(as_conversations(messages), use_tqdm, "conversations")
    )
    return [how.cut(one, max_model_len) for one in rendered]


def rendering_bar(items: Sequence[T], use_tqdm: Progress, what: str) -> Iterable[T]:
    """The items, with a bar that follows them when there are several."""
    if not use_tqdm or len(items) < 2:
        return items
    make_bar = use_tqdm if callable(use_tqdm) else tqdm
    return cast("Iterable[T]", make_bar(items, desc=f"Rendering {what}", dynamic_ncols=True))


@contextmanager
def progress_bar(count: int, use_tqdm: Progress) -> Iterator[Callable[[RequestOutput], None]]:
    """A bar over finished requests, with the speed so far; gives what to tell of each."""
    make_bar = use_tqdm if callable(use_tqdm) else tqdm
    bar = make_bar(total=count, desc="Processed prompts", dynamic_ncols=True, disable=not use_tqdm)
    tokens_in = tokens_out = 0

    def tell(output: RequestOutput) -> None:
        nonlocal tokens_in, tokens_out
        tokens_in += len(output.prompt_token_ids)
        tokens_out += sum(len(answer.token_ids) for answer in output.outputs)
        elapsed = bar.format_dict.get("elapsed") or 1e-9
        bar.set_postfix_str(
            f"est. speed input: {tokens_in / elapsed:.2f} toks/s, "
            f"output: {tokens_out / elapsed:.2f} toks/s",
            refresh=False,
        )
        bar.update(1)

    try:
        yield tell
    finally:
        bar.close()
