"""Which rows of logits a step with drafts needs, in the order in which they are sampled.

Sampling goes in rounds: the first tokens of all requests, then the second ones of those whose
first was the drafted one, and so on. So every token is chosen with all that came before it taken
in, exactly as without a draft. Rows are laid out round by round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.ops.ops import F32, I32


class DraftRows:
    """The rows of some requests.

    Args:
        last_rows: of each request, the row of its last token in the step.
        drafts: of each request, the tokens guessed, the last of which is that token; or none.
    """

    def __init__(self, last_rows: I32, drafts: Sequence[Sequence[int]]) -> None:
        self._drafts = drafts
        rows: list[int] = []
        self._places: list[dict[int, int]] = []
        """Round -> request -> its place among the rows."""
        ends = last_rows.tolist()
        members = list(range(len(ends)))
        while members:
            round_ = len(self._places)
            self._places.append({i: len(rows) + k for k, i in enumerate(members)})
            rows += [ends[i] - len(drafts[i]) + round_ for i in members]
            members = [i for i in members if len(drafts[i]) > round_]
        self.rows = np.array(rows, np.int32)
        """[num_rows], rows of the step."""

    def logits_of(self, round_: int, members: Sequence[int], logits: F32) -> F32:
        """The logits of these requests in a round, out of those of `rows`; a copy if need be."""
        places = [self._places[round_][i] for i in members]
        first, end = places[0], places[-1] + 1
        return logits[first:end] if end - first == len(places) else logits[places]

    def is_right(self, round_: int, member: int, token_id: int) -> bool:
        """Whether the token sampled in a round is the one drafted in its place."""
        draft = self._drafts[member]
        return round_ < len(draft) and draft[round_] == token_id


def cut(num_rows: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Slices [first, end) of requests that need at most `most` rows each, or are one request."""
    slices: list[tuple[int, int]] = []
    first = total = 0
    for i, num in enumerate(num_rows):
        if total and total + num > most:
            slices.append((first, i))
            first, total = i, 0
        total += num
    if total:
        slices.append((first, len(num_rows)))
    return slices
