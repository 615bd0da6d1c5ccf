"""Random schemas under random weights: whatever comes to its end is what the schema asked for."""

from __future__ import annotations

import jsonschema
import pytest

from headrace.structured.compiler import GrammarCompiler
from tests.structured.fakes import babble, grammar_of, make_compiler
from tests.structured.schemas import SchemaMaker, read_strictly

NUM_SCHEMAS = 200


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return make_compiler()


@pytest.mark.parametrize("first", range(0, NUM_SCHEMAS, 20))
def test_every_completed_text_validates_at_temperature_2(
    compiler: GrammarCompiler, first: int
) -> None:
    num_complete = 0
    for seed in range(first, first + 20):
        schema = SchemaMaker(seed).make()
        jsonschema.Draft202012Validator.check_schema(schema)
        grammar = grammar_of(json=schema)
        for turn in range(3):
            text, is_complete = babble(compiler, grammar, seed=3 * seed + turn)
            if is_complete:
                num_complete += 1
                jsonschema.Draft202012Validator(schema).validate(read_strictly(text))
    assert num_complete > 40


def test_same_schema_gives_the_same_grammar_and_seed_the_same_text(
    compiler: GrammarCompiler,
) -> None:
    schema = SchemaMaker(7).make()
    assert grammar_of(json=schema) == grammar_of(json=schema)
    grammar = grammar_of(json=schema)
    assert babble(compiler, grammar, 1) == babble(make_compiler(), grammar, 1)


@pytest.mark.parametrize("seed", range(20))
def test_small_schema_ends_however_much_white_space_is_wanted(
    compiler: GrammarCompiler, seed: int
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"const": 1}},
              "required": ["a", "b"], "additionalProperties": False}  # fmt: skip
    text, is_complete = babble(compiler, grammar_of(json=schema), seed, limit=250)
    assert is_complete, text
    assert read_strictly(text)["b"] == 1
