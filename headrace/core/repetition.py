"""Whether an answer has begun to say the same thing over and over."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.sampling_params import RepetitionDetectionParams


class RepetitionDetector:
    """Watches one answer for a pattern of tokens that comes `min_count` times in a row.

    For each size of a pattern it counts how many of the last tokens equal the one that far before;
    so a token costs one look at the last max_pattern_size tokens, however long the answer is.
    """

    __slots__ = ("_max_size", "_min_size", "_num_repeats", "_runs")

    def __init__(self, params: RepetitionDetectionParams) -> None:
        self._min_size, self._max_size = params.min_pattern_size, params.max_pattern_size
        self._num_repeats = params.min_count - 1
        self._runs: dict[int, int] = {}
        """Size -> how many tokens in a row equal the one that far before; none is left out."""

    def append(self, token_ids: Sequence[int], num_output_tokens: int) -> bool:
        """Take in the last of these tokens; whether a pattern is complete with it.

        Args:
            num_output_tokens: how many at the end belong to the answer.
        """
        last = len(token_ids) - 1
        token_id = token_ids[last]
        sizes = range(self._min_size, min(self._max_size, num_output_tokens - 1) + 1)
        runs = self._runs
        self._runs = {
            size: runs.get(size, 0) + 1 for size in sizes if token_ids[last - size] == token_id
        }
        return any(run >= size * self._num_repeats for size, run in self._runs.items())
