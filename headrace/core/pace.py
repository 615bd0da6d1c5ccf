"""How much prefill a step may take while people watch tokens come: learnt from the steps' times.

A step's time is close to a line over its tokens. The line is fitted to the latest steps, so that
one rule serves machines on which a token costs a hundredth of a step and those on which it costs
a fifth.
"""

from __future__ import annotations

MAX_STRETCH = 2.25
"""How many times longer a step may take with prefills than a usual one without. Below 3, so that
the slowest gaps between tokens stay within 3 times the usual one; much lower would make newcomers
wait: their prompts take MAX_STRETCH / (MAX_STRETCH - 1) times as long as if nobody else were there.
"""
NEWCOMERS_SHARE = MAX_STRETCH - 1
"""Prompt tokens for each token of a stream, where both keep a step busy."""
CROWD_DECAY = 0.999
"""How fast a crowd is forgotten, per step: half of it after some 700, a few answers' length."""
DECAY = 0.97
"""Weight of a step after the next one: some thirty steps count."""
FIRST_GUESS = 16.0
MAX_FIXED_TOKENS = 512.0
MIN_SPREAD = 0.5
"""Steps that differ less in their number of tokens (variance) tell nothing about its cost."""


class StepPace:
    """Cost of steps, fitted by least squares over decaying weights."""

    def __init__(self) -> None:
        self.fixed_tokens = FIRST_GUESS
        """What a step costs beside its tokens, as a number of tokens."""
        self._crowd = 0.0
        """The most requests that lately got a token in one step."""
        self._weight = 0.0
        self._x = self._xx = self._y = self._xy = 0.0

    def note(self, num_tokens: int, seconds: float, num_decodes: int) -> None:
        """Take in a step, in which so many requests got a token after another one."""
        self._crowd = max(float(num_decodes), CROWD_DECAY * self._crowd)
        self._weight = DECAY * self._weight + 1.0
        self._x = DECAY * self._x + num_tokens
        self._xx = DECAY * self._xx + num_tokens * num_tokens
        self._y = DECAY * self._y + seconds
        self._xy = DECAY * self._xy + num_tokens * seconds
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x * mean_x
        if spread < MIN_SPREAD:
            return
        per_token = (self._xy / self._weight - mean_x * mean_y) / spread
        if per_token > 0.0:
            fixed = (mean_y - per_token * mean_x) / per_token
            self.fixed_tokens = min(max(fixed, 0.0), MAX_FIXED_TOKENS)

    def prefill_tokens(self, num_decodes: int, num_present: int, num_expected: int) -> int:
        """Most prompt tokens beside so many requests that get their next token. At least 1.

        A usual step is one of the crowd that is about to run side by side, or lately did, if so
        many are there again: measured by the few who have their tokens already, the first of a
        crowd would hold up all the others, in steps too small to be worth their fixed cost. A crowd
        that never runs side by side, for want of memory or since its answers are short, does not
        count.

        Args:
            num_present: requests that run and wait.
            num_expected: those of them that are expected to run side by side.
        """
        crowd = max(min(self._crowd, num_present), num_expected)
        usual = self.fixed_tokens + max(num_decodes, crowd)
        return max(1, int(MAX_STRETCH * usual - self.fixed_tokens - num_decodes))
