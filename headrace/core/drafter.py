"""Guesses the next tokens of requests (speculative decoding), and how many to guess.

A guess costs time when it is wrong and never changes an answer: the worker samples every position
as it would have without one, and keeps a guessed token only where that gives the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config.engine import SpeculativeConfig
from headrace.core.ngram_index import NgramIndex

FIRST_TOKENS = 3
CHEAP_ROWS = 3
"""A step costs as much as its rows and so many more."""
DECAY = 0.9
"""Weight of a draft after the next one: some ten drafts count."""
PROBE_TOKENS = 8
MAX_REST = 64
"""Tokens that a request whose drafts are all wrong goes without one, at most."""


class Drafter:
    """Drafts for one request, from its own tokens.

    The rules, so that a request which says nothing twice loses next to nothing:

    - The first draft has up to FIRST_TOKENS, each later one at most twice as many tokens as were
      right in the one before, and one more.
    - With b running requests a row costs as much as 1 / (b + CHEAP_ROWS) of a step, which gives b
      tokens without drafts. So drafts pay while the share of right tokens is b / (b + CHEAP_ROWS)
      or more. While it is less, drafts have one token, one in PROBE_TOKENS.
    - When none were right `n` times in a row, the next draft comes after 2^(n-1) tokens, at most
      MAX_REST.
    """

    __slots__ = (
        "_index", "_max_tokens", "_next_at", "_num_guessed", "_num_misses", "_num_right",
        "_num_tokens", "_probe_at",
    )  # fmt: skip

    def __init__(self, config: SpeculativeConfig) -> None:
        self._index = NgramIndex(config.prompt_lookup_min, config.prompt_lookup_max)
        self._max_tokens = config.num_speculative_tokens
        self._num_tokens = min(FIRST_TOKENS, config.num_speculative_tokens)
        """Of the next draft, at most."""
        self._num_misses = 0
        self._next_at = self._probe_at = 0
        """Lengths of the sequence from which on the next draft, and a probe, may be made."""
        self._num_right, self._num_guessed = 1.0, 2.0
        """Decaying sums over the drafts so far; unknown requests are right every second time."""

    def draft(self, token_ids: Sequence[int], limit: int, num_running: int) -> list[int]:
        """At most `limit` tokens that may follow; often none.

        Args:
            num_running: running requests, this one among them.
        """
        length, count = len(token_ids), self._num_tokens
        if length < self._next_at:
            return []
        if self._num_right * (num_running + CHEAP_ROWS) < self._num_guessed * num_running:
            if length < self._probe_at:
                return []
            count = 1
        count = min(count, limit)
        return self._index.continuation(token_ids, count) if count > 0 else []

    def note(self, num_guessed: int, num_right: int, num_tokens: int) -> None:
        """Learn what became of the last draft.

        Args:
            num_guessed: its tokens; `num_right` of them were right.
            num_tokens: length of the sequence by now.
        """
        self._num_right = DECAY * self._num_right + num_right
        self._num_guessed = DECAY * self._num_guessed + num_guessed
        self._num_tokens = min(self._max_tokens, 2 * num_right + 1)
        self._num_misses = 0 if num_right else self._num_misses + 1
        rest = min(MAX_REST, 1 << min(self._num_misses, 16) >> 1)
        self._next_at = num_tokens - 1 + rest
        self._probe_at = num_tokens - 1 + PROBE_TOKENS
