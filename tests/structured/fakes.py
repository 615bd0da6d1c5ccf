"""A small vocabulary, and a model that says anything: random logits under a grammar."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.config.engine import StructuredOutputsConfig
from headrace.messages.requests import Vocabulary
from headrace.sampling_params import SamplingParams, StructuredOutputsParams
from headrace.structured.build import build_grammar
from headrace.structured.compiler import GrammarCompiler
from headrace.worker.sampler import Sampler
from headrace.worker.sampling_state import SamplingState

PIECES = [
    '{"', '": ', '":', '", "', '"}', '"]', "[{", "}]", "}}", "]]", "[[", ", ", ": ", "  ", "\n    ",
    "null", "true", "false", " true", "und", "the", "ab", "cd", "abc", "10", "00", "-1", "1.", ".5",
    "e+", '\\"', "\\\\", "\\n", "\\u00", "ä", "ß", "日", "本", "日本", "😀", " 😀", "é\"", "häß",
]  # fmt: skip
TOKENS = [bytes([byte]) for byte in range(256)] + [text.encode() for text in PIECES]
EOS, OTHER_EOS, MARK = len(TOKENS), len(TOKENS) + 1, len(TOKENS) + 2
VOCABULARY = Vocabulary(
    [*TOKENS, b"<eos>", b"<end>", b"<mark>"], [EOS, OTHER_EOS, MARK], [EOS, OTHER_EOS]
)
VOCAB_SIZE = len(TOKENS) + 3 + 10
"""Ten rows of the model have no token."""


def make_compiler() -> GrammarCompiler:
    return GrammarCompiler(VOCABULARY, VOCAB_SIZE, num_threads=2)


def grammar_of(**params: object) -> str:
    """The grammar for fields of StructuredOutputsParams."""
    asked = StructuredOutputsParams(**params)  # type: ignore[arg-type]
    return build_grammar(asked, StructuredOutputsConfig())


def allowed(compiler: GrammarCompiler, state: object) -> set[int]:
    """The tokens that may come next."""
    masks = np.zeros((1, compiler.mask_words), np.uint32)
    compiler.fill([state], masks)  # type: ignore[list-item]
    bits = np.unpackbits(masks.view(np.uint8)[0], bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def babble(
    compiler: GrammarCompiler, grammar: str, seed: int, *, limit: int = 400
) -> tuple[str, bool]:
    """What random weights write under a grammar at temperature 2, and whether it ended."""
    sampler = Sampler(VOCAB_SIZE, num_threads=1)
    rng = np.random.default_rng(seed)
    state = SamplingState(SamplingParams(temperature=2.0), seed, [], [], VOCAB_SIZE)
    followed = compiler.start(grammar)
    masks = np.zeros((1, compiler.mask_words), np.uint32)
    written: list[int] = []
    for _ in range(limit):
        compiler.fill([followed], masks)
        logits = rng.normal(0.0, 3.0, (1, VOCAB_SIZE)).astype(np.float32)
        sampled = sampler.sample(logits, [state], masks, [0])
        assert not sampled.errors
        [token_id] = sampled.token_ids
        state.append(token_id)
        followed.accept(token_id)
        assert followed.error is None
        if token_id in (EOS, OTHER_EOS):
            return text_of(written), True
        written.append(token_id)
        if followed.is_ended:
            return text_of(written), True
    return text_of(written, errors="replace"), False


def text_of(token_ids: list[int], errors: str = "strict") -> str:
    return b"".join(VOCABULARY.tokens[i] for i in token_ids).decode(errors=errors)


def spell(text: str) -> Iterator[int]:
    """The tokens of a text, byte by byte."""
    yield from text.encode()
