"""Constraints that begin behind a thought, of every kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.structured.compiler import GrammarCompiler
from headrace.structured_params import ThoughtMarks
from tests.structured.fakes import EOS, allowed, grammar_of, make_compiler, spell

KINDS: list[tuple[dict[str, Any], str]] = [
    ({"json": {"type": "object", "properties": {"start": {"type": "integer"}},
               "additionalProperties": False}}, '{"start": 1}'),
    ({"json_object": True}, '{"start": [1]}'),
    ({"regex": "start[0-9]"}, "start7"),
    ({"choice": ["start", "stop"]}, "stop"),
    ({"grammar": 'start: start_of "x" | "(" start ")"\nstart_of: "start" // start\n'},
     "((startx))"),
    ({"grammar": 'root ::= "start" [0-9]'}, "start7"),
    ({"structural_tag": json.dumps({"format": {"type": "const_string", "value": "start"}})},
     "start"),
]  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return make_compiler()


def is_whole(compiler: GrammarCompiler, text: str, **params: Any) -> bool:
    """Whether a text is allowed and may end there."""
    state = compiler.start(grammar_of(**params))
    for token_id in spell(text):
        if state.is_ended or token_id not in allowed(compiler, state):
            return False
        state.accept(token_id)
    return state.is_ended or EOS in allowed(compiler, state)


@pytest.mark.parametrize(("params", "answer"), KINDS, ids=lambda v: str(v)[:30])
def test_constraint_holds_behind_a_thought_and_nowhere_in_it(
    compiler: GrammarCompiler, params: dict[str, Any], answer: str
) -> None:
    marks = ThoughtMarks("<think>", "</think>")
    for thought in ("", "x", "\nso {} </thin\n日本 "):
        for lines in ("", "\n\n"):
            text = f"<think>{thought}</think>{lines}{answer}"
            assert is_whole(compiler, text, **params, behind_thought=marks)
    assert is_whole(compiler, answer, **params, behind_thought=marks)
    for text in ("<think>x</think>", "<think>x", "x</think>" + answer, "<think>x</think>wrong"):
        assert not is_whole(compiler, text, **params, behind_thought=marks)


@pytest.mark.parametrize(("params", "answer"), KINDS, ids=lambda v: str(v)[:30])
def test_thought_that_is_open_has_to_be_closed_first(
    compiler: GrammarCompiler, params: dict[str, Any], answer: str
) -> None:
    marks = ThoughtMarks("<think>", "</think>", is_open=True)
    assert is_whole(compiler, f"x</think>\n\n{answer}", **params, behind_thought=marks)
    assert not is_whole(compiler, answer, **params, behind_thought=marks)
