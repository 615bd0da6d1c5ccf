"""Foretells how many requests will run side by side, by what they say and what others did.

Whoever measures how long a step may take needs to know it before it happens: of a crowd that has
just come, only the first have their tokens already.
"""

from __future__ import annotations

from collections import deque

from headrace.core.pace import NEWCOMERS_SHARE
from headrace.core.request import Request

RECENT_ANSWERS = 16
USUAL_RANK = RECENT_ANSWERS // 4
"""Of so many recent answers, so many may be shorter than what is expected of the next one."""
SPREAD = 2
"""How many times longer than expected an answer may become without running out of blocks."""


class Crowd:
    """The live requests of an engine. No operation depends on how many they are."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=RECENT_ANSWERS)
        self._usual = 0
        """Tokens that three of four recent answers had; 0 while too few are known."""
        self._num_lasting = 0
        self._num_tokens = 0
        """That the lasting ones may come to have."""

    def join(self, request: Request) -> None:
        """A request comes; decides whether it is one that lasts."""
        most = request.max_num_tokens - request.num_prompt_tokens
        sure = most if request.is_endless else min(request.min_tokens, most)
        expected = max(sure, min(self._usual, most))
        # Else it ends before prompts as long as its own are done beside it.
        if expected * NEWCOMERS_SHARE >= request.num_prompt_tokens:
            request.num_expected_tokens = request.num_prompt_tokens + min(SPREAD * expected, most)
            self._num_lasting += 1
            self._num_tokens += request.num_expected_tokens

    def leave(self, request: Request) -> None:
        """A request that joined has ended."""
        if request.num_expected_tokens:
            self._num_lasting -= 1
            self._num_tokens -= request.num_expected_tokens

    def note_answer(self, num_tokens: int) -> None:
        """Learn from an answer that ended by itself."""
        self._recent.append(num_tokens)
        if len(self._recent) == RECENT_ANSWERS:
            self._usual = sorted(self._recent)[USUAL_RANK]

    def size(self, max_running: int, num_blocks: int, block_size: int) -> int:
        """How many will run side by side as far as can be told; 0 where there is no room for them.

        Args:
            max_running: most that may.
            num_blocks: blocks there are for keys and values, each for `block_size` tokens.
        """
        needed = self._num_tokens + self._num_lasting * block_size  # last blocks are not full
        if needed > num_blocks * block_size:
            return 0
        return min(self._num_lasting, max_running)

    def debug_state(self) -> dict[str, int]:
        """Sizes of all that grows with requests, for leak checks."""
        return {"lasting": self._num_lasting, "expected_tokens": self._num_tokens}
