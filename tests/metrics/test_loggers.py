"""LoggingStatLogger: one line with rates since the last one, quiet while idle."""

from __future__ import annotations

import logging

import pytest

from headrace.messages.outputs import SchedulerStats
from headrace.metrics.loggers import LoggingStatLogger
from headrace.metrics.stats import IterationStats


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    logging.getLogger("headrace").propagate = True
    caplog.set_level(logging.DEBUG, "headrace.metrics.loggers")
    return caplog


def test_line_tells_rates_since_the_last_one(lines: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    logger = LoggingStatLogger(clock=clock)
    for queries in (100, 200):
        stats = SchedulerStats(
            num_running=2, num_waiting=1, num_blocks=4, num_free_blocks=3,
            prefix_cache_queries=queries, prefix_cache_hits=queries // 4,
        )  # fmt: skip
        logger.record(stats, IterationStats(num_prompt_tokens=50, num_generation_tokens=10))
        clock.now += 10
        logger.log()
    line = (
        "prompt 5.0 tokens/s, generation 1.0 tokens/s, running 2, waiting 1, KV cache 25.0%, "
        "prefix cache hits 25.0%"
    )
    assert lines.messages == [line, line]


def test_idle_is_said_once_and_then_only_at_debug(lines: pytest.LogCaptureFixture) -> None:
    logger = LoggingStatLogger(clock=Clock())
    logger.log()
    logger.record(SchedulerStats(), IterationStats(num_generation_tokens=1))
    for _ in range(3):
        logger.log()
    levels = [record.levelno for record in lines.records]
    assert levels == [logging.DEBUG, logging.INFO, logging.INFO, logging.DEBUG]
    assert lines.messages[-1].endswith("prefix cache hits -")
