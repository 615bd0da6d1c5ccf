"""Which texts the grammar of tools allows, and that the reader finds what it allows."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec
import pytest

from headrace.config.engine import StructuredOutputsConfig
from headrace.errors import ValidationError
from headrace.server.generation.response_format import structured_outputs
from headrace.server.protocol.chat import ChatRequest
from headrace.server.protocol.common import ResponseFormat
from headrace.server.settings.server import ServerSettings
from headrace.server.tools.choice import ToolPlan, plan_tools
from headrace.server.tools.grammar import tool_grammar
from headrace.structured.build import build_grammar
from headrace.structured.compiler import GrammarCompiler
from headrace.structured_params import ThoughtMarks
from headrace.text.tool_calls.call_parser import ToolCallParser
from headrace.text.tool_calls.events import Content, ToolCall, joined
from headrace.text.tool_calls.table import FAMILIES
from tests.structured.fakes import EOS, allowed, babble, make_compiler, spell

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


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return make_compiler()


def grammar(
    family: str, choice: Any = "required", *, strict: str = "", thinks: bool = False, **fields: Any
) -> str:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema,
                                          "strict": name in strict}}
        for name, schema in SCHEMAS.items()
    ]  # fmt: skip
    body = ChatRequest(messages=[], tools=tools, tool_choice=choice, **fields)
    plan = plan_tools(body, ServerSettings(), FAMILIES[family])
    assert plan is not None
    params = tool_grammar(plan, 64, thought_marks=("<think>",) if thinks else ())
    if thinks:
        params = msgspec.structs.replace(params, behind_thought=ThoughtMarks("<think>", "</think>"))
    return build_grammar(params, StructuredOutputsConfig())


def is_whole(compiler: GrammarCompiler, grammar: str, text: str) -> bool:
    state = compiler.start(grammar)
    for token_id in spell(text):
        if state.is_ended or token_id not in allowed(compiler, state):
            return False
        state.accept(token_id)
    return state.is_ended or EOS in allowed(compiler, state)


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
    *[(family, '[{"name": "f", "arguments": {"a": 1}}]',
       '[{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {"b": "x::=y"}}]')
      for family in ("mistral", "pythonic", "qwen3_coder")],
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
    twice = twice.replace('{"b": "x::=y"}', '{"a": 1}')
    assert is_whole(compiler, required, twice)
    assert not is_whole(compiler, named, twice)
    for text in ("", "Hello", one.replace("1", '"1"'), one.replace('"a"', '"b"'), one + " more"):
        assert not is_whole(compiler, required, text)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_random_weights_write_is_read_as_calls_that_fit(
    compiler: GrammarCompiler, family: str
) -> None:
    """A reader of the same plan finds every call, and nothing beside them."""
    text_grammar = grammar(family)
    body = ChatRequest(
        messages=[], tool_choice="required",
        tools=[{"type": "function", "function": {"name": name}} for name in SCHEMAS],
    )  # fmt: skip
    plan = plan_tools(body, ServerSettings(), FAMILIES[family])
    assert plan is not None
    num_ended = 0
    for seed in range(30):
        text, is_ended = babble(compiler, text_grammar, seed)
        num_ended += is_ended
        for pieces in ([text], text):
            parser = ToolCallParser(plan.family, SCHEMAS, is_certain=True)
            events = joined([e for piece in pieces for e in parser.feed(piece)] + parser.finish())
            if is_ended:
                assert events
                for event in events:
                    assert isinstance(event, ToolCall), text
                    jsonschema.validate(json.loads(event.arguments), SCHEMAS[event.name])
    assert num_ended >= 10


TEXTS = [
    # text, with f strict: whether it may be whole
    ("Hello", True), ("", True), ("a < b", True), ("<table>", True), ("```python\n1\n```", True),
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
    for pieces in ([text], text):
        parser = ToolCallParser(FAMILIES["hermes"], SCHEMAS, is_certain=True)
        events = joined([e for piece in pieces for e in parser.feed(piece)] + parser.finish())
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
    ],
)
def test_other_families_are_held_to_strict_tools_as_well(
    compiler: GrammarCompiler, family: str, one: str
) -> None:
    free = grammar(family, "auto", strict="fg")
    assert is_whole(compiler, free, one)
    assert is_whole(compiler, free, "Hello")
    assert not is_whole(compiler, free, one.replace("1", '"1"'))


@pytest.mark.parametrize("family", ["hermes", "deepseek_v3"])
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
    call = HERMES.format(*F) if family == "hermes" else ALL.format(DEEPSEEK.format(*F))
    answer = '{"name": "f", "arguments": {"a": "<tool_call>{}</tool_call>"}}'
    for text in (call, answer):
        assert is_whole(compiler, text_grammar, text)
        for pieces in ([text], text):
            parser = ToolCallParser(plan.family, SCHEMAS, is_certain=True)
            events = joined([e for piece in pieces for e in parser.feed(piece)] + parser.finish())
            assert events == [Content(answer) if text == answer else ToolCall(0, *F)]
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
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}},
        {"type": "function", "function": {"name": "g"}},
    ]
    plan = plan_tools(
        ChatRequest(messages=[], tools=tools), ServerSettings(), FAMILIES["qwen3_coder"]
    )
    assert plan is not None
    return build_grammar(tool_grammar(plan, 64), StructuredOutputsConfig())


def coder_call(name: str = "f", **values: str) -> str:
    lines = [f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in values.items()]
    return f"<tool_call>\n<function={name}>\n{''.join(lines)}</function>\n</tool_call>"


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
    parser = ToolCallParser(FAMILIES["qwen3_coder"], {"f": CODER, "g": {}}, is_certain=True)
    events = parser.feed(text) + parser.finish()
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
    body = ChatRequest(
        messages=[],
        tools=[{"type": "function", "function": {"name": "f", "strict": True, "parameters": {
            "properties": properties, "required": list(properties)}}}],
    )  # fmt: skip
    plan = plan_tools(body, ServerSettings(), FAMILIES["qwen3_coder"])
    assert plan is not None
    text_grammar = build_grammar(tool_grammar(plan, 64), StructuredOutputsConfig())
    assert is_whole(compiler, text_grammar, coder_call(**({"a": text} if properties else {})))
    assert not is_whole(compiler, text_grammar, coder_call(b="x"))


def plan_or_param(body: ChatRequest, family: str) -> ToolPlan | str:
    """The plan, or the field that a refusal names."""
    try:
        plan = plan_tools(body, ServerSettings(), FAMILIES[family])
    except ValidationError as error:
        return str(error.param)
    assert plan is not None
    return plan


NAMES = ["function", "a.b-c", "a\xa0b", "\xa0", "a\u2028b", "a\x85b", "f(x)", "{}", "{x", "a{b",
         "a<b", "<f>", "</tool_call>", "a<｜tool▁sep｜>b", "<｜tool▁call▁end｜>", "NAME", "::=",
         "KEY", "😀", "'a'", "%json", "#", "```"]  # fmt: skip


@pytest.mark.parametrize(
    "family", ["hermes", "llama3_json", "deepseek_v3", "deepseek_v31", "qwen3_coder"]
)
@pytest.mark.parametrize("name", NAMES)
def test_tool_of_any_name_is_called_or_refused_by_its_name(
    compiler: GrammarCompiler, family: str, name: str
) -> None:
    parameters = {"properties": {"a": {"enum": [1]}}, "required": ["a"],
                  "additionalProperties": False}  # fmt: skip
    function = {"name": name, "strict": True, "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    form = FAMILIES[family].form
    assert (form is None) == (family == "qwen3_coder")
    for choice in ("auto", "required"):
        body = ChatRequest(messages=[], tools=tools, tool_choice=choice)
        plan = plan_or_param(body, family)
        if isinstance(plan, str):
            assert plan == "tools[0].function.name"
            assert set(name) & set("<{")
            continue
        text_grammar = build_grammar(tool_grammar(plan, 64), StructuredOutputsConfig())
        form = plan.family.form
        if form is None:
            text = coder_call(name, a="1")
        else:
            begin = form.begin.replace("NAME", name)
            text = f'{form.before_all}{begin}{{"a": 1}}{form.end}{form.after_all}'
        assert is_whole(compiler, text_grammar, text)
        for is_certain, pieces in ((True, [text]), (True, text), (False, [text]), (False, text)):
            parser = ToolCallParser(plan.family, {name: parameters}, is_certain=is_certain)
            events = joined([e for piece in pieces for e in parser.feed(piece)] + parser.finish())
            [call] = events
            assert isinstance(call, ToolCall)
            assert call.name == name
            assert json.loads(call.arguments) == {"a": 1}


@pytest.mark.parametrize("key", ["a b", "a>b", "a<b", "a\nb", "", "a\xa0b", "KEY", '"', "::=", " "])
@pytest.mark.parametrize("strict", [True, False])
def test_parameter_of_any_name_is_given_or_refused(
    compiler: GrammarCompiler, key: str, strict: bool
) -> None:
    parameters = {"properties": {key: {"type": "string"}}}
    function = {"name": "f", "strict": strict, "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    body = ChatRequest(messages=[], tools=tools)
    plan = plan_or_param(body, "qwen3_coder")
    if isinstance(plan, str):
        assert plan == "tools[0].function.parameters.properties"
        assert set(key) & set("<>\n")
        body = ChatRequest(messages=[], tools=tools, tool_choice="required")
        assert isinstance(plan_or_param(body, "qwen3_coder"), ToolPlan)
        return
    text = coder_call(**{key: "x"})
    text_grammar = build_grammar(tool_grammar(plan, 64), StructuredOutputsConfig())
    assert is_whole(compiler, text_grammar, text)
    parser = ToolCallParser(plan.family, {"f": parameters})
    [call] = parser.feed(text) + parser.finish()
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {key: "x"}


def test_schema_that_cannot_be_enforced_names_the_tool() -> None:
    body = ChatRequest(
        messages=[], tool_choice="required",
        tools=[{"type": "function", "function": {"name": "f", "parameters": {"properties": {
            "a": {"uniqueItems": True}}}}}],
    )  # fmt: skip
    plan = plan_tools(body, ServerSettings(), FAMILIES["hermes"])
    assert plan is not None
    with pytest.raises(ValidationError, match=r"tools\[0\]\.function\.parameters.*uniqueItems"):
        tool_grammar(plan, 64)
