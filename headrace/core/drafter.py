"""Guesses the next tokens of requests (speculative decoding), and how many to guess.

A guess costs time when it is wrong and never changes an answer: the worker samples every position
as it would have without one, and keeps a guessed token only where that gives the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.engine import SpeculativeConfig
from headrace.core.ngram_index import NgramIndex

FIRST_TOKENS = 3
MAX_REST = 64
"""Tokens that a request whose drafts are all wrong goes without one, at most."""


class Drafter:
    """Drafts for one request, from its own tokens.

    The rules, so that a request which says nothing twice loses next to nothing: the first draft has
    up to FIRST_TOKENS, each later one at most twice as many tokens as were right in the one before,
    and one more. When none were right `n` times in a row, the next draft comes after 2^(n-1)
    tokens, at most MAX_REST.
    """

    __slots__ = ("_index", "_max_tokens", "_next_at", "_num_misses", "_num_tokens")

    def __init__(self, config: SpeculativeConfig) -> None:
        self._index = NgramIndex(config.prompt_lookup_min, config.prompt_lookup_max)
        self._max_tokens = config.num_speculative_tokens
        self._num_tokens = min(FIRST_TOKENS, config.num_speculative_tokens)
        """Of the next draft, at most."""
        self._num_misses = 0
        self._next_at = 0
        """Length of the sequence from which on the next draft may be made."""

    def draft(self, token_ids: Sequence[int], limit: int) -> list[int]:
        """At most `limit` tokens that may follow; often none."""
        count = min(limit, self._num_tokens)
        if count < 1 or len(token_ids) < self._next_at:
            return []
        return self._index.continuation(token_ids, count)

    def note(self, num_accepted: int, num_tokens: int) -> None:
        """Learn how many tokens of the last draft were right.

        Args:
            num_tokens: length of the sequence by now.
        """
        self._num_tokens = min(self._max_tokens, 2 * num_accepted + 1)
        if num_accepted:
            self._num_misses = 0
            return
        self._num_misses += 1
        rest = min(MAX_REST, 1 << min(self._num_misses - 1, 16))
        self._next_at = num_tokens - 1 + rest
