"""What each kind of constraint allows, and what is refused with the place where it stands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.config.engine import StructuredOutputsConfig
from headrace.errors import ValidationError
from headrace.sampling_params import StructuredOutputsParams
from headrace.structured.build import build_grammar
from headrace.structured.compiler import GrammarCompiler
from tests.structured.fakes import EOS, MARK, OTHER_EOS, allowed, grammar_of, make_compiler, spell

CALL = json.dumps({
    "structures": [
        {"begin": "<fn=add>", "schema": {"type": "object", "properties": {"n": {"type": "integer"}},
                                        "required": ["n"]}, "end": "</fn>"},
        {"begin": "<fn=now>", "schema": {"type": "null"}},
    ],
    "triggers": ["<fn="],
})  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return make_compiler()


def fate(compiler: GrammarCompiler, text: str, **params: Any) -> str:
    """no: not allowed; open: not complete; may end; ends: nothing may follow."""
    state = compiler.start(grammar_of(**params))
    for token_id in spell(text):
        if state.is_ended or token_id not in allowed(compiler, state):
            return "no"
        state.accept(token_id)
    assert state.error is None
    if state.is_ended:
        return "ends"
    following = allowed(compiler, state)
    assert (EOS in following) == (OTHER_EOS in following)
    assert MARK not in following
    return "may end" if EOS in following else "open"


@pytest.mark.parametrize(
    ("text", "params", "expected"),
    [
        ("abc/d\n", {"regex": "abc/d\n"}, "ends"),
        ("ab", {"regex": "(ab)+"}, "may end"),
        ("aba", {"regex": "(ab)+"}, "open"),
        ("ac", {"regex": "(ab)+"}, "no"),
        ("^a", {"regex": "^a$"}, "no"),
        ("a", {"regex": "^a$"}, "ends"),
        ("日本😀", {"regex": r"\w+."}, "ends"),
        ("yes", {"choice": ["yes", "no"]}, "ends"),
        ("ye", {"choice": ["ye", "yes"]}, "may end"),
        ('a"b\\\n\x01\x7fé😀', {"choice": ['a"b\\\n\x01\x7fé😀', "x"]}, "ends"),
        ("maybe", {"choice": ["yes", "no"]}, "no"),
        ("x12", {"grammar": 'start: "x" NUM // two\nNUM: /[0-9]{2}/'}, "ends"),
        ("x1", {"grammar": 'root ::= "x" num\nnum ::= [0-9]+'}, "may end"),
        ('{"a": 1}', {"grammar": 'start: %json {"properties": {"a": {"const": 1}}, "required":'
                                 ' ["a"], "type": "object", "additionalProperties": false}'},
         "ends"),
        ('{"a": 2', {"grammar": 'start: %json {"properties": {"a": {"const": 1}}}'}, "no"),
        ('{"a": [1, 2,\n    {}]}', {"json_object": True}, "ends"),
        ("[1]", {"json_object": True}, "no"),
        (' {}', {"json_object": True}, "no"),
        ('{  ', {"json_object": True}, "no"),
        ('{"a":1}', {"json_object": True, "disable_any_whitespace": True}, "ends"),
        ('{"a": ', {"json_object": True, "disable_any_whitespace": True}, "no"),
        ('{"a"  :', {"json_object": True, "whitespace_pattern": r"\s{0,2}"}, "open"),
        ('{"a"   ', {"json_object": True, "whitespace_pattern": r"\s{0,2}"}, "no"),
        ("null", {"json": {"const": None}}, "ends"),
        ("12", {"json": "{\"type\": \"integer\"}"}, "may end"),
        ("true", {"json": {}}, "ends"),
        ('"\\u0000"', {"json": {"type": "string"}}, "ends"),
        ('"\n', {"json": {"type": "string"}}, "no"),
        ('"\\ud800', {"json": {"type": "string"}}, "no"),
        ('"日本😀"', {"json": {"type": "string", "maxLength": 3, "minLength": 3}}, "ends"),
        ('"日本😀é', {"json": {"type": "string", "maxLength": 3}}, "no"),
        ('{"b', {"json": {"type": "object", "properties": {"a": {}}},
                 "disable_additional_properties": True}, "no"),
        ("3", {"json": {"$defs": {"a/b ~": {"type": "integer"}},
                        "$ref": "#/$defs/a~1b%20~0"}}, "may end"),
        ('[{"next": {"next": null}}]', {"json": {
            "$defs": {"n": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {
                "next": {"$ref": "#/$defs/n"}}, "required": ["next"]}]}},
            "type": "array", "items": {"$ref": "#/$defs/n"}}}, "ends"),
        ("Hello", {"structural_tag": CALL}, "may end"),
        ('Hi <fn=add>{"n": 3}</fn> so <fn=now>null', {"structural_tag": CALL}, "may end"),
        ('<fn=add>{"n"', {"structural_tag": CALL}, "open"),
        ("<fn=sub>", {"structural_tag": CALL}, "no"),
        ('<fn=add>{"m', {"structural_tag": CALL}, "no"),
    ],
)  # fmt: skip
def test_text_under_a_constraint(
    compiler: GrammarCompiler, text: str, params: dict[str, Any], expected: str
) -> None:
    assert fate(compiler, text, **params) == expected


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"not": {"type": "string"}}, "'not'"),
        ({"allOf": [{}, {"properties": {"a": {"not": {}}}}]}, "#/allOf/1/properties/a uses 'not'"),
        ({"$defs": {"x": {"uniqueItems": True}}, "$ref": "#/$defs/x"}, "#/$defs/x/uniqueItems"),
        ({"items": {"contains": {}}}, "#/items uses 'contains'"),
        ({"if": {}, "then": {}}, "'if'"),
        ({"properties": {"a/b": {"dependentRequired": {}}}}, "#/properties/a~1b uses"),
        ({"propertyNames": {"pattern": "a"}}, "'propertyNames'"),
        ({"unevaluatedProperties": False}, "'unevaluatedProperties'"),
        ({"minimun": 3}, "'minimun'"),
        ({"nullable": True}, "'nullable'"),
        ({"x-guidance": {"lenient": True}}, "'x-guidance'"),
        ({"anyOf": []}, "#/anyOf must be a non-empty list"),
        ({"items": [{"type": "string"}]}, "#/items must be a schema"),
        ({"type": "str"}, "#/type must be"), ({"type": []}, "#/type must be"),
        ({"exclusiveMinimum": True}, "#/exclusiveMinimum must be a number"),
        ({"minimum": "1"}, "#/minimum"), ({"maximum": 1e300}, "#/maximum must lie within"),
        ({"minLength": -1}, "#/minLength"), ({"maxItems": 2.5}, "#/maxItems"),
        ({"multipleOf": 0}, "#/multipleOf"), ({"multipleOf": 1000003}, "#/multipleOf"),
        ({"minProperties": 2}, "#/minProperties"),
        ({"required": "a"}, "#/required"), ({"properties": []}, "#/properties"),
        ({"enum": []}, "#/enum"), ({"enum": [2**70]}, "#/enum/0"),
        ({"pattern": 3}, "#/pattern"), ({"format": []}, "#/format"),
        ({"$ref": "http://example.org/s"}, "#/$ref must point into"),
        ({"$ref": "#/$defs/none"}, "#/$ref points to"), ({"$ref": "#name"}, "#/$ref must point"),
        ({"const": {"type": "string"}, "$ref": "#/const"}, "#/$ref points to"),
        ({"items": {"$id": "x"}}, "#/items uses '$id'"), ({"$dynamicRef": "#"}, "'$dynamicRef'"),
        ({"properties": {"a": 5}}, "#/properties/a must be an object"),
        ({"properties": {f"p{i}": {} for i in range(1001)}}, "1001 names"),
    ],
)  # fmt: skip
def test_schema_that_would_not_be_enforced_is_refused_with_its_place(
    schema: dict[str, Any], place: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        grammar_of(json=schema)
    assert place in str(caught.value)
    assert caught.value.param == "structured_outputs.json"


def test_neutral_keywords_and_annotations_are_taken_out() -> None:
    plain = {"type": "array", "items": {"type": "integer"}}
    said = plain | {
        "title": "t",
        "default": {"not": 1},
        "x-a": {},
        "uniqueItems": False,
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "a:b",
    }
    assert grammar_of(json=said) == grammar_of(json=plain)


@pytest.mark.parametrize(
    ("params", "field", "text"),
    [
        ({"json": "{"}, "json", "not JSON"), ({"json": "[1]"}, "json", "must be an object"),
        ({"json": '{"minimum": NaN}'}, "json", "NaN"), ({"json": "false"}, "json", "false"),
        ({"json": '{"a":' * 5000}, "json", "deeper"),
        ({"json": '{"const": "\\ud800"}'}, "json", "surrogate"),
        ({"regex": "a\\"}, "regex", "escape"),
        ({"choice": ["x"] * 10_001}, "choice", "10001"),
        ({"grammar": "start[temperature=0.5]: /a/"}, "grammar", "temperature"),
        ({"grammar": 'start[stop="x"]: /a/'}, "grammar", "stop"),
        ({"grammar": 'start: %json {"not": {}}'}, "grammar", "'not'"),
        ({"grammar": "start: %json {"}, "grammar", "embedded JSON"),
        ({"grammar": '%llguidance {"allow_invalid_utf8": true}\nstart: /a/'}, "grammar", "may set"),
        ({"grammar": "root ::= ["}, "grammar", "grammar"),
        ({"grammar": "root ::= " + "(" * 200}, "grammar", "nested"),
        ({"structural_tag": "[]"}, "structural_tag", "object"),
        ({"structural_tag": '{"structures": [], "triggers": ["a"]}'}, "structural_tag", "1 to"),
        ({"structural_tag": '{"structures": [{"begin": "b"}], "triggers": ["a"]}'},
         "structural_tag", "none of the triggers"),
        ({"structural_tag": '{"structures": [{"begin": "ab"}], "triggers": ["a", "ab"]}'},
         "structural_tag", "begins with another"),
        ({"structural_tag": '{"structures": [{"begin": "a", "schema": {"not": {}}}],'
                            ' "triggers": ["a"]}'}, "structural_tag", "'not'"),
        ({"json_object": True, "whitespace_pattern": "a*"}, "whitespace_pattern", "only"),
        ({"json_object": True, "whitespace_pattern": "[(]"}, "whitespace_pattern", "only"),
        ({"json_object": True, "whitespace_pattern": r"[^\n]"}, "whitespace_pattern", "only"),
    ],
)  # fmt: skip
def test_value_that_cannot_be_followed_is_refused(
    params: dict[str, Any], field: str, text: str
) -> None:
    with pytest.raises(ValidationError, match=text) as caught:
        grammar_of(**params)
    assert caught.value.param == f"structured_outputs.{field}"


@pytest.mark.parametrize(
    "params",
    [
        {"regex": "(a"}, {"regex": "(?=a)b"}, {"regex": "[]"}, {"grammar": "nothing here"},
        {"grammar": "start: start"}, {"grammar": "start: other"}, {"json": {"$ref": "#"}},
        {"json": {"type": "string", "pattern": "("}}, {"json": {"type": "string", "format": "x"}},
        {"json": {"type": "integer", "minimum": 2, "maximum": 1}},
        {"json": {"oneOf": [{"type": "number"}, {"type": "integer"}]}},
        {"json": {"type": "object", "properties": {f"p{i}": {} for i in range(1000)}, "allOf":
                  [{"anyOf": [{"minimum": i + j} for i in range(8)]} for j in range(6)]}},
    ],
    ids=lambda params: str(params)[:50],
)  # fmt: skip
def test_grammar_that_does_not_compile_is_told_in_one_short_line(
    compiler: GrammarCompiler, params: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError) as caught:
        compiler.compile(grammar_of(**params))
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert len(message) <= 300
    assert "%llguidance" not in message


def test_depth_counts_lists_and_objects() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(4):
        schema = {"items": schema}
    limits = StructuredOutputsConfig(max_depth=5)
    build_grammar(StructuredOutputsParams(json=schema), limits)
    with pytest.raises(ValidationError, match="deeper than 5"):
        build_grammar(StructuredOutputsParams(json={"items": schema}), limits)


def test_state_from_tokens_is_the_state_after_them(compiler: GrammarCompiler) -> None:
    grammar = grammar_of(json={"type": "array", "items": {"enum": ["ä", 1, None]}})
    token_ids = list(spell('["ä", 1, nu'))
    grown = compiler.start(grammar)
    for token_id in token_ids:
        allowed(compiler, grown)
        grown.accept(token_id)
    assert allowed(compiler, compiler.start(grammar, token_ids)) == allowed(compiler, grown)
    with pytest.raises(ValidationError, match="does not follow"):
        compiler.start(grammar, list(spell("[2")))


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.3}, "0", "open"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.3}, "0.1", "may end"),
        ({"type": "number", "exclusiveMinimum": -0.0, "maximum": 0.3}, "0", "open"),
        ({"type": "number", "exclusiveMaximum": 0, "minimum": -0.3}, "-0", "open"),
        ({"type": "number", "exclusiveMaximum": 0, "minimum": -0.3}, "-0.25", "may end"),
        ({"type": "integer", "exclusiveMinimum": 0, "maximum": 1}, "1", "ends"),
        ({"type": "number", "minimum": 0, "maximum": 0.3}, "0", "may end"),
        ({"const": 2**53}, str(2**53), "ends"),
        ({"const": -(2**53)}, str(-(2**53)), "ends"),
        ({"$defs": {"Größe x": {"const": 1}}, "$ref": "#/$defs/Größe x"}, "1", "ends"),
        ({"$defs": {"Größe": {"const": 1}}, "$ref": "#/$defs/Gr%C3%B6%C3%9Fe"}, "1", "ends"),
        ({"$defs": {"a/b%": {"const": 1}}, "$ref": "#/$defs/a~1b%25"}, "1", "ends"),
        ({"$defs": {"a<b>": {"const": 1}}, "$ref": "#/$defs/a<b>"}, "1", "ends"),
    ],
)
def test_bounds_and_names_of_schemas_are_exact(
    compiler: GrammarCompiler, schema: dict[str, Any], text: str, expected: str
) -> None:
    assert fate(compiler, text, json=schema) == expected


@pytest.mark.parametrize(
    "value", [2**53 + 1, -(2**53) - 1, -(2**63), 2**63, -1e300, [{"a": 2**63}]]
)
@pytest.mark.parametrize("keyword", ["const", "enum"])
def test_number_that_would_be_rounded_is_refused(value: object, keyword: str) -> None:
    schema = {keyword: [value] if keyword == "enum" else value}
    with pytest.raises(ValidationError, match=f"at #/{keyword}.* could not be enforced exactly"):
        grammar_of(json=schema)


def test_object_of_a_thousand_optional_properties_is_followed(compiler: GrammarCompiler) -> None:
    names = {f"p{i}": {"type": "integer"} for i in range(1000)}
    schema = {"type": "object", "properties": names, "additionalProperties": False}
    assert fate(compiler, '{"p7":1,"p999":2}', json=schema) == "ends"


def test_grammar_that_is_too_complex_behind_its_first_token_is_refused(
    compiler: GrammarCompiler,
) -> None:
    grammar = grammar_of(regex="q" + "q?" * 1000 + "z")
    compiler.compile(grammar)
    with pytest.raises(ValidationError, match="too complex"):
        compiler.try_out(grammar)


def test_message_of_a_long_pattern_tells_what_is_wrong_with_it(compiler: GrammarCompiler) -> None:
    with pytest.raises(ValidationError, match="unopened group") as caught:
        compiler.compile(grammar_of(regex="x" * 3000 + ")"))
    assert len(str(caught.value)) < 500


def test_format_of_a_number_is_enforced_by_nobody_and_so_refused(compiler: GrammarCompiler) -> None:
    with pytest.raises(ValidationError, match=r"at #/format is 'int32'.* use minimum and maximum"):
        grammar_of(json={"type": "integer", "format": "int32"})
    assert fate(compiler, "0.5", json={"type": "number", "format": "double"}) == "may end"
    assert fate(compiler, "5", json={"type": ["integer", "null"], "format": "date"}) == "may end"
    with pytest.raises(ValidationError, match="format"):
        compiler.compile(grammar_of(json={"type": ["string", "integer"], "format": "int32"}))
