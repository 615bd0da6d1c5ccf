"""Which texts the grammar of tools allows, and that the reader finds what it allows."""

from __future__ import annotations

import json

import jsonschema
import pytest

from headrace.config.engine import StructuredOutputsConfig
from headrace.errors import ValidationError
from headrace.server.generation.response_format import structured_outputs
from headrace.server.protocol.chat import ChatRequest
from headrace.server.protocol.common import ResponseFormat
from headrace.server.settings.server import ServerSettings
from headrace.server.tools.choice import plan_tools
from headrace.server.tools.grammar import tool_grammar
from headrace.structured.build import build_grammar
from headrace.structured.compiler import GrammarCompiler
from headrace.text.tool_calls.events import Content, ToolCall
from headrace.text.tool_calls.table import FAMILIES
from tests.server.tool_grammars import (
    ALL,
    DEEPSEEK,
    HERMES,
    SCHEMAS,
    F,
    G,
    function,
    grammar,
    grammar_of,
    is_whole,
    plan_of,
    read,
    wholes,
)
from tests.structured.fakes import babble
from tests.text.tool_call_samples import SAMPLES, TOOLS

FORMS = [
    ("hermes", HERMES.format(*F), HERMES.format(*F) + "\n" + HERMES.format(*G)),
    ("llama3_json", '{"name": "f", "parameters": {"a": 1}}',
     '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {"b": "x::=y"}}'),
    ("deepseek_v3", ALL.format(DEEPSEEK.format(*F)),
     ALL.format(DEEPSEEK.format(*F) + "\n" + DEEPSEEK.format(*G))),
    ("deepseek_v31",
     ALL.format('<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'),
     ALL.format('<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
                '<｜tool▁call▁begin｜>g<｜tool▁sep｜>{"b": "x::=y"}<｜tool▁call▁end｜>')),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]',
     '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, '
     '{"name": "g", "arguments": {"b": "x::=y"}}]'),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}',
     '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{"b": "x::=y"}'),
    *[(family, '[{"name": "f", "arguments": {"a": 1}}]',
       '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"b": "x::=y"}}]')
      for family in ("pythonic", "qwen3_coder")],
]  # fmt: skip


@pytest.mark.parametrize(("family", "one", "two"), FORMS)
def test_forced_calls_are_written_as_the_family_does_and_nothing_else(
    compiler: GrammarCompiler, family: str, one: str, two: str
) -> None:
    required = grammar(family)
    assert is_whole(compiler, required, one)
    assert is_whole(compiler, required, two)
    single = grammar(family, parallel_tool_calls=False)
    assert is_whole(compiler, single, one)
    assert not is_whole(compiler, single, two)
    named = grammar(family, {"type": "function", "function": {"name": "f"}})
    assert is_whole(compiler, named, one)
    assert not is_whole(compiler, named, two)
    twice = two.replace('"g"', '"f"').replace("g<｜", "f<｜").replace("sep｜>g", "sep｜>f")
    twice = twice.replace("]g[", "]f[").replace('{"b": "x::=y"}', '{"a": 1}')
    assert is_whole(compiler, required, twice)
    assert not is_whole(compiler, named, twice)
    for text in ("", "Hello", one.replace("1", '"1"'), one.replace('"a"', '"b"'), one + " more"):
        assert not is_whole(compiler, required, text)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_random_weights_write_is_read_as_calls_that_fit(
    compiler: GrammarCompiler, family: str
) -> None:
    """A reader of the same plan finds every call, and nothing beside them."""
    plan = plan_of(family, *map(function, SCHEMAS), tool_choice="required")
    num_ended = 0
    for seed in range(30):
        text, is_ended = babble(compiler, grammar(family), seed)
        num_ended += is_ended
        events = read(plan.family, SCHEMAS, text)
        if is_ended:
            assert events
            for event in events:
                assert isinstance(event, ToolCall), text
                jsonschema.validate(json.loads(event.arguments), SCHEMAS[event.name])
    assert num_ended >= 10


TEXTS = [
    # text, with f strict: whether it may be whole
    ("Hello", True), ("", True), ("a < b", True), ("<table>", True), (" \n", True),
    (" \n hello", True), ("<tool", True), ("``", True), ("[", True), ("```python\n1\n```", True),
    (HERMES.format(*F), True),
    (HERMES.format("f", '{"a": "x"}'), False),
    (HERMES.format("g", '{"any": [1]}'), True),
    (HERMES.format("h", "{}"), False),
    ("Look: " + HERMES.format(*F) + " and " + HERMES.format("g", "{}"), True),
    ("Look: " + HERMES.format("f", "{}"), False),
    ("Look: <tool_call>x", False),
    (HERMES.format(*F) + " " + HERMES.format("f", "{}"), False),
    # calls without a mark are held, too
    ('{"name": "f", "arguments": {"a": 1}}', True),
    ('{"name": "f", "arguments": {"b": 1}}', False),
    ('{"a": 1}', False),
    ('```json\n{"name": "f", "arguments": {"a": 1}}\n```', True),
    ('```json\n{"name": "f", "arguments": {}}\n```', False),
    ('```json\n{"name": "f", "arguments": {"a": 1}}\n{"name": "g", "arguments": {}}\n```', True),
    ('See {"name": "f", "arguments": {"b": 1}}', True),
]  # fmt: skip


@pytest.mark.parametrize(("text", "is_allowed"), TEXTS)
def test_strict_tools_are_held_to_their_parameters_within_free_text(
    compiler: GrammarCompiler, text: str, is_allowed: bool
) -> None:
    free = grammar("hermes", "auto", strict="f")
    assert is_whole(compiler, free, text) is is_allowed
    if not is_allowed:
        return
    events = read(FAMILIES["hermes"], SCHEMAS, text)
    calls = [event for event in events if isinstance(event, ToolCall)]
    assert all(isinstance(event, (ToolCall, Content)) for event in events)
    assert len(calls) == (0 if text.startswith("See") else text.count('"name"'))
    for call in calls:
        if call.name == "f":
            jsonschema.validate(json.loads(call.arguments), SCHEMAS["f"])


