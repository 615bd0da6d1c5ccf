"""Whether one more request may be queued, and if not, when it is worth trying again."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from headrace.config.engine import FrontConfig
from headrace.errors import AdmissionError

MAX_RETRY_SECONDS = 120.0
WINDOW = 64
"""Finished requests the served rate is taken from."""


class ServedRate:
    """How much is served per second, by what was served of late.

    Args:
        clock: seconds, monotonic; given by tests.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._served: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        """When requests finished, and their prompts' tokens."""

    def note(self, num_prompt_tokens: int) -> None:
        """A request was served."""
        self._served.append((self._clock(), num_prompt_tokens))

    def seconds_for(self, excess: int, *, by_tokens: bool) -> float:
        """How long serving this many requests, or prompt tokens, takes at that rate; whole seconds,
        1 to MAX_RETRY_SECONDS."""
        if len(self._served) < 2:
            return 1.0
        seconds = max(self._clock() - self._served[0][0], 1e-3)
        served = sum(n for _, n in self._served) if by_tokens else len(self._served)
        return float(min(MAX_RETRY_SECONDS, max(1, math.ceil(excess * seconds / max(served, 1)))))


class Admission:
    """The queue limits of one engine.

    Args:
        config: the limits; None is no limit, 0 lets nothing in.
        clock: seconds, monotonic; given by tests.
    """

    def __init__(self, config: FrontConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_reqs = config.max_num_queued_reqs
        self._max_tokens = config.max_num_queued_tokens
        self._rate = ServedRate(clock)

    def note_finished(self, num_prompt_tokens: int) -> None:
        """A request was served."""
        self._rate.note(num_prompt_tokens)

    def check(self, num_new: int, num_unfinished: int, num_queued_tokens: int) -> None:
        """Raise AdmissionError when `num_new` more requests would pass a limit.

        Args:
            num_unfinished: requests queued or running.
            num_queued_tokens: prompt tokens of those without a first token.
        """
        if self._max_reqs is not None and num_unfinished + num_new > self._max_reqs:
            excess = num_unfinished + num_new - self._max_reqs
            raise AdmissionError(
                f"the queue is full: {num_unfinished} requests are queued or running, "
                f"{num_new} more would pass the limit of {self._max_reqs} (max_num_queued_reqs)",
                reason="max_num_queued_reqs",
                retry_after=self._rate.seconds_for(excess, by_tokens=False),
            )
        if self._max_tokens is not None and num_queued_tokens >= self._max_tokens:
            raise AdmissionError(
                f"the queue is full: {num_queued_tokens} prompt tokens are waiting, the limit is "
                f"{self._max_tokens} (max_num_queued_tokens)",
                reason="max_num_queued_tokens",
                retry_after=self._rate.seconds_for(
                    num_queued_tokens - self._max_tokens + 1, by_tokens=True
                ),
            )
