"""How many tokens a request has spent between the model's marks of thinking."""

from __future__ import annotations

from collections.abc import Sequence


class ThinkingBudget:
    """Counts the tokens of all thoughts of an answer together.

    Args:
        budget: how many there may be. The marks themselves do not count.
        start_id, end_id: the marks.
        prompt_token_ids: a thought may have been opened there; what it holds there does not count.
    """

    __slots__ = ("_end_id", "_is_thinking", "_left", "_start_id")

    def __init__(
        self, budget: int, start_id: int, end_id: int, prompt_token_ids: Sequence[int]
    ) -> None:
        self._left = budget
        self._start_id, self._end_id = start_id, end_id
        last_mark = next((t for t in reversed(prompt_token_ids) if t in (start_id, end_id)), None)
        self._is_thinking = last_mark == start_id

    @property
    def must_end(self) -> bool:
        """Whether the next token is to be the closing mark."""
        return self._is_thinking and self._left <= 0

    def append(self, token_id: int) -> None:
        """Take in the answer's next token."""
        if token_id == self._start_id:
            self._is_thinking = True
        elif token_id == self._end_id:
            self._is_thinking = False
        elif self._is_thinking:
            self._left -= 1
