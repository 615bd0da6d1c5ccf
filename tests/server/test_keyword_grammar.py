"""Which texts the grammar allows where calls are written as Python does (pythonic)."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from headrace.errors import ValidationError
from headrace.structured.compiler import GrammarCompiler
from headrace.text.tool_calls.call_parser import ToolCallParser
from headrace.text.tool_calls.events import Content, MoreArguments, ToolCall, joined
from headrace.text.tool_calls.table import FAMILIES
from tests.server.tool_grammars import function, grammar_of, is_whole, plan_of, read
from tests.structured.fakes import babble

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "::="},
        "days": {"type": "integer", "maximum": 9},
        "unit": {"enum": ["C", "it's", None, True]},
        "exact": {"type": "boolean"},
        "spots": {"anyOf": [{"$ref": "#/$defs/spots"}, {"type": "null"}]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}$"},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"spots": {"type": "array", "items": {"type": "string"}}},
}
TOOLS = {"f": PARAMETERS, "g": {}, "f2": {}}
MARK, END = "<|python_start|>", "<|python_end|>"


def python_grammar(parameters: Any = PARAMETERS, **fields: Any) -> str:
    tools = [function("f", parameters, strict=True), function("g"), function("f2")]
    return grammar_of(plan_of("pythonic", *tools, **fields))


TEXTS: list[tuple[str, list[Any] | None]] = [
    # text, and what it holds where it is allowed
    ("Hello", ["Hello"]),
    ("", []),
    ("[", ["["]),
    ("[f", ["[f"]),
    ("[f3(a=1)]", ["[f3(a=1)]"]),
    ("[ f(city='x')]", ["[ f(city='x')]"]),
    ("[1, 2]", ["[1, 2]"]),
    ("See [f(x)]", ["See [f(x)]"]),
    ("<|python", ["<|python"]),
    ("[f(city='Paris')]", [("f", {"city": "Paris"})]),
    ('[f(city="Paris")]', [("f", {"city": "Paris"})]),
    ("\n[f(city='Paris')]", [("f", {"city": "Paris"})]),
    (r"""[f(city='it\'s \\ "x"\n\té 😀', days=3)]""",
     [("f", {"city": 'it\'s \\ "x"\n\té 😀', "days": 3})]),
    (r'[f(city="a\"b\n\\)]")]', [("f", {"city": 'a"b\n\\)]'})]),
    ("[f(city='x', unit=None, exact=True, spots=None, code=\"AB\")]",
     [("f", {"city": "x", "unit": None, "exact": True, "spots": None, "code": "AB"})]),
    ("[f(city='x', unit='C', exact=false, spots=[\"a)\", \"b\"])]",
     [("f", {"city": "x", "unit": "C", "exact": False, "spots": ["a)", "b"]})]),
    ("[f(city='x', unit=\"it's\")]", [("f", {"city": "x", "unit": "it's"})]),
    ("[f(city='x', unit=True)]", [("f", {"city": "x", "unit": True})]),
    ("[f(city='x'), g(), f2(a=-1.5e3, b='y', c={\"d\": [1]}, e=None, f=\"z\")]",
     [("f", {"city": "x"}), ("g", {}),
      ("f2", {"a": -1500.0, "b": "y", "c": {"d": [1]}, "e": None, "f": "z"})]),
    (f"Hm. {MARK}[f(city='x')]{END} So. {MARK}[g(a=1), g()]{END}",
     ["Hm.", ("f", {"city": "x"}), " So.", ("g", {"a": 1}), ("g", {})]),
    (f"{MARK}[f(city='x')]{END}", [("f", {"city": "x"})]),
    ("[f()]", None),
    ("[f(x) for x in y]", None),
    ("[f(city=1)]", None),
    ("[f(city='x', days=10)]", None),
    ("[f(city='x', days='3')]", None),
    ("[f(days=3, city='x')]", None),
    ("[f(city='x', other=3)]", None),
    ("[f(city='x', code='ab')]", None),
    ("[f(city='x', unit=False)]", None),
    ("[f(city='x', spots=['a'])]", None),
    ("[f(city='x')", None),
    ("[f(city='x')] and", None),
    ("[f(city='x'), h()]", None),
    ("[g(1)]", None),
    (f"{MARK}print(1){END}", None),
    (f"{MARK}[h()]{END}", None),
    (f"{MARK}[f(days=3)]{END}", None),
    (f"{MARK}[f(city='x')]", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "told"), TEXTS)
def test_strict_calls_in_python_are_held_to_their_parameters(
    compiler: GrammarCompiler, text: str, told: list[Any] | None
) -> None:
    assert is_whole(compiler, python_grammar(), text) is (told is not None)
    if told is None:
        return
    events = read(FAMILIES["pythonic"], TOOLS, text)
    assert [
        event.text if isinstance(event, Content) else (event.name, json.loads(event.arguments))
        for event in events
        if isinstance(event, (Content, ToolCall))
    ] == told
    for event in events:
        if isinstance(event, ToolCall) and event.name == "f":
            jsonschema.validate(json.loads(event.arguments), PARAMETERS)


def test_one_call_alone_where_several_are_not_wanted(compiler: GrammarCompiler) -> None:
    alone = python_grammar(parallel_tool_calls=False)
    assert is_whole(compiler, alone, "[g()]")
    assert not is_whole(compiler, alone, "[g(), g()]")


def test_what_random_weights_write_is_text_or_calls_that_fit(compiler: GrammarCompiler) -> None:
    # Without free text all that is left are calls: each must be read, and fit.
    only_calls = python_grammar().replace("\nstart: ", "\nstart: calls\nunused: ")
    num_ended = num_calls = 0
    for seed in range(60):
        text, is_ended = babble(compiler, only_calls, seed)
        num_ended += is_ended
        if not is_ended:
            continue
        for event in read(FAMILIES["pythonic"], TOOLS, text):
            assert isinstance(event, ToolCall), text
            num_calls += 1
            arguments = json.loads(event.arguments, strict=True)
            if event.name == "f":
                jsonschema.validate(arguments, PARAMETERS)
    assert num_ended >= 10
    assert num_calls >= num_ended


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {}, "minProperties": 1},
        {"properties": {}, "required": ["a"]},
        {"properties": {"a": False}},
        {"properties": {"a": {"uniqueItems": True}}},
        {"anyOf": [{"properties": {}}]},
    ],
)
def test_parameters_that_cannot_be_held_one_by_one_are_refused(parameters: Any) -> None:
    with pytest.raises(ValidationError, match=r"tools\[0\]\.function"):
        python_grammar(parameters)


@pytest.mark.parametrize(
    ("schema", "given", "refused"),
    [
        (True, ["1", "None", "'x'", '{"a": [true]}'], ["x", "[None]"]),
        ({"const": None}, ["None", "null"], ["1"]),
        ({"const": "x"}, ["'x'", '"x"'], ["'y'"]),
        ({"enum": [1, "a"], "type": "integer"}, ["1"], ["'a'", '"a"']),
        ({"type": ["boolean", "null"]}, ["True", "false", "None"], ["'x'"]),
        ({"type": "string", "maxLength": 1}, ['"x"'], ["'x'", '"xy"']),
        ({"oneOf": [{"type": "boolean"}, {"type": "integer"}]}, ["true", "1"], ["'x'"]),
    ],
)  # fmt: skip
def test_each_kind_of_value_is_written_as_json_or_as_python_does(
    compiler: GrammarCompiler, schema: Any, given: list[str], refused: list[str]
) -> None:
    text_grammar = python_grammar({"properties": {"a": schema}, "required": ["a"]})
    for value in given:
        assert is_whole(compiler, text_grammar, f"[f(a={value})]"), value
        [call] = read(FAMILIES["pythonic"], TOOLS, f"[f(a={value})]")
        assert isinstance(call, ToolCall)
        jsonschema.validate(json.loads(call.arguments)["a"], schema)
    for value in refused:
        assert not is_whole(compiler, text_grammar, f"[f(a={value})]"), value


@pytest.mark.parametrize("required", [[], ["a"], ["b"], ["c"], ["a", "c"], ["a", "b", "c"]])
def test_any_choice_of_parameters_that_holds_the_required_ones_is_allowed(
    compiler: GrammarCompiler, required: list[str]
) -> None:
    properties = {key: {"type": "integer"} for key in "abc"}
    text_grammar = python_grammar({"properties": properties, "required": required})
    for keys in ("", "a", "b", "c", "ab", "ac", "bc", "abc"):
        text = f"[f({', '.join(f'{key}=1' for key in keys)})]"
        assert is_whole(compiler, text_grammar, text) is (set(required) <= set(keys)), text


def test_arguments_in_python_stream_while_they_come() -> None:
    text = "[f(city='it\\'s a long one', days=3), g()]"
    parser = ToolCallParser(FAMILIES["pythonic"], TOOLS, is_certain=True)
    events = [event for char in text for event in parser.feed(char)] + parser.finish()
    assert events[0] == ToolCall(0, "f", "")
    assert len([event for event in events if isinstance(event, MoreArguments)]) > 15
    assert joined(events) == [
        ToolCall(0, "f", '{"city": "it\'s a long one", "days": 3}'), ToolCall(1, "g", "{}"),
    ]  # fmt: skip


@pytest.mark.parametrize("opening", ["", MARK])
def test_call_in_python_that_is_cut_leaves_no_text(opening: str) -> None:
    text = f"{opening}[f(city='it\\'s', days=3, exact=True, spots=[\"a\"]), g(b=1)]"
    begun = len(opening) + len("[f(")
    for end in range(begun, len(text)):
        events = read(FAMILIES["pythonic"], TOOLS, text[:end])
        assert all(isinstance(event, ToolCall) for event in events), text[:end]
        assert events
    for end in range(begun):
        events = read(FAMILIES["pythonic"], TOOLS, text[:end])
        assert events == ([Content(text[:end])] if end else [])
