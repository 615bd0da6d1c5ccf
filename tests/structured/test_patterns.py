"""Patterns of strings in JSON: what is let through is what the pattern matches."""

from __future__ import annotations

import json
import re

import pytest

from headrace.errors import ValidationError
from headrace.structured.compiler import GrammarCompiler
from headrace.structured.patterns import without_nul
from tests.structured.fakes import EOS, allowed, grammar_of, make_compiler, spell

CLASSES = [
    r"[^\\]", r'[^"]', r'[^"\\]', r"[^a]", r"[^ -~]", r"[\x00-\x1f]", r"[\x00-\x20]", r"[\n\t]",
    r"[^\n\\]", r"[^\x00-\x08\\]", r"[^]\\]", r"[]\\a]", r"\S", ".", "[^\\]\\[]", r"(?:a|[^a\"])",
    r"[\]\\]", r"[/\"]",
]  # fmt: skip
TEXTS = [r"\"", r"\\", r"\n", r"\t", r"\u0007", r"\u005c", "a", "]", "[", " ", "ä", "\x7f", "😀"]


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return make_compiler()


def accepts(compiler: GrammarCompiler, schema: object, text: str) -> bool:
    state = compiler.start(grammar_of(json=schema))
    for token_id in spell(text):
        if state.is_ended or token_id not in allowed(compiler, state):
            return False
        state.accept(token_id)
    return state.is_ended or EOS in allowed(compiler, state)


@pytest.mark.parametrize("pattern", CLASSES)
def test_class_lets_through_nothing_that_it_does_not_hold(
    compiler: GrammarCompiler, pattern: str
) -> None:
    num_let_through = 0
    for text in TEXTS:
        if accepts(compiler, {"type": "string", "pattern": f"^{pattern}$"}, f'"{text}"'):
            num_let_through += 1
            assert re.fullmatch(pattern, json.loads(f'"{text}"')), text
    assert num_let_through


def test_name_of_a_property_follows_its_pattern(compiler: GrammarCompiler) -> None:
    schema = {"type": "object", "patternProperties": {'^[^"\\\\]+$': {"type": "null"}},
              "additionalProperties": False}  # fmt: skip
    assert accepts(compiler, schema, '{"ä b":null}')
    assert not accepts(compiler, schema, r'{"a\\b":null}')
    assert not accepts(compiler, schema, r'{"a\"b":null}')


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("ab", "ab"),
        (r"a\[b", r"a\[b"),
        ("x[a-z]+y", r"x[[a-z]--\x00]+y"),
        ("[]a]|[^]]", r"[[]a]--\x00]|[[^]]--\x00]"),
        (r"[\]\\]", r"[[\]\\]--\x00]"),
        ("[a[b]c]", r"[[a[b]c]--\x00]"),
        ("[[:alpha:]]", r"[[[:alpha:]]--\x00]"),
        (r"\p{L}\PN", r"[\p{L}--\x00][\PN--\x00]"),
        (r"\\x00", r"\\x00"),
    ],
)
def test_nul_is_taken_out_of_classes(pattern: str, expected: str) -> None:
    assert without_nul(pattern) == expected


@pytest.mark.parametrize("pattern", [r"\x00", r"a\u0000", r"\x{000}", r"(\U00000000|b)"])
def test_pattern_that_asks_for_nul_is_refused(pattern: str) -> None:
    with pytest.raises(ValidationError, match=r"at #/pattern asks for U\+0000"):
        grammar_of(json={"type": "string", "pattern": pattern})


def test_class_without_an_end_is_refused() -> None:
    with pytest.raises(ValidationError, match="does not end"):
        grammar_of(json={"type": "string", "pattern": "a[b"})
