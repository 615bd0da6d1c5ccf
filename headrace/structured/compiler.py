"""Compiles grammars for one vocabulary and follows them token by token.

The one place that knows llguidance; import it only where a grammar is to be compiled.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from headrace.errors import ValidationError
from headrace.messages.requests import Vocabulary

Masks = npt.NDArray[np.uint32]
"""[rows, ceil(vocabulary / 32)]; bit i of word w is token 32 w + i, set when it may come next."""

MAX_GRAMMARS = 128
"""Compiled grammars kept for later requests."""
MAX_THREADS = 8
MAX_ERROR = 300
MAX_ERROR_LINE = 80
_STOPS = {
    "NoExtensionBias": "the grammar allows no text",
    "NoExtension": "the grammar allows no text",
    "LexerTooComplex": "the grammar is too complex",
    "ParserTooComplex": "the grammar is too complex",
}
_TOO_COMPLEX = (
    "too many expressions", "lexer precomputation failed", "initial lexer configuration",
    "Current row has", "too many lexer states", "grammar size",
)  # fmt: skip
TRIED_TOKENS = 24
TRIED_SECONDS = 0.25
_SOURCE_LINE = re.compile(r"\s*\d+ \| ")
_PLACE = re.compile(r"^(?:at )?\d+\(\d+\): ")


class GrammarState:
    """How far one request is in its grammar."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def accept(self, token_id: int) -> None:
        """Go on by a token. One that is not allowed makes the state an error."""
        self._matcher.consume_token(token_id)

    @property
    def is_ended(self) -> bool:
        """Whether nothing may follow any more: complete, or an error."""
        return bool(self._matcher.is_stopped())

    @property
    def error(self) -> str | None:
        """Why the grammar cannot be followed further, fit for the caller to read."""
        return _short(self._matcher.get_error()) if self._matcher.is_error() else None


class GrammarCompiler:
    """Grammars of one vocabulary. `compile` may be called from any thread.

    Args:
        vocabulary: the tokens' bytes.
        vocab_size: logits in a row; ids beyond the vocabulary are never allowed.
        num_threads: how many threads fill masks.
    """

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, num_threads: int = 1) -> None:
        self._tokenizer = _make_tokenizer(vocabulary, vocab_size)
        # In the library's units: about 20 ms of work per mask, and 50 MB per grammar.
        self._limits = LLParserLimits(
            max_items_in_row=6000,
            initial_lexer_fuel=1_000_000,
            step_lexer_fuel=200_000,
            step_max_items=50_000,
            max_lexer_states=50_000,
            max_grammar_size=250_000,
            verbose_errors=False,
        )
        self._executor = LLExecutor(max(1, min(num_threads, MAX_THREADS)))
        self._grammars: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self.mask_words = -(-vocab_size // 32)

    def compile(self, grammar: str) -> None:
        """Make sure a grammar is ready. Takes long only the first time, without Python's lock.

        Raises:
            ValidationError: it is none, is over a limit, or allows no text.
        """
        self._find(grammar)

    def try_out(self, grammar: str) -> None:
        """Compile a grammar and follow it for some tokens: some are too complex only then.

        Raises: as `compile`.
        """
        state = self.start(grammar)
        masks = np.zeros((1, self.mask_words), np.uint32)
        rng = np.random.default_rng(0)
        until = time.monotonic() + TRIED_SECONDS
        for _ in range(TRIED_TOKENS):
            self.fill([state], masks)
            if state.error is not None:
                raise ValidationError(state.error)
            allowed = np.flatnonzero(np.unpackbits(masks.view(np.uint8)[0], bitorder="little"))
            state.accept(int(rng.choice(allowed)))
            if state.is_ended or time.monotonic() > until:
                return

    def start(self, grammar: str, token_ids: Sequence[int] = ()) -> GrammarState:
        """The state of a request with this grammar that has generated these tokens.

        Raises: as `compile`; ValidationError also for tokens that the grammar does not allow.
        """
        matcher = self._find(grammar).deep_copy()
        if token_ids and not matcher.consume_tokens(list(token_ids)):
            raise ValidationError("the text so far does not follow its grammar")
        return GrammarState(matcher)

    def fill(self, states: Sequence[GrammarState], masks: Masks) -> None:
        """Write what may come next for each state into its row. Holds Python's lock only briefly.

        Args:
            masks: C-contiguous, `mask_words` wide, a row per state.
        """
        rows, words = masks.shape
        if words != self.mask_words or rows < len(states) or not masks.flags.c_contiguous:
            raise ValueError(f"masks of shape {masks.shape} do not fit {len(states)} states")
        targets = [(state._matcher, row) for row, state in enumerate(states)]
        self._executor.unsafe_compute_mask_ptr(targets, masks.ctypes.data, 4 * words, rows)

    def _find(self, grammar: str) -> LLMatcher:
        with self._lock:
            known = self._grammars.get(grammar)
            if known is not None:
                self._grammars.move_to_end(grammar)
                return known
        matcher = self._compile(grammar)
        with self._lock:
            self._grammars[grammar] = matcher
            if len(self._grammars) > MAX_GRAMMARS:
                self._grammars.popitem(last=False)
        return matcher

    def _compile(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if not matcher.is_error():
            # The first mask costs the most; every copy profits from it.
            matcher.compute_bitmask()
        if matcher.is_error():
            raise ValidationError(_short(matcher.get_error()))
        if matcher.is_stopped():
            raise ValidationError("the grammar allows no text")
        return matcher


class _ByteVocabulary(TokenizerWrapper):
    """What llguidance needs of a tokenizer. It asks for no tokens: see lark.HEADER."""

    def __init__(
        self, tokens: list[bytes], special_token_ids: list[int], eos_token_id: int
    ) -> None:
        self.is_tokenizer_wrapper = True
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = eos_token_id
        self.bos_token_id = None

    def __call__(self, text: str) -> list[int]:
        raise RuntimeError("grammars are compiled so that no text is ever tokenised")


def _make_tokenizer(vocabulary: Vocabulary, vocab_size: int) -> LLTokenizer:
    tokens = vocabulary.tokens[:vocab_size]
    tokens += [b""] * (vocab_size - len(tokens))
    eos_token_ids = [i for i in vocabulary.eos_token_ids if i < vocab_size]
    if not eos_token_ids:
        raise ValidationError("structured outputs need a model with an end-of-sequence token")
    special = [i for i in vocabulary.special_token_ids if i < vocab_size]
    # Holds Python's lock all the while: 0.15 s for 49,152 tokens, 1.3 s for 262,144.
    return LLTokenizer(_ByteVocabulary(tokens, special, eos_token_ids[0]), eos_token=eos_token_ids)


def _short(error: str) -> str:
    """The first lines of an error, without the source of the library."""
    error = error.replace("<non-verbose/>", "").strip()
    error = _STOPS.get(error, error)
    if any(sign in error for sign in _TOO_COMPLEX):
        return _STOPS["LexerTooComplex"]
    lines: list[str] = []
    for line in error.splitlines():
        if _SOURCE_LINE.match(line):
            break
        lines.append(_cut(line.strip()))
    text = _PLACE.sub("", " ".join(line for line in lines if line))
    return text[:MAX_ERROR] or "the grammar cannot be followed"


def _cut(line: str) -> str:
    """A line without the middle, where it is long: it repeats what was asked for."""
    half = MAX_ERROR_LINE // 2
    return line if len(line) <= MAX_ERROR_LINE else f"{line[:half]} ... {line[-half:]}"
