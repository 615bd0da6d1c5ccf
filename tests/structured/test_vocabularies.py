"""Token bytes are right for every kind of tokenizer: its own spelling of a text is allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.config.engine import StructuredOutputsConfig
from headrace.engine.grammar_checker import GrammarChecker
from headrace.sampling_params import StructuredOutputsParams
from headrace.structured.build import build_grammar
from headrace.structured.compiler import GrammarCompiler
from headrace.text.tokenizer import load_tokenizer

TEXT = (
    '{"näme": "Ann 😀 O\'Hara 日本語",\n  '
    '"quote": "she said \\"no\\"\\n\\tthen\\\\", "n": [1, -2.5e3]}'
)
MODELS = [
    "smollm2-135m-instruct", "smollm2-135m-instruct-gguf", "gemma3-270m", "gemma3-270m-gguf",
    "qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-0.5b-instruct-gguf",
]  # fmt: skip


@pytest.mark.model
@pytest.mark.parametrize("name", MODELS)
def test_a_models_own_spelling_of_json_is_allowed_token_by_token(
    model_dir: Callable[[str], Path], name: str
) -> None:
    folder = model_dir(name)
    tokenizer = load_tokenizer(next(folder.glob("*.gguf"), folder))
    size = tokenizer.vocab_size + 5  # models have more rows than their tokenizers have tokens
    checker = GrammarChecker(StructuredOutputsConfig(), tokenizer, tokenizer.eos_token_ids, size)
    compiler = GrammarCompiler(checker.vocabulary(), size)
    params = StructuredOutputsParams(json_object=True)
    state = compiler.start(build_grammar(params, StructuredOutputsConfig()))
    masks = np.zeros((1, compiler.mask_words), np.uint32)
    token_ids = tokenizer.encode(TEXT, add_special_tokens=False)
    for token_id in token_ids:
        assert not state.is_ended
        compiler.fill([state], masks)
        allowed = np.unpackbits(masks.view(np.uint8)[0], bitorder="little")
        assert allowed[token_id], tokenizer.token_bytes(token_id)
        assert not allowed[size - 5 :].any()
        assert not any(allowed[i] for i in tokenizer.eos_token_ids)
        state.accept(token_id)
    assert state.error is None
    assert state.is_ended
    assert b"".join(map(tokenizer.token_bytes, token_ids)).decode() == TEXT
