"""Which texts the grammar allows where parameters stand one by one, as plain text (qwen3_coder)."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from headrace.errors import ValidationError
from headrace.structured.compiler import GrammarCompiler
from headrace.text.tool_calls.events import ToolCall
from headrace.text.tool_calls.table import FAMILIES
from tests.server.tool_grammars import coder_call, function, grammar_of, is_whole, plan_of, read

CODER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "::="},
        "mode": {"enum": ["r", "w", None]},
        "lines": {"anyOf": [{"$ref": "#/$defs/lines"}, {"type": "null"}]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["path", "mode"],
    "additionalProperties": False,
    "$defs": {"lines": {"type": "array", "items": {"type": "integer"}}},
}


def coder_grammar(parameters: Any = CODER) -> str:
    tools = (function("f", parameters, strict=True), function("g"))
    return grammar_of(plan_of("qwen3_coder", *tools))


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("Hello < there", None),
        (coder_call(path="a <b>\n\"c\"", mode="r"), {"path": 'a <b>\n"c"', "mode": "r"}),
        (
            "I look.\n" + coder_call(path="a", mode="null", lines="[1, 2]", note="null") + " So.",
            {"path": "a", "mode": None, "lines": [1, 2], "note": None},
        ),
        (coder_call(path="[1]", mode="w", lines="null"),
         {"path": "[1]", "mode": "w", "lines": None}),
        (coder_call(path="a", mode="w")[len("<tool_call>\n") : -len("\n</tool_call>")],
         {"path": "a", "mode": "w"}),
        (coder_call("g", x="1"), {"x": "1"}),
        (coder_call(path="a"), False),
        (coder_call(path="a", mode="x"), False),
        (coder_call(mode="r", path="a"), False),
        (coder_call(path="a", mode="r", lines="soon"), False),
        (coder_call(path="a", mode="r", other="1"), False),
        (coder_call("h"), False),
        ("<tool_call>oops", False),
        ("<function=f></function> " + coder_call(path="a", mode="r"), False),
    ],
)  # fmt: skip
def test_parameters_that_stand_one_by_one_are_held_to_strict_tools(
    compiler: GrammarCompiler, text: str, arguments: Any
) -> None:
    assert is_whole(compiler, coder_grammar(), text) is (arguments is not False)
    if not arguments:
        return
    events = read(FAMILIES["qwen3_coder"], {"f": CODER, "g": {}}, text)
    [call] = [event for event in events if isinstance(event, ToolCall)]
    assert json.loads(call.arguments) == arguments
    if call.name == "f":
        jsonschema.validate(arguments, CODER)


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {"a": {"type": "string", "pattern": "a+"}}},
        {"properties": {"a": {"enum": ["x", 1]}}},
        {"properties": {}, "minProperties": 1},
        {"properties": {}, "required": ["a"]},
        {"properties": {"a": {"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]}}},
    ],
)
def test_parameters_that_cannot_be_held_one_by_one_are_refused(parameters: Any) -> None:
    with pytest.raises(ValidationError, match=r"tools\[0\]\.function"):
        coder_grammar(parameters)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (None, ""),
        ({"type": "integer"}, "1"),
        ({"enum": ["x", "y"]}, "x"),
        (True, "any"),
        ({}, "any"),
    ],
)
def test_each_kind_of_parameter_stands_alone(
    compiler: GrammarCompiler, schema: Any, text: str
) -> None:
    properties = {} if schema is None else {"a": schema}
    parameters = {"properties": properties, "required": list(properties)}
    text_grammar = grammar_of(plan_of("qwen3_coder", function("f", parameters, strict=True)))
    assert is_whole(compiler, text_grammar, coder_call(**({"a": text} if properties else {})))
    assert not is_whole(compiler, text_grammar, coder_call(b="x"))
