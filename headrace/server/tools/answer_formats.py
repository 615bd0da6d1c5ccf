"""How a model writes thoughts and calls: as the operator says, or as its chat template teaches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from headrace.engine.client import EngineClient
from headrace.inputs import EngineInput
from headrace.sampling_params import SamplingParams
from headrace.server.generation.prompts import tokenizer_of
from headrace.server.protocol.chat import ChatRequest
from headrace.server.settings.server import ServerSettings
from headrace.server.settings.tools import BY_ITSELF, NOT_AT_ALL
from headrace.server.tools.parsed_answer import ParsingPlan, ReasoningPlan
from headrace.structured_params import ThoughtMarks
from headrace.text.reasoning import FORMATS, ReasoningFormat, format_of
from headrace.text.tool_calls.call_parser import Family
from headrace.text.tool_calls.table import ALIASES, FAMILIES, family_of

TAIL, MAX_END = 32, 256
"""Tokens, and characters, from the end of a prompt that hold the mark of an open thought."""


def call_family(
    engine: EngineClient, settings: ServerSettings, template: str | None
) -> Family | None:
    """How the model writes calls; None when that is not known.

    Args:
        template: the request's own chat template.
    """
    name = _chosen(settings.tool_call_parser, family_of, engine, template)
    return None if name is None else FAMILIES[ALIASES.get(name, name)]


def reasoning_format(
    engine: EngineClient, settings: ServerSettings, template: str | None
) -> ReasoningFormat | None:
    """How the model marks thoughts; None when it has none. See `call_family`."""
    name = _chosen(settings.reasoning_parser, format_of, engine, template)
    return None if name is None else FORMATS[name]


def _chosen(
    option: str,
    find: Callable[[str | None, str], str | None],
    engine: EngineClient,
    template: str | None,
) -> str | None:
    """The format of an option, which may leave it to what is found in the template."""
    if option == BY_ITSELF:
        return find(template or template_of(engine), engine.config.model.model_type)
    return None if option == NOT_AT_ALL else option


def template_of(engine: EngineClient) -> str | None:
    """The chat template in use."""
    tokenizer = tokenizer_of(engine)
    own = None if tokenizer is None else tokenizer.chat_template
    return engine.config.model.chat_template or own


def plan_reasoning(
    format: ReasoningFormat, body: ChatRequest, prompt: EngineInput, engine: EngineClient
) -> ReasoningPlan:
    """What the prompt says about the thought of an answer."""
    if body.continue_final_message:
        is_open = format.is_open_within(_text(body.messages[-1]))
        may_think = is_open
    else:
        end = None if prompt.prompt is None else prompt.prompt[-MAX_END:]
        if end is None:
            ids = prompt.prompt_token_ids[-TAIL:]
            end = engine.tokenizer.decode(ids, skip_special_tokens=False)
        is_open = format.is_opened(end)
        may_think = is_open or not format.is_closed(end)
    return ReasoningPlan(format, is_open, may_think, body.include_reasoning is not False)


def fit_params(params: SamplingParams, parsing: ParsingPlan, engine: EngineClient) -> None:
    """Let a constraint begin behind the thought, and keep marks that are special tokens in the
    text."""
    thought = parsing.reasoning
    if thought is not None and thought.may_think and params.structured_outputs is not None:
        format = thought.format
        params.structured_outputs = msgspec.structs.replace(
            params.structured_outputs,
            behind_thought=ThoughtMarks(format.starts[0], format.ends[0], thought.is_open),
        )
    if _are_special(parsing.marks, engine):
        params.skip_special_tokens = False


def _are_special(marks: Iterable[str], engine: EngineClient) -> bool:
    """Whether some of these marks are tokens that text usually leaves out."""
    tokenizer = tokenizer_of(engine)
    ids = [] if tokenizer is None else map(tokenizer.token_id, marks)
    return tokenizer is not None and any(i is not None and tokenizer.is_special(i) for i in ids)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