@pytest.mark.parametrize(
    ("family", "one"),
    [
        ("llama3_json", '{"name": "f", "parameters": {"a": 1}}'),
        (
            "llama3_json",
            'See. <|python_tag|>{"name": "g", "parameters": {"b": "é"}}; '
            '{"name": "f", "parameters": {"a": 1}}',
        ),
        ("deepseek_v3", "See. " + ALL.format(DEEPSEEK.format(*F))),
        ("deepseek_v3", ALL.format(DEEPSEEK.format(*G) + "\n" + DEEPSEEK.format(*F)) + "."),
        ("mistral", 'See.[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}] So.'),
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "g", "arguments": {"b": "é"}}, '
            '{"name": "f", "arguments": {"a": 1}}]',
        ),
        ("mistral", 'See. [TOOL_CALLS]g[ARGS]{"b": "é"}[TOOL_CALLS]f[ARGS]{"a": 1}'),
    ],
)
def test_other_families_are_held_to_strict_tools_as_well(
    compiler: GrammarCompiler, family: str, one: str
) -> None:
    free = grammar(family, "auto", strict="fg")
    assert is_whole(compiler, free, one)
    assert is_whole(compiler, free, "Hello")
    assert not is_whole(compiler, free, one.replace("1", '"1"'))


@pytest.mark.parametrize("family", ["hermes", "deepseek_v3", "mistral"])
@pytest.mark.parametrize("kind", ["json_schema", "json_object"])
def test_answer_is_calls_or_the_json_that_is_asked_for(
    compiler: GrammarCompiler, family: str, kind: str
) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}},
              "required": ["name"]}  # fmt: skip
    wanted = ResponseFormat(type=kind, json_schema={"schema": schema})
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMAS["f"]}}]
    body = ChatRequest(messages=[], tools=tools, response_format=wanted)
    plan = plan_tools(body, ServerSettings(), FAMILIES[family])
    assert plan is not None
    assert plan.has_grammar
    text_grammar = build_grammar(
        tool_grammar(plan, 64, structured_outputs(body)), StructuredOutputsConfig()
    )
    call = {
        "hermes": HERMES.format(*F), "deepseek_v3": ALL.format(DEEPSEEK.format(*F)),
        "mistral": '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]',
    }[family]  # fmt: skip
    answer = '{"name": "f", "arguments": {"a": "<tool_call>{}</tool_call>"}}'
    for text in (call, answer):
        assert is_whole(compiler, text_grammar, text)
        wanted_event = Content(answer) if text == answer else ToolCall(0, *F)
        assert read(plan.family, SCHEMAS, text) == [wanted_event]
    for text in ("", "Hello", call + answer, "5"):
        assert not is_whole(compiler, text_grammar, text)


@pytest.mark.parametrize(("text", "is_allowed"), TEXTS)
def test_strict_tools_are_held_behind_a_thought_as_well(
    compiler: GrammarCompiler, text: str, is_allowed: bool
) -> None:
    text_grammar = grammar("hermes", "auto", strict="f", thinks=True)
    assert is_whole(compiler, text_grammar, text) is is_allowed
    for thought in ("", 'x {"name": "f"} <tool_call> '):
        answer = f"<think>{thought}</think>\n\n{text}"
        assert is_whole(compiler, text_grammar, answer) is is_allowed


def test_schema_that_cannot_be_enforced_names_the_tool() -> None:
    wrong = function("f", {"properties": {"a": {"uniqueItems": True}}})
    plan = plan_of("hermes", wrong, tool_choice="required")
    with pytest.raises(ValidationError, match=r"tools\[0\]\.function\.parameters.*uniqueItems"):
        tool_grammar(plan, 64)


SAMPLED = sorted({
    *(sample.text for sample in SAMPLES),
    ALL.format('<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": "x"}<｜tool▁call▁end｜>'),
})  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_every_sample_cut_anywhere_is_free_text_or_calls_that_fit(
    compiler: GrammarCompiler, family: str
) -> None:
    """Text without a mark, and without the beginning of an answer that is calls, is free; what else
    is allowed is read as calls, of which the strict ones fit, and nothing of it is lost."""
    tools = {**TOOLS, "f": {**TOOLS["f"], "additionalProperties": False}}
    plan = plan_of(family, *(function(name, tools[name], strict=name == "f") for name in tools))
    text_grammar = grammar_of(plan)
    openings = plan.family.openings
    if plan.family.keyword_form is not None:
        openings = tuple(f"[{name}(" for name in tools)
    num_calls = 0
    for text in SAMPLED:
        ends = wholes(compiler, text_grammar, text)
        for end in range(len(text) + 1):
            cut = text[:end]
            is_free = not any(mark in cut for mark in plan.family.marks)
            is_free &= not cut.lstrip(" \t\r\n").startswith(openings or ("\0",))
            if not ends[len(cut.encode())]:
                assert not is_free, cut
                continue
            events = read(plan.family, tools, cut)
            calls = [event for event in events if isinstance(event, ToolCall)]
            assert bool(calls) is not is_free, cut
            if is_free:
                assert [event.text for event in events if isinstance(event, Content)] == (
                    [cut] if cut else []
                )
            for call in calls:
                num_calls += 1
                assert call.name in tools
                arguments = json.loads(call.arguments)
                assert isinstance(arguments, dict)
                if call.name == "f":
                    jsonschema.validate(arguments, tools["f"])
    assert num_calls
