"""Beam search under a grammar, on a real model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import LLM, BeamSearchParams, StructuredOutputsParams
from tests.waiting import PATIENCE

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def llm(model_dir: Callable[[str], Path]) -> Iterator[LLM]:
    with LLM(
        str(model_dir("smollm2-135m-instruct")),
        max_model_len=512,
        max_logprobs=32,
        structured_outputs_timeout=PATIENCE,
    ) as llm:
        yield llm


def test_beam_search_follows_a_grammar_to_its_end(llm: LLM) -> None:
    pattern = "(yes|no|perhaps), (indeed|never)"
    form = StructuredOutputsParams(regex=pattern)
    params = BeamSearchParams(beam_width=4, max_tokens=24, structured_outputs=form)
    prompts = ["Is the sky blue?", "Can fish fly?"]
    for prompt, output in zip(prompts, llm.beam_search(prompts, params), strict=True):
        answers = [beam.text.removeprefix(prompt) for beam in output.sequences if beam.text]
        assert len({tuple(beam.tokens) for beam in output.sequences}) == 4
        assert all(re.fullmatch(pattern, answer) for answer in answers), answers
        assert {beam.finish_reason for beam in output.sequences} == {"stop"}
        scores = [beam.cum_logprob for beam in output.sequences]
        assert all(math.isfinite(score) and score <= 0.0 for score in scores)


def test_beams_of_a_grammar_are_the_likeliest_of_all(llm: LLM) -> None:
    """Wide enough a search sees every answer: the best is the best by its whole score."""
    choices = ["red", "green", "blue", "red wine"]
    form = StructuredOutputsParams(choice=choices)
    params = BeamSearchParams(
        beam_width=16, max_tokens=16, length_penalty=0.0, structured_outputs=form
    )
    [output] = llm.beam_search(["My favourite colour is "], params)
    found: dict[str, float] = {}
    for beam in output.sequences:  # one answer may be spelt by several tokens
        text = (beam.text or "").removeprefix("My favourite colour is ")
        found[text] = found.get(text, 0.0) + math.exp(beam.cum_logprob)
    assert set(found) <= set(choices)
    assert sum(found.values()) == pytest.approx(1.0, abs=0.02), "a distribution over the choices"
    ignoring = BeamSearchParams(
        beam_width=2, max_tokens=16, ignore_eos=True, structured_outputs=form
    )
    [ended] = llm.beam_search(["My favourite colour is "], ignoring)
    assert {beam.finish_reason for beam in ended.sequences} == {"stop"}
