"""Names of tools and of their parameters: called and given, or refused by their field."""

from __future__ import annotations

import json

import pytest

from headrace.server.tools.choice import ToolPlan
from headrace.structured.compiler import GrammarCompiler
from headrace.text.tool_calls.call_parser import Family
from headrace.text.tool_calls.events import ToolCall
from headrace.text.tool_calls.table import FAMILIES
from tests.server.tool_grammars import (
    coder_call,
    function,
    grammar_of,
    is_whole,
    plan_or_param,
    read,
)

NAMES = ["function", "a.b-c", "a\xa0b", "\xa0", "a\u2028b", "a\x85b", "f(x)", "{}", "{x", "a{b",
         "a<b", "<f>", "</tool_call>", "a<｜tool▁sep｜>b", "<｜tool▁call▁end｜>", "NAME", "::=",
         "KEY", "😀", "'a'", "%json", "#", "```"]  # fmt: skip


def calls_of(family: Family, name: str) -> list[str]:
    """A call with the argument 1 for `a`, in each way that the family writes it."""
    if family.parameter_form is not None:
        return [coder_call(name, a="1")]
    if family.keyword_form is not None:
        return [f"[{name}(a=1)]", f"<|python_start|>[{name}(a=1)]<|python_end|>"]
    return [
        f'{form.before_all}{form.begin.replace("NAME", name)}{{"a": 1}}{form.end}{form.after_all}'
        for form in family.forms
        if form.names.fullmatch(name)
    ]


# signs in names that calls of a family cannot hold
SIGNS = {"qwen3_coder": "<", "deepseek_v3": "{<", "deepseek_v31": "{<"}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NAMES)
def test_tool_of_any_name_is_called_or_refused_by_its_name(
    compiler: GrammarCompiler, family: str, name: str
) -> None:
    parameters = {"properties": {"a": {"enum": [1]}}, "required": ["a"],
                  "additionalProperties": False}  # fmt: skip
    tool = function(name, parameters, strict=True)
    for choice in ("auto", "required"):
        plan = plan_or_param(family, tool, tool_choice=choice)
        if isinstance(plan, str):
            assert plan == "tools[0].function.name"
            if family == "pythonic":
                assert not name.replace("-", "").replace(".", "").isalnum()
            else:
                assert set(name) & set(SIGNS[family])
            continue
        texts = calls_of(plan.family, name)
        assert texts
        for text in texts:
            assert is_whole(compiler, grammar_of(plan), text)
            for is_certain in (True, False):
                [call] = read(plan.family, {name: parameters}, text, is_certain=is_certain)
                assert isinstance(call, ToolCall)
                assert call.name == name
                assert json.loads(call.arguments) == {"a": 1}


@pytest.mark.parametrize("key", ["a b", "a>b", "a<b", "a\nb", "", "a\xa0b", "KEY", '"', "::=", " ",
                                 "a-b", "日"])  # fmt: skip
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("family", ["qwen3_coder", "pythonic"])
def test_parameter_of_any_name_is_given_or_refused(
    compiler: GrammarCompiler, key: str, strict: bool, family: str
) -> None:
    parameters = {"properties": {key: {"type": "string"}}}
    tool = function("f", parameters, strict=strict)
    plan = plan_or_param(family, tool)
    if isinstance(plan, str):
        assert plan == "tools[0].function.parameters.properties"
        assert set(key) & set("<>\n") if family == "qwen3_coder" else not key.isalnum()
        assert isinstance(plan_or_param(family, tool, tool_choice="required"), ToolPlan)
        return
    text = coder_call(**{key: "x"}) if family == "qwen3_coder" else f"[f({key}='x')]"
    if strict:
        assert is_whole(compiler, grammar_of(plan), text)
    [call] = read(plan.family, {"f": parameters}, text, is_certain=strict)
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == {key: "x"}
