"""Measurements as one line in the log, every so often."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from headrace.logger import make_logger
from headrace.messages.outputs import SchedulerStats
from headrace.metrics.stats import IterationStats

logger = make_logger(__name__)


class LoggingStatLogger:
    """Throughput, queue and cache in one line; at level debug while nothing happens.

    Args:
        clock: seconds, monotonic; given by tests.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._stats = SchedulerStats()
        self._stats_then = SchedulerStats()
        self._was_idle = True

    def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        """Take in one iteration."""
        self._num_prompt_tokens += iteration.num_prompt_tokens
        self._num_generation_tokens += iteration.num_generation_tokens
        self._stats = scheduler

    def log(self) -> None:
        """Say what happened since the last call."""
        now = self._clock()
        seconds = max(now - self._since, 1e-9)
        prompt = self._num_prompt_tokens / seconds
        generation = self._num_generation_tokens / seconds
        stats = self._stats
        is_idle = not (prompt or generation or stats.num_running or stats.num_waiting)
        # The first idle line is still said aloud, so that the log shows the work has ended.
        level = logging.DEBUG if is_idle and self._was_idle else logging.INFO
        logger.log(
            level,
            "prompt %.1f tokens/s, generation %.1f tokens/s, running %d, waiting %d, "
            "KV cache %.1f%%, prefix cache hits %s%s",
            prompt,
            generation,
            stats.num_running,
            stats.num_waiting,
            100 * stats.kv_cache_usage,
            self._hit_rate(),
            self._drafts(),
        )
        self._was_idle = is_idle
        self._since = now
        self._num_prompt_tokens = self._num_generation_tokens = 0
        self._stats_then = stats

    def _drafts(self) -> str:
        """What guessed tokens came to since the last line; nothing when none was guessed."""
        now, then = self._stats, self._stats_then
        num_guessed = now.num_draft_tokens - then.num_draft_tokens
        if num_guessed <= 0:
            return ""
        num_right = now.num_accepted_tokens - then.num_accepted_tokens
        share = 100 * num_right / num_guessed
        return f", guessed tokens right {num_right} of {num_guessed} ({share:.1f}%)"

    def _hit_rate(self) -> str:
        """Share of looked-up tokens found since the last line; `-` when none was looked up."""
        queries = self._stats.prefix_cache_queries - self._stats_then.prefix_cache_queries
        hits = self._stats.prefix_cache_hits - self._stats_then.prefix_cache_hits
        return f"{100 * hits / queries:.1f}%" if queries > 0 else "-"
