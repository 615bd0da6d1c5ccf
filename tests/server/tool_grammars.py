"""Grammars of tools for tests: made of requests, followed byte by byte, and read again."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.config.engine import StructuredOutputsConfig
from headrace.errors import ValidationError
from headrace.server.protocol.chat import ChatRequest
from headrace.server.settings.server import ServerSettings
from headrace.server.tools.choice import ToolPlan, plan_tools
from headrace.server.tools.grammar import tool_grammar
from headrace.structured.build import build_grammar
from headrace.structured.compiler import GrammarCompiler
from headrace.structured_params import ThoughtMarks
from headrace.text.tool_calls.call_parser import Family, ToolCallParser
from headrace.text.tool_calls.events import Event, joined
from headrace.text.tool_calls.table import FAMILIES
from tests.structured.fakes import EOS, allowed, spell

SCHEMAS: dict[str, dict[str, Any]] = {
    "f": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
          "additionalProperties": False},
    "g": {"type": "object", "properties": {"b": {"enum": ["x::=y", "é"]}}, "required": ["b"],
          "additionalProperties": False},
}  # fmt: skip
HERMES = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
DEEPSEEK = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{}\n```json\n{}\n```<｜tool▁call▁end｜>"
ALL = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
F, G = ("f", '{"a": 1}'), ("g", '{"b": "x::=y"}')


def function(name: str, parameters: Any = None, *, strict: bool = False) -> dict[str, Any]:
    """A tool as a request has it."""
    described = {"name": name, "parameters": parameters, "strict": strict}
    return {"type": "function", "function": described}


def plan_of(family: str, *tools: dict[str, Any], **fields: Any) -> ToolPlan:
    plan = plan_tools(
        ChatRequest(messages=[], tools=list(tools), **fields), ServerSettings(), FAMILIES[family]
    )
    assert plan is not None
    return plan


def plan_or_param(family: str, *tools: dict[str, Any], **fields: Any) -> ToolPlan | str:
    """The plan, or the field that a refusal names."""
    try:
        return plan_of(family, *tools, **fields)
    except ValidationError as error:
        return str(error.param)


def grammar_of(plan: ToolPlan, *, thinks: bool = False) -> str:
    """Args:
    thinks: the answer stands behind a thought."""
    params = tool_grammar(plan, 64, thought_marks=("<think>",) if thinks else ())
    if thinks:
        params = msgspec.structs.replace(params, behind_thought=ThoughtMarks("<think>", "</think>"))
    return build_grammar(params, StructuredOutputsConfig())


def grammar(
    family: str, choice: Any = "required", *, strict: str = "", thinks: bool = False, **fields: Any
) -> str:
    """Of the tools in SCHEMAS, with those whose names are in `strict` strict."""
    tools = [function(name, schema, strict=name in strict) for name, schema in SCHEMAS.items()]
    return grammar_of(plan_of(family, *tools, tool_choice=choice, **fields), thinks=thinks)


def wholes(compiler: GrammarCompiler, grammar: str, text: str) -> list[bool]:
    """Whether a text may end after each of its bytes, before the first, too."""
    state = compiler.start(grammar)
    ends: list[bool] = []
    for token_id in (*spell(text), None):
        comes = set() if state.is_ended else allowed(compiler, state)
        ends.append(state.error is None and (state.is_ended or EOS in comes))
        if token_id is not None and token_id not in comes:
            break
        if token_id is not None:
            state.accept(token_id)
    return ends + [False] * (len(text.encode()) + 1 - len(ends))


def is_whole(compiler: GrammarCompiler, grammar: str, text: str) -> bool:
    return wholes(compiler, grammar, text)[-1]


def read(family: Family, tools: Any, text: str, *, is_certain: bool = True) -> list[Event]:
    """What a reader makes of a text, however it is cut."""
    found = []
    for pieces in ([text], text, [text[: len(text) // 2], text[len(text) // 2 :]]):
        parser = ToolCallParser(family, tools, is_certain=is_certain)
        found.append(joined([e for piece in pieces for e in parser.feed(piece)] + parser.finish()))
    assert found[0] == found[1] == found[2]
    return found[0]


def coder_call(name: str = "f", **values: str) -> str:
    lines = [f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values.items()]
    return f"<tool_call>\n<function={name}>\n{''.join(lines)}</function>\n</tool_call>"
