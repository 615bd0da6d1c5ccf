"""Finds where the last tokens of a request stood before, so that what followed can be guessed.

Knows no policy: how long a guess is, and whether one is made, is the drafter's business.
"""

from __future__ import annotations

from collections.abc import Sequence


class NgramIndex:
    """Every run of min_size to max_size tokens of one growing sequence -> what came after it.

    A look-up costs the same in a short sequence and in a long one, and each token is taken in once.
    All calls must be given the same sequence, which only grows.

    Args:
        min_size, max_size: tokens in a run, 1 <= min_size <= max_size.
    """

    __slots__ = ("_ends", "_num_indexed")

    def __init__(self, min_size: int, max_size: int) -> None:
        self._ends: dict[int, dict[tuple[int, ...], int]] = {
            size: {} for size in range(max_size, min_size - 1, -1)
        }
        """Size, largest first -> run -> the position behind its last appearance."""
        self._num_indexed = 0
        """All runs that end at this position or before are known."""

    def continuation(self, token_ids: Sequence[int], count: int) -> list[int]:
        """What `count` more tokens would be, if things went on as they did the last time.

        The longest run at the end that stood before decides, and of its appearances the last. When
        the tokens behind that one come to their end, they go on with what is guessed here: a
        repeating pattern is continued.

        Returns:
            `count` tokens; none when no run is known.
        """
        self._take_in(token_ids)
        start = self._last_place(token_ids)
        if start is None:
            return []
        guess = list(token_ids[start : start + count])
        period = len(token_ids) - start
        while len(guess) < count:
            guess.append(guess[len(guess) - period])
        return guess

    def _last_place(self, token_ids: Sequence[int]) -> int | None:
        """The position behind the last appearance of the longest known run at the end."""
        for size, ends in self._ends.items():
            if size < len(token_ids):
                start = ends.get(tuple(token_ids[-size:]))
                if start is not None:
                    return start
        return None

    def _take_in(self, token_ids: Sequence[int]) -> None:
        """Note all runs that something follows: those that end before the last token."""
        end = len(token_ids) - 1
        for size, ends in self._ends.items():
            first = max(self._num_indexed + 1, size)
            if first <= end:
                window = token_ids[first - size : end]
                runs = zip(*(window[i:] for i in range(size)), strict=False)
                ends.update(zip(runs, range(first, end + 1), strict=True))
        self._num_indexed = max(self._num_indexed, end)
