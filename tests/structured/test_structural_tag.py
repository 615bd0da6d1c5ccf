"""Structural tags by format: which texts they allow, and what is refused with its place."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headrace.errors import ValidationError
from headrace.structured.compiler import GrammarCompiler
from tests.structured.fakes import EOS, allowed, babble, grammar_of, make_compiler, spell

NUMBER = {"type": "json_schema", "json_schema": {"type": "integer", "minimum": 0, "maximum": 9}}
ADD = {"type": "tag", "begin": "<fn=add>", "content": NUMBER, "end": "</fn>"}
NOTE = {"begin": "<fn=note>", "content": {"type": "any_text"}, "end": ["</fn>", "</end>"]}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<fn="], "tags": [ADD, NOTE]}
LIST = {"type": "tags_with_separator", "tags": [ADD, NOTE], "separator": ", "}
THOUGHT = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}
ROW = {"type": "sequence", "elements": [
    {"type": "regex", "pattern": "[a-z<]+"}, {"type": "const_string", "value": "</a>"}, NUMBER,
    {"type": "const_string", "value": "!"},
]}  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return make_compiler()


def grammar(part: Any) -> str:
    return grammar_of(structural_tag=json.dumps({"type": "structural_tag", "format": part}))


def fate(compiler: GrammarCompiler, text: str, part: Any) -> str:
    """`no`, or whether the answer may end behind this text, has to, or cannot yet."""
    state = compiler.start(grammar(part))
    for token_id in spell(text):
        if state.is_ended or token_id not in allowed(compiler, state):
            return "no"
        state.accept(token_id)
    if state.is_ended:
        return "ends"
    return "may end" if EOS in allowed(compiler, state) else "open"


@pytest.mark.parametrize(
    ("text", "part", "expected"),
    [
        ("yes", {"type": "const_string", "value": "yes"}, "ends"),
        ("7", NUMBER, "ends"),
        ("abc", {"type": "regex", "pattern": "[a-c]{3}"}, "ends"),
        ("any </x>\n", {"type": "any_text"}, "may end"),
        ("<fn=add>7</fn>", ADD, "ends"),
        ("<fn=add>x", ADD, "no"),
        ("<fn=note>a < b </end>", NOTE | {"type": "tag"}, "ends"),
        ("<fn=note>a < b </fn", NOTE | {"type": "tag"}, "open"),
        ("<think>so </thin</think>7",
         {"type": "sequence", "elements": [THOUGHT, NUMBER]}, "ends"),
        ("<think>so</think>x", {"type": "sequence", "elements": [THOUGHT, NUMBER]}, "no"),
        ("<think>so</think> free", {"type": "sequence",
                                    "elements": [THOUGHT, {"type": "any_text"}]}, "may end"),
        ("ab<</a>3!", ROW, "ends"),
        ("ab</a>x", ROW, "no"),
        ("3", {"type": "or", "elements": [NUMBER, THOUGHT]}, "ends"),
        ("<think>3</think>", {"type": "or", "elements": [NUMBER, THOUGHT]}, "ends"),
        ("Hi <fn=add>3</fn> so <fn=note>x</end>", TRIGGERED, "may end"),
        ("Hi <fn=sub>", TRIGGERED, "no"),
        ("Hi", TRIGGERED | {"at_least_one": True}, "open"),
        ("Hi <fn=add>3</fn>", TRIGGERED | {"at_least_one": True}, "may end"),
        ("Hi <fn=add>3</fn>", TRIGGERED | {"stop_after_first": True}, "ends"),
        ("Hi", TRIGGERED | {"stop_after_first": True}, "may end"),
        ("Hi", TRIGGERED | {"stop_after_first": True, "at_least_one": True}, "open"),
        ("", LIST, "may end"),
        ("<fn=add>3</fn>", LIST, "may end"),
        ("<fn=add>3</fn>, <fn=note>x</fn>", LIST, "may end"),
        ("<fn=add>3</fn>, ", LIST, "open"),
        ("<fn=add>3</fn><", LIST, "no"),
        ("<fn=add>3</fn>", LIST | {"stop_after_first": True}, "ends"),
        ("", LIST | {"at_least_one": True}, "open"),
        ("[<fn=add>3</fn>]", {"type": "tag", "begin": "[", "content": LIST, "end": "]"}, "ends"),
        ("<a><fn=add>3</fn>", {"type": "tag", "begin": "<a>", "content": ADD}, "ends"),
        ('"é"<x>\\', {"type": "const_string", "value": '"é"<x>\\'}, "ends"),
    ],
)  # fmt: skip
def test_text_under_a_format(
    compiler: GrammarCompiler, text: str, part: Any, expected: str
) -> None:
    assert fate(compiler, text, part) == expected


def test_random_weights_write_what_the_format_allows(compiler: GrammarCompiler) -> None:
    pattern = r"[a-z<]+</a>\d!|<think>(?s:(?!</think>).)*</think>"
    part = {"type": "or", "elements": [ROW, THOUGHT]}
    ended = 0
    for seed in range(20):
        text, is_whole = babble(compiler, grammar(part), seed)
        ended += is_whole
        assert not is_whole or re.fullmatch(pattern, text), text
    assert ended > 5


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({}, "format.type must be one of const_string"),
        ([], "format.type must be"),
        ({"type": "grammar", "grammar": "root ::= [a]"}, "format.type must be one of"),
        ({"type": "qwen_xml_parameter", "json_schema": {}}, "format.type must be one of"),
        ({"type": []}, "format.type must be one of"),
        ({"type": "const_string"}, "format.value must be a non-empty string"),
        ({"type": "regex", "pattern": "a\\"}, "format.pattern ends within an escape"),
        ({"type": "json_schema"}, "format needs json_schema"),
        ({"type": "json_schema", "json_schema": {"not": {}}}, "'not'"),
        ({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}, "format.style"),
        ({"type": "any_text", "excludes": ["x"]}, "format.excludes is not supported"),
        ({"type": "sequence", "elements": []}, "format.elements must be a list of 1 to"),
        ({"type": "sequence", "elements": [{"type": "any_text"}, NUMBER]},
         r"format.elements\[0\]: any_text needs a text that ends it"),
        ({"type": "sequence", "elements": [TRIGGERED, NUMBER]},
         r"format.elements\[0\]: triggered_tags are supported at the end of the text only"),
        ({"type": "tag", "begin": "a", "content": TRIGGERED, "end": "b"},
         "format.content: triggered_tags are supported at the end"),
        ({"type": "tag", "begin": "", "content": NUMBER}, "format.begin must be"),
        ({"type": "tag", "begin": "a", "content": NUMBER, "end": 3}, "format.end must be"),
        ({"type": "tag", "begin": "a", "content": NUMBER, "end": ["b", ""]}, "format.end must not"),
        ({"type": "tag", "begin": "a"}, "format.content.type must be"),
        (TRIGGERED | {"triggers": ["<x"]}, r"format.tags\[0\].begin starts with none"),
        (TRIGGERED | {"triggers": ["<", "<fn"]}, "begins with another"),
        (TRIGGERED | {"tags": [NUMBER]}, r"format.tags\[0\] must be a tag"),
        (TRIGGERED | {"at_least_one": 1}, "must be booleans"),
        (LIST | {"separator": None}, "format.separator must be a string"),
        (LIST | {"tags": [NOTE | {"end": ""}]}, r"format.tags\[0\].content: any_text needs"),
    ],
)  # fmt: skip
def test_format_that_cannot_be_followed_is_refused(part: Any, text: str) -> None:
    with pytest.raises(ValidationError, match=text) as caught:
        grammar(part)
    assert caught.value.param == "structured_outputs.structural_tag"


def test_formats_nested_too_deep_are_refused() -> None:
    part: Any = NUMBER
    for _ in range(150):
        part = {"type": "or", "elements": [part]}
    with pytest.raises(ValidationError, match="deeper"):
        grammar(part)


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        ({"type": "tags", "format": NUMBER}, "type must be 'structural_tag'"),
        ({"format": NUMBER, "structures": []}, "structures is not supported"),
        ({"structures": [{"begin": "a", "content": {}}], "triggers": ["a"]}, r"structures\[0\]"),
        ({"structures": [{"begin": 1}], "triggers": ["a"]}, r"structures\[0\].begin must be"),
        ({"structures": [{"begin": "a"}], "triggers": []}, "triggers must be a list"),
    ],
)
def test_shape_that_is_neither_is_refused(tag: Any, text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        grammar_of(structural_tag=json.dumps(tag))
